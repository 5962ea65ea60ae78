// SPDX-License-Identifier: Apache-2.0
//! The C interface of the rmsnorm library, name by name.
//!
//! The header `rmsnorm/rmsnorm.h`, which the library installs, describes every item. Functions that
//! are inline in C are absent: they only fill in structs. The crate `rmsnorm` is the safe interface.
#![allow(non_camel_case_types)]

use std::ffi::c_void;
use std::os::raw::c_char;

/// C's enumerations, each a type and its constants
macro_rules! enumerations {
    ($($name:ident { $($constant:ident = $value:literal,)* })*) => {$(
        pub type $name = i32;
        $(pub const $constant: $name = $value;)*
    )*};
}
enumerations! {
    rmsnorm_status {
        RMSNORM_OK = 0, RMSNORM_ERROR_NULL = 1, RMSNORM_ERROR_STRUCT_SIZE = 2,
        RMSNORM_ERROR_DTYPE = 3, RMSNORM_ERROR_SHAPE = 4, RMSNORM_ERROR_LAYOUT = 5,
        RMSNORM_ERROR_OVERLAP = 6, RMSNORM_ERROR_OPTION = 7, RMSNORM_ERROR_OPERAND = 8,
        RMSNORM_ERROR_TARGET = 9, RMSNORM_ERROR_MEMORY = 10, RMSNORM_ERROR_DEVICE = 11,
    }
    rmsnorm_dtype {
        RMSNORM_F32 = 1, RMSNORM_F16 = 2, RMSNORM_BF16 = 3, RMSNORM_F64 = 4, RMSNORM_I8 = 5,
    }
    rmsnorm_eps_placement {
        RMSNORM_EPS_INSIDE = 0, RMSNORM_EPS_OUTSIDE = 1, RMSNORM_EPS_FLOOR = 2,
    }
    rmsnorm_rounding {
        RMSNORM_ROUND_AFTER_WEIGHT = 0, RMSNORM_ROUND_BEFORE_WEIGHT = 1, RMSNORM_ROUND_INVERSE = 2,
    }
    rmsnorm_residual_rounding { RMSNORM_RESIDUAL_ROUNDED = 0, RMSNORM_RESIDUAL_UNROUNDED = 1, }
    rmsnorm_activation {
        RMSNORM_ACTIVATION_SILU = 0, RMSNORM_ACTIVATION_SIGMOID = 1, RMSNORM_ACTIVATION_NONE = 2,
    }
    rmsnorm_gate_placement { RMSNORM_GATE_AFTER = 0, RMSNORM_GATE_BEFORE = 1, }
    rmsnorm_gate_rounding { RMSNORM_GATE_UNROUNDED = 0, RMSNORM_GATE_ROUNDED = 1, }
    rmsnorm_rotary_pairs { RMSNORM_ROTARY_HALVES = 0, RMSNORM_ROTARY_NEIGHBOURS = 1, }
    rmsnorm_rotary_part { RMSNORM_ROTARY_START = 0, RMSNORM_ROTARY_END = 1, }
    rmsnorm_rotary_rounding {
        RMSNORM_ROTARY_ROUND_EACH = 0, RMSNORM_ROTARY_ROUND_NORM = 1, RMSNORM_ROTARY_ROUND_NONE = 2,
    }
    rmsnorm_stores {
        RMSNORM_STORES_BY_SIZE = 0, RMSNORM_STORES_STREAMED = 1, RMSNORM_STORES_CACHED = 2,
    }
}

pub const RMSNORM_MAX_DIMS: usize = 8;
pub const RMSNORM_VIEW_ABSENT: i32 = -1000;
pub const RMSNORM_VIEW_WRONG_STRIDES: i32 = -1001;
pub const RMSNORM_VIEW_NEGATIVE_SIZE: i32 = -1002;
pub const RMSNORM_VIEW_WRONG_NDIM: i32 = -1003;
pub const RMSNORM_ADD_TO_DX: u32 = 1;
pub const RMSNORM_ADD_TO_DW: u32 = 2;
pub const RMSNORM_ADD_TO_DB: u32 = 4;

// The pointers that most functions take
type View = *const rmsnorm_view;
type Operands = *const rmsnorm_operands;
type Options = *const rmsnorm_options;
type Context = *const rmsnorm_context;
type Module = *const rmsnorm_module;
type Call = *const rmsnorm_call;
type Prepared = *mut rmsnorm_prepared;
type Text = *const c_char;

/// Never null where the library hands one to an executor.
pub type rmsnorm_task = Option<unsafe extern "C" fn(state: *mut c_void, index: usize)>;
pub type rmsnorm_parallel_for = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        count: usize,
        task: rmsnorm_task,
        state: *mut c_void,
    ),
>;

/// Known to the library alone.
#[repr(C)]
pub struct rmsnorm_module([u8; 0]);

/// Known to the library alone.
#[repr(C)]
pub struct rmsnorm_prepared([u8; 0]);

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rmsnorm_view {
    pub data: *const c_void,
    pub dtype: rmsnorm_dtype,
    pub ndim: i32,
    pub shape: [usize; RMSNORM_MAX_DIMS],
    pub stride: [isize; RMSNORM_MAX_DIMS],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rmsnorm_operands {
    pub size: u32,
    pub add_to: u32,
    pub x: View,
    pub residual: View,
    pub dy: View,
    pub gate: View,
    pub weight: View,
    pub bias: View,
    pub post_norm_weight: View,
    pub cos: View,
    pub sin: View,
    pub sums: View,
    pub residual_out: View,
    pub y: View,
    pub q: View,
    pub rstd: View,
    pub sums_out: View,
    pub scale: View,
    pub zero: View,
    pub dx: View,
    pub dw: View,
    pub db: View,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rmsnorm_options {
    pub size: u32,
    pub eps: f32,
    pub eps_placement: rmsnorm_eps_placement,
    pub rounding: rmsnorm_rounding,
    pub residual_rounding: rmsnorm_residual_rounding,
    pub weight_offset: f32,
    pub divisor: f32,
    pub factor: f32,
    pub activation: rmsnorm_activation,
    pub gate_placement: rmsnorm_gate_placement,
    pub gate_rounding: rmsnorm_gate_rounding,
    pub group: i32,
    pub residual_factor: f32,
    pub rotary_pairs: rmsnorm_rotary_pairs,
    pub rotary_part: rmsnorm_rotary_part,
    pub rotary_rounding: rmsnorm_rotary_rounding,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rmsnorm_context {
    pub size: u32,
    pub threads: i32,
    pub parallel_for: rmsnorm_parallel_for,
    pub parallel_context: *mut c_void,
    pub target: Text,
    pub stores: rmsnorm_stores,
    pub reserved: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct rmsnorm_call {
    pub module: Module,
    pub operands: Operands,
    pub options: Options,
}

/// No operand, and nothing to add to: `rmsnorm_no_operands()` of the header.
impl Default for rmsnorm_operands {
    fn default() -> Self {
        // SAFETY: zeros are numbers, and null pointers.
        let zeros = unsafe { std::mem::zeroed() };
        Self { size: std::mem::size_of::<Self>() as u32, ..zeros }
    }
}

extern "C" {
    pub fn rmsnorm_status_text(status: rmsnorm_status) -> Text;
    pub fn rmsnorm_error_message() -> Text;
    pub fn rmsnorm_version() -> Text;
    pub fn rmsnorm_dtype_size(dtype: rmsnorm_dtype) -> usize;
    pub fn rmsnorm_dtype_name(dtype: rmsnorm_dtype) -> Text;
    pub fn rmsnorm_merge_dims(
        ndim: i32,
        shape: *mut usize,
        stride: *const *mut isize,
        tensors: usize,
    ) -> i32;
    pub fn rmsnorm_default_options() -> rmsnorm_options;
    pub fn rmsnorm_default_context() -> rmsnorm_context;
    pub fn rmsnorm_forward(
        operands: Operands,
        options: Options,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_norm(x: View, weight: View, y: View, options: Options) -> rmsnorm_status;
    pub fn rmsnorm_add_norm(
        x: View,
        residual: View,
        weight: View,
        residual_out: View,
        y: View,
        options: Options,
    ) -> rmsnorm_status;
    pub fn rmsnorm_forward_all(calls: Call, count: usize, context: Context) -> rmsnorm_status;
    pub fn rmsnorm_prepare(
        prepared: *mut Prepared,
        calls: Call,
        count: usize,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_prepare_backward(
        prepared: *mut Prepared,
        call: Call,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_run(prepared: Prepared) -> rmsnorm_status;
    pub fn rmsnorm_prepared_destroy(prepared: Prepared);
    pub fn rmsnorm_backward(
        operands: Operands,
        options: Options,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_create(
        module: *mut *mut rmsnorm_module,
        d: usize,
        dtype: rmsnorm_dtype,
        options: Options,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_destroy(module: *mut rmsnorm_module);
    pub fn rmsnorm_module_set_weight(module: *mut rmsnorm_module, weight: View) -> rmsnorm_status;
    pub fn rmsnorm_module_get_weight(module: Module, weight: View) -> rmsnorm_status;
    pub fn rmsnorm_module_set_bias(module: *mut rmsnorm_module, bias: View) -> rmsnorm_status;
    pub fn rmsnorm_module_set_post_norm_weight(
        module: *mut rmsnorm_module,
        post_norm_weight: View,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_reset_weight(module: *mut rmsnorm_module) -> rmsnorm_status;
    pub fn rmsnorm_module_d(module: Module) -> usize;
    pub fn rmsnorm_module_dtype(module: Module) -> rmsnorm_dtype;
    pub fn rmsnorm_module_options(module: Module) -> Options;
    pub fn rmsnorm_module_describe(module: Module) -> Text;
    pub fn rmsnorm_module_forward(
        module: Module,
        operands: Operands,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_backward(
        module: Module,
        operands: Operands,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_norm_rows(
        module: Module,
        dtype: rmsnorm_dtype,
        rows: usize,
        x: *const c_void,
        y: *mut c_void,
        rstd: *mut f32,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_add_norm_rows(
        module: Module,
        dtype: rmsnorm_dtype,
        residual_dtype: rmsnorm_dtype,
        rows: usize,
        x: *const c_void,
        residual: *const c_void,
        residual_out: *mut c_void,
        y: *mut c_void,
        rstd: *mut f32,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_module_backward_rows(
        module: Module,
        dtype: rmsnorm_dtype,
        rows: usize,
        dy: *const c_void,
        x: *const c_void,
        rstd: *const f32,
        dx: *mut c_void,
        dw: *mut f32,
        context: Context,
    ) -> rmsnorm_status;
    pub fn rmsnorm_target_name(index: usize) -> Text;
    pub fn rmsnorm_find_target(name: Text, exact_name: *mut Text) -> rmsnorm_status;
    pub fn rmsnorm_max_threads() -> i32;
    pub fn rmsnorm_has_openmp() -> i32;
    pub fn rmsnorm_highway_version() -> Text;
}

// SPDX-License-Identifier: Apache-2.0
// The C interface from Rust: plain structs and extern functions, without a crate. The end of
// doc/other_languages.md shows how to compile this.

use std::ffi::CStr;
use std::os::raw::{c_char, c_void};
use std::ptr::null;

const F32: i32 = 1;
const BF16: i32 = 3;
const ROUND_BEFORE_WEIGHT: i32 = 1;

/// rmsnorm_view
#[repr(C)]
struct View {
    data: *const c_void,
    dtype: i32,
    ndim: i32,
    shape: [usize; 8],
    stride: [isize; 8],
}

impl View {
    /// Dense rows of d elements.
    fn rows<T>(data: &[T], dtype: i32, d: usize) -> View {
        View {
            data: data.as_ptr().cast(),
            dtype,
            ndim: 2,
            shape: [data.len() / d, d, 0, 0, 0, 0, 0, 0],
            stride: [d as isize, 1, 0, 0, 0, 0, 0, 0],
        }
    }
    /// Dense rows of d elements that a call writes.
    fn rows_mut<T>(data: &mut [T], dtype: i32, d: usize) -> View {
        let mut view = View::rows(data, dtype, d);
        view.data = data.as_mut_ptr() as *const c_void;
        view
    }
}

/// rmsnorm_operands; null is an absent operand.
#[repr(C)]
struct Operands {
    size: u32,
    add_to: u32,
    x: *const View,
    residual: *const View,
    dy: *const View,
    gate: *const View,
    weight: *const View,
    bias: *const View,
    post_norm_weight: *const View,
    sums: *const View,
    residual_out: *const View,
    y: *const View,
    q: *const View,
    rstd: *const View,
    sums_out: *const View,
    scale: *const View,
    zero: *const View,
    dx: *const View,
    dw: *const View,
    db: *const View,
}

/// rmsnorm_options; 0 is the default of every field but eps.
#[repr(C)]
#[derive(Default)]
struct Options {
    size: u32,
    eps: f32,
    eps_placement: i32,
    rounding: i32,
    residual_rounding: i32,
    weight_offset: f32,
    divisor: f32,
    factor: f32,
    activation: i32,
    gate_placement: i32,
    gate_rounding: i32,
}

/// rmsnorm_context; 0 is the default of every field.
#[repr(C)]
struct Context {
    size: u32,
    threads: i32,
    parallel_for: *const c_void,
    parallel_context: *mut c_void,
    target: *const c_char,
}

/// rmsnorm_module
#[repr(C)]
struct Module {
    _private: [u8; 0],
}

unsafe extern "C" {
    fn rmsnorm_error_message() -> *const c_char;
    fn rmsnorm_default_options() -> Options;
    fn rmsnorm_norm(
        x: *const View,
        weight: *const View,
        y: *const View,
        options: *const Options,
    ) -> i32;
    fn rmsnorm_forward(
        operands: *const Operands,
        options: *const Options,
        context: *const Context,
    ) -> i32;
    fn rmsnorm_module_create(
        module: *mut *mut Module,
        d: usize,
        dtype: i32,
        options: *const Options,
        context: *const Context,
    ) -> i32;
    fn rmsnorm_module_destroy(module: *mut Module);
    fn rmsnorm_module_add_norm_rows(
        module: *const Module,
        dtype: i32,
        residual_dtype: i32,
        rows: usize,
        x: *const c_void,
        residual: *const c_void,
        residual_out: *mut c_void,
        y: *mut c_void,
        rstd: *mut f32,
        context: *const Context,
    ) -> i32;
}

fn check(status: i32) -> Result<(), String> {
    if status == 0 {
        return Ok(());
    }
    // The message belongs to this thread and stays until its next failing call.
    let message = unsafe { CStr::from_ptr(rmsnorm_error_message()) };
    Err(message.to_string_lossy().into_owned())
}

fn main() -> Result<(), String> {
    let x = [3.0f32, 4.0, 6.0, 8.0];
    let mut y = [0.0f32; 4];
    let x_view = View::rows(&x, F32, 2);
    let y_view = View::rows_mut(&mut y, F32, 2);
    let options = Options {
        size: std::mem::size_of::<Options>() as u32,
        eps: 1e-6,
        ..Default::default()
    };
    check(unsafe { rmsnorm_norm(&x_view, null(), &y_view, &options) })?;
    println!("norm: {:.4} {:.4} {:.4} {:.4}", y[0], y[1], y[2], y[3]);

    // Named operands: the inverse RMS of each row as well, on one thread.
    let mut rstd = [0.0f32; 2];
    let mut rstd_view = View::rows_mut(&mut rstd, F32, 2);
    rstd_view.ndim = 1;
    rstd_view.shape[0] = 2;
    rstd_view.stride[0] = 1;
    let mut operands: Operands = unsafe { std::mem::zeroed() };
    operands.size = std::mem::size_of::<Operands>() as u32;
    operands.x = &x_view;
    operands.y = &y_view;
    operands.rstd = &rstd_view;
    let mut context: Context = unsafe { std::mem::zeroed() };
    context.size = std::mem::size_of::<Context>() as u32;
    context.threads = 1;
    check(unsafe { rmsnorm_forward(&operands, &options, &context) })?;
    println!("rstd: {:.4} {:.4}", rstd[0], rstd[1]);

    // A module for rows by pointer adds a layer's output in bf16 to a stream in f32, in place.
    let mut of_layer = unsafe { rmsnorm_default_options() };
    of_layer.rounding = ROUND_BEFORE_WEIGHT;
    let mut module = std::ptr::null_mut();
    check(unsafe { rmsnorm_module_create(&mut module, 2, BF16, &of_layer, null()) })?;
    let layer = [0x3f80u16, 0x4000]; // 1 and 2
    let mut stream = [2.0f32, 2.0];
    let mut next = [0u16; 2];
    let in_place: *mut c_void = stream.as_mut_ptr().cast();
    let status = unsafe {
        rmsnorm_module_add_norm_rows(
            module,
            BF16,
            F32,
            1,
            layer.as_ptr().cast(),
            in_place,
            in_place,
            next.as_mut_ptr().cast(),
            std::ptr::null_mut(),
            null(),
        )
    };
    let added = check(status);
    unsafe { rmsnorm_module_destroy(module) };
    added?;
    println!("add_norm: {} {} {:04x} {:04x}", stream[0], stream[1], next[0], next[1]);

    // A failed call gives a status and a message.
    let wrong = Options { eps: -1.0, ..options };
    let refused = check(unsafe { rmsnorm_norm(&x_view, null(), &y_view, &wrong) });
    println!("refused: {}", refused.unwrap_err());
    Ok(())
}

// SPDX-License-Identifier: Apache-2.0
use crate::{View, ViewMut};
use rmsnorm_sys as sys;
use std::ptr::null;

pub(crate) trait RawOperands {
    /// The operands of the C interface, which point into this struct.
    fn raw(&self) -> sys::rmsnorm_operands;
}

/// Where an optional value lies, as the C interface takes it.
pub(crate) fn pointer<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(null(), |value| value)
}

/// A struct of operands, each absent at first. A line for each.
macro_rules! operands {
    (
        $(#[$doc:meta])*
        $name:ident { $($(#[$of_operand:meta])* $operand:ident: $view:ident,)* }
        $($(#[$of_flag:meta])* $flag:ident: $bit:ident,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name<'a> {
            $($(#[$of_operand])* pub $operand: Option<$view<'a>>,)*
            $($(#[$of_flag])* pub $flag: bool,)*
        }

        impl RawOperands for $name<'_> {
            fn raw(&self) -> sys::rmsnorm_operands {
                sys::rmsnorm_operands {
                    $($operand: self.$operand.as_ref().map_or(null(), |view| &view.raw),)*
                    add_to: 0 $(| if self.$flag { sys::$bit } else { 0 })*,
                    ..sys::rmsnorm_operands::default()
                }
            }
        }
    };
}

operands! {
    /// The tensors of a forward call.
    ///
    /// x has any shape `[..., d]`. Tensors of rows have the shape of x. Tensors of columns have the shape
    /// `[d]`, or leading dimensions that are equal to x's or 1. Tensors with a value for each row have the
    /// leading dimensions of x, or one element where x has one dimension.
    ///
    /// x and at least one output are needed. Types are f32, f16 and bf16 in any combination where no
    /// other is named. residual_out has the type of residual.
    ForwardOperands {
        /// Input, rows
        x: View,
        /// Input, rows: x is added to it before the norm
        residual: View,
        /// Input, rows: an activation of it multiplies x or the norm
        gate: View,
        /// Input, columns
        weight: View,
        /// Input, columns: added after the weight
        bias: View,
        /// Input, columns: x is first normalised, by this weight
        post_norm_weight: View,
        /// Input, `[..., R / 2]` with leading dimensions as columns have them: cosines by which pairs of
        /// the norm are rotated
        cos: View,
        /// Input, in the same way: the sines
        sin: View,
        /// Input, an f64 for each row: sums of squares that replace the sums of x
        sums: View,
        /// Output, rows: residual + x; may replace residual
        residual_out: ViewMut,
        /// Output, rows: the norm; may replace x
        y: ViewMut,
        /// Output, rows of i8: the norm, quantised; needs scale
        q: ViewMut,
        /// Output, an f32 for each row: 1 / RMS
        rstd: ViewMut,
        /// Output, an f64 for each row: the sums of squares of the input of the norm
        sums_out: ViewMut,
        /// Output, an f32 for each row or group of it: the step from one integer of q to the next
        scale: ViewMut,
        /// Output, an i8 for each of these: the integer of q that stands for 0
        zero: ViewMut,
    }
}

operands! {
    /// The tensors of a backward call, and whether gradients are added to the values in their memory.
    ///
    /// Shapes and types are as in [`ForwardOperands`]. x, dy and at least one output are needed.
    BackwardOperands {
        /// Input, rows: the input of the norm
        x: View,
        /// Input, rows: the gradient by y
        dy: View,
        /// Input, columns: as in the forward call
        weight: View,
        /// Input: as in the forward call
        cos: View,
        /// Input: as in the forward call
        sin: View,
        /// Input, an f32 for each row: an output of the forward call
        rstd: View,
        /// Output, rows: the gradient by x; may replace dy
        dx: ViewMut,
        /// Output, columns: the gradient by the weight, in its shape
        dw: ViewMut,
        /// Output, columns: the gradient by the bias
        db: ViewMut,
    }
    /// Add dx to the values in its memory
    add_to_dx: RMSNORM_ADD_TO_DX,
    /// Add dw to the values in its memory
    add_to_dw: RMSNORM_ADD_TO_DW,
    /// Add db to the values in its memory
    add_to_db: RMSNORM_ADD_TO_DB,
}

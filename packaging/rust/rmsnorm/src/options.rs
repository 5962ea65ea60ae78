// SPDX-License-Identifier: Apache-2.0
use rmsnorm_sys as sys;

macro_rules! choices {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$of_value:meta])* $value:ident = $constant:ident,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum $name {
            $($(#[$of_value])* $value = sys::$constant,)*
        }
    )*};
}

choices! {
    /// Where eps is added.
    EpsPlacement {
        /// x / sqrt(mean(x²) + eps): Llama, Gemma, T5, Qwen, DeepSeek
        #[default]
        Inside = RMSNORM_EPS_INSIDE,
        /// x / (sqrt(mean(x²)) + eps)
        Outside = RMSNORM_EPS_OUTSIDE,
        /// x / max(sqrt(mean(x²)), eps): L2 norms, with a divisor of 1
        Floor = RMSNORM_EPS_FLOOR,
    }
    /// When the normalised value n = x / RMS is rounded to the type of x.
    Rounding {
        /// y = cast_y(n * w): PyTorch's rms_norm, Gemma
        #[default]
        AfterWeight = RMSNORM_ROUND_AFTER_WEIGHT,
        /// y = cast_y(cast_x(n) * w): Hugging Face's Llama, T5 and DeepSeek-V3
        BeforeWeight = RMSNORM_ROUND_BEFORE_WEIGHT,
        /// The same with n = x * cast_x(1 / RMS): DeepSeek-V4
        Inverse = RMSNORM_ROUND_INVERSE,
    }
    /// The input of the norm where there is a residual.
    ResidualRounding {
        /// The sum, rounded to the type of the residual
        #[default]
        Rounded = RMSNORM_RESIDUAL_ROUNDED,
        /// The sum in f32
        Unrounded = RMSNORM_RESIDUAL_UNROUNDED,
    }
    /// The function of an element z of the gate.
    Activation {
        /// z / (1 + exp(-z))
        #[default]
        Silu = RMSNORM_ACTIVATION_SILU,
        /// 1 / (1 + exp(-z))
        Sigmoid = RMSNORM_ACTIVATION_SIGMOID,
    }
    /// What the gate multiplies.
    GatePlacement {
        /// The norm, with weight and bias: Qwen3-Next, Kimi-Linear
        #[default]
        After = RMSNORM_GATE_AFTER,
        /// x, before it is normalised: Mamba-2
        Before = RMSNORM_GATE_BEFORE,
    }
    /// Whether the norm is rounded to the type of x before the gate multiplies it.
    GateRounding {
        /// It is not: Kimi-Linear
        #[default]
        Unrounded = RMSNORM_GATE_UNROUNDED,
        /// It is: Qwen3-Next
        Rounded = RMSNORM_GATE_ROUNDED,
    }
    /// Whether y or dx passes through the caches.
    Stores {
        /// It does, for a caller who reads the result next
        #[default]
        Cached = RMSNORM_STORES_CACHED,
        /// It does not, for a large result that is not read soon
        Streamed = RMSNORM_STORES_STREAMED,
    }
}

/// A field for each option, with its default.
macro_rules! options {
    ($(#[$doc:meta])* { $($(#[$of_option:meta])* $option:ident: $kind:ty = $default:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Options {
            $($(#[$of_option])* pub $option: $kind,)*
        }

        impl Default for Options {
            fn default() -> Self {
                Self { $($option: $default,)* }
            }
        }

        impl Options {
            pub(crate) fn raw(&self) -> sys::rmsnorm_options {
                sys::rmsnorm_options {
                    size: std::mem::size_of::<sys::rmsnorm_options>() as u32,
                    $($option: self.$option as _,)*
                }
            }
        }
    };
}

options! {
    /// How to normalise. Options decide the bits of a result.
    ///
    /// A later version may have more of them, so end with the defaults:
    ///
    /// ```
    /// use rmsnorm::{Options, Rounding};
    ///
    /// let llama = Options { eps: 1e-6, rounding: Rounding::BeforeWeight, ..Options::default() };
    /// ```
    {
        /// Finite and not negative; 1e-5 by default
        eps: f32 = 1e-5,
        /// Where eps is added
        eps_placement: EpsPlacement = EpsPlacement::Inside,
        /// When the normalised value is rounded
        rounding: Rounding = Rounding::AfterWeight,
        /// The input of the norm where there is a residual
        residual_rounding: ResidualRounding = ResidualRounding::Rounded,
        /// Added to the weight in f32: 1 for Gemma
        weight_offset: f32 = 0.0,
        /// Divides the sum of squares; 0 means d
        divisor: f32 = 0.0,
        /// x is first multiplied by this; 0 means 1, which leaves x alone
        factor: f32 = 0.0,
        /// The function of the gate
        activation: Activation = Activation::Silu,
        /// What the gate multiplies
        gate_placement: GatePlacement = GatePlacement::After,
        /// Whether the norm is rounded before the gate
        gate_rounding: GateRounding = GateRounding::Unrounded,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_library_s() {
        // SAFETY: the function takes nothing.
        let defaults = unsafe { sys::rmsnorm_default_options() };
        assert_eq!(format!("{:?}", Options::default().raw()), format!("{:?}", defaults));
    }
}

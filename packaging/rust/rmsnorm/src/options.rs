// SPDX-License-Identifier: Apache-2.0
use rmsnorm_sys as sys;

/// An enumeration with the numbers of the C interface. The first value is the default.
macro_rules! choices {
    (
        $(#[$doc:meta])*
        $name:ident {
            $(#[$of_default:meta])* $default:ident = $zero:ident,
            $($(#[$of_value:meta])* $value:ident = $constant:ident,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum $name {
            $(#[$of_default])* #[default] $default = sys::$zero,
            $($(#[$of_value])* $value = sys::$constant,)*
        }
    };
}
pub(crate) use choices;

/// The options, each a number or an enumeration: its values follow.
macro_rules! options {
    (
        $(#[$of_all:meta])*
        $($option:ident: $kind:ident, $doc:literal $({ $($values:tt)* })?)*
    ) => {
        $($(choices! { #[doc = $doc] $kind { $($values)* } })?)*

        $(#[$of_all])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Options {
            $(#[doc = $doc] pub $option: $kind,)*
        }

        impl Default for Options {
            fn default() -> Self {
                let zeros = Self { $($option: Default::default(),)* };
                Self { eps: 1e-5, ..zeros }
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
    eps: f32, "Finite and not negative; 1e-5 by default"
    eps_placement: EpsPlacement, "Where eps is added" {
        /// x / sqrt(mean(x²) + eps): Llama, Gemma, T5, Qwen, DeepSeek
        Inside = RMSNORM_EPS_INSIDE,
        /// x / (sqrt(mean(x²)) + eps)
        Outside = RMSNORM_EPS_OUTSIDE,
        /// x / max(sqrt(mean(x²)), eps): L2 norms, with a divisor of 1
        Floor = RMSNORM_EPS_FLOOR,
    }
    rounding: Rounding, "When the normalised value n = x / RMS is rounded to the type of x" {
        /// y = cast_y(n * w): PyTorch's rms_norm, Gemma
        AfterWeight = RMSNORM_ROUND_AFTER_WEIGHT,
        /// y = cast_y(cast_x(n) * w): Hugging Face's Llama, T5 and DeepSeek-V3
        BeforeWeight = RMSNORM_ROUND_BEFORE_WEIGHT,
        /// The same with n = x * cast_x(1 / RMS): DeepSeek-V4
        Inverse = RMSNORM_ROUND_INVERSE,
    }
    residual_rounding: ResidualRounding, "The input of the norm where there is a residual" {
        /// The sum, rounded to the type of the residual
        Rounded = RMSNORM_RESIDUAL_ROUNDED,
        /// The sum in f32
        Unrounded = RMSNORM_RESIDUAL_UNROUNDED,
    }
    weight_offset: f32, "Added to the weight in f32: 1 for Gemma"
    divisor: f32, "Divides the sum of squares; 0 means d"
    factor: f32, "x is first multiplied by this; 0 means 1, which leaves x alone"
    activation: Activation, "The function of an element z of the gate" {
        /// z / (1 + exp(-z))
        Silu = RMSNORM_ACTIVATION_SILU,
        /// 1 / (1 + exp(-z))
        Sigmoid = RMSNORM_ACTIVATION_SIGMOID,
        /// z itself: diffusion transformers
        None = RMSNORM_ACTIVATION_NONE,
    }
    gate_placement: GatePlacement, "What the gate multiplies" {
        /// The norm, with weight and bias: Qwen3-Next, Kimi-Linear
        After = RMSNORM_GATE_AFTER,
        /// x, before a residual is added: Mamba-2, diffusion transformers
        Before = RMSNORM_GATE_BEFORE,
    }
    gate_rounding: GateRounding,
    "Whether the norm is rounded to the type of x before a gate after it, or the product of a gate before it" {
        /// Neither is: Kimi-Linear, Mamba-2
        Unrounded = RMSNORM_GATE_UNROUNDED,
        /// It is: Qwen3-Next, diffusers
        Rounded = RMSNORM_GATE_ROUNDED,
    }
    group: i32, "Elements of q with a separate scale: a power of two from 8 to 4096 that divides d; 0 means d"
    residual_factor: f32, "Multiplies residual + x; 0 means 1; needs a residual"
    rotary_pairs: RotaryPairs, "Which elements of the rotated part, of R elements, are a pair" {
        /// i and i + R / 2: GPT-NeoX, Llama, Qwen, Gemma
        Halves = RMSNORM_ROTARY_HALVES,
        /// 2 i and 2 i + 1: GPT-J, Cohere, GLM
        Neighbours = RMSNORM_ROTARY_NEIGHBOURS,
    }
    rotary_part: RotaryPart, "Where the rotated part of a row lies" {
        /// The first R elements
        Start = RMSNORM_ROTARY_START,
        /// The last R elements: DeepSeek-V4
        End = RMSNORM_ROTARY_END,
    }
    rotary_rounding: RotaryRounding, "What is rounded to the type of y on the way from the norm to y" {
        /// The norm, cos, sin, each product and each sum: transformers
        Each = RMSNORM_ROTARY_ROUND_EACH,
        /// The norm, and the result: a norm followed by a kernel for rotations
        Norm = RMSNORM_ROTARY_ROUND_NORM,
        /// The result alone
        None = RMSNORM_ROTARY_ROUND_NONE,
    }
}

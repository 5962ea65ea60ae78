// SPDX-License-Identifier: Apache-2.0
use rmsnorm_sys as sys;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$of_value:meta])* $value:ident = $constant:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum $name {
            $($(#[$of_value])* $value = sys::$constant,)*
        }
    };
}

choice! {
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
}
choice! {
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
}
choice! {
    /// The input of the norm where there is a residual.
    ResidualRounding {
        /// The sum, rounded to the type of the residual
        #[default]
        Rounded = RMSNORM_RESIDUAL_ROUNDED,
        /// The sum in f32
        Unrounded = RMSNORM_RESIDUAL_UNROUNDED,
    }
}
choice! {
    /// The function of an element z of the gate.
    Activation {
        /// z / (1 + exp(-z))
        #[default]
        Silu = RMSNORM_ACTIVATION_SILU,
        /// 1 / (1 + exp(-z))
        Sigmoid = RMSNORM_ACTIVATION_SIGMOID,
    }
}
choice! {
    /// What the gate multiplies.
    GatePlacement {
        /// The norm, with weight and bias: Qwen3-Next, Kimi-Linear
        #[default]
        After = RMSNORM_GATE_AFTER,
        /// x, before it is normalised: Mamba-2
        Before = RMSNORM_GATE_BEFORE,
    }
}
choice! {
    /// Whether the norm is rounded to the type of x before the gate multiplies it.
    GateRounding {
        /// It is not: Kimi-Linear
        #[default]
        Unrounded = RMSNORM_GATE_UNROUNDED,
        /// It is: Qwen3-Next
        Rounded = RMSNORM_GATE_ROUNDED,
    }
}
choice! {
    /// Whether y or dx passes through the caches.
    Stores {
        /// It does, for a caller who reads the result next
        #[default]
        Cached = RMSNORM_STORES_CACHED,
        /// It does not, for a large result that is not read soon
        Streamed = RMSNORM_STORES_STREAMED,
    }
}

/// How to normalise. Options decide the bits of a result.
///
/// A later version may have more of them, so end with the defaults:
///
/// ```
/// use rmsnorm::{Options, Rounding};
///
/// let llama = Options { eps: 1e-6, rounding: Rounding::BeforeWeight, ..Options::default() };
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Finite and not negative; 1e-5 by default
    pub eps: f32,
    /// Where eps is added
    pub eps_placement: EpsPlacement,
    /// When the normalised value is rounded
    pub rounding: Rounding,
    /// The input of the norm where there is a residual
    pub residual_rounding: ResidualRounding,
    /// Added to the weight in f32: 1 for Gemma
    pub weight_offset: f32,
    /// Divides the sum of squares; 0 means d
    pub divisor: f32,
    /// x is first multiplied by this; 0 means 1, which leaves x alone
    pub factor: f32,
    /// The function of the gate
    pub activation: Activation,
    /// What the gate multiplies
    pub gate_placement: GatePlacement,
    /// Whether the norm is rounded before the gate
    pub gate_rounding: GateRounding,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            eps: 1e-5,
            eps_placement: EpsPlacement::default(),
            rounding: Rounding::default(),
            residual_rounding: ResidualRounding::default(),
            weight_offset: 0.0,
            divisor: 0.0,
            factor: 0.0,
            activation: Activation::default(),
            gate_placement: GatePlacement::default(),
            gate_rounding: GateRounding::default(),
        }
    }
}

impl Options {
    pub(crate) fn raw(&self) -> sys::rmsnorm_options {
        sys::rmsnorm_options {
            size: std::mem::size_of::<sys::rmsnorm_options>() as u32,
            eps: self.eps,
            eps_placement: self.eps_placement as i32,
            rounding: self.rounding as i32,
            residual_rounding: self.residual_rounding as i32,
            weight_offset: self.weight_offset,
            divisor: self.divisor,
            factor: self.factor,
            activation: self.activation as i32,
            gate_placement: self.gate_placement as i32,
            gate_rounding: self.gate_rounding as i32,
        }
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

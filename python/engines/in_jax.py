# SPDX-License-Identifier: Apache-2.0
"""JAX: the norm in f32, cast, and multiplied by the weight, under jit."""

import jax
import jax.numpy as jnp

FRAMEWORK = "jax"


@jax.jit
def norm(x, weight):
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)
    return (x32 * scale).astype(x.dtype) * weight


@jax.jit
def norm_of_sum(x, residual, weight):
    h = x + residual
    return norm(h, weight), h


NORMS = {"the formula": norm, "the formula after a sum": norm_of_sum}

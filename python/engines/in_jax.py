# SPDX-License-Identifier: Apache-2.0
"""JAX: the norm in f32, cast, and multiplied by the weight, under jit; and modules over JAX.

A function imports its module, so that one that does not work with this JAX is one line of errors.
"""

import os

import jax
import jax.numpy as jnp

os.environ["KERAS_BACKEND"] = "jax"
FRAMEWORK = "jax"


@jax.jit
def formula(x, weight):
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + 1e-6)
    return (x32 * scale).astype(x.dtype) * weight


@jax.jit
def after_sum(x, residual, weight):
    h = x + residual
    return formula(h, weight), h


def nnx_norm(x, weight):
    from flax import nnx

    module = nnx.RMSNorm(weight.size, rngs=nnx.Rngs(0))
    module.scale = nnx.Param(weight)
    return module(x)


def linen_norm(x, weight):
    from flax import linen

    return linen.RMSNorm().apply({"params": {"scale": weight}}, x)


def keras_norm(x, weight):
    import keras

    layer = keras.layers.RMSNormalization(dtype=x.dtype.name)
    layer.build(x.shape)
    layer.scale.assign(weight)
    return layer(x)


def equinox_norm(x, weight):
    import equinox

    module = equinox.nn.RMSNorm(weight.size, use_bias=False, dtype=weight.dtype)
    return jax.vmap(equinox.tree_at(lambda m: m.weight, module, weight))(x)


def haiku_norm(x, weight):
    import haiku

    norm = haiku.without_apply_rng(haiku.transform(lambda x: haiku.RMSNorm(axis=-1)(x)))
    return norm.apply({"rms_norm": {"scale": weight}}, x)


ENGINES = {
    "JAX": {"the formula": formula, "the formula after a sum": after_sum},
    "Flax": {"`nnx.RMSNorm`": nnx_norm, "`linen.RMSNorm`": linen_norm},
    "Keras": {"`layers.RMSNormalization`": keras_norm},
    "Equinox": {"`nn.RMSNorm`": equinox_norm},
    "Haiku": {"`RMSNorm`": haiku_norm},
}

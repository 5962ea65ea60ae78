# SPDX-License-Identifier: Apache-2.0
"""Flax: RMSNorm of nnx and of linen, and nnx's in the type of x."""

from flax import linen, nnx

FRAMEWORK = "jax"


def in_nnx(x, weight, **types):
    module = nnx.RMSNorm(weight.size, rngs=nnx.Rngs(0), **types)
    module.scale = nnx.Param(weight)
    return module(x)


def in_linen(x, weight):
    return linen.RMSNorm().apply({"params": {"scale": weight}}, x)


NORMS = {"`nnx.RMSNorm`": lambda x, weight: in_nnx(x, weight), "`linen.RMSNorm`": in_linen}

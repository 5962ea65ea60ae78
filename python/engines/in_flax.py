# SPDX-License-Identifier: Apache-2.0
"""Flax: RMSNorm of nnx and of linen."""

from flax import linen, nnx

FRAMEWORK = "jax"


def in_nnx(x, weight):
    module = nnx.RMSNorm(weight.size, rngs=nnx.Rngs(0))
    module.scale = nnx.Param(weight)
    return module(x)


def in_linen(x, weight):
    return linen.RMSNorm().apply({"params": {"scale": weight}}, x)


NORMS = {"`nnx.RMSNorm`": in_nnx, "`linen.RMSNorm`": in_linen}

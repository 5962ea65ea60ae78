# SPDX-License-Identifier: Apache-2.0
"""identify() of norms in JAX.

Run as a program it writes their table in doc/identify.md.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from identify_page import Norm, Norms

import rmsnorm
import rmsnorm.jax


def normalized(x):
    h = x.astype(jnp.float32)
    return h * jax.lax.rsqrt(jnp.mean(jnp.square(h), axis=-1, keepdims=True) + 1e-6)


def once(x, weight):
    """As flax.linen.RMSNorm, but that multiplies r and the weight first."""
    return (normalized(x) * weight).astype(x.dtype)


def gemma(x, weight):
    """As Google's gemma computes it, in x's type from the norm on."""
    return normalized(x).astype(x.dtype) * (1 + weight)


def llama(x, weight):
    return normalized(x).astype(x.dtype) * weight


def ours(x, weight):
    return rmsnorm.jax.rms_norm(x, weight, eps=1e-6, weight_offset=1.0)


def in_type(dtype):
    return {"dtype": dtype, "framework": "jax"}


ONCE, BEFORE = "rounded once, after the weight", "rounded to bf16 before the weight"
EPS = "eps 1e-06 inside the root"
F32, BF16 = in_type("float32"), in_type("bfloat16")

SYSTEMS = Norms(
    "JAX",
    {
        "`(n * weight).astype(x.dtype)`": Norm(once, f"{EPS}, {ONCE}", BF16),
        "`(n * weight).astype(x.dtype)` under `jit`": Norm(jax.jit(once), f"{EPS}, {ONCE}", BF16),
        "`n.astype(x.dtype) * weight`": Norm(llama, f"{EPS}, {BEFORE}", BF16),
        "`n.astype(x.dtype) * weight` under `jit`": Norm(jax.jit(llama), f"{EPS}, {BEFORE}", BF16),
        "`n.astype(x.dtype) * (1 + weight)`": Norm(
            gemma, f"{EPS}, {BEFORE}, 1 + weight is rounded to bf16", BF16
        ),
        "`n.astype(x.dtype) * (1 + weight)` in f32": Norm(
            gemma, f"1 added to the weight, {EPS}", F32
        ),
        "`rmsnorm.jax.rms_norm(..., weight_offset=1)`": Norm(
            ours, f"1 added to the weight, {EPS}, {ONCE}", BF16
        ),
    },
)


test_what_is_known_of_jax, test_page_has_jax = SYSTEMS.tests()


def test_what_can_be_tried_in_jax():
    answer = rmsnorm.identify(ours, 100, "bfloat16", framework="jax", device=jax.devices("cpu")[0])
    assert answer.fit == "exact"
    assert answer.depends == {"repetition": 0, "history": 0, "batch": 0, "place": 0}


def test_refused_results():
    with pytest.raises(ValueError, match="ndarray, which is no array of JAX, instead of y"):
        rmsnorm.identify(lambda x, w: np.asarray(x), 100, framework="jax")


if __name__ == "__main__":
    SYSTEMS.write()

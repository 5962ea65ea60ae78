# SPDX-License-Identifier: Apache-2.0
"""RMSNorm for JAX on CPUs, through XLA's foreign function interface."""

import ctypes
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ._calls import c_options
from ._library import path_of

_handler = ctypes.CDLL(str(path_of("rmsnorm_jax"))).rmsnorm_jax
_capsule = jax.ffi.pycapsule(_handler)  # type: ignore[no-untyped-call]
jax.ffi.register_ffi_target("rmsnorm", _capsule, platform="cpu")


@partial(jax.jit, static_argnames=("eps", "rounding", "weight_offset"))
def rms_norm(
    x: jax.Array,
    weight: jax.Array | None = None,
    *,
    eps: float = 1e-5,
    rounding: Literal["after_weight", "before_weight", "inverse"] = "after_weight",
    weight_offset: float = 0.0,
) -> jax.Array:
    """Computes y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) for each row of x.

    x has the shape [..., d], and y has its shape and type. weight has the shape [d], and it is 1
    where it is absent. Both types are float32, float16 or bfloat16. rmsnorm.h explains the
    options. jit and vmap can trace the function, and grad and vjp can differentiate it once. XLA's
    threads share the rows.

    The call raises ValueError for a type, shape or rounding that is not possible, and for a
    weight_offset without a weight. It raises jax.errors.JaxRuntimeError with the library's text
    for an eps or a weight_offset that is not possible.

    The formula is equation 4 of Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019,
    arXiv:1910.07467. The gradients are its derivatives.
    """
    columns = jnp.ones(x.shape[-1:], x.dtype) if weight is None else weight
    if weight is None and weight_offset != 0:
        raise ValueError("weight_offset: it needs a weight")
    if columns.shape != x.shape[-1:]:
        raise ValueError(f"weight: its shape is {columns.shape}, and the shape of x is {x.shape}")
    if not {x.dtype.name, columns.dtype.name} <= {"float32", "float16", "bfloat16"}:
        raise ValueError(f"x, weight: the types {x.dtype} and {columns.dtype} are not possible")
    options = c_options(eps=eps, rounding=rounding, weight_offset=weight_offset)

    def call(outputs: Any, *inputs: jax.Array) -> Any:
        handler: Any = jax.ffi.ffi_call("rmsnorm", outputs, vmap_method="expand_dims")
        return handler(*inputs, options=np.frombuffer(options, np.int32))

    norm: Any = jax.custom_vjp(lambda x, weight: call(x, x, weight))
    norm.defvjp(
        lambda x, weight: (call(x, x, weight), (x, weight)),
        lambda kept, dy: call(kept, *kept, dy),
    )
    y: jax.Array = norm(x.reshape(-1, x.shape[-1]), columns.reshape(1, -1))
    return y.reshape(x.shape)

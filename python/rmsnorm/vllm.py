# SPDX-License-Identifier: Apache-2.0
"""The norms of vLLM on the CPU.

vLLM finds register() by itself, as an entry point of the group `vllm.general_plugins`. It makes
"rmsnorm" a provider of the operations rms_norm and fused_add_rms_norm of vllm.ir.ops. vLLM uses
the provider on request:

    vllm serve MODEL --ir-op-priority.rms_norm rmsnorm --ir-op-priority.fused_add_rms_norm rmsnorm

The definition is vLLM's own, in vllm/ir/ops/layernorm.py. h is x, or the float32 sum of x and
x_residual. All arithmetic is in float32, with n = h / sqrt(mean(h^2) + epsilon):

    y = cast_x(cast_weight(n) * weight)

For a weight of float32 this is the library's rounding order "after_weight", and for a weight of
the type of x it is "before_weight". vLLM hands what is not on the CPU, other types of weight,
a variance_size, and shapes that need a broadcast to its next provider.
"""

from typing import Literal

import torch
from torch import Tensor
from vllm.ir import ops

from . import torch as norms

_PROVIDER = "rmsnorm"
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def _supports_rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    if x.device.type != "cpu" or x.dtype not in _DTYPES or x.ndim == 0 or x.shape[-1] == 0:
        return False
    return variance_size is None and (
        weight is None
        or (
            weight.device == x.device
            and weight.dtype in (x.dtype, torch.float32)
            and weight.shape == x.shape[-1:]
        )
    )


def _supports_fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> bool:
    return (
        x_residual.device == x.device
        and x_residual.dtype == x.dtype
        and x_residual.shape == x.shape
        and _supports_rms_norm(x, weight, epsilon, variance_size)
    )


def _rounding(weight: Tensor | None) -> Literal["after_weight", "before_weight"]:
    keeps_n = weight is None or weight.dtype == torch.float32
    return "after_weight" if keeps_n else "before_weight"


def _rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> Tensor:
    return norms.rms_norm(x, weight, epsilon, rounding=_rounding(weight))


def _fused_add_rms_norm(
    x: Tensor,
    x_residual: Tensor,
    weight: Tensor | None,
    epsilon: float,
    variance_size: int | None = None,
) -> tuple[Tensor, Tensor]:
    return norms.fused_add_rms_norm(
        x,
        x_residual,
        weight,
        epsilon,
        rounding=_rounding(weight),
        residual_rounding="unrounded",
    )


def register() -> None:
    """Registers the provider with vLLM. A second call does nothing."""
    if _PROVIDER in ops.rms_norm.impls:
        return
    for operation, implementation, supports_args in (
        (ops.rms_norm, _rms_norm, _supports_rms_norm),
        (ops.fused_add_rms_norm, _fused_add_rms_norm, _supports_fused_add_rms_norm),
    ):
        operation.register_impl(_PROVIDER, supports_args=supports_args)(implementation)

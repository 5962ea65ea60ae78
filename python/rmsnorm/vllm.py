# SPDX-License-Identifier: Apache-2.0
"""The norms of vLLM on the CPU.

vLLM finds register() by itself, as an entry point of the group `vllm.general_plugins`. It makes
"rmsnorm" a provider of the operations rms_norm and fused_add_rms_norm of vllm.ir.ops. vLLM uses
the provider on request:

    vllm serve MODEL --ir-op-priority.rms_norm rmsnorm --ir-op-priority.fused_add_rms_norm rmsnorm
    vllm.LLM(MODEL, ir_op_priority={"rms_norm": ["rmsnorm"], "fused_add_rms_norm": ["rmsnorm"]})

The definition is vLLM's own, in vllm/ir/ops/layernorm.py. h is x, or the float32 sum of x and
x_residual. All arithmetic is in float32, with n = h / sqrt(mean(h^2) + epsilon):

    y = cast_x(cast_weight(n) * weight)

For a weight of float32 this is the library's rounding order "after_weight", and for a weight of
the type of x it is "before_weight". vLLM hands what is not on the CPU, other types of weight,
a variance_size, and shapes that need a broadcast to its next provider.

vLLM loads the plug-in in each process before it starts threads. The operations then depend on
nothing but their arguments, so that any number of threads can call them.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false
from vllm.ir import ops

from . import torch as norms
from .torch._composite import DTYPES

__all__ = ["register"]

_PROVIDER = "rmsnorm"


def _equal(a: Sequence[int], b: Sequence[int]) -> bool:
    """Compares two shapes. Where torch.compile cannot know, they count as different."""
    if torch.compiler.is_compiling():
        return len(a) == len(b) and all(guard_or_false(m == n) for m, n in zip(a, b, strict=True))
    return a == b


def _supports_rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, variance_size: int | None = None
) -> bool:
    if x.device.type != "cpu" or x.dtype not in DTYPES or x.ndim == 0:
        return False
    if variance_size is not None or not guard_or_false(x.shape[-1] > 0):
        return False
    return weight is None or (
        weight.device == x.device
        and weight.dtype in (x.dtype, torch.float32)
        and _equal(weight.shape, x.shape[-1:])
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
        and _equal(x_residual.shape, x.shape)
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
    """Registers the provider "rmsnorm" of the operations rms_norm and fused_add_rms_norm.

    vLLM calls this function once in each process. A second call does nothing. Neither call changes
    which provider vLLM chooses: its option ir_op_priority does.
    """
    if _PROVIDER in ops.rms_norm.impls:
        return
    for operation, implementation, supports_args in (
        (ops.rms_norm, _rms_norm, _supports_rms_norm),
        (ops.fused_add_rms_norm, _fused_add_rms_norm, _supports_fused_add_rms_norm),
    ):
        operation.register_impl(_PROVIDER, supports_args=supports_args)(implementation)

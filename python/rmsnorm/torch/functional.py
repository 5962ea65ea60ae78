# SPDX-License-Identifier: Apache-2.0
"""rms_norm with the signature of torch.nn.functional.rms_norm."""

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from .._options import NormOptions
from . import _functions
from ._composite import DTYPES
from ._functions import overridable
from ._options import takes

__all__ = ["rms_norm"]


@overridable
@takes(
    NormOptions,
    input="a tensor whose shape ends in normalized_shape.",
    normalized_shape="the dimensions that the norm is over.",
    weight="a tensor of the shape normalized_shape; absent, it counts as ones.",
)
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    **options: Unpack[NormOptions],
) -> Tensor:
    """Returns the norm of `input` over its last dimensions, which are normalized_shape.

    The result has the shape and the type of `input`. The options and gradients are those of
    rmsnorm.torch.rms_norm(). Another shape of `input` or weight raises RuntimeError.

    Without options, torch.nn.functional.rms_norm computes what the library does not: tensors of
    another type or device, and a negative eps.
    """
    _functions.check_tensors(("input",), input=input, weight=weight)
    try:
        shape = torch.Size(normalized_shape)
    except TypeError:
        raise TypeError(
            f"normalized_shape is {normalized_shape!r}; it must be a sequence of integers"
        ) from None
    if not options and not _is_possible(input, weight, eps):
        return torch.nn.functional.rms_norm(input, list(shape), weight, eps)
    if not shape or input.shape[-len(shape) :] != shape:
        raise RuntimeError(f"input: the shape {tuple(input.shape)} does not end in {tuple(shape)}")
    if weight is not None and weight.shape != shape:
        raise RuntimeError(f"weight: the shape {tuple(weight.shape)}; it must be {tuple(shape)}")
    x = input
    if len(shape) > 1:
        x = x.flatten(-len(shape))
        weight = None if weight is None else weight.flatten()
    y = _functions.rms_norm(x, weight, eps, **options)
    return y if len(shape) == 1 else y.view(input.shape)


def _is_possible(input: Tensor, weight: Tensor | None, eps: float | None) -> bool:
    """Returns whether the library computes a norm of these types, devices and this eps."""
    for tensor in (input, weight):
        if tensor is not None and (tensor.dtype not in DTYPES or not tensor.is_cpu):
            return False
    return eps is None or not (isinstance(eps, float | int) and eps < 0)

# SPDX-License-Identifier: Apache-2.0
"""rms_norm with the signature of torch.nn.functional.rms_norm."""

from collections.abc import Sequence

from torch import Tensor

from . import _functions

__all__ = ["rms_norm"]


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Returns the norm of `input` over its last dimensions, which are normalized_shape.

    weight has the shape normalized_shape, or is absent. Without eps it is the epsilon of float32.
    The result has the shape and the type of `input`. Gradients are as in rmsnorm.torch.rms_norm().
    Another shape of `input` or weight raises RuntimeError.
    """
    shape = tuple(normalized_shape)
    if not shape or tuple(input.shape[-len(shape) :]) != shape:
        raise RuntimeError(f"input: the shape {tuple(input.shape)} does not end in {shape}")
    if weight is not None and tuple(weight.shape) != shape:
        raise RuntimeError(f"weight: the shape {tuple(weight.shape)}; it must be {shape}")
    if len(shape) == 1:
        return _functions.rms_norm(input, weight, eps)
    columns = None if weight is None else weight.flatten()
    return _functions.rms_norm(input.flatten(-len(shape)), columns, eps).view(input.shape)

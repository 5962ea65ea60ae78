# SPDX-License-Identifier: Apache-2.0
"""The module of rmsnorm.torch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ._functions import Rounding, _check_dtype, code_of, eps_of, number, rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):
    """A torch.nn.RMSNorm, with the same arguments and state_dict, that calls rms_norm().

    rounding and weight_offset are as in rms_norm(). weight_offset + weight is 1 at first. The norm
    is over the last dimensions of x, which are those of normalized_shape. Another shape of x raises
    RuntimeError.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rounding: Rounding = "after_weight",
        weight_offset: float = 0.0,
    ) -> None:
        self._words = code_of("rounding", rounding)
        eps_of(eps)
        _check_dtype(dtype)
        # The constructor of the class below resets the weight, which needs the offset.
        self.rounding = rounding
        self.weight_offset = number("weight_offset", weight_offset)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Makes weight_offset + weight 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the norm of x, in x's shape and type."""
        weight: Tensor | None = self.weight
        ndim = len(self.normalized_shape)
        if x.shape[-ndim:] != self.normalized_shape:
            raise RuntimeError(
                f"x: the shape {tuple(x.shape)} does not end in {self.normalized_shape}"
            )
        shape = x.shape
        if ndim > 1:
            x = x.flatten(-ndim)
            weight = None if weight is None else weight.flatten()
        offset = self.weight_offset
        y = rms_norm(x, weight, self.eps, rounding=self.rounding, weight_offset=offset)
        return y if ndim == 1 else y.view(shape)

    def extra_repr(self) -> str:
        """Returns the arguments, for the text of a model."""
        text = super().extra_repr()
        if self.rounding != "after_weight":
            text += f", rounding={self.rounding}"
        if self.weight_offset != 0:
            text += f", weight_offset={self.weight_offset}"
        return text

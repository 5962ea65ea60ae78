# SPDX-License-Identifier: Apache-2.0
"""The module of rmsnorm.torch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._jit_internal import is_scripting

from . import functional
from ._functions import Rounding, check_dtype, code_of, eps_of, number, rms_norm

__all__ = ["RMSNorm"]


class RMSNorm(torch.nn.RMSNorm):
    """A torch.nn.RMSNorm, with the same arguments and state_dict, that calls rms_norm().

    rounding and weight_offset are as in rms_norm(). weight_offset + weight is 1 at first. The norm
    is over the last dimensions of x, which are those of normalized_shape. Another shape of x raises
    RuntimeError.
    """

    __constants__ = [*torch.nn.RMSNorm.__constants__, "_before_weight", "_inverse"]
    _before_weight = code_of("rounding", "before_weight")
    _inverse = code_of("rounding", "inverse")

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
        code_of("rounding", rounding)
        eps_of(eps)
        check_dtype(dtype)
        # The constructor of the class below resets the weight, which needs the offset.
        self.rounding = rounding
        self.weight_offset = float(number("weight_offset", weight_offset))
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Makes weight_offset + weight 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the norm of x, in x's shape and type."""
        # The language of torch.jit.script has neither the words of options nor our defaults.
        if is_scripting():
            eps = self.eps
            words = 0
            if self.rounding == "before_weight":
                words = self._before_weight
            elif self.rounding == "inverse":
                words = self._inverse
            rows = x.flatten(-len(self.normalized_shape))
            columns = self.weight
            y = torch.ops.rmsnorm.norm(
                rows,
                None if columns is None else columns.flatten(),
                2.0**-23 if eps is None else float(eps),
                words,
                self.weight_offset,
            )[0]
            result: Tensor = y.view(x.shape)
            return result
        else:
            return self._norm(x)

    def _norm(self, x: Tensor) -> Tensor:
        options: Any = {"rounding": self.rounding, "weight_offset": self.weight_offset}
        if type(x) is Tensor and len(self.normalized_shape) == 1 and self.weight is not None:
            return rms_norm(x, self.weight, self.eps, **options)
        return functional.rms_norm(x, self.normalized_shape, self.weight, self.eps, **options)

    def extra_repr(self) -> str:
        """Returns the arguments, for the text of a model."""
        text = super().extra_repr()
        if self.rounding != "after_weight":
            text += f", rounding={self.rounding!r}"
        if self.weight_offset != 0:
            text += f", weight_offset={self.weight_offset}"
        return text

# SPDX-License-Identifier: Apache-2.0
"""The module of rmsnorm.torch."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._jit_internal import is_scripting

from .._options import NormOptions, Rounding
from . import functional
from ._functions import check_dtype, rms_norm
from ._options import packed


class RMSNorm(torch.nn.RMSNorm):
    """A torch.nn.RMSNorm, with the same arguments and state_dict, that calls rms_norm().

    rounding and weight_offset are as in rms_norm(). weight_offset + weight is 1 at first. The norm
    is over the last dimensions of x, which are those of normalized_shape. Another shape of x raises
    RuntimeError.
    """

    # torch.jit.script reads this property once, in Python.
    __constants__ = [*torch.nn.RMSNorm.__constants__, "_packed"]
    __jit_unused_properties__ = ["_packed"]

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
        packed("rms_norm", eps, {"rounding": rounding, "weight_offset": weight_offset})
        check_dtype(dtype)
        # The constructor of the class below resets the weight, which needs the offset.
        self.rounding = rounding
        self.weight_offset = float(weight_offset)
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Makes weight_offset + weight 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the norm of x, in x's shape and type."""
        if is_scripting():
            shape = self.normalized_shape
            if list(x.shape[-len(shape) :]) != list(shape):
                raise RuntimeError(f"input: the shape {x.shape} does not end in {shape}")
            rows = x.flatten(-len(shape))
            columns = self.weight
            y = torch.ops.rmsnorm.norm(
                rows, self._packed, None, None if columns is None else columns.flatten()
            )[0]
            result: Tensor = y.view(x.shape)
            return result
        else:
            return self._norm(x)

    def _norm(self, x: Tensor) -> Tensor:
        if type(x) is Tensor and len(self.normalized_shape) == 1 and self.weight is not None:
            return rms_norm(x, self.weight, self.eps, **self._options())
        shape = self.normalized_shape
        # An option keeps PyTorch's own norm out, which computes other types.
        options: NormOptions = {"rounding": self.rounding, **self._options()}
        return functional.rms_norm(x, shape, self.weight, self.eps, **options)

    def _options(self) -> NormOptions:
        options: NormOptions = {}
        if self.rounding != "after_weight":
            options["rounding"] = self.rounding
        if self.weight_offset != 0:
            options["weight_offset"] = self.weight_offset
        return options

    @property
    def _packed(self) -> str:
        return packed("rms_norm", self.eps, self._options())

    def extra_repr(self) -> str:
        """Returns the arguments, for the text of a model."""
        text = super().extra_repr()
        for name, value in self._options().items():
            text += f", {name}={value!r}"
        return text

# SPDX-License-Identifier: Apache-2.0
"""Models with the norms of rmsnorm.torch, to be exported."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import rmsnorm.torch

rt: Any = rmsnorm.torch  # options come from dictionaries, which mypy cannot follow


class Model(torch.nn.Module):
    """A layer with a norm, of weights that learn."""

    def __init__(self, shape: Any = 16, **options: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norm = rt.RMSNorm(shape, 1e-6, **options)
        torch.nn.init.normal_(self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(self.linear(x))
        return y


class Functions(torch.nn.Module):
    """Every function that returns tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16))
        self.bias = torch.nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor) -> Tensor:
        w, b = self.weight, self.bias
        y, total = rt.fused_add_rms_norm(x, x * 2, w, 1e-6, post_norm_weight=b)
        z = rt.gated(y, total, w, 1e-6, rounding="before_weight", gate_rounding="rounded")
        q, k = rt.qk(y, z, w, b, 1e-6)
        u = rt.rms_norm(x, w, 1e-6, bias=b, eps_placement="outside", factor=0.5, divisor=8.0)
        v = rt.functional.rms_norm(x, (16,), w)
        s, t = rt.norms([y, z], [w, None], 1e-6)
        [(a, c)] = rt.norms([{"x": y, "residual": z, "gate": x}], eps=1e-6)
        result: Tensor = q + k + u + v + s + t + a + c
        return result


class Textbook(torch.nn.Module):
    """A norm as people write it, for rmsnorm.transformers.use()."""

    def __init__(self, d: int = 16) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d))

    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TwoKinds(torch.nn.Module):
    """A model of norms that are not this library's."""

    def __init__(self, *others: torch.nn.Module) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norms = torch.nn.ModuleList([Textbook(), *others])

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = self.linear(x) + norm(x)
        return x


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "module": Model,
    "module of two dimensions": lambda: Model((3, 16)),
    "rounding": lambda: Model(rounding="before_weight", weight_offset=1.0),
    "functions": Functions,
}

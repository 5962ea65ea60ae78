# SPDX-License-Identifier: Apache-2.0
"""The layers that transformers asks for by name.

One name stands for classes with different rounding orders, so each layer looks at the class of the
module whose forward() it replaces. torch.compile cannot follow that, so a model that kernels
prepares for Mode.TORCH_COMPILE keeps the forward() of transformers: rmsnorm.transformers.use(model)
works there.
"""

import torch
from torch import Tensor

from rmsnorm.transformers import norm


class RMSNorm(torch.nn.Module):
    """The norm of the class of the module, for the classes of transformers with this layer name."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return norm(self, hidden_states)


class RMSNormZeroCentered(torch.nn.Module):
    """The same for the classes whose weight is around zero."""

    def forward(self, x: Tensor) -> Tensor:
        return norm(self, x)


class RMSNormGated(torch.nn.Module):
    """The same for the classes with a gate."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return norm(self, hidden_states, gate)

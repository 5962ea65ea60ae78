# SPDX-License-Identifier: Apache-2.0
"""RMSNorm as a PyTorch module, made of the operators in rmsnorm_torch.so.

    from rmsnorm_module import RMSNorm

    norm = RMSNorm(4096, eps=1e-6, dtype=torch.bfloat16)
    y = norm(x)                          # with gradients
    y, residual = norm(x, residual)      # residual + x, and the norm of that

rmsnorm_torch.so is beside this file, as in the build directory, or RMSNORM_TORCH is its path.
"""

import os

import torch

torch.ops.load_library(
    os.environ.get("RMSNORM_TORCH")
    or os.path.join(os.path.dirname(os.path.abspath(__file__)), "rmsnorm_torch.so")
)


class RMSNorm(torch.nn.Module):
    """The norm of the last dimension, which has d elements. Its state_dict has a `weight`, like
    torch.nn.RMSNorm and the models of transformers.

    weight_offset is 1 for Gemma, and round_before_weight is True for Llama.
    """

    def __init__(
        self,
        d,
        eps=1e-5,
        *,
        weight_offset=0.0,
        round_before_weight=False,
        device=None,
        dtype=None,
    ):
        super().__init__()
        self.d = d
        self.eps = eps
        self.options = {"weight_offset": weight_offset, "round_before_weight": round_before_weight}
        self.weight = torch.nn.Parameter(torch.empty(d, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self):
        """Makes offset + weight 1."""
        torch.nn.init.constant_(self.weight, 1 - self.options["weight_offset"])

    def forward(self, x, residual=None):
        """Returns y; or, with a residual, y and the residual for the next norm: residual + x in the
        residual's type. If no gradient is recorded, it updates the given residual in place."""
        if residual is None:
            return torch.ops.rmsnorm.rms_norm(x, self.weight, self.eps, **self.options)
        if torch.promote_types(x.dtype, residual.dtype) != residual.dtype:
            raise TypeError(f"a residual of {residual.dtype} is narrower than x of {x.dtype}")
        operands = (x, residual, self.weight)
        if torch.is_grad_enabled() and any(operand.requires_grad for operand in operands):
            residual = residual + x
            return self(residual).to(x.dtype), residual
        y = torch.ops.rmsnorm.add_rms_norm(*operands, self.eps, **self.options)
        return y, residual

    def extra_repr(self):
        chosen = [f", {name}={value}" for name, value in self.options.items() if value]
        return f"{self.d}, eps={self.eps}" + "".join(chosen)

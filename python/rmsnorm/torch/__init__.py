# SPDX-License-Identifier: Apache-2.0
"""RMSNorm for PyTorch tensors on the CPU, with gradients.

    import rmsnorm.torch

    y = rmsnorm.torch.rms_norm(x, weight, 1e-6)
    norm = rmsnorm.torch.RMSNorm(4096, eps=1e-6, dtype=torch.bfloat16)

A tensor x has any shape [..., d] and any strides. It is read where it lies; only a tensor whose
last dimension is not contiguous is copied, and one of more than eight dimensions that is not
contiguous. The types are float32, float16 and bfloat16, in any combination. All arithmetic is in
float32. Results are contiguous, like the results of torch.nn.functional.rms_norm. PyTorch's own
threads share the rows, and their number changes no bit of y.

The C interface, rmsnorm/rmsnorm.h, has the formulas: with offset = weight_offset,

    y_j = x_j / sqrt(sum_i(x_i^2) / d + eps) * (offset + weight_j)

which is equation 4 of Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019,
arXiv:1910.07467, with the eps and the offset of the models that use them.

First gradients come from the library's backward function. They pass through the unrounded values,
so that all rounding orders have the same. Second gradients and forward-mode derivatives come from
the formula in PyTorch's own operations. torch.compile takes every function without a graph break.
Automatic mixed precision changes no type, as with torch.nn.functional.rms_norm on the CPU.

Errors: an argument of another type raises TypeError, a word that an option does not have, or a
number that it cannot hold, ValueError, and all else that the library refuses RuntimeError with the
library's text, such as an eps of -1; each names the argument.
`import rmsnorm.torch` raises ImportError where PyTorch is older than 2.10, or where the operators
are missing.
"""

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    raise ImportError(f"rmsnorm.torch needs PyTorch 2.10 or newer, and this is {torch.__version__}")

from . import functional
from ._functions import (
    Quantized,
    forward,
    fused_add_rms_norm,
    fused_add_rms_norm_,
    gated,
    norms,
    qk,
    quantized,
    rms_norm,
    rotary,
)
from ._module import RMSNorm
from ._use import Report, use

__all__ = [
    "Quantized",
    "RMSNorm",
    "Report",
    "forward",
    "functional",
    "fused_add_rms_norm",
    "fused_add_rms_norm_",
    "gated",
    "norms",
    "qk",
    "quantized",
    "rms_norm",
    "rotary",
    "use",
]

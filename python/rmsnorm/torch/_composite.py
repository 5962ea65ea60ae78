# SPDX-License-Identifier: Apache-2.0
"""The norm in PyTorch's own operations.

It computes what the operators do where PyTorch must look inside: in forward-mode derivatives, in
second derivatives and in ONNX. All arithmetic is in float32 with the roundings of the options.
The sum of squares is PyTorch's, so results may differ from the operators' in the last bits.
doc/definition.md has the definition of each step.
"""

from typing import Any

import torch
from torch import Tensor

from .._library import BF16, F16, F32
from ._options import unpacked

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# The operator `norms.each` takes the types of results as their numbers in rmsnorm.h. PyTorch turns a
# list of types into a list of other numbers.
DTYPE_CODES = {None: 0, torch.float32: F32, torch.float16: F16, torch.bfloat16: BF16}


def activation(gate: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Returns the activation of the gate and its derivative, both in float32.

    They have limits where z is infinite, which the products of the formulas do not have.
    """
    z = gate.float()
    if kind == "none":
        return z, torch.ones_like(z)
    largest = torch.finfo(torch.float32).max
    sigmoid = torch.sigmoid(z)
    if kind == "sigmoid":
        return sigmoid, sigmoid * (1 - sigmoid)
    slope = sigmoid * (1 + z.clamp(-largest, largest) * (1 - sigmoid))
    return z.clamp(min=-largest) * sigmoid, slope


def _is_pytorchs(h: Tensor, weight: Tensor | None, dtype: Any, options: Any) -> bool:
    """Returns whether torch.nn.functional.rms_norm computes this norm, and is exported as one.

    Types of 16 bits are left out. PyTorch rounds them after the product with the weight, and ONNX's
    RMSNormalization before it, as the rounding "before_weight" does. But that operator exists from
    opset 23 on, and the exporter does not tell which opset it writes while it records a model.
    """
    is_float32 = h.dtype == torch.float32 and (weight is None or weight.dtype == torch.float32)
    return (
        torch.compiler.is_compiling()
        and is_float32
        and dtype in (None, torch.float32)
        and options.eps_placement == "inside"
        and options.weight_offset == options.divisor == 0
    )


def _norm_of_rows(
    h: Tensor,
    dtype: torch.dtype,
    weight: Tensor | None,
    bias: Tensor | None,
    options: Any,
) -> Tensor:
    """Returns the norm in float32 of rows in float32 that come from the type `dtype`."""
    d = options.divisor if options.divisor != 0 else h.shape[-1]
    scale: Any = 1.0
    if not torch.onnx.is_in_onnx_export():
        # float32 does not hold the squares of rows with larger elements.
        is_large = (h.detach().abs() > 2.0**50).any(-1, keepdim=True)
        scale = torch.where(is_large, *h.new_tensor((2.0**-80, 1.0)))
    scaled, eps = h * scale, options.eps * scale
    mean = scaled.square().sum(-1, keepdim=True) / d
    if options.eps_placement == "inside":
        r = torch.rsqrt(mean + eps * scale)
    elif options.eps_placement == "outside":
        r = 1 / (mean.sqrt() + eps)
    else:
        r = 1 / mean.sqrt().clamp(min=eps)
    y: Tensor = scaled * r
    if options.rounding == "inverse":
        y = h * (r * scale).to(dtype).float()
    if options.rounding != "after_weight":
        y = y.to(dtype).float()
    if weight is not None:
        y = y * (options.weight_offset + weight.float())
    return y if bias is None else y + bias.float()


def rotate(
    m: Tensor, cos: Tensor, sin: Tensor, dtype: torch.dtype, options: Any, rounding: str
) -> Tensor:
    """Returns rows with their pairs rotated, in float32. They are rounded to `dtype` where the
    option rotary_rounding, `rounding`, says so. The tables are constants."""
    half = cos.shape[-1]
    v = m if rounding == "none" else m.to(dtype).float()
    of_rest = dtype if rounding == "each" else torch.float32
    c, s = (table.detach().to(of_rest).float() for table in (cos, sin))

    def rounded(values: Tensor) -> Tensor:
        return values.to(of_rest).float()

    first = 0 if options.rotary_part == "start" else m.shape[-1] - 2 * half
    last = first + 2 * half
    dim, pairs = (-2, (2, half)) if options.rotary_pairs == "halves" else (-1, (half, 2))
    a, b = torch.unflatten(v[..., first:last], -1, pairs).unbind(dim)
    both = rounded(a * c) - rounded(b * s), rounded(b * c) + rounded(a * s)
    turned = torch.stack(both, dim).flatten(-2)
    return torch.cat((v[..., :first], turned, v[..., last:]), -1)


def norm(
    x: Tensor, options: str, dtype: torch.dtype | None = None, *others: Tensor | None
) -> list[Tensor]:
    """Returns what the operator `norm` returns, but for rstd. It refuses the same types."""
    weight, residual, gate, bias, post_norm_weight, cos, sin = (*others, *[None] * 7)[:7]
    for tensor in (x, *others):
        if tensor is not None and tensor.dtype not in DTYPES:
            raise RuntimeError(f"{tensor.dtype}: the type must be float32, float16 or bfloat16")
    chosen = unpacked(options)
    h = x
    if post_norm_weight is not None:
        h = _norm_of_rows(h.float(), x.dtype, post_norm_weight, None, chosen).to(x.dtype)
    if chosen.factor != 0:
        h = (h.float() * chosen.factor).to(x.dtype)
    if gate is not None and chosen.gate_placement == "before":
        h = h.float() * activation(gate, chosen.activation)[0]
        h = h.to(x.dtype) if chosen.gate_rounding == "rounded" else h
    outputs = []
    if residual is not None:
        is_rounded = chosen.residual_rounding == "rounded"
        h = residual.float() + h.float()
        h = h.to(residual.dtype) if is_rounded else h
        if chosen.residual_factor != 0:
            h = h.float() * chosen.residual_factor
        residual_out = h.to(residual.dtype)
        h = residual_out if is_rounded else h
        outputs.append(residual_out)
    is_bare = gate is None and bias is None and residual is None and cos is None
    if is_bare and _is_pytorchs(h, weight, dtype, chosen):
        return [torch.nn.functional.rms_norm(h, h.shape[-1:], weight, chosen.eps)]
    h = h.float()
    y = _norm_of_rows(h, x.dtype, weight, bias, chosen)
    if gate is not None and chosen.gate_placement == "after":
        if chosen.gate_rounding == "rounded":
            y = y.to(x.dtype).float()
        y = y * activation(gate, chosen.activation)[0]
    of_y = x.dtype if dtype is None else dtype
    if cos is not None and sin is not None:
        y = rotate(y, cos, sin, of_y, chosen, chosen.rotary_rounding)
    return [y.to(of_y), *outputs]


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    dsum: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: str,
    cos: Tensor | None,
    sin: Tensor | None,
) -> list[Tensor]:
    """Returns what the operator `backward` returns: the wanted ones of dx, dw and db."""
    operands = (x, weight, bias)
    leaves = [
        t for t, is_wanted in zip(operands, wanted, strict=True) if is_wanted and t is not None
    ]

    def forward(*leaves: Tensor) -> Tensor:
        rest = iter(leaves)
        values = [next(rest) if w else t for t, w in zip(operands, wanted, strict=True)]
        # Gradients pass through values that are not rounded.
        h, vector, offset = (None if t is None else t.float() for t in values)
        assert h is not None
        return _norm_of_rows(h, torch.float32, vector, offset, chosen)

    chosen = unpacked(options)
    _, pull, *_ = torch.func.vjp(forward, *leaves)
    dm = dy.float()
    if cos is not None and sin is not None:
        dm = rotate(dm, cos, -sin.float(), torch.float32, chosen, "none")
    gradients: list[Any] = list(pull(dm))
    if dsum is not None and wanted[0]:
        gradients[0] = gradients[0] + dsum.to(gradients[0].dtype)
    if chosen.residual_factor != 0 and wanted[0]:
        gradients[0] = gradients[0] * chosen.residual_factor
    return gradients

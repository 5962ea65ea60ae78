# SPDX-License-Identifier: Apache-2.0
"""The table of formulas: how this library computes each norm that it knows."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ._formulas import Formula, UnknownFormula, in_f32, read, shorten
from .torch import gated, rms_norm

#: The types of tensors that the library takes.
TYPES = (torch.float32, torch.float16, torch.bfloat16)

# Each function below computes the formulas in its decorator with the library. Where the library
# has no option for a step, PyTorch computes it as the class does: a product of rounded numbers
# has the same bits in both. A function returns None where it cannot compute what the class does.

Compute = Callable[..., Tensor | None]
Decorated = TypeVar("Decorated", bound=Compute)


class Norm(NamedTuple):
    """A kind of norm.

    options: its options in the words of the library.
    compute: the function (module, weight, eps, x, gate) for it.
    needs_weight: whether its class fails where the weight is None.
    flag: the attribute that says whether its class reads the weight, or "" if it always does.
    """

    options: str
    compute: Compute
    needs_weight: bool
    flag: str


class Known(NamedTuple):
    """How the library computes a formula.

    weight: the name of the attribute that is the weight, or "".
    types: the types of tensors for which that holds. It is f32 alone where the class rounds f16 and
    bf16 in ways that the library does not have.
    """

    norm: Norm
    weight: str
    types: tuple[torch.dtype, ...]


_NORMS: dict[str, Norm] = {}
_NORMS_IN_F32: dict[str, Norm] = {}


def known(formula: Formula) -> Known:
    """How the library computes a formula. Raises UnknownFormula if it cannot."""
    attributes = sorted(set(re.findall(r"self\.(\w+)", formula.text)))
    for table, text, types in (
        (_NORMS, formula.text, TYPES),
        (_NORMS_IN_F32, in_f32(formula.text), (torch.float32,)),
    ):
        for name in ["weight", *attributes]:
            if name != "weight" and "weight" in attributes:
                break
            renamed = read(re.sub(rf"self\.{name}\b", "self.weight", text))
            if renamed in table:
                return Known(table[renamed], name if name in attributes else "", types)
    short = formula.text if len(formula.text) < 200 else "what it computes"
    raise UnknownFormula(f"the library has no options for {short}")


def _computes(
    options: str,
    *formulas: str,
    needs_weight: bool = True,
    flag: str = "",
    only_f32: bool = False,
) -> Callable[[Decorated], Decorated]:
    """Enters a function into the table under its formulas, in any order of factors.

    only_f32: the formulas hold where all tensors are f32.
    """

    def enter(compute: Decorated) -> Decorated:
        norm = Norm(options, compute, needs_weight, flag)
        for text in formulas:
            if not only_f32:
                _NORMS[shorten(text)] = norm
            _NORMS_IN_F32.setdefault(in_f32(shorten(text)), norm)
        return compute

    return enter


@_computes("before_weight", "self.weight * as_x(n)")
def _before_weight(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    # PyTorch's product has the wider type of its factors, so a weight in f32 makes y f32.
    dtype = torch.promote_types(x.dtype, weight.dtype)
    return rms_norm(x, weight, eps, rounding="before_weight", dtype=dtype)


@_computes(
    "after_weight",
    "as_x(self.weight * n)",
    "as_x(f32(self.weight) * n)",
    "as_x(self.weight * f32(x) * r)",
)
def _after_weight(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, weight, eps)


@_computes(
    "after_weight, weight_offset 1",
    "as_x(n * (1.0 + f32(self.weight)))",
    "as_x(scaled(n, 1.0 + f32(self.weight)))",
)
def _offset(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, weight, eps, weight_offset=1.0)


@_computes(
    "after_weight, 1 + weight rounded",
    "as_x(n * f32(1.0 + self.weight))",
    "as_x(n * (1.0 + self.weight))",
    "as_x(scaled(n, 1.0 + self.weight))",
)
def _rounded_offset(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, 1.0 + weight, eps)


@_computes("before_weight, 1 + weight rounded", "as_x(n) * (1.0 + self.weight)")
def _before_rounded_offset(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return _before_weight(module, 1.0 + weight, eps, x)


@_computes(
    "after_weight, weight_offset 1 or 0",
    "as_x(n * (1.0 + f32(self.weight)) if self.add_unit_offset else n * f32(self.weight))",
)
def _flagged_offset(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, weight, eps, weight_offset=1.0 if module.add_unit_offset else 0.0)


# x / (RMS + eps), as the authors of the paper wrote it.
_OUTSIDE = "f32(x) / (eps + sqrt(mean_square(f32(x))))"


@_computes("after_weight, eps outside", f"as_x({_OUTSIDE} * self.weight)")
def _outside(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, weight, eps, eps_placement="outside")


@_computes("before_weight, eps outside", f"as_x({_OUTSIDE}) * self.weight")
def _outside_before_weight(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    dtype = torch.promote_types(x.dtype, weight.dtype)
    return rms_norm(x, weight, eps, rounding="before_weight", eps_placement="outside", dtype=dtype)


# LitGPT, whose norm has the dimension as an argument, in two versions.
_ALONG = "f32(x) * rsqrt(eps + mean_along(square(f32(x)), self.dim))"


@_computes(
    "after_weight, 1 + weight rounded or weight",
    f"as_x({_ALONG} * f32(1.0 + self.weight if self.add_unit_offset else self.weight))",
)
def _along(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor | None:
    if module.dim not in (-1, x.ndim - 1):
        return None
    return rms_norm(x, 1.0 + weight if module.add_unit_offset else weight, eps)


@_computes(
    "before_weight, 1 + weight rounded or weight",
    f"as_x({_ALONG}) * (1.0 + self.weight) if self.add_unit_offset"
    f" else as_x({_ALONG}) * self.weight",
)
def _before_along(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor | None:
    if module.dim not in (-1, x.ndim - 1):
        return None
    return _before_weight(module, 1.0 + weight if module.add_unit_offset else weight, eps, x)


@_computes("no weight", "as_x(n)")
def _no_weight(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, None, eps)


@_computes(
    "after_weight, or no weight",
    "as_x(n * f32(self.weight) if self.with_scale else n)",
    flag="with_scale",
)
@_computes(
    "after_weight, or no weight",
    "as_x(scaled(n, self.weight))",
    "as_x(n * self.weight if self.weight is not None else n)",
    "as_x(n * f32(self.weight) if self.weight is not None else n)",
    "as_x(n * self.weight) if self.weight is not None else as_x(n)",
    needs_weight=False,
)
def _weight_or_none(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, weight, eps)


@_computes(
    "before_weight, or no weight",
    "as_x(n) * self.weight if self.weight is not None else as_x(n)",
    needs_weight=False,
)
@_computes(
    "before_weight, or no weight",
    "as_x(n) * self.weight if self.elementwise_affine else as_x(n)",
    flag="elementwise_affine",
)
def _before_weight_or_none(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    if weight is None:
        return rms_norm(x, None, eps)
    return _before_weight(module, weight, eps, x)


@_computes("no weight, divisor 1", "as_x(f32(x) * rsqrt(sum_square(f32(x)) + eps))")
def _sum(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, None, eps, divisor=1.0)


@_computes("inverse, no weight", "x * as_x(r)")
def _inverse(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, None, eps, rounding="inverse")


@_computes(
    "before_weight in the type of the weight",
    "self.weight * (as_weight(n) if self.weight.dtype in [torch.float16, torch.bfloat16] else n)",
)
def _type_of_weight(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    if weight.dtype == x.dtype:
        return rms_norm(x, weight, eps, rounding="before_weight")
    product: Tensor = weight * rms_norm(x, None, eps, dtype=weight.dtype)
    return product


@_computes(
    "before_weight, gate after, rounded",
    "as_x(self.weight * as_x(n) * ACT2FN[self.activation](f32(gate)))",
)
def _rounded_gate(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor | None:
    if gate is None or module.activation not in ("silu", "sigmoid"):
        return None
    # The product with the weight is rounded to its own type, and f32 rounds nothing.
    product = torch.promote_types(x.dtype, weight.dtype)
    return gated(
        x,
        gate,
        weight,
        eps,
        activation=module.activation,
        gate_rounding="rounded" if product == x.dtype else "unrounded",
        rounding="before_weight",
    )


@_computes(
    "after_weight, gate after",
    "as_x(f32(self.weight) * n * ACT2FN[self.activation](f32(gate)))",
)
def _unrounded_gate(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor | None:
    if gate is None or module.activation not in ("silu", "sigmoid"):
        return None
    return gated(x, gate, weight, eps, activation=module.activation)


def _groups(x: Tensor, size: int) -> Tensor:
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


# Mamba-2 and its heirs: a gate before the norm of groups.
_GATED = "(f32(x) * silu(f32(gate)) if gate is not None else f32(x))"
_COUNT = f"{_GATED}.shape[-1] // self.group_size"
_GROUPS = f"{_GATED}.view(*{_GATED}.shape[:-1], {_COUNT}, self.group_size)"
_NORMED = f"({_GROUPS} * rsqrt(mean_square({_GROUPS}) + eps))"


@_computes(
    "before_weight, gate before, groups",
    f"self.weight * as_x({_NORMED}.view(*{_GATED}.shape[:-1], {_COUNT} * self.group_size))",
)
def _gated_groups(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor:
    rows = _groups(x, module.group_size)
    if gate is None:
        n = rms_norm(rows, None, eps)
    else:
        n = gated(rows, _groups(gate, module.group_size), None, eps, gate_placement="before")
    product: Tensor = weight * n.reshape(x.shape)
    return product


# Qwen 4: Gemma's norm, of rows or of groups.
_ROWS = (
    "(f32(x).reshape(*f32(x).shape[:-1], -1, self.group_size)"
    " if self.group_size is not None else f32(x))"
)
_ROWS_NORMED = f"({_ROWS} * rsqrt(mean_square({_ROWS}) + eps))"


@_computes(
    "after_weight, weight_offset 1, groups",
    f"as_x(({_ROWS_NORMED}.flatten(-2) if self.group_size is not None else {_ROWS_NORMED})"
    " * (1.0 + f32(self.weight)))",
)
def _offset_groups(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    if module.group_size is None:
        return rms_norm(x, weight, eps, weight_offset=1.0)
    n = rms_norm(_groups(x, module.group_size), None, eps, dtype=torch.float32)
    product: Tensor = n.reshape(x.shape) * (1.0 + weight.float())
    return product.to(x.dtype)


# Falcon H1: the gate is before or after the norm of groups, and x has two or three dimensions.
_FIRST = "(x * silu(f32(gate)) if not self.norm_before_gate and gate is not None else x)"
_THREE = f"len({_FIRST}.shape) == 3"
_BATCH = f"{_FIRST}.shape[0]"
_LENGTH = f"({_FIRST}.shape[1] if {_THREE} else 1)"
_WIDTH = f"({_FIRST}.shape[2] if {_THREE} else {_FIRST}.shape[1])"
_SHAPE = f"self.n_groups, int({_WIDTH} // self.n_groups)"
_PARTS = f"f32({_FIRST}).view({_BATCH}, {_LENGTH}, {_SHAPE})"
_SCALED = f"({_PARTS} * rsqrt(mean_square({_PARTS}) + eps) * self.weight.view({_SHAPE}))"
_WHOLE = f"{_SCALED}.view({_BATCH}, {_LENGTH}, {_WIDTH})"
_SQUEEZED = f"({_WHOLE}.squeeze(1) if x.ndim == 2 else {_WHOLE})"


@_computes(
    "after_weight, gate before or after, groups",
    f"as_x({_SQUEEZED} * silu(f32(gate)) if self.norm_before_gate and gate is not None"
    f" else {_SQUEEZED})",
)
def _gated_groups_unrounded(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor:
    size = x.shape[-1] // module.n_groups
    rows = _groups(x, size)
    if gate is None or module.norm_before_gate:
        n = rms_norm(rows, None, eps, dtype=torch.float32)
    else:
        gate_rows = _groups(gate, size)
        n = gated(rows, gate_rows, None, eps, gate_placement="before", dtype=torch.float32)
    product: Tensor = n.reshape(x.shape) * weight
    if gate is not None and module.norm_before_gate:
        product = product * torch.nn.functional.silu(gate.float())
    return product.to(x.dtype)


_SCALED_X = "as_x(f32(x) * f32(1.0 + self.weight))"


@_computes(
    "no weight, x times 1 + weight rounded",
    f"as_x(f32({_SCALED_X}) * rsqrt(mean_square(f32({_SCALED_X})) + eps))",
)
def _scaled_input(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    scaled = x.float() * (1.0 + weight).float()
    return rms_norm(scaled.to(x.dtype), None, eps)


# xLSTM, where it has its default flags.
_WIDE = "(f32(x) if self.force_float32_reductions else x)"
_WIDE_N = f"as_x({_WIDE} * rsqrt(mean_square({_WIDE}) + eps))"
_WEIGHTED = f"({_WIDE_N} * self.weight if self.weight is not None else {_WIDE_N})"


@_computes(
    "before_weight, or no weight, without a bias",
    f"{_WEIGHTED} + self.bias if self.bias is not None else {_WEIGHTED}",
    needs_weight=False,
)
def _without_bias(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor | None:
    if module.bias is not None or not module.force_float32_reductions:
        return None
    return rms_norm(x, None, eps) if weight is None else _before_weight(module, weight, eps, x)


# x-transformers and lucidrains' other models: x by its length, times a scale of sqrt(d).
_UNIT = "self.scale * normalize(x)"


@_computes("L2, eps as the least length", f"self.weight * ({_UNIT})", only_f32=True)
def _unit(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    y: Tensor = rms_norm(x, None, eps, divisor=1.0, eps_placement="floor") * module.scale * weight
    return y


@_computes(
    "L2, eps as the least length, 1 + weight",
    f"(1.0 + self.weight) * ({_UNIT})",
    only_f32=True,
)
def _unit_offset(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return _unit(module, 1.0 + weight, eps, x)


@_computes(
    "L2, eps as the least length, offset + weight",
    f"(float(self.unit_offset) + self.weight) * ({_UNIT})",
    only_f32=True,
)
def _unit_flagged_offset(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return _unit(module, weight + float(module.unit_offset), eps, x)


@_computes(
    "eps as the least RMS",
    "self.weight * (x / max(self.scale * norm(x), eps))",
    only_f32=True,
)
def _least(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor | None:
    if module.scale != x.shape[-1] ** -0.5:
        return None
    return rms_norm(x, weight, eps, eps_placement="floor")

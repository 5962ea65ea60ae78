# SPDX-License-Identifier: Apache-2.0
"""The table of formulas: how this library computes each norm that it knows."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._composite import DTYPES
from ._formulas import Formula, UnknownFormula, in_f32, read, shorten
from ._functions import gated, rms_norm

Compute = Callable[..., Tensor | None]


class Known(NamedTuple):
    """How the library computes a formula.

    options: its options in the words of the library.
    compute: the function (module, weight, eps, x, gate) for it. It returns None where it cannot
        compute what the class does.
    weight: the name of the attribute that is the weight, or "".
    types: the types of tensors for which that holds. It is f32 alone where the class rounds f16 and
        bf16 in ways that the library does not have.
    """

    options: str
    compute: Compute
    weight: str
    types: tuple[torch.dtype, ...]


def known(formula: Formula) -> Known:
    """How the library computes a formula. Raises UnknownFormula if it cannot."""
    attributes = sorted(set(re.findall(r"self\.(\w+)", formula.text)))
    names = ["weight"] if "weight" in attributes else ["weight", *attributes]
    texts = (formula.text, DTYPES), (in_f32(formula.text), (torch.float32,))
    for table, (text, types) in zip(_by_formula(), texts, strict=True):
        for name in names:
            renamed = read(re.sub(rf"self\.{name}\b", "self.weight", text))
            if renamed in table:
                return Known(*table[renamed], name if name in attributes else "", types)
    short = formula.text if len(formula.text) < 200 else "what it computes"
    raise UnknownFormula(f"the library has no options for {short}")


# ------------------------------------------------------------------------------- functions
#
# Where the library has no option for a step, PyTorch computes it as the class does: a product of
# rounded numbers has the same bits in both.


def _after_weight(module: Any, weight: Any, eps: float, x: Tensor, **options: Any) -> Tensor:
    return rms_norm(x, weight, eps, **options)


def _before_weight(module: Any, weight: Any, eps: float, x: Tensor, **options: Any) -> Tensor:
    # PyTorch's product has the wider type of its factors, so a weight in f32 makes y f32.
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    return rms_norm(x, weight, eps, rounding="before_weight", dtype=dtype, **options)


def _with_weight(made: Callable[[Any, Any], Any], compute: Compute) -> Compute:
    """The norm `compute` with a weight that a function makes of the module and its weight."""
    return lambda module, weight, *others: compute(module, made(module, weight), *others)


def _one_more(module: Any, weight: Any) -> Any:
    return 1.0 + weight


def _type_of_weight(module: Any, weight: Tensor, eps: float, x: Tensor) -> Tensor:
    if weight.dtype == x.dtype:
        return rms_norm(x, weight, eps, rounding="before_weight")
    return weight * rms_norm(x, None, eps, dtype=weight.dtype)


def _type_of_weight_and_bias(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    total: Tensor = _type_of_weight(module, weight, eps, x) + module.bias
    return total


def _scaled_input(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    scaled = x.float() * (1.0 + weight).float()
    return rms_norm(scaled.to(x.dtype), None, eps)


def _unit(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    y: Tensor = rms_norm(x, None, eps, divisor=1.0, eps_placement="floor") * module.scale * weight
    return y


def _least_rms(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor | None:
    if module.scale != x.shape[-1] ** -0.5:
        return None
    return rms_norm(x, weight, eps, eps_placement="floor")


def _rounded_gate(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor | None:
    # The product with the weight is rounded to its own type, and f32 rounds nothing.
    product = torch.promote_types(x.dtype, weight.dtype)
    rounding = "rounded" if product == x.dtype else "unrounded"
    options = {"gate_rounding": rounding, "rounding": "before_weight"}
    return _gate_after(module, weight, eps, x, gate, **options)


def _gate_after(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None, **options: Any
) -> Tensor | None:
    if gate is None or module.activation not in ("silu", "sigmoid"):
        return None
    return gated(x, gate, weight, eps, activation=module.activation, **options)


def _norm_of_groups(
    x: Tensor, gate: Tensor | None, size: int, eps: float, **options: Any
) -> Tensor:
    """The norm of groups of elements, without a weight, of x or of x * silu(gate)."""
    groups = (*x.shape[:-1], x.shape[-1] // size, size)
    rows = x.reshape(groups)
    if gate is None:
        n = rms_norm(rows, None, eps, **options)
    else:
        n = gated(rows, gate.reshape(groups), None, eps, gate_placement="before", **options)
    return n.reshape(x.shape)


def _gated_groups(
    module: Any, weight: Tensor, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor:
    return weight * _norm_of_groups(x, gate, module.group_size, eps)


def _offset_groups(module: Any, weight: Tensor, eps: float, x: Tensor) -> Tensor:
    n = _norm_of_groups(x, None, module.group_size, eps, dtype=torch.float32)
    return (n * (1.0 + weight.float())).to(x.dtype)


def _gated_groups_unrounded(
    module: Any, weight: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor:
    before, after = (None, gate) if module.norm_before_gate else (gate, None)
    size = x.shape[-1] // module.n_groups
    product: Tensor = _norm_of_groups(x, before, size, eps, dtype=torch.float32) * weight
    if after is not None:
        product = product * torch.nn.functional.silu(after.float())
    return product.to(x.dtype)


# -------------------------------------------------------------------------------- formulas

# x / (RMS + eps), as the authors of the paper wrote it.
_OUTSIDE = "f32(x) / (eps + sqrt(mean_square(f32(x))))"

# T5 and diffusers: the type of the weight.
_TYPED = "(as_weight(n) if self.weight.dtype in [torch.float16, torch.bfloat16] else n)"

_SCALED_X = "as_x(f32(x) * f32(1.0 + self.weight))"

# Mamba-2 and its heirs: a gate before the norm of groups.
_GATED = "(f32(x) * silu(f32(gate)) if gate is not None else f32(x))"
_COUNT = f"{_GATED}.shape[-1] // self.group_size"
_GROUPS = f"{_GATED}.view(*{_GATED}.shape[:-1], {_COUNT}, self.group_size)"
_NORMED = f"({_GROUPS} * rsqrt(mean_square({_GROUPS}) + eps))"

# Qwen 4: Gemma's norm of groups.
_ROWS = "f32(x).reshape(*f32(x).shape[:-1], -1, self.group_size)"


def _of_groups(x: str) -> str:
    """Falcon H1: the norm of groups of x, which has two or three dimensions."""
    three = f"len({x}.shape) == 3"
    batch, length = f"{x}.shape[0]", f"({x}.shape[1] if {three} else 1)"
    width = f"({x}.shape[2] if {three} else {x}.shape[1])"
    shape = f"self.n_groups, int({width} // self.n_groups)"
    parts = f"f32({x}).view({batch}, {length}, {shape})"
    scaled = f"({parts} * rsqrt(mean_square({parts}) + eps) * self.weight.view({shape}))"
    whole = f"{scaled}.view({batch}, {length}, {width})"
    return f"({whole}.squeeze(1) if x.ndim == 2 else {whole})"


_OFFSET = partial(_after_weight, weight_offset=1.0)
_OUTSIDE_AFTER = partial(_after_weight, eps_placement="outside")
_OUTSIDE_BEFORE = partial(_before_weight, eps_placement="outside")
_ONE_MORE_AFTER = _with_weight(_one_more, _after_weight)
_ONE_MORE_BEFORE = _with_weight(_one_more, _before_weight)
_L2 = partial(_after_weight, divisor=1.0)
_INVERSE = partial(_after_weight, rounding="inverse")

#: For each formula the options of its norm, what computes it, and the formula, in any order of
#: factors. A flag of a module, such as `self.weight is not None`, has its value before the formula is
#: looked up. If formulas of several norms are one in f32, the first norm counts.
_TABLE: tuple[tuple[str, Compute, str], ...] = (
    ("before_weight", _before_weight, "self.weight * as_x(n)"),
    ("after_weight", _after_weight, "as_x(self.weight * n)"),
    ("after_weight", _after_weight, "as_x(f32(self.weight) * n)"),
    ("after_weight", _after_weight, "as_x(self.weight * f32(x) * r)"),
    ("after_weight, weight_offset 1", _OFFSET, "as_x(n * (1.0 + f32(self.weight)))"),
    ("after_weight, 1 + weight rounded", _ONE_MORE_AFTER, "as_x(n * f32(1.0 + self.weight))"),
    ("after_weight, 1 + weight rounded", _ONE_MORE_AFTER, "as_x(n * (1.0 + self.weight))"),
    ("before_weight, 1 + weight rounded", _ONE_MORE_BEFORE, "as_x(n) * (1.0 + self.weight)"),
    ("after_weight, eps outside", _OUTSIDE_AFTER, f"as_x({_OUTSIDE} * self.weight)"),
    ("before_weight, eps outside", _OUTSIDE_BEFORE, f"as_x({_OUTSIDE}) * self.weight"),
    ("no weight", _after_weight, "as_x(n)"),
    ("no weight, divisor 1", _L2, "as_x(f32(x) * rsqrt(sum_square(f32(x)) + eps))"),
    ("inverse, no weight", _INVERSE, "x * as_x(r)"),
    ("before_weight in the type of the weight", _type_of_weight, f"{_TYPED} * self.weight"),
    (
        "before_weight in the type of the weight, bias rounded",
        _type_of_weight_and_bias,
        f"({_TYPED} * self.weight) + self.bias",
    ),
    (
        "before_weight, gate after, rounded",
        _rounded_gate,
        "as_x(self.weight * as_x(n) * ACT2FN[self.activation](f32(gate)))",
    ),
    (
        "after_weight, gate after",
        _gate_after,
        "as_x(f32(self.weight) * n * ACT2FN[self.activation](f32(gate)))",
    ),
    (
        "before_weight, gate before, groups",
        _gated_groups,
        f"self.weight * as_x({_NORMED}.view(*{_GATED}.shape[:-1], {_COUNT} * self.group_size))",
    ),
    (
        "after_weight, weight_offset 1, groups",
        _offset_groups,
        f"as_x(({_ROWS} * rsqrt(mean_square({_ROWS}) + eps)).flatten(-2)"
        " * (1.0 + f32(self.weight)))",
    ),
    (
        "after_weight, gate before, groups",
        _gated_groups_unrounded,
        f"as_x({_of_groups('(x * silu(f32(gate)) if gate is not None else x)')})",
    ),
    (
        "after_weight, gate after, groups",
        _gated_groups_unrounded,
        f"as_x({_of_groups('x')} * silu(f32(gate)) if gate is not None else {_of_groups('x')})",
    ),
    (
        "no weight, x times 1 + weight rounded",
        _scaled_input,
        f"as_x(f32({_SCALED_X}) * rsqrt(mean_square(f32({_SCALED_X})) + eps))",
    ),
)

# x-transformers and lucidrains' other models: x by its length, times a scale of sqrt(d).
_UNIT = "(self.scale * normalize(x))"

#: The same for formulas that hold where all tensors are f32.
_TABLE_IN_F32: tuple[tuple[str, Compute, str], ...] = (
    ("L2, eps as the least length", _unit, f"self.weight * {_UNIT}"),
    (
        "L2, eps as the least length, 1 + weight",
        _with_weight(_one_more, _unit),
        f"(1.0 + self.weight) * {_UNIT}",
    ),
    (
        "L2, eps as the least length, offset + weight",
        _with_weight(lambda module, weight: weight + float(module.unit_offset), _unit),
        f"(float(self.unit_offset) + self.weight) * {_UNIT}",
    ),
    ("eps as the least RMS", _least_rms, "self.weight * (x / max(self.scale * norm(x), eps))"),
)


@cache
def _by_formula() -> tuple[dict[str, tuple[str, Compute]], dict[str, tuple[str, Compute]]]:
    """Options and functions by formulas, and by what these are where all tensors are f32."""
    exact, only = (
        {shorten(text): (name, call) for name, call, text in table}
        for table in (_TABLE, _TABLE_IN_F32)
    )
    both = reversed([*exact.items(), *only.items()])
    return exact, {in_f32(text): norm for text, norm in both}

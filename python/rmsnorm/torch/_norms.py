# SPDX-License-Identifier: Apache-2.0
"""The table of formulas: how this library computes each norm that it knows."""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ._formulas import Formula, UnknownFormula, in_f32, read, shorten
from ._functions import gated, rms_norm

#: The types of tensors that the library takes.
TYPES = (torch.float32, torch.float16, torch.bfloat16)

Compute = Callable[..., Tensor | None]


class Norm(NamedTuple):
    """A kind of norm.

    options: its options in the words of the library.
    compute: the function (module, weight, eps, x, gate) for it. It returns None where it cannot
        compute what the class does.
    formulas: the formulas that it computes, in any order of factors.
    needs_weight: whether its class fails where the weight is None.
    flag: the attribute that says whether its class reads the weight, or "" if it always does.
    only_f32: whether the formulas hold only where all tensors are f32.
    """

    options: str
    compute: Compute
    formulas: tuple[str, ...]
    needs_weight: bool = True
    flag: str = ""
    only_f32: bool = False


class Known(NamedTuple):
    """How the library computes a formula.

    weight: the name of the attribute that is the weight, or "".
    types: the types of tensors for which that holds. It is f32 alone where the class rounds f16 and
    bf16 in ways that the library does not have.
    """

    norm: Norm
    weight: str
    types: tuple[torch.dtype, ...]


def known(formula: Formula) -> Known:
    """How the library computes a formula. Raises UnknownFormula if it cannot."""
    attributes = sorted(set(re.findall(r"self\.(\w+)", formula.text)))
    for table, text, types in zip(
        _by_formula(),
        (formula.text, in_f32(formula.text)),
        (TYPES, (torch.float32,)),
        strict=True,
    ):
        for name in ["weight", *attributes]:
            if name != "weight" and "weight" in attributes:
                break
            renamed = read(re.sub(rf"self\.{name}\b", "self.weight", text))
            if renamed in table:
                return Known(table[renamed], name if name in attributes else "", types)
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


def _where(holds: Callable[[Any, Tensor], bool], compute: Compute) -> Compute:
    """The norm `compute` where a condition holds of the module and x."""
    return lambda module, weight, eps, x: (
        compute(module, weight, eps, x) if holds(module, x) else None
    )


def _one_more(module: Any, weight: Any) -> Any:
    return 1.0 + weight


def _one_more_if(module: Any, weight: Any) -> Any:
    return 1.0 + weight if module.add_unit_offset else weight


def _is_last_dim(module: Any, x: Tensor) -> bool:
    return module.dim in (-1, x.ndim - 1)


def _offset_if(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, weight, eps, weight_offset=1.0 if module.add_unit_offset else 0.0)


def _type_of_weight(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    if weight is None or weight.dtype == x.dtype:
        return rms_norm(x, weight, eps, rounding="before_weight")
    product: Tensor = weight * rms_norm(x, None, eps, dtype=weight.dtype)
    return product


def _type_of_weight_and_bias(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    y = _type_of_weight(module, weight, eps, x)
    return y if weight is None or module.bias is None else y + module.bias


def _scaled_input(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    scaled = x.float() * (1.0 + weight).float()
    return rms_norm(scaled.to(x.dtype), None, eps)


def _unit(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    y: Tensor = rms_norm(x, None, eps, divisor=1.0, eps_placement="floor") * module.scale * weight
    return y


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


def _groups(x: Tensor, size: int) -> Tensor:
    return x.reshape(*x.shape[:-1], x.shape[-1] // size, size)


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


def _offset_groups(module: Any, weight: Any, eps: float, x: Tensor) -> Tensor:
    if module.group_size is None:
        return rms_norm(x, weight, eps, weight_offset=1.0)
    n = rms_norm(_groups(x, module.group_size), None, eps, dtype=torch.float32)
    product: Tensor = n.reshape(x.shape) * (1.0 + weight.float())
    return product.to(x.dtype)


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


# -------------------------------------------------------------------------------- formulas

# x / (RMS + eps), as the authors of the paper wrote it.
_OUTSIDE = "f32(x) / (eps + sqrt(mean_square(f32(x))))"

# LitGPT, whose norm has the dimension as an argument, in two versions.
_ALONG = "f32(x) * rsqrt(eps + mean_along(square(f32(x)), self.dim))"

# T5 and diffusers: the type of the weight.
_TYPED = "(as_weight(n) if self.weight.dtype in [torch.float16, torch.bfloat16] else n)"
_TYPED_PRODUCT = f"({_TYPED} * self.weight)"

# StableAudio 3 and xLSTM, whose flags say whether they compute in f32.
_FORCED = "(f32(x) if self.force_fp32 else x)"
_FORCED_WEIGHT = "(f32(self.weight) if self.force_fp32 else as_x(self.weight))"
_WIDE = "(f32(x) if self.force_float32_reductions else x)"
_WIDE_N = f"as_x({_WIDE} * rsqrt(mean_square({_WIDE}) + eps))"
_WEIGHTED = f"({_WIDE_N} * self.weight if self.weight is not None else {_WIDE_N})"

_SCALED_X = "as_x(f32(x) * f32(1.0 + self.weight))"

# Mamba-2 and its heirs: a gate before the norm of groups.
_GATED = "(f32(x) * silu(f32(gate)) if gate is not None else f32(x))"
_COUNT = f"{_GATED}.shape[-1] // self.group_size"
_GROUPS = f"{_GATED}.view(*{_GATED}.shape[:-1], {_COUNT}, self.group_size)"
_NORMED = f"({_GROUPS} * rsqrt(mean_square({_GROUPS}) + eps))"

# Qwen 4: Gemma's norm, of rows or of groups.
_ROWS = (
    "(f32(x).reshape(*f32(x).shape[:-1], -1, self.group_size)"
    " if self.group_size is not None else f32(x))"
)
_ROWS_NORMED = f"({_ROWS} * rsqrt(mean_square({_ROWS}) + eps))"

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

# x-transformers and lucidrains' other models: x by its length, times a scale of sqrt(d).
_UNIT = "self.scale * normalize(x)"

#: If formulas of several norms are one in f32, the first norm counts.
_TABLE = (
    Norm("before_weight", _before_weight, ("self.weight * as_x(n)",)),
    Norm(
        "after_weight",
        _after_weight,
        (
            "as_x(self.weight * n)",
            "as_x(f32(self.weight) * n)",
            "as_x(self.weight * f32(x) * r)",
        ),
    ),
    Norm(
        "after_weight, where force_fp32",
        _where(lambda module, x: module.force_fp32, _after_weight),
        (f"as_x({_FORCED} * rsqrt(mean_square({_FORCED}) + eps) * {_FORCED_WEIGHT})",),
    ),
    Norm(
        "after_weight, weight_offset 1",
        partial(_after_weight, weight_offset=1.0),
        (
            "as_x(n * (1.0 + f32(self.weight)))",
            "as_x(scaled(n, 1.0 + f32(self.weight)))",
        ),
    ),
    Norm(
        "after_weight, 1 + weight rounded",
        _with_weight(_one_more, _after_weight),
        (
            "as_x(n * f32(1.0 + self.weight))",
            "as_x(n * (1.0 + self.weight))",
            "as_x(scaled(n, 1.0 + self.weight))",
        ),
    ),
    Norm(
        "before_weight, 1 + weight rounded",
        _with_weight(_one_more, _before_weight),
        ("as_x(n) * (1.0 + self.weight)",),
    ),
    Norm(
        "after_weight, weight_offset 1 or 0",
        _offset_if,
        ("as_x(n * (1.0 + f32(self.weight)) if self.add_unit_offset else n * f32(self.weight))",),
    ),
    Norm(
        "after_weight, eps outside",
        partial(_after_weight, eps_placement="outside"),
        (f"as_x({_OUTSIDE} * self.weight)",),
    ),
    Norm(
        "before_weight, eps outside",
        partial(_before_weight, eps_placement="outside"),
        (f"as_x({_OUTSIDE}) * self.weight",),
    ),
    Norm(
        "after_weight, 1 + weight rounded or weight",
        _where(_is_last_dim, _with_weight(_one_more_if, _after_weight)),
        (f"as_x({_ALONG} * f32(1.0 + self.weight if self.add_unit_offset else self.weight))",),
    ),
    Norm(
        "before_weight, 1 + weight rounded or weight",
        _where(_is_last_dim, _with_weight(_one_more_if, _before_weight)),
        (
            f"as_x({_ALONG}) * (1.0 + self.weight) if self.add_unit_offset"
            f" else as_x({_ALONG}) * self.weight",
        ),
    ),
    Norm("no weight", _after_weight, ("as_x(n)",)),
    Norm(
        "after_weight, or no weight",
        _after_weight,
        ("as_x(n * f32(self.weight) if self.with_scale else n)",),
        flag="with_scale",
    ),
    Norm(
        "after_weight, or no weight",
        _after_weight,
        (
            "as_x(scaled(n, self.weight))",
            "as_x(n * self.weight if self.weight is not None else n)",
            "as_x(n * f32(self.weight) if self.weight is not None else n)",
            "as_x(n * self.weight) if self.weight is not None else as_x(n)",
        ),
        needs_weight=False,
    ),
    Norm(
        "before_weight, or no weight",
        _before_weight,
        ("as_x(n) * self.weight if self.weight is not None else as_x(n)",),
        needs_weight=False,
    ),
    Norm(
        "before_weight, or no weight",
        _before_weight,
        ("as_x(n) * self.weight if self.elementwise_affine else as_x(n)",),
        flag="elementwise_affine",
    ),
    Norm(
        "before_weight, or no weight, without a bias",
        _where(
            lambda module, x: module.bias is None and module.force_float32_reductions,
            _before_weight,
        ),
        (f"{_WEIGHTED} + self.bias if self.bias is not None else {_WEIGHTED}",),
        needs_weight=False,
    ),
    Norm(
        "no weight, divisor 1",
        partial(_after_weight, divisor=1.0),
        ("as_x(f32(x) * rsqrt(sum_square(f32(x)) + eps))",),
    ),
    Norm("inverse, no weight", partial(_after_weight, rounding="inverse"), ("x * as_x(r)",)),
    Norm("before_weight in the type of the weight", _type_of_weight, (_TYPED_PRODUCT,)),
    Norm(
        "before_weight in the type of the weight, or no weight, bias rounded",
        _type_of_weight_and_bias,
        (
            f"({_TYPED_PRODUCT} + self.bias if self.bias is not None else {_TYPED_PRODUCT})"
            " if self.weight is not None else as_x(n)",
        ),
        needs_weight=False,
    ),
    Norm(
        "before_weight, gate after, rounded",
        _rounded_gate,
        ("as_x(self.weight * as_x(n) * ACT2FN[self.activation](f32(gate)))",),
    ),
    Norm(
        "after_weight, gate after",
        _gate_after,
        ("as_x(f32(self.weight) * n * ACT2FN[self.activation](f32(gate)))",),
    ),
    Norm(
        "before_weight, gate before, groups",
        _gated_groups,
        (f"self.weight * as_x({_NORMED}.view(*{_GATED}.shape[:-1], {_COUNT} * self.group_size))",),
    ),
    Norm(
        "after_weight, weight_offset 1, groups",
        _offset_groups,
        (
            f"as_x(({_ROWS_NORMED}.flatten(-2) if self.group_size is not None else {_ROWS_NORMED})"
            " * (1.0 + f32(self.weight)))",
        ),
    ),
    Norm(
        "after_weight, gate before or after, groups",
        _gated_groups_unrounded,
        (
            f"as_x({_SQUEEZED} * silu(f32(gate)) if self.norm_before_gate and gate is not None"
            f" else {_SQUEEZED})",
        ),
    ),
    Norm(
        "no weight, x times 1 + weight rounded",
        _scaled_input,
        (f"as_x(f32({_SCALED_X}) * rsqrt(mean_square(f32({_SCALED_X})) + eps))",),
    ),
    Norm(
        "L2, eps as the least length",
        _unit,
        (f"self.weight * ({_UNIT})",),
        only_f32=True,
    ),
    Norm(
        "L2, eps as the least length, 1 + weight",
        _with_weight(_one_more, _unit),
        (f"(1.0 + self.weight) * ({_UNIT})",),
        only_f32=True,
    ),
    Norm(
        "L2, eps as the least length, offset + weight",
        _with_weight(lambda module, weight: weight + float(module.unit_offset), _unit),
        (f"(float(self.unit_offset) + self.weight) * ({_UNIT})",),
        only_f32=True,
    ),
    Norm(
        "eps as the least RMS",
        _where(
            lambda module, x: module.scale == x.shape[-1] ** -0.5,
            partial(_after_weight, eps_placement="floor"),
        ),
        ("self.weight * (x / max(self.scale * norm(x), eps))",),
        only_f32=True,
    ),
)


@cache
def _by_formula() -> tuple[dict[str, Norm], dict[str, Norm]]:
    """The table by its formulas, and by what they are where all tensors are f32."""
    texts = [(shorten(text), norm) for norm in _TABLE for text in norm.formulas]
    return (
        {text: norm for text, norm in texts if not norm.only_f32},
        {in_f32(text): norm for text, norm in reversed(texts)},
    )

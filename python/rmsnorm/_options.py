# SPDX-License-Identifier: Apache-2.0
"""The options of the library: one table for NumPy, PyTorch and JAX.

The TypedDicts are the table: the type of each option, its help and, for a number, its default. The
help of a number begins with those that are possible, and messages quote it. A new option is an
entry of one of them, and a field of OPTIONS.
"""

import ctypes
from typing import Annotated, Literal, NamedTuple, TypedDict, get_args, get_origin

Rounding = Literal["after_weight", "before_weight", "inverse"]


class RowOptions(TypedDict, total=False):
    """The options of every norm, but eps."""

    eps_placement: Annotated[
        Literal["inside", "outside", "floor"],
        'the RMS is sqrt(mean(x^2) + eps) with "inside", sqrt(mean(x^2)) + eps with "outside", and '
        'max(sqrt(mean(x^2)), eps) with "floor".',
    ]
    rounding: Annotated[
        Rounding,
        '"after_weight" rounds once, as PyTorch; "before_weight" rounds the norm to the type of x '
        'before the weight multiplies it, as Llama; "inverse" rounds 1 / RMS, too, as DeepSeek-V4.',
    ]
    weight_offset: Annotated[
        float, "a finite number, added to the weight in float32: 1 for Gemma; needs a weight.", 0.0
    ]
    divisor: Annotated[
        float | None,
        "a number from 2^-126 to 2^126 that divides the sum of squares; None is d.",
    ]


class NormOptions(RowOptions, total=False):
    """The options of a norm without a gate, but eps."""

    factor: Annotated[
        float | None,
        "a finite number other than 0 that first multiplies x; None leaves x as it is.",
    ]


class ResidualOptions(TypedDict, total=False):
    """The options of the sum of a residual and x."""

    residual_rounding: Annotated[
        Literal["rounded", "unrounded"],
        '"rounded" normalises the sum in the type of residual, "unrounded" the sum in float32.',
    ]
    residual_factor: Annotated[
        float | None,
        "a finite number other than 0 that multiplies the sum with residual, as Gemma 4's "
        "layer_scalar; None leaves it as it is.",
    ]


class AddOptions(NormOptions, ResidualOptions, total=False):
    """The options of a norm with a residual, but eps."""


class QuantizedOptions(AddOptions, total=False):
    """The options of a norm in int8, but eps."""

    group: Annotated[
        int | None,
        "a power of two from 8 to 4096 that divides d: the elements of a row that share a scale; "
        "None is d.",
    ]


class GatedOptions(RowOptions, total=False):
    """The options of a norm with a gate, but eps."""

    activation: Annotated[
        Literal["silu", "sigmoid", "none"],
        'of an element z of the gate: "silu" is z / (1 + exp(-z)), "sigmoid" is 1 / (1 + exp(-z)), '
        '"none" is z.',
    ]
    gate_placement: Annotated[
        Literal["after", "before"],
        '"after": the gate multiplies the norm; "before": it multiplies x, before x is added to a '
        "residual.",
    ]
    gate_rounding: Annotated[
        Literal["unrounded", "rounded"],
        '"rounded" rounds to the type of x what the gate multiplies after the norm, or the product '
        'with it before the norm; "unrounded" does not.',
    ]


class GatedAddOptions(AddOptions, GatedOptions, total=False):
    """The options of a norm with a residual and a gate, but eps."""


class RotationOptions(TypedDict, total=False):
    """The options of rotary positions, whose tables are the operands cos and sin."""

    rotary_pairs: Annotated[
        Literal["halves", "neighbours"],
        'of the R rotated elements "halves" pairs i and i + R / 2, as Llama and Qwen, and '
        '"neighbours" 2 i and 2 i + 1, as GLM and DeepSeek-V4.',
    ]
    rotary_part: Annotated[
        Literal["start", "end"],
        '"start" rotates the first R elements of a row, and "end" the last.',
    ]
    rotary_rounding: Annotated[
        Literal["each", "norm", "none"],
        'what is rounded to the type of y beside y: "each" the norm, the tables, products and sums, '
        'as transformers; "norm" the norm alone, as a norm and a kernel for rotations; "none" '
        "nothing.",
    ]


class RotaryOptions(NormOptions, RotationOptions, total=False):
    """The options of a norm with rotary positions, but eps."""


class OtherOptions(QuantizedOptions, GatedOptions, RotaryOptions, total=False):
    """The options but eps."""


class AllOptions(OtherOptions, total=False):
    """How to normalise."""

    eps: Annotated[
        float,
        "a number, finite and not negative. Its unit is x squared, or x outside the root.",
        1e-5,
    ]


class Option(NamedTuple):
    """An option: its help, its words in the order of their numbers or, without, its default, and
    its type in the struct.

    None is the default of a number that is 0 in the struct where it is absent.
    """

    help: str
    words: tuple[str, ...]
    default: float | str | None
    stored: type[ctypes.c_int32] | type[ctypes.c_float]


def _option(name: str) -> Option:
    kind, help, *default = get_args(AllOptions.__annotations__[name])
    words = get_args(kind) if get_origin(kind) is Literal else ()
    stored = ctypes.c_int32 if words or int in get_args(kind) else ctypes.c_float
    return Option(help, words, words[0] if words else default[0] if default else None, stored)


# The fields of rmsnorm_options, in their order.
OPTIONS = {
    name: _option(name)
    for name in (
        "eps",
        "eps_placement",
        "rounding",
        "residual_rounding",
        "weight_offset",
        "divisor",
        "factor",
        "activation",
        "gate_placement",
        "gate_rounding",
        "group",
        "residual_factor",
        "rotary_pairs",
        "rotary_part",
        "rotary_rounding",
    )
}

WORDS = {name: option.words for name, option in OPTIONS.items() if option.words}
DEFAULTS = {name: option.default for name, option in OPTIONS.items()}
NONE_IS_DEFAULT = {name for name, default in DEFAULTS.items() if default is None}


class Options(ctypes.Structure):
    """rmsnorm_options"""

    _fields_ = [
        ("size", ctypes.c_uint32),
        *((name, option.stored) for name, option in OPTIONS.items()),
    ]

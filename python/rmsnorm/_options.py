# SPDX-License-Identifier: Apache-2.0
"""The options of the library: one table for NumPy, PyTorch and JAX, and their types.

A new option is an entry of OPTIONS and of a TypedDict below.
"""

import ctypes
from typing import Literal, NamedTuple, TypedDict

__all__ = [
    "DEFAULTS",
    "NONE_IS_DEFAULT",
    "OPTIONS",
    "WORDS",
    "AddOptions",
    "GatedOptions",
    "NormOptions",
    "Options",
    "OtherOptions",
    "Rounding",
]

Rounding = Literal["after_weight", "before_weight", "inverse"]


class RowOptions(TypedDict, total=False):
    """The options of every norm, but eps."""

    eps_placement: Literal["inside", "outside", "floor"]
    rounding: Rounding
    weight_offset: float
    divisor: float | None


class NormOptions(RowOptions, total=False):
    """The options of a norm without a gate, but eps."""

    factor: float | None


class AddOptions(NormOptions, total=False):
    """The options of a norm with a residual, but eps."""

    residual_rounding: Literal["rounded", "unrounded"]


class GatedOptions(RowOptions, total=False):
    """The options of a norm with a gate, but eps."""

    activation: Literal["silu", "sigmoid"]
    gate_placement: Literal["after", "before"]
    gate_rounding: Literal["unrounded", "rounded"]


class OtherOptions(AddOptions, GatedOptions, total=False):
    """The options but eps."""


class Option(NamedTuple):
    """An option: its help, and its words in the order of their numbers or, without, its default.

    None is the default of a number that is 0 in the struct where it is absent.
    """

    help: str
    words: tuple[str, ...] = ()
    default: float | None = None


# The fields of rmsnorm_options, in their order.
OPTIONS = {
    "eps": Option(
        "a number, finite and not negative. Its unit is x squared, or x outside the root.",
        default=1e-5,
    ),
    "eps_placement": Option(
        'the RMS is sqrt(mean(x^2) + eps) with "inside", sqrt(mean(x^2)) + eps with "outside", and '
        'max(sqrt(mean(x^2)), eps) with "floor".',
        words=("inside", "outside", "floor"),
    ),
    "rounding": Option(
        '"after_weight" rounds once, as PyTorch; "before_weight" rounds the norm to the type of x '
        'before the weight multiplies it, as Llama; "inverse" rounds 1 / RMS, too, as DeepSeek-V4.',
        words=("after_weight", "before_weight", "inverse"),
    ),
    "residual_rounding": Option(
        '"rounded" normalises the sum in the type of residual, "unrounded" the sum in float32.',
        words=("rounded", "unrounded"),
    ),
    "weight_offset": Option(
        "a number, added to the weight in float32: 1 for Gemma; needs a weight.",
        default=0.0,
    ),
    "divisor": Option("a number that divides the sum of squares; None is d."),
    "factor": Option(
        "a number other than 0 that first multiplies x; None leaves x as it is.",
    ),
    "activation": Option(
        'of an element z of the gate: "silu" is z / (1 + exp(-z)), "sigmoid" is 1 / (1 + exp(-z)).',
        words=("silu", "sigmoid"),
    ),
    "gate_placement": Option(
        '"after": the gate multiplies the norm; "before": it multiplies x.',
        words=("after", "before"),
    ),
    "gate_rounding": Option(
        '"rounded" rounds the norm to the type of x before the gate multiplies it; "unrounded" '
        "does not.",
        words=("unrounded", "rounded"),
    ),
}

WORDS = {name: option.words for name, option in OPTIONS.items() if option.words}
DEFAULTS = {
    name: option.words[0] if option.words else option.default for name, option in OPTIONS.items()
}
NONE_IS_DEFAULT = {name for name, default in DEFAULTS.items() if default is None}


class Options(ctypes.Structure):
    """rmsnorm_options"""

    _fields_ = [
        ("size", ctypes.c_uint32),
        *((name, ctypes.c_int32 if name in WORDS else ctypes.c_float) for name in OPTIONS),
    ]

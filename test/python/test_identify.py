# SPDX-License-Identifier: Apache-2.0
"""identify() of norms in NumPy: this library with each option, and wrong norms."""

import itertools
import json
import math
import re
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import programs
import pytest
from identify_page import Norm, make_tests
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import rmsnorm
import rmsnorm._identify
from rmsnorm import _hypotheses as hypotheses
from rmsnorm.__main__ import main
from rmsnorm._options import DEFAULTS, WORDS
from rmsnorm._probe import ORDINARY_ROWS, probe
from rmsnorm._search import observe, find
from rmsnorm._tensors import read_tensor, rounded
from rmsnorm._texts import systems, text_of

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
D = 100  # a multiple of 4 alone
TYPES = ("float32", "float16", "bfloat16")
NARROW = TYPES[1:]


def near(value):
    return value if isinstance(value, str) else pytest.approx(value, rel=1e-6, abs=0)


# ---------------------------------------------------------------------------------- this library

ROUNDINGS = [{}, {"rounding": "before_weight"}, {"rounding": "inverse"}]
RESIDUAL, GATE = {"residual": True}, {"gate": True}
# The first are usual ones.
EPS = [0, 1e-12, 1e-8, 1.1920929e-7, 1e-6, 1e-5, 1e-3]
EPS += [3e-4, 2.5e-7, 1.23e-5, float(BF16(1e-5)), float(F16(1e-6))]
GATES = [
    {**activation, **placement}
    for activation in ({}, {"activation": "sigmoid"}, {"activation": "none"})
    for placement in ({}, {"gate_rounding": "rounded"}, {"gate_placement": "before"})
]
STREAM = {"activation": "none", "gate_placement": "before"}
STEP = {**STREAM, "gate_rounding": "rounded"}
UNROUNDED, OF_NORM = {"rotary_rounding": "none"}, {"rotary_rounding": "norm"}
AT_END = {"rotary_pairs": "neighbours", "rotary_part": "end", "rounding": "before_weight"}
ROTATED, PART, TABLES = {"rotated": D}, {"rotated": 36}, {"table_dtype": "float32"}
# Options, the types of x that show them, and arguments of identify(). The usual eps is 1e-6.
RIGHT = [
    *(({"eps": eps}, TYPES, {}) for eps in EPS),
    *(
        ({"eps": eps, "eps_placement": placement}, ["float32", "bfloat16"], {})
        for eps in (1e-5, 1e-2)
        for placement in ("outside", "floor")
    ),
    *((rounding, NARROW, {}) for rounding in ROUNDINGS),
    *((rounding | {"weight_offset": 1}, NARROW, {}) for rounding in ROUNDINGS),
    *((rounding, ["bfloat16"], {"weight_dtype": "float32"}) for rounding in ROUNDINGS),
    ({"weight_offset": 1}, ["float32"], {}),
    ({"eps": 3.21e-3, "eps_placement": "outside", "weight_offset": 0.5}, ["bfloat16"], {}),
    ({"eps": 1.2345e-6}, ["float32"], {"eps": [1, 1.2345e-6]}),
    ({"divisor": 1}, ["bfloat16"], {}),
    ({}, ["bfloat16"], {"weight": False}),
    ({"rounding": "inverse"}, ["bfloat16"], {"weight": False}),
    *(
        (rounding | unrounded, ["bfloat16"], RESIDUAL)
        for rounding in ROUNDINGS[:2]
        for unrounded in ({}, {"residual_rounding": "unrounded"})
    ),
    *(({"factor": factor}, ["float32"], RESIDUAL) for factor in (0.22, 0.246, -3)),
    *(({"factor": f, **ROUNDINGS[1]}, ["bfloat16"], RESIDUAL) for f in (0.22, 0.246, -3)),
    *((rounding | gate, ["bfloat16"], GATE) for rounding in ROUNDINGS[:2] for gate in GATES),
    ({"activation": "sigmoid"}, ["bfloat16"], RESIDUAL | GATE),
    (STEP, ["bfloat16"], GATE),
    (STREAM, ["float32"], RESIDUAL | GATE),
    *((STEP | rounding, NARROW, RESIDUAL | GATE) for rounding in ROUNDINGS[:2]),
    (STREAM | {"residual_rounding": "unrounded"}, ["bfloat16"], RESIDUAL | GATE),
    (STEP | {"factor": 0.22, "weight_offset": 1}, ["float16"], RESIDUAL | GATE),
    ({"residual_factor": 0.7}, TYPES, RESIDUAL),
    ({"residual_factor": 0.7, "residual_rounding": "unrounded"}, ["bfloat16"], RESIDUAL),
    ({"residual_factor": 0.7, "activation": "sigmoid"}, ["float32"], RESIDUAL | GATE),
    (STEP | {"residual_factor": -3}, ["bfloat16"], RESIDUAL | GATE),
    ({"eps": 1.23e-5, "weight_offset": -1.37, "factor": 0.37}, ["float32"], RESIDUAL | GATE),
    ({}, TYPES, ROTATED),
    ({"rotary_pairs": "neighbours", "weight_offset": 1, "eps": 3.3e-6}, TYPES, TABLES | ROTATED),
    (AT_END, TYPES, PART),
    (OF_NORM | {"rounding": "before_weight"}, TYPES, TABLES | PART),
    (OF_NORM | AT_END, TYPES, PART),
    (UNROUNDED | {"rounding": "inverse"}, TYPES, TABLES | ROTATED),
    (UNROUNDED | AT_END, TYPES, PART | {"weight_dtype": "float32"}),
    (OF_NORM, TYPES, {"weight": False} | ROTATED),
    (UNROUNDED, TYPES, {"weight": False} | PART),
    (
        OF_NORM | {"rounding": "inverse", "rotary_pairs": "neighbours"},
        TYPES,
        {"weight": False} | ROTATED,
    ),
]


def names_of(arguments):
    """The operands that identify() gives to a function after x."""
    names = [name for name in ("residual", "gate") if name in arguments]
    names += ["weight"] if arguments.get("weight", True) else []
    return names + (["cos", "sin"] if "rotated" in arguments else [])


def by_library(names, options):
    """The library's norm as a function of x and of operands with these names."""
    return lambda x, *arrays: rmsnorm.rms_norm(
        x, **dict(zip(names, arrays, strict=True)), **options
    )


@pytest.mark.parametrize(
    ("options", "dtype", "arguments"),
    [(options, dtype, more) for options, types, more in RIGHT for dtype in types],
)
def test_each_option_is_named(options, dtype, arguments):
    wanted = options = {"eps": 1e-6} | options
    names = names_of(arguments)
    f = by_library(names, options)
    if "rotated" in arguments and dtype == "float32":  # which shows no rounding
        wanted = {key: each for key, each in options.items() if "rounding" not in key}

    def with_sum(x, *arrays):
        total = np.empty_like(x)
        return f(x, *arrays, total), total

    identify = rmsnorm.identify_rotary if "rotated" in arguments else rmsnorm.identify
    # A factor of the sum shows in residual_out. In y it is a part of eps.
    answers = [] if "residual_factor" in options else [identify(f, D, dtype, **arguments)]
    if "residual" in arguments:
        names.append("residual_out")
        answers.append(rmsnorm.identify(with_sum, D, dtype, **arguments))
        factor = f"{options['factor']} x" if "factor" in options else "x"
        total = f"residual + {factor}"
        total += " times the gate" if STREAM.items() <= options.items() else ""
        if "residual_factor" in options:
            total = f"{options['residual_factor']} times ({total})"
        assert f"residual_out is {total} in every element." in answers[-1].special
        assert ("factor" in options) == (f", {factor} added to the residual" in answers[0].sentence)
        is_granite = any("Granite" in system for system in answers[0].systems)
        assert is_granite == (options.get("factor") == 0.22 and "gate" not in arguments)
    for answer in answers:
        assert (answer.fit, answer.equal, answer.worst) == ("exact", 1.0, 0), str(answer)
        assert answer.options == {name: near(value) for name, value in wanted.items()}, str(answer)
        assert (answer.variant, answer.mistake, answer.writes) == (None, None, ())
        assert not any(answer.depends.values())
        assert {each.name for each in answer.ambiguous} <= {"step"}, str(answer)


def test_a_result_in_float32():
    def f(x, weight):
        out = np.empty(x.shape, F32)
        return rmsnorm.rms_norm(x, weight, out=out, eps=1e-6, rounding="before_weight")

    answer = rmsnorm.identify(f, D, "bfloat16", weight_dtype="float32")
    assert answer.options == {"eps": near(1e-6), "rounding": "before_weight"}


# ---------------------------------------------------------------------------------- wrong norms


def f32(array):
    return np.asarray(array).astype(F32)


def mean(values):
    return np.mean(values, axis=-1, keepdims=True, dtype=F32)


def mean_square(h):
    return mean(h * h)


def inverse_root(u):
    return 1 / np.sqrt(u)


def norm(x, weight, eps=1e-6, of=mean_square, inverse=inverse_root, cast=None):
    """The right norm, and the parts that others make wrong."""
    h = f32(x)
    y = h * f32(inverse(f32(of(h)) + F32(eps))) * f32(weight)
    return y.astype(x.dtype) if cast is None else cast(y)


def sum_of(h, end=D):
    return np.sum(h[:, :end] ** 2, axis=-1, keepdims=True)


def sum_in(dtype, h):
    """The mean of squares, added one by one in a narrow type."""
    return f32(np.cumsum((h * h).astype(dtype), axis=-1, dtype=dtype)[:, -1:]) / F32(D)


def sum_in_lanes(h):
    """The mean of squares by eight sums in f16."""
    lanes, rest = np.split((h * h).astype(F16), [D // 8 * 8], axis=-1)
    sums = lanes.reshape(len(h), -1, 8).cumsum(axis=1, dtype=F16)[:, -1]
    return (f32(sums).sum(-1) + f32(rest).sum(-1))[:, np.newaxis] / F32(D)


def variance(h, ddof=0):
    return np.var(h, axis=-1, keepdims=True, ddof=ddof)


def centered(x, weight, of):
    h = f32(x) - mean(f32(x))
    return (h / np.sqrt(of(f32(x)) + F32(1e-6)) * f32(weight)).astype(x.dtype)


def in_halves(x, weight):
    halves = norm(f32(x).reshape(len(x), 2, -1), F32(1))
    return (halves.reshape(x.shape) * f32(weight)).astype(x.dtype)


def quick(u):
    """The inverse root to 5 bits, from the bits of a number."""
    return (0x5F3759DF - (u.view(np.int32) >> 1)).astype(np.int32).view(F32)


def newton(r, u):
    """A better inverse root than r."""
    return r * (F32(1.5) - F32(0.5) * u * r * r)


def to_12_bits(u):
    """The inverse root as fast instructions give it."""
    return (inverse_root(u).view(np.uint32) + 0x800 & 0xFFFFF000).view(F32)


def cut_off(y):
    return (y.view(np.uint32) >> 16).astype(np.uint16).view(BF16)


def cut_off_to_f16(y):
    rounded = y.astype(F16)
    is_too_large = np.abs(f32(rounded)) > np.abs(y)
    return np.where(is_too_large, np.nextafter(rounded, F16(0)), rounded)


def with_end(x, weight, end, first):
    """The norm, whose elements from one on are others."""
    y = norm(x, weight)
    y[:, first:] = end(x)[:, first:]
    return y


def scaled_weight(x, weight):
    scale = (f32(weight) * inverse_root(mean_square(f32(x)) + F32(1e-6))).astype(x.dtype)
    return (f32(x) * f32(scale)).astype(x.dtype)


def divided_by(rms, x, weight):
    h = f32(x)
    return (h / f32(rms(mean_square(h))) * f32(weight)).astype(x.dtype)


def in_x_type(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(1e-6)) * weight


def of_sum(total, x, residual, weight):
    """A norm of total(x, residual) in f32, rounded to the type of x."""
    return norm(total(f32(x), f32(residual)).astype(x.dtype), weight)


def gelu(z):
    return z * f32([[0.5 * (1 + math.erf(v / 2**0.5)) for v in row] for row in z.astype(float)])


def gated(activation, x, gate, weight):
    return norm(x, f32(weight) * activation(f32(gate)))


def silu(z):
    return z / (1 + np.exp(-z))


def wrong(f=norm, words=None, dtype="bfloat16", arguments=None, **parts):
    """A norm, or the right one with other parts, and words of the answer. Without words, the name
    is in the answer; with "", no norm fits."""
    return Norm(partial(f, **parts), words, dtype, arguments or {})


RANDOM = np.random.default_rng(1)
WRONG = {
    "squares are added in bf16": wrong(of=partial(sum_in, BF16)),
    "squares are added in f16": wrong(of=partial(sum_in, F16), dtype="float16"),
    "squares are rounded to bf16": wrong(of=lambda h: mean(f32((h * h).astype(BF16)))),
    "squares are rounded to f16": wrong(
        of=lambda h: mean(f32((h * h).astype(F16))), dtype="float16"
    ),
    "squares added in f16 in 8 lanes": wrong(words="", of=sum_in_lanes, dtype="float16"),
    "x rounded to f16 for the sum": wrong(words="", of=lambda h: mean_square(f32(h.astype(F16)))),
    "last element is left out of the sum of squares": wrong(
        of=lambda h: sum_of(h, D - 1) / D, dtype="float32"
    ),
    "elements from 96 on are left out of the sum": wrong(of=lambda h: sum_of(h, 96) / D),
    "elements from 96 on are left out of the mean": wrong(of=lambda h: sum_of(h, 96) / 96),
    "divided by d - 1": wrong(of=lambda h: sum_of(h) / (D - 1)),
    "divided by the next power of two": wrong(of=lambda h: sum_of(h) / 128),
    "divided by d rounded up to a multiple of 8": wrong(of=lambda h: sum_of(h) / 104),
    "divided by d / 2": wrong(words="divided by 50", of=lambda h: sum_of(h) / 50),
    "sum of squares not divided": wrong(of=sum_of),
    "mean of the magnitudes replaces the RMS": wrong(of=lambda h: mean(np.abs(h)) ** 2),
    "variance replaces the mean of the squares": wrong(of=variance),
    "variance, divided by d - 1, replaces the mean": wrong(of=partial(variance, ddof=1)),
    "LayerNorm": wrong(partial(centered, of=variance)),
    "LayerNorm in f32": wrong(partial(centered, of=variance), "a LayerNorm", dtype="float32"),
    "LayerNorm whose variance is divided by d - 1": wrong(
        partial(centered, of=partial(variance, ddof=1))
    ),
    "mean is subtracted from x, but not in the RMS": wrong(
        lambda x, w: norm(f32(x) - mean(f32(x)), w, of=lambda h: mean_square(f32(x))).astype(BF16)
    ),
    # in float64, where the order of the rows does not matter
    "one RMS is used for all rows": wrong(of=lambda h: np.mean(h.astype(float) ** 2)),
    "RMS along the wrong axis": wrong(
        words="", of=lambda h: np.mean(h * h, axis=0, keepdims=True)
    ),
    "RMS of the row before": wrong(words="", of=lambda h: np.roll(mean_square(h), 1, axis=0)),
    "normalised in 2 groups of 50 elements": wrong(in_halves),
    "normalised in 2 groups of 50 elements, which all have the first weights": wrong(
        lambda x, w: in_halves(x, np.tile(w[:50], 2))
    ),
    "norm is applied twice": wrong(lambda x, w: norm(norm(x, w), w)),
    "all steps in bf16": wrong(in_x_type, ""),
    "eps is added both inside and outside the root": wrong(
        partial(divided_by, lambda u: np.sqrt(u + F32(1e-6)) + F32(1e-6))
    ),
    "eps added to the sum of squares": wrong(words="eps 1e-08 inside the root", eps=1e-6 / D),
    "eps forgotten": wrong(words="no eps", eps=0),
    "x is divided by its largest magnitude first, and eps is not scaled": wrong(
        lambda x, w: norm(f32(x) / abs(f32(x)).max(-1, keepdims=True, initial=1e-30), w).astype(BF16)
    ),
    "eps is added to 1 / RMS": wrong(
        inverse=lambda u: inverse_root(u) + F32(1e-6), eps=0, dtype="float32"
    ),
    "root is left out": wrong(inverse=lambda u: 1 / u),
    "x is multiplied by the RMS": wrong(inverse=np.sqrt),
    "divided by the RMS, which is rounded to bf16": wrong(
        partial(divided_by, lambda u: np.sqrt(u + F32(1e-6)).astype(BF16))
    ),
    "1 / RMS is rounded to bf16": wrong(inverse=lambda u: inverse_root(u).astype(BF16)),
    "1 / RMS to 12 bits": wrong(words="", inverse=to_12_bits, dtype="float32"),
    "1 / RMS to 12 bits, in bf16": wrong(words="", inverse=to_12_bits),
    "quick 1 / RMS": wrong(words="", inverse=lambda u: newton(quick(u), u)),
    "1 / RMS by two steps of Newton's method": wrong(
        words="", inverse=lambda u: newton(newton(quick(u), u), u), dtype="float32"
    ),
    "each element has the first weight": wrong(lambda x, w: norm(x, w[:1])),
    "each element has the weight of the next one": wrong(lambda x, w: norm(x, np.roll(w, -1))),
    "weight is that of rows of 4 x 25 elements, transposed": wrong(
        lambda x, w: norm(x, w.reshape(4, 25).T.ravel())
    ),
    "first 25 elements of the weight are repeated": wrong(
        lambda x, w: norm(x, np.tile(w[:25], 4))
    ),
    "bits of the weight are read as f16": wrong(lambda x, w: norm(x, w.view(F16))),
    "weight times 1 / RMS is rounded to bf16": wrong(scaled_weight),
    "weight is not used": wrong(lambda x, w: norm(x, F32(1))),
    "weight is multiplied twice": wrong(lambda x, w: norm(x, f32(w) ** 2)),
    "multiplied by the weight before the norm": wrong(lambda x, w: norm(x * w, F32(1))),
    "weight is read from its end": wrong(lambda x, w: norm(x, w[::-1])),
    "weight from its end, with an eps that nobody uses": wrong(
        lambda x, w: norm(x, w[::-1], eps=1.23e-5),
        "eps 1.23e-05 inside the root, rounded once, after the weight, the weight is read from its",
    ),
    "1 + weight is rounded to bf16": wrong(lambda x, w: norm(x, w + BF16(1))),
    "weight is rounded to bf16": wrong(lambda x, w: norm(x, w.astype(BF16)), dtype="float32"),
    "0.5 added to the weight": wrong(lambda x, w: norm(x, F32(0.5) + f32(w))),
    "x is rounded to bf16": wrong(lambda x, w: norm(f32(x.astype(BF16)), w), dtype="float32"),
    "bits of x are read as f16": wrong(
        lambda x, w: norm(f32(x.view(F16)), w).astype(BF16)
    ),
    "result is cut off to bf16": wrong(cast=cut_off),
    "result is cut off to f16": wrong(cast=cut_off_to_f16, dtype="float16"),
    "result is rounded to bf16 with ties away from zero": wrong(
        cast=lambda y: cut_off((y.view(np.uint32) + 0x8000).view(F32))
    ),
    "result rounded to f16, then to bf16": wrong(
        words="", cast=lambda y: y.astype(F16).astype(BF16)
    ),
    "result is limited to 2": wrong(cast=lambda y: np.clip(y, -2, 2).astype(BF16)),
    "0.1 is added to the result": wrong(cast=lambda y: (y + F32(0.1)).astype(BF16)),
    "elements from 96 on not normalised": wrong(partial(with_end, end=lambda x: x, first=96), ""),
    "the norm plus itself times the weight, each rounded": wrong(
        lambda x, w: norm(x, F32(1)) + norm(x, F32(1)) * w, ""
    ),
    "rows from 19 on not written": wrong(
        lambda x, w: np.where(np.arange(len(x))[:, np.newaxis] < 19, norm(x, w), BF16(0)), ""
    ),
    "last element not written": wrong(partial(with_end, end=np.zeros_like, first=99), ""),
    "residual is not used": wrong(lambda x, r, w: norm(x, w), arguments=RESIDUAL),
    "residual is added to the norm": wrong(lambda x, r, w: norm(x, w) + r, arguments=RESIDUAL),
    "residual - x": wrong(
        partial(of_sum, lambda x, r: r - x), "-1 x added to the residual", arguments=RESIDUAL
    ),
    "residual + 2 x": wrong(
        partial(of_sum, lambda x, r: r + 2 * x), "2 x added to the residual", arguments=RESIDUAL
    ),
    # This is half of the sum, with a quarter of its eps.
    "2 residual + x": wrong(
        partial(of_sum, lambda x, r: 2 * r + x),
        "eps 2.5e-07 inside the root, rounded once, after the weight, of the rounded sum, 0.5 x",
        arguments=RESIDUAL,
    ),
    "gate is not used": wrong(lambda x, z, w: norm(x, w), arguments=GATE),
    "gelu replaces the activation of the gate": wrong(partial(gated, gelu), arguments=GATE),
    "tanh replaces the activation of the gate": wrong(partial(gated, np.tanh), arguments=GATE),
    "relu replaces the activation of the gate, before the norm": wrong(
        lambda x, z, w: norm(f32(x) * np.maximum(f32(z), 0), w).astype(BF16),
        "silu of the gate before the norm, relu replaces the activation of the gate",
        arguments=GATE,
    ),
    "activation of the gate is rounded to bf16": wrong(
        partial(gated, lambda z: f32(silu(z).astype(BF16))), arguments=GATE
    ),
    "x and the gate are swapped": wrong(
        lambda x, z, w: gated(silu, z, x, w), arguments=GATE
    ),
    "each operation of silu rounds to bf16": wrong(
        lambda x, z, w: norm(x, w) * (z * (1 / (1 + f32(np.exp(-z)))).astype(BF16)),
        "",
        arguments=GATE,
    ),
    "x is not used": wrong(lambda x, r, w: norm(r, w), arguments=RESIDUAL),
    "x is not normalised": wrong(lambda x, w: x * w),
    "x is not normalised, and the weight is not used": wrong(lambda x, w: x.copy()),
    "y is zeros": wrong(lambda x, w: np.zeros_like(x), ""),
    "result is rounded to bf16": wrong(cast=lambda y: f32(y.astype(BF16)), dtype="float32"),
    "result rounded up": wrong(words="", cast=lambda y: cut_off(y + np.abs(y) / 256)),
    "eps of 1": wrong(words="eps 1 inside the root", eps=1),
    "eps of 0.1 added to the RMS": wrong(
        lambda x, w: divided_by(lambda u: np.sqrt(u) + F32(0.1), x, w),
        "eps 0.1 added to the RMS",
        dtype="float32",
    ),
    "mean of the squares and eps in f16": wrong(
        words="",
        of=lambda h: mean_square(h).astype(F16) + F16(1e-6),
        eps=0,
        dtype="float16",
    ),
    "x limited to 10 in the sum": wrong(words="", of=lambda h: mean_square(np.clip(h, -10, 10))),
    "weight is rounded to float8": wrong(
        lambda x, w: norm(x, w.astype(ml_dtypes.float8_e4m3fn)), ""
    ),
    "small results become zeros": wrong(
        words="", cast=lambda y: np.where(np.abs(y) < 6.1e-5, 0, y).astype(F16), dtype="float16"
    ),
    "squares of every second element": wrong(
        words="", of=lambda h: 2 * np.sum(h[:, ::2] ** 2, axis=-1, keepdims=True) / D
    ),
    "a NaN in the third row": wrong(
        lambda x, w: np.where(np.arange(len(x))[:, np.newaxis] == 2, F32(np.nan), norm(x, w)),
        "",
        dtype="float32",
    ),
    "4-norm": wrong(words="", of=lambda h: np.sqrt(mean(h**4)), dtype="float32"),
    "divided by the weight": wrong(lambda x, w: norm(x, 1 / f32(w)), ""),
    "exp of the weight": wrong(lambda x, w: norm(x, np.exp(f32(w))), ""),
    "2 groups of alternate elements": wrong(
        lambda x, w: np.stack([norm(x[:, i::2], w[i::2]) for i in (0, 1)], -1).reshape(x.shape), ""
    ),
    "stochastic rounding": wrong(
        words="",
        cast=lambda y: cut_off(
            (y.view(np.uint32) + RANDOM.integers(2**16, size=y.shape, dtype=np.uint32)).view(F32)
        ),
    ),
}
test_wrong_norms_are_named, test_page_has_the_wrong_norms, answer_to = make_tests(
    "wrong norm", WRONG, says_depends=True
)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_right_norm_is_called_right(dtype):
    assert rmsnorm.identify(norm, D, dtype).options == {"eps": near(1e-6)}
    # A mistake with a tiny eps can be nearer than no eps, by chance.
    answer = rmsnorm.identify(partial(norm, eps=0, of=exact_mean), D, dtype)
    assert answer.options == {"eps": 0}, str(answer)


def test_a_norm_that_nothing_is_near():
    answer = answer_to("RMS along the wrong axis")
    assert answer.sentence == "y is no norm that is known here. None is near."
    assert "equal, %" not in str(answer)
    assert "Another eps than those tried may fit: name it with eps=." in answer.special


def both(total_of, returned=lambda total, x, residual: total.astype(x.dtype)):
    """The norm of a sum, and the sum or what is returned in its place."""

    def norm_and_sum(x, residual, weight):
        total = total_of(f32(x), f32(residual))
        return norm(total.astype(x.dtype), weight), returned(total, x, residual)

    return norm_and_sum


def with_wrong_columns(total):
    return np.where(np.arange(D) % 3 == 0, F32(12345), total).astype(BF16)


WRONG_SUM = f"residual_out is wrong in {34 * 38} of 3800 elements"


@pytest.mark.parametrize(
    ("mistake", "f"),
    {
        "residual_out is cut off to bf16": both(np.add, lambda total, x, r: cut_off(total)),
        "residual_out is f32 instead of bf16": both(np.add, lambda total, x, r: total),
        "residual_out is x alone": both(np.add, lambda total, x, r: x),
        "residual_out is residual alone": both(np.add, lambda total, x, r: r),
        "residual_out is residual - x": both(np.add, lambda _, x, r: (f32(r) - x).astype(BF16)),
        WRONG_SUM: both(np.add, lambda total, x, r: with_wrong_columns(total)),
        "the sum is cut off to bf16 instead of rounded": both(lambda x, r: cut_off(x + r)),
        f"y is the norm of residual_out, {WRONG_SUM}": both(
            lambda x, r: with_wrong_columns(x + r)
        ),
    }.items(),
)
def test_a_wrong_sum_is_a_mistake(mistake, f):
    answer = rmsnorm.identify(f, D, "bfloat16", **RESIDUAL)
    assert (answer.fit, answer.options, answer.variant) == ("exact", None, None)
    assert answer.mistake == mistake
    assert answer.mistake in answer.sentence and answer.systems == ()


@pytest.mark.parametrize(
    ("words", "dtype", "options", "total"),
    [
        ("x is rounded to bf16 first", "float32", {}, lambda x, r: f32(x.astype(BF16)) + r),
        (None, "float32", {"residual_factor": 0.5}, lambda x, r: (x + r) * F32(0.5)),
        ("the sum is rounded to f16 first", "bfloat16", {}, lambda x, r: (x + r).astype(F16)),
    ],
)
def test_a_sum_that_goes_with_y(words, dtype, options, total):
    answer = rmsnorm.identify(both(total), D, dtype, **RESIDUAL)
    assert (answer.variant, answer.mistake) == (words, None), str(answer)
    assert answer.fit == "exact" or dtype == "float32"
    assert answer.options == {"eps": near(1e-6)} | options


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("words", "f", "arguments"),
    [
        ("result is multiplied by 0.7", lambda x, w: norm(x, F32(0.7) * f32(w)), {}),
        (
            "result is multiplied by 2",
            lambda x, z, w: gated(lambda z: 2 / (1 + np.exp(-z)), x, z, w),
            GATE,
        ),
        ("0.7071", lambda x, w: norm(x, f32(w) + F32(0.5**0.5)), {}),
        (
            "1.2 is added",
            lambda x, w: norm(x, w, cast=lambda y: (y + F32(1.2)).astype(x.dtype)),
            {},
        ),
        ("eps 2.3e-05 inside", partial(norm, eps=2.3e-5), {}),
        # Most rows are smaller.
        (
            "eps 0.3 as the least RMS",
            partial(norm, eps=0, inverse=lambda u: 1 / np.maximum(np.sqrt(u), F32(0.3))),
            {},
        ),
        (
            "result is limited to 0.7",
            lambda x, w: norm(x, w, cast=lambda y: np.clip(y, -0.7, 0.7).astype(x.dtype)),
            {},
        ),
        ("of 0.22 and x added to the residual unrounded", both(lambda x, r: r + F32(0.22) * x), {}),
        ("0.22 before it is rounded", both(lambda x, r: (r + x) * F32(0.22)), {}),
        ("Every element of y is 0.1.", lambda x, w: np.full_like(x, 0.1), {}),
    ],
)
def test_a_number_is_said_as_its_shortest_decimal(dtype, words, f, arguments):
    has_sum = getattr(f, "__name__", "") == "norm_and_sum"
    answer = rmsnorm.identify(f, D, dtype, **(RESIDUAL if has_sum else arguments))
    if has_sum and dtype == "float32":  # which shows no rounding
        words = "0.22"
    assert words in f"{answer.sentence} {answer.special}", str(answer)
    assert (answer.fit == "none") == ("y is" in words)
    assert not has_sum or answer.mistake is None


def test_few_rows_that_differ_are_named():
    def f(x, weight):
        y = rmsnorm.rms_norm(x, weight, eps=1e-6)
        y[1::9, 3] = np.nextafter(y[1::9, 3], F32(0))  # the last bit of a number
        return y

    answer = rmsnorm.identify(f, D)
    assert (answer.fit, answer.special[0]) == ("close", "5 of 38 rows differ: 1, 10, 19, ...")
    assert answer.special[0] in str(answer)


def test_special_rows():
    answer = rmsnorm.identify(lambda x, weight: np.nan_to_num(norm(x, weight)), D)
    assert answer.options == {"eps": near(1e-6)}
    assert "Rows with a NaN become zeros, unlike in this library." in answer.special


# --------------------------------------------------------------------------- what a row depends on


def twice_if(condition):
    """The norm, whose rows are doubled where an array of one element for each row says so."""
    return lambda x, weight: norm(x, weight) * np.where(condition(x), 2, 1).astype(F32)


def later():
    calls = itertools.count()
    return twice_if(lambda x: next(calls) >= 2)


def last_result(x, weight, last={}):  # noqa: B006
    """What the last call of the same shape computed."""
    now = norm(x, weight)
    result, last[x.shape] = last.get(x.shape, now), now
    return result


@pytest.mark.parametrize(
    ("cause", "words", "rows", "f"),
    [
        ("batch", "the other rows of the batch", 42, WRONG["one RMS is used for all rows"].f),
        # 38 ordinary rows, and the special one that is neither zeros nor NaN.
        ("batch", "the other rows of the batch", 39, twice_if(lambda x: len(x) == 1)),
        ("alignment", "the alignment of the arrays", 39, twice_if(lambda x: x.ctypes.data % 16)),
        ("repetition", "a repetition of the call", 39, later()),
        ("history", "the call before", 43, last_result),
        # The first and the last ordinary row. Each row comes first in a batch of one.
        ("place", "its place in the batch", 2, twice_if(lambda x: np.arange(len(x))[:, None] == 0)),
    ],
)
def test_what_changes_a_row(cause, words, rows, f):
    answer = rmsnorm.identify(f, D)
    changing = {each for each, count in answer.depends.items() if count}
    assert changing - ({"batch"} if cause == "place" else set()) == {cause}
    assert f"A row's bits change with {words}: {rows} of {answer.rows} rows." in str(answer)


def test_a_result_that_the_next_call_overwrites():
    memory = np.empty((100, D), F32)

    def f(x, weight):
        memory[: len(x)] = norm(x, weight)
        return memory[: len(x)]

    answer = rmsnorm.identify(f, D)
    assert (answer.fit, answer.writes, any(answer.depends.values())) == ("close", ("y",), False)
    assert "The function writes to the y that it returned before." in str(answer)


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("match", "f", "arguments"),
    [
        ("dtype: 'float64'; possible are float32, float16, bfloat16", norm, {"dtype": "float64"}),
        ("weight_dtype: <class 'int'>", norm, {"weight_dtype": int}),
        ("framework: 'numpie'; possible are numpy, torch, jax", norm, {"framework": "numpie"}),
        ("device: 'cuda'; arrays of NumPy have none", norm, {"device": "cuda"}),
        ("d: 0; possible are 1 to", norm, {"d": 0}),
        ("d: 1.5; an integer is possible", norm, {"d": 1.5}),
        ("eps is -1; it must be finite and not negative", norm, {"eps": [1e-6, -1]}),
        ("eps: 1.5; it must be a list of numbers", norm, {"eps": 1.5}),
        (r"shape \(\d+, 99\) instead of y of shape \(\d+, 100\)", lambda x, w: x[:, 1:], {}),
        ("elements of type float64, instead of y", lambda x, w: norm(x, w).astype(float), {}),
        ("list, which is no array of NumPy", lambda x, w: norm(x, w).tolist(), {}),
        ("NoneType, which is no array of NumPy", lambda x, w: None, {}),
        ("returns 2 results instead of y of shape", lambda x, w: (x, x), {}),
        (
            r"returns 3 results instead of y of shape \(\d+, 100\) or \(y, residual_out\)",
            lambda x, r, w: (x, x, x),
            RESIDUAL,
        ),
        ("table_dtype: <class 'int'>", norm, {"rotated": 36, "table_dtype": int}),
        ("d: 4097; possible are 1 to 4096", norm, {"d": 4097, "rotated": 2}),
        ("rotated: 35; possible are even numbers from 2 to d, 100", norm, {"rotated": 35}),
        ("rotated: 102; possible are even numbers from 2 to d, 100", norm, {"rotated": 102}),
        (
            "results of other types for other rows",
            lambda x, w: norm(x, w).astype(F16 if len(x) == 1 else F32),
            {},
        ),
    ],
)
def test_refused(match, f, arguments):
    identify = rmsnorm.identify_rotary if "rotated" in arguments else rmsnorm.identify
    with pytest.raises(TypeError if "1.5" in match else ValueError, match=match):
        identify(f, **{"d": D, **arguments})


@pytest.mark.parametrize(
    ("identify", "shapes", "arguments"),
    [
        (rmsnorm.identify, r"gate \(38, 100\), weight \(100,\)", GATE),
        (rmsnorm.identify_rotary, r"cos \(81, 18\), sin \(81, 18\)", {"weight": False, **PART}),
    ],
)
def test_an_exception_of_the_function_is_passed_on_with_the_shapes(identify, shapes, arguments):
    with pytest.raises(ZeroDivisionError) as caught:
        identify(lambda *arrays: 1 // 0, D, **arguments)
    (note,) = caught.value.__notes__
    assert re.search(rf"with x \(\d+, 100\), {shapes}$", note)


# ------------------------------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def run():
    """The tensors of an implementation: 2 x 30 rows, some of which are small."""
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 30, D)) * np.logspace(-4, 1, 30)[:, np.newaxis]
    return {
        "x": x.astype(BF16),
        "residual": (x[::-1] / 2).astype(BF16),
        "gate": random.standard_normal(x.shape).astype(BF16),
        "weight": (1 + random.standard_normal(D) / 4).astype(BF16),
        "bias": random.standard_normal(D).astype(BF16),
    }


# The arguments of identify_files() by the names of operands.
ARGUMENTS = {"x": "input", "y": "output", "residual_out": "residual_output"}
OTHERS = ("weight", "bias", "post_norm_weight", "residual", "gate", "cos", "sin")
ARGUMENTS |= {name: name for name in OTHERS}


def identify_run(path, eps=(), **tensors):
    save_file(tensors, path, {"from": "a test"})
    files = {ARGUMENTS[name]: f"{path}:{name}" for name in tensors}
    return rmsnorm.identify_files(**files, eps=eps)


def test_files_of_every_operand(run, tmp_path):
    options = {"eps": 1e-6, "residual_rounding": "unrounded", "activation": "sigmoid"}
    total = np.empty_like(run["residual"])
    operands = {name: run[name] for name in ("residual", "gate", "bias")}
    y = rmsnorm.rms_norm(run["x"], run["weight"], **operands, residual_out=total, **options)
    answer = identify_run(tmp_path / "run.safetensors", **run, y=y, residual_out=total)
    assert (answer.fit, answer.rows, answer.depends, answer.writes) == ("exact", 60, {}, ())
    assert answer.options == {name: near(value) for name, value in options.items()}
    assert "residual_out is residual + x in every element." in answer.special


def test_files_of_numpy_and_of_one_tensor(run, tmp_path):
    x, weight = f32(run["x"]), run["weight"]
    y = rmsnorm.rms_norm(x, weight, eps=3e-6, weight_offset=1)
    np.save(tmp_path / "x", x)
    np.save(tmp_path / "y", y.astype(">f4"))
    save_file({"w": weight}, tmp_path / "w.safetensors")
    files = (tmp_path / name for name in ("x.npy", "y.npy", "w.safetensors"))
    answer = rmsnorm.identify_files(*files, eps=[3e-6])
    assert (answer.fit, answer.options) == ("exact", {"eps": near(3e-6), "weight_offset": 1})


def test_a_bias_that_is_forgotten(run, tmp_path):
    y = rmsnorm.rms_norm(run["x"], run["weight"], eps=1e-6)
    tensors = {name: run[name] for name in ("x", "weight", "bias")}
    answer = identify_run(tmp_path / "run.safetensors", **tensors, y=y)
    assert (answer.fit, answer.mistake) == ("exact", "the bias is not used")


def of_safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EIGHT_BITS = ENTRY | {"dtype": "F8_E4M3"}
BROKEN = "a file of another format than safetensors, or a part of one"


@pytest.mark.parametrize(
    ("path", "content", "match"),
    [
        ("run.safetensors", None, "it holds i, w, x; write .*run.safetensors:NAME"),
        ("run.safetensors:y", None, "it holds i, w, x; write"),
        ("run.safetensors:i", None, "run.safetensors:i: elements of type I64"),
        ("f8.safetensors", of_safetensors({"x": EIGHT_BITS}, b"8 bytes."), "type F8_E4M3"),
        ("empty.safetensors", b"", BROKEN),
        ("none.safetensors", of_safetensors({}), "none.safetensors: it holds no tensor$"),
        ("long.safetensors", b"\xff" * 8 + b"{}", BROKEN),
        ("list.safetensors", of_safetensors([1]), BROKEN),
        ("text.safetensors", b"weights of a model", BROKEN),
        ("part.safetensors", of_safetensors({"x": ENTRY}, b"1234"), BROKEN),
        ("before.safetensors", of_safetensors({"x": ENTRY | {"data_offsets": [-8, 0]}}), BROKEN),
        ("minus.safetensors", of_safetensors({"x": ENTRY | {"shape": [-2]}}, b"8 bytes."), BROKEN),
        ("no_type.safetensors", of_safetensors({"x": {}}), BROKEN),
        ("i.npy", None, "i.npy: elements of type int64"),
        ("text.npy", b"weights of a model", "text.npy: .*magic string"),
        ("part.npy", b"\x93NUMPY\x01\x00", "part.npy: EOF: reading array header"),
        ("open.npy", b"\x93NUMPY\x01\x00\x01\0(", "open.npy: "),
        ("x.txt", b"", "x.txt: neither FILE.npy nor FILE.safetensors:NAME"),
    ],
)
def test_refused_files(run, tmp_path, monkeypatch, path, content, match):
    monkeypatch.chdir(tmp_path)
    save_file({"x": run["x"], "w": run["weight"], "i": np.arange(5)}, "run.safetensors")
    np.save("i.npy", np.arange(5))
    if content is not None:
        Path(path).write_bytes(content)
    with pytest.raises(ValueError, match=match):
        rmsnorm.identify_files(path, path)


# ----------------------------------------------------------------------------- table of hypotheses

STEP_OPTIONS = [{}, {"rounding": "before_weight"}, {"weight_offset": 1.0}]
STEP_OPTIONS += [{"eps_placement": "outside"}, {"eps_placement": "floor"}, {"eps": 0.0}]


@pytest.mark.parametrize("other", [None, "residual", "gate"])
@pytest.mark.parametrize("dtype", [3, 1])  # bf16, f32
def test_each_step_is_told_from_the_others(dtype, other):
    made = probe(108, dtype)  # no multiple of a vector
    rows = np.arange(ORDINARY_ROWS)
    given = {name: made[name].rows(rows) for name in ("x", other) if name}
    given["weight"] = made["weight"]
    call = observe({**given, "y": given["x"]})
    numbers = hypotheses.Numbers(offsets=[0.0, 1.0], times=[1.0], factors=[0.22])
    table = hypotheses.steps(call, numbers)
    assert len(table) > 60
    known = {""}
    if other:  # which adds steps
        operands = {name: call.operands[name] for name in ("x", "weight", "y")}
        plain = hypotheses.Call(operands, call.y_dtype)
        known = {step.words for step in hypotheses.steps(plain, numbers)}
    for step in (step for step in table if step.words not in known):
        tried = [hypotheses.Options(**options) for options in STEP_OPTIONS]
        for options in filter(step.fits, tried):
            with np.errstate(all="ignore"):
                y = hypotheses.Trial(call, [options]).result(step)
            if y is not None:
                answer = find({**given, "y": rounded(y[0], dtype)}, [])
                named = [answer.best.step.words]
                named += [each.values for each in answer.open if each.name == "step"]
                assert any(step.words in words for words in named), text_of(answer)
                break
        else:
            raise AssertionError(f"no options fit: {step.words}")


def exact_mean(h, end=None):
    return np.sum(h[:, :end].astype(float) ** 2, axis=-1, keepdims=True) / h.shape[-1]


@pytest.mark.parametrize(
    ("words", "d", "dtype", "f"),
    [
        ("eps 1e-06 inside the root. ", 1024, "float32", partial(norm, of=exact_mean)),
        # It is added to the sum of squares.
        ("9.765625e-09 (1e-05 / 1024)", 1024, "bfloat16", partial(norm, eps=1e-5 / 1024)),
        (
            "the sum of squares is rounded to bf16",
            128,
            "float32",
            partial(norm, of=lambda h: exact_mean(h).astype(BF16)),
        ),
        ("last element", 65, "bfloat16", partial(norm, of=partial(exact_mean, end=-1))),
        (
            "is no norm that is known",  # few elements are wrong, but those of each row
            1024,
            "bfloat16",
            lambda x, w: norm(x, f32(w) * np.where(np.arange(1024) == 5, F32(1.004), F32(1))),
        ),
        (
            "rows of 32 x 32 elements, transposed",
            1024,
            "bfloat16",
            lambda x, w: norm(x, w.reshape(32, 32).T.ravel()),
        ),
    ],
)
def test_one_of_two_descriptions_of_a_norm_is_named(words, d, dtype, f):
    answer = rmsnorm.identify(f, d, dtype)
    assert words in answer.sentence and answer.ambiguous == (), str(answer)


# --------------------------------------------------------------------------------------- systems

DATA = programs.ROOT / "test" / "data"
RECORDED = {}  # the cases of each system, with y
for path in ("migration/vectors", "models", "rotary"):
    with safe_open(DATA / f"{path}.safetensors", "np") as file:
        for name, text in sorted(file.metadata().items()):  # each worker of a run has this order
            if " y=" in text:
                RECORDED.setdefault((path, name.split(".")[0]), []).append(text)
# What the tables of doc/migration.md call a system, by the group of its cases.
SYSTEMS = {
    row[key]: row["what you have"].removeprefix("the same")
    for key in ("name", "rotation")
    for row in systems(key)
}


@pytest.mark.parametrize(("path", "system"), RECORDED, ids=str)
def test_recorded_results(path, system):
    """From a few rows of a system its options are named, or left open."""
    for text in RECORDED[path, system]:
        words = dict(word.split("=") for word in text.split()[1:])
        location = {ARGUMENTS[key]: words.pop(key) for key in ARGUMENTS if key in words}
        files = {name: f"{DATA / path}.safetensors:{key}" for name, key in location.items()}
        answer = rmsnorm.identify_files(**files)
        assert answer.fit != "none", str(answer)
        if system == "vllm_cpu_residual":  # which takes two calls
            continue
        assert answer.variant is answer.mistake is None, str(answer)
        named = DEFAULTS | answer.options
        is_open = {option: values.split(" or ") for option, values, _ in answer.ambiguous}
        is_wide = read_tensor(files["output"]).dtype == 1  # where roundings change nothing
        for option, default in DEFAULTS.items():
            wanted, found = words.get(option, default), [named[option], *is_open.get(option, ())]
            if option in WORDS:
                assert (is_wide and option.endswith("rounding")) or wanted in found, str(answer)
            else:
                numbers = [each and float(each) for each in found]
                assert (wanted and pytest.approx(float(wanted))) in numbers, f"{option}: {answer}"
        if system != "mochi":  # which has no row there: its weights are of rows
            assert any(SYSTEMS[system] in each for each in answer.systems), str(answer)


@pytest.mark.parametrize(
    ("options", "arguments", "other"),
    [
        ({}, {}, "weight kept in f32"),
        ({}, {}, "Llama"),
        ({}, RESIDUAL, "Gemma 4"),
        ({}, GATE, "PyTorch"),
        (ROUNDINGS[1], ROTATED, "tables kept in f32"),
        (ROUNDINGS[1], ROTATED, "GLM 4.5"),
    ],
)
def test_systems_that_compute_otherwise_are_not_named(options, arguments, other):
    identify = rmsnorm.identify_rotary if "rotated" in arguments else rmsnorm.identify
    f = by_library(names_of(arguments), {"eps": 1e-6} | options)
    answer = identify(f, D, "bfloat16", **arguments)
    assert answer.fit == "exact" and not any(other in each for each in answer.systems)


# --------------------------------------------------------------------------------------- command


@pytest.fixture(name="command")
def run_command(capsys, tmp_path, monkeypatch):
    """Runs the command in a folder with a probe; returns its status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_words(words):
        try:
            status = main(words.split())
        except SystemExit as done:
            status = done.code
        return (status, *capsys.readouterr())

    np.save("zero.npy", np.zeros((0, 64), F32))
    save_file(dict.fromkeys(["a\nb", "c"], np.zeros(1)), "two.safetensors")
    Path("folder.safetensors").mkdir()
    assert run_words("probe --output p.safetensors --d 64 --dtype bf16") == (0, "", "")
    return run_words


OF_TABLES = "identify --input x.npy --output y.npy --cos cos.npy --sin sin.npy"
GIVEN = "identify --input p.safetensors:x --weight p.safetensors:weight"


@pytest.mark.parametrize(
    ("probed", "given", "shapes", "options", "texts"),
    [
        (
            "",
            GIVEN,
            {"x": (43, 64), "residual": (43, 64), "gate": (43, 64), "weight": (64,)},
            {},
            [
                "y is the RMSNorm of x: eps 1e-06 inside the root, rounded to bf16 before the "
                "weight. Every element is equal.\n",
                "options.rounding = rmsnorm::Rounding::before_weight;",
                "options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;",
                'rmsnorm.rms_norm(x, weight, eps=1e-06, rounding="before_weight")',
                "transformers Llama, Qwen3, DeepSeek-V3",
            ],
        ),
        (
            "--rotated 16",
            f"{GIVEN} --cos p.safetensors:cos --sin p.safetensors:sin",
            {"x": (88, 64), "weight": (64,), "cos": (88, 8), "sin": (88, 8)},
            {"rotary_pairs": "neighbours"},
            [
                "pairs of neighbours of the first 16 elements rotated, the norm, the tables, every",
                "options.rotary_pairs = rmsnorm::RotaryPairs::neighbours;",
                "options.rotary_pairs = RMSNORM_ROTARY_NEIGHBOURS;",
                'weight, cos=cos, sin=sin, eps=1e-06, rounding="before_weight", rotary_pairs=',
            ],
        ),
    ],
)
def test_command_names_a_norm(command, probed, given, shapes, options, texts):
    assert command(f"probe --output p.safetensors --d 64 --dtype bf16 {probed}") == (0, "", "")
    tensors = load_file("p.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == shapes
    operands = {name: array for name, array in tensors.items() if name not in ("residual", "gate")}
    y = rmsnorm.rms_norm(**operands, eps=1e-6, rounding="before_weight", **options)
    save_file({"y": y}, "y.safetensors")
    status, out, err = command(f"{given} --output y.safetensors")
    assert (status, err) == (0, "")
    for text in texts:
        assert text in out


def test_command_takes_every_eps():
    words = "identify --input x.npy --output y.npy --eps 1,2 --eps 3"
    assert rmsnorm.__main__._parser().parse_args(words.split()).eps == [1, 2, 3]


def test_command_fails_where_no_norm_fits_or_one_with_a_mistake(command):
    status, out, _ = command(f"{GIVEN} --output p.safetensors:gate")
    assert (status, out.startswith("y is no norm that is known here.")) == (1, True)
    save_file({"y": rmsnorm.rms_norm(load_file("p.safetensors")["x"])}, "y.safetensors")
    status, out, _ = command(f"{GIVEN} --output y.safetensors")
    assert (status, "the weight is not used" in out, "C++" in out) == (1, True, False)


@pytest.mark.parametrize(
    ("words", "error"),
    {
        "probe --output p.npy": "--output: the file of several tensors must end in .safetensors",
        "probe --output q.safetensors --d 15": "--d: '15' is not an integer from 16 to 1048576",
        "probe --output no/p.safetensors": "no/p.safetensors: No such file or directory",
        "probe --output folder.safetensors": "folder.safetensors: Is a directory",
        "identify --input two.safetensors --output zero.npy": r"it holds a\nb, c; write",
        f"{GIVEN} --output p.safetensors:weight": "--output: 1 dimensions, but --input has 2",
        "identify --input p.safetensors:x": "the following arguments are required: --output",
        f"{GIVEN} --output p.safetensors:x --post-norm-weight zero.npy": "there is no --residual",
        f"{GIVEN} --output zero.npy": "--output: no elements in the shape (0, 64)",
        f"{GIVEN} --output none.npy": "none.npy: No such file or directory",
        f"{GIVEN} --output p.safetensors": "it holds x, residual, gate, weight; write",
        **{
            f"{GIVEN} --output p.safetensors:x --eps={eps}": f"{eps!r} is not a finite "
            "32-bit number from 0 up"
            for eps in ("-1", "nan", "inf", "x", "1e-60", "1e39")
        },
        f"{GIVEN} --output p.safetensors:x --cos none.npy": "--sin: required with the other table",
        f"{OF_TABLES} --gate x.npy": "--gate: not together with --cos and --sin",
        "probe --output p.safetensors --rotated 3": "'3' is not an even integer from 2 to 4096",
        "probe --output p.safetensors --d 64 --rotated 66": "--rotated: 66 of 64 elements; d is",
    }.items(),
)
def test_command_refuses_in_one_line(command, words, error):
    status, out, err = command(words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("rmsnorm-identify: ") and error in err
    assert not list(Path().glob("*.part"))


# ------------------------------------------------------------------------------------------ pages


def test_the_program_of_the_page():
    (block,) = (block for block in programs.blocks() if "answer = " in block)
    names = {"numpy": np, "rmsnorm": rmsnorm}
    exec(block, names)
    answer = names["answer"]
    assert (answer.fit, answer.options) == ("close", {"eps": near(1e-6)})

# SPDX-License-Identifier: Apache-2.0
"""identify() of norms in NumPy: this library with each option, and wrong norms.

Run as a program it writes the table of wrong norms in doc/identify.md.
"""

import functools
import itertools
import math
import re

import ml_dtypes
import numpy as np
import programs
import pytest
from identify_page import Norm, Norms
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

import rmsnorm
import rmsnorm._identify
import rmsnorm._options
from rmsnorm import _hypotheses as hypotheses
from rmsnorm.__main__ import main
from rmsnorm._probe import ORDINARY_ROWS, probe
from rmsnorm._search import find
from rmsnorm._tensors import read_tensor, rounded
from rmsnorm._texts import text_of

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
D = 100  # a multiple of 4 alone


def f32(array):
    return np.asarray(array).astype(F32)


# ---------------------------------------------------------------------------------- this library


def norm_with(operands=(), **options):
    """The library's norm as a function of x, of these operands and of the weight."""

    def f(x, *arguments):
        *others, weight = arguments
        return rmsnorm.rms_norm(x, weight, **dict(zip(operands, others, strict=True)), **options)

    return f


def assert_found(f, options, **arguments):
    answer = rmsnorm.identify(f, D, **arguments)
    assert (answer.fit, answer.equal, answer.worst) == ("exact", 1.0, 0), str(answer)
    assert answer.variant is answer.mistake is None, str(answer)
    assert answer.options == {
        name: pytest.approx(value, rel=1e-6) if name == "eps" else value
        for name, value in options.items()
    }, str(answer)
    assert not any(answer.depends.values())
    assert answer.writes == ()
    return answer


EPS = [0, 1e-12, 1e-8, 1.1920929e-7, 1e-6, 1e-5, 1e-3]
ROUNDINGS = [{}, {"rounding": "before_weight"}, {"rounding": "inverse"}]
OFFSETS = [{}, {"weight_offset": 1}]


@pytest.mark.parametrize("eps", EPS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_eps(eps, dtype):
    assert_found(norm_with(eps=eps), {"eps": eps}, dtype=dtype)


@pytest.mark.parametrize("eps", [3e-4, 2.5e-7, 1.23e-5, float(BF16(1e-5)), float(F16(1e-6))])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_eps_that_nobody_uses_follows_from_small_rows(eps, dtype):
    assert_found(norm_with(eps=eps), {"eps": eps}, dtype=dtype)


def test_an_eps_that_nobody_uses_with_other_numbers_and_operands():
    options = {"eps": 3.21e-3, "eps_placement": "outside", "weight_offset": 0.5}
    assert_found(norm_with(**options), options, dtype="bfloat16")
    options = {"eps": 1.23e-5, "weight_offset": -1.37, "factor": 0.37}
    f = norm_with(["residual", "gate"], **options)
    assert rmsnorm.identify(f, D, residual=True, gate=True).fit == "exact"
    answer = rmsnorm.identify(lambda x, weight: norm(x, weight[::-1], eps=1.23e-5), D, "bfloat16")
    assert (answer.fit, answer.mistake) == ("exact", "the weight is read from its end")
    assert "eps 1.23e-05 inside" in answer.sentence


def test_an_eps_that_is_given():
    eps = 1.2345e-6
    assert_found(norm_with(eps=eps), {"eps": eps}, eps=[1, eps])


@pytest.mark.parametrize("placement", ["outside", "floor"])
@pytest.mark.parametrize("eps", [1e-5, 1e-2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_placements_of_eps(placement, eps, dtype):
    options = {"eps": eps, "eps_placement": placement}
    assert_found(norm_with(**options), options, dtype=dtype)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_roundings_and_offsets(dtype, rounding, offset):
    options = {"eps": 1e-6, **rounding, **offset}
    assert_found(norm_with(**options), options, dtype=dtype)


@pytest.mark.parametrize("offset", OFFSETS)
def test_offsets_in_float32(offset):
    options = {"eps": 1e-6, **offset}
    assert_found(norm_with(**options), options)


def test_a_sum_that_is_not_divided():
    options = {"eps": 1e-6, "divisor": 1}
    assert_found(norm_with(**options), options, dtype="bfloat16")


@pytest.mark.parametrize("rounding", [{}, {"rounding": "inverse"}])
def test_no_weight(rounding):
    options = {"eps": 1e-6, **rounding}
    f = functools.partial(rmsnorm.rms_norm, weight=None, **options)
    assert_found(f, options, dtype="bfloat16", weight=False)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_weight_in_float32(rounding):
    options = {"eps": 1e-6, **rounding}
    assert_found(norm_with(**options), options, dtype="bfloat16", weight_dtype="float32")


def test_a_result_in_float32():
    options = {"eps": 1e-6, "rounding": "before_weight"}

    def f(x, weight):
        return rmsnorm.rms_norm(x, weight, out=np.empty(x.shape, F32), **options)

    assert_found(f, options, dtype="bfloat16", weight_dtype="float32")


@pytest.mark.parametrize("rounding", ROUNDINGS[:2])
@pytest.mark.parametrize("residual_rounding", [{}, {"residual_rounding": "unrounded"}])
def test_residuals(rounding, residual_rounding):
    options = {"eps": 1e-6, **rounding, **residual_rounding}

    def f(x, residual, weight):
        total = np.empty_like(residual)
        y = rmsnorm.rms_norm(x, weight, residual=residual, residual_out=total, **options)
        return y, total

    answer = assert_found(f, options, dtype="bfloat16", residual=True)
    assert "residual_out is residual + x in every element." in answer.special
    assert_found(norm_with(["residual"], **options), options, dtype="bfloat16", residual=True)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("factor", [0.22, 0.246, -3])
def test_factors_of_x_in_the_sum(factor, dtype):
    options = {"eps": 1e-6, "factor": factor}
    options |= {"rounding": "before_weight"} if dtype == "bfloat16" else {}

    def f(x, residual, weight):
        total = np.empty_like(residual)
        y = rmsnorm.rms_norm(x, weight, residual=residual, residual_out=total, **options)
        return y, total

    answer = rmsnorm.identify(f, D, dtype, residual=True)
    assert answer.fit == "exact", str(answer)
    assert answer.options == {
        name: value if name == "rounding" else pytest.approx(value, rel=1e-6)
        for name, value in options.items()
    }
    assert f", {factor} x added to the residual." in answer.sentence
    assert f"residual_out is residual + {factor} x in every element." in answer.special
    is_granite = factor == 0.22
    assert any("Granite" in system for system in answer.systems) == is_granite


@pytest.mark.parametrize(
    ("words", "of"),
    {
        "cut off to bf16": lambda total, x, residual: cut_off(total),
        "f32 instead of bf16": lambda total, x, residual: total,
        "x alone": lambda total, x, residual: x,
        "residual alone": lambda total, x, residual: residual,
        "residual - x": lambda total, x, residual: (f32(residual) - f32(x)).astype(BF16),
        "wrong in 1220 of 3700 elements": lambda total, x, residual: np.where(
            np.arange(D) % 3 == 0, x, total.astype(BF16)
        ),
    }.items(),
)
def test_a_wrong_sum_is_a_mistake(words, of):
    def f(x, residual, weight):
        total = f32(x) + f32(residual)
        return norm(total.astype(BF16), weight), of(total, x, residual)

    answer = rmsnorm.identify(f, D, "bfloat16", residual=True)
    assert (answer.fit, answer.options) == ("exact", None)
    assert answer.mistake == f"residual_out is {words}"
    assert answer.mistake in answer.sentence and answer.systems == ()


def test_a_norm_of_a_wrong_sum():
    def f(x, residual, weight):
        total = cut_off(f32(x) + f32(residual))
        return norm(total, weight), total

    answer = rmsnorm.identify(f, D, "bfloat16", residual=True)
    wrong_sum = "y is the norm of residual_out, residual_out is cut off to bf16"
    assert (answer.fit, answer.mistake) == ("exact", wrong_sum)


def test_a_norm_that_nothing_is_near():
    answer = WRONG.answer("RMS along the wrong axis")
    assert answer.sentence == "y is no norm that is known here. None is near."
    assert "equal, %" not in str(answer)
    assert "Another eps than those tried may fit: name it with eps=." in answer.special


def test_a_sum_in_float32_is_not_called_rounded():
    answer = rmsnorm.identify(norm_with(["residual"], eps=1e-6), D, residual=True)
    assert "inside the root, of the sum." in answer.sentence


def test_few_rows_that_differ_are_named():
    def f(x, weight):
        y = rmsnorm.rms_norm(x, weight, eps=1e-6)
        for row in range(1, len(y), 9):  # the last bit of a number
            y[row, 3] = np.nextafter(y[row, 3], F32(0))
        return y

    answer = rmsnorm.identify(f, D)
    assert answer.fit == "close"
    ordinary = answer.rows - 5  # without the special rows
    assert (
        answer.special[0]
        == f"{len(range(1, ordinary, 9))} of {ordinary} rows differ: 1, 10, 19, ..."
    )
    assert answer.special[0] in str(answer)


GATES = [
    {**activation, **placement}
    for activation in ({}, {"activation": "sigmoid"})
    for placement in ({}, {"gate_rounding": "rounded"}, {"gate_placement": "before"})
]


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("rounding", ROUNDINGS[:2])
def test_gates(gate, rounding):
    options = {"eps": 1e-6, **rounding, **gate}
    assert_found(norm_with(["gate"], **options), options, dtype="bfloat16", gate=True)


def test_a_residual_and_a_gate_are_arguments_in_this_order():
    options = {"eps": 1e-6, "activation": "sigmoid"}
    f = norm_with(["residual", "gate"], **options)
    assert_found(f, options, dtype="bfloat16", residual=True, gate=True)


def test_what_no_option_of_16_bits_shows_in_float32():
    answer = rmsnorm.identify(norm_with(eps=1e-6, rounding="before_weight"), D)
    assert answer.options == {"eps": pytest.approx(1e-6)}


# ---------------------------------------------------------------------------------- wrong norms


def mean_square(h):
    return np.mean(h * h, axis=-1, keepdims=True, dtype=F32)


def norm(x, weight, eps=1e-6, of=mean_square, cast=None):
    """The right norm, and what others make wrong: the mean of squares and the last cast."""
    h = f32(x)
    y = h / np.sqrt(f32(of(h)) + F32(eps)) * f32(weight)
    return y.astype(x.dtype) if cast is None else cast(y)


def wrong_mean(of, **arguments):
    return functools.partial(norm, of=of, **arguments)


def sum_in(dtype):
    def of(h):
        total = np.zeros(len(h), dtype)
        for column in (h * h).astype(dtype).T:
            total = (total + column).astype(dtype)
        return f32(total)[:, np.newaxis] / F32(D)

    return of


def sum_of(h, end):
    return np.sum(h[:, :end] ** 2, axis=-1, keepdims=True)


def rounded_rms(x, weight):
    h = f32(x)
    rms = np.sqrt(mean_square(h) + F32(1e-6)).astype(BF16)
    return (h / f32(rms) * f32(weight)).astype(x.dtype)


def eps_twice(x, weight):
    h = f32(x)
    return (h / (np.sqrt(mean_square(h) + F32(1e-6)) + F32(1e-6)) * f32(weight)).astype(x.dtype)


def without_root(x, weight):
    h = f32(x)
    return (h / (mean_square(h) + F32(1e-6)) * f32(weight)).astype(x.dtype)


def layer_norm(x, weight):
    h = f32(x) - np.mean(f32(x), axis=-1, keepdims=True)
    return (h / np.sqrt(mean_square(h) + F32(1e-6)) * f32(weight)).astype(x.dtype)


def in_halves(x, weight):
    h = f32(x).reshape(len(x), 2, -1)
    n = h / np.sqrt(mean_square(h) + F32(1e-6))
    return (n.reshape(x.shape) * f32(weight)).astype(x.dtype)


def quick(u):
    """The inverse root to 5 bits, from the bits of a number."""
    return (0x5F3759DF - (u.view(np.int32) >> 1)).astype(np.int32).view(F32)


def newton(r, u):
    """A better inverse root than r."""
    return r * (F32(1.5) - F32(0.5) * u * r * r)


def cut_off(y):
    return (y.view(np.uint32) >> 16).astype(np.uint16).view(BF16)


def cut_off_to_f16(y):
    rounded = y.astype(F16)
    is_too_large = np.abs(f32(rounded)) > np.abs(y)
    return np.where(is_too_large, np.nextafter(rounded, F16(0)), rounded)


def half_up(y):
    return ((y.view(np.uint32) + 0x8000) >> 16).astype(np.uint16).view(BF16)


def last_not_written(x, weight):
    y = norm(x, weight)
    y[:, -1] = 0
    return y


def with_inverse(inverse, x, weight, eps=1e-6):
    """The norm by an inverse root of mean + eps."""
    h = f32(x)
    return (h * f32(inverse(mean_square(h) + F32(eps))) * f32(weight)).astype(x.dtype)


def estimate(u):
    """The inverse root to 12 bits, as fast instructions give it."""
    return ((1 / np.sqrt(u)).view(np.uint32) + 0x800 & 0xFFFFF000).view(F32)


def centered_norm(x, weight, ddof=0):
    h = f32(x)
    scale = np.sqrt(np.var(h, axis=-1, keepdims=True, ddof=ddof) + F32(1e-6))
    return ((h - np.mean(h, axis=-1, keepdims=True)) / scale * f32(weight)).astype(x.dtype)


def centered_over_rms(x, weight):
    h = f32(x)
    n = (h - np.mean(h, axis=-1, keepdims=True)) / np.sqrt(mean_square(h) + F32(1e-6))
    return (n * f32(weight)).astype(x.dtype)


def scaled_weight(x, weight):
    inverse = 1 / np.sqrt(mean_square(f32(x)) + F32(1e-6))
    return (f32(x) * f32((f32(weight) * inverse).astype(x.dtype))).astype(x.dtype)


def in_lanes(dtype, lanes):
    """The mean of squares by sums in a narrow type, one for each of some lanes."""

    def of(h):
        squares = (h * h).astype(dtype)
        total = np.zeros((len(h), lanes), dtype)
        for first in range(0, h.shape[1] // lanes * lanes, lanes):
            total = (total + squares[:, first : first + lanes]).astype(dtype)
        rest = f32(squares[:, h.shape[1] // lanes * lanes :])
        return (np.sum(f32(total), axis=-1) + np.sum(rest, axis=-1))[:, np.newaxis] / F32(D)

    return of


def tail_not_normalised(x, weight):
    y = norm(x, weight)
    y[:, 96:] = x[:, 96:]
    return y


def gated(activation):
    return lambda x, gate, weight: norm(x, f32(weight) * activation(f32(gate)))


def gelu(z):
    return z * f32([[0.5 * (1 + math.erf(v / 2**0.5)) for v in row] for row in z.astype(float)])


def added(function):
    """A norm of function(x, residual) in f32, rounded to the type of x."""
    return lambda x, residual, weight: norm(function(f32(x), f32(residual)).astype(x.dtype), weight)


def in_x_type(x, weight):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + x.dtype.type(1e-6)) * weight


def wrong(f, words, **arguments):
    return Norm(f, words, {"dtype": "bfloat16", **arguments})


WRONG = Norms(
    "wrong norm",
    {
        "squares are added in bf16": wrong(
            wrong_mean(sum_in(BF16)), "the squares are added in bf16"
        ),
        "squares are added in f16": wrong(
            wrong_mean(sum_in(F16)), "the squares are added in f16", dtype="float16"
        ),
        "squares are rounded to bf16": wrong(
            wrong_mean(lambda h: mean_square(np.sqrt(f32((h * h).astype(BF16))))),
            "the squares are rounded to bf16",
        ),
        "squares are rounded to f16": wrong(
            wrong_mean(lambda h: np.mean(f32((h * h).astype(F16)), axis=-1, keepdims=True)),
            "the squares are rounded to f16",
            dtype="float16",
        ),
        "RMS is rounded to bf16": wrong(
            rounded_rms, "x is divided by the RMS, which is rounded to bf16"
        ),
        "all steps in bf16": wrong(in_x_type, ""),
        "eps both inside and outside the root": wrong(
            eps_twice, "eps is added both inside and outside the root"
        ),
        "eps added twice inside the root": wrong(
            functools.partial(norm, eps=2e-6), "eps 2e-06 inside"
        ),
        "eps ten times too large": wrong(functools.partial(norm, eps=1e-5), "eps 1e-05 inside"),
        "eps added to the sum of squares": wrong(
            functools.partial(norm, eps=1e-6 / D), "eps 1e-08"
        ),
        "eps forgotten": wrong(functools.partial(norm, eps=0), "no eps"),
        "root forgotten": wrong(without_root, "the root is left out"),
        "last element not in the sum": wrong(
            wrong_mean(lambda h: sum_of(h, D - 1) / D),
            "the last element is left out of the sum of squares",
        ),
        "last element not in the sum, f32": wrong(
            wrong_mean(lambda h: sum_of(h, D - 1) / D),
            "the last element is left out of the sum of squares",
            dtype="float32",
        ),
        "sum up to a multiple of 8": wrong(
            wrong_mean(lambda h: sum_of(h, 96) / D),
            "the elements from 96 on are left out of the sum of squares",
        ),
        "mean up to a multiple of 8": wrong(
            wrong_mean(lambda h: sum_of(h, 96) / 96),
            "the elements from 96 on are left out of the mean of the squares",
        ),
        "divided by d - 1": wrong(
            wrong_mean(lambda h: sum_of(h, D) / (D - 1)), "the sum of squares is divided by d - 1"
        ),
        "divided by the next power of two": wrong(
            wrong_mean(lambda h: sum_of(h, D) / 128),
            "the sum of squares is divided by the next power of two",
        ),
        "divided by d rounded up to a multiple of 8": wrong(
            wrong_mean(lambda h: sum_of(h, D) / 104),
            "the sum of squares is divided by d rounded up to a multiple of 8",
        ),
        "LayerNorm": wrong(layer_norm, "the mean is subtracted from x: a LayerNorm"),
        "variance instead of the mean of squares": wrong(
            wrong_mean(lambda h: np.var(h, axis=-1, keepdims=True)),
            "the variance replaces the mean of the squares",
        ),
        "mean of magnitudes instead of the RMS": wrong(
            wrong_mean(lambda h: np.mean(np.abs(h), axis=-1, keepdims=True) ** 2),
            "the mean of the magnitudes replaces the RMS",
        ),
        "one RMS for the batch": wrong(
            # in float64, where the order of the rows does not matter
            wrong_mean(lambda h: np.mean(h.astype(np.float64) ** 2)),
            "one RMS is used for all rows",
        ),
        "RMS along the wrong axis": wrong(
            wrong_mean(lambda h: np.mean(h * h, axis=0, keepdims=True)), ""
        ),
        "two groups of d / 2": wrong(
            in_halves, "each row is normalised in 2 groups of 50 elements"
        ),
        "quick inverse root": wrong(
            functools.partial(with_inverse, lambda u: newton(quick(u), u)), ""
        ),
        "inverse root to 12 bits": wrong(
            functools.partial(with_inverse, estimate), "", dtype="float32"
        ),
        "inverse root to 12 bits, in bf16": wrong(functools.partial(with_inverse, estimate), ""),
        "inverse root in bf16": wrong(
            functools.partial(with_inverse, lambda u: (1 / np.sqrt(u)).astype(BF16)),
            "1 / RMS is rounded to bf16",
        ),
        "eps added to 1 / RMS": wrong(
            functools.partial(with_inverse, lambda u: 1 / np.sqrt(u) + F32(1e-6), eps=0),
            "eps is added to 1 / RMS instead",
            dtype="float32",
        ),
        "root instead of inverse root": wrong(
            functools.partial(with_inverse, np.sqrt), "x is multiplied by the RMS"
        ),
        "the mean subtracted, but not in the RMS": wrong(
            centered_over_rms, "the mean is subtracted from x, but not in the RMS"
        ),
        "LayerNorm with a variance divided by d - 1": wrong(
            functools.partial(centered_norm, ddof=1),
            "a LayerNorm whose variance is divided by d - 1",
        ),
        "deviation divided by d - 1 instead of the RMS": wrong(
            wrong_mean(lambda h: np.var(h, axis=-1, keepdims=True, ddof=1)),
            "the variance, divided by d - 1, replaces the mean of the squares",
        ),
        "RMS of the first half": wrong(
            wrong_mean(lambda h: sum_of(h, 50) / 50),
            "the elements from 50 on are left out of the mean of the squares",
        ),
        "squares added in f16 in 8 lanes": wrong(wrong_mean(in_lanes(F16, 8)), "", dtype="float16"),
        "norm applied twice": wrong(
            lambda x, weight: norm(norm(x, weight), weight), "the norm is applied twice"
        ),
        "root of the sum": wrong(
            wrong_mean(lambda h: sum_of(h, D)), "the sum of squares not divided"
        ),
        "x read as f16": wrong(
            lambda x, weight: norm(f32(x.view(F16)).astype(F32), weight).astype(BF16),
            "the bits of x are read as f16",
        ),
        "result limited to 2": wrong(
            functools.partial(norm, cast=lambda y: np.clip(y, -2, 2).astype(BF16)), ""
        ),
        "tail not normalised": wrong(tail_not_normalised, ""),
        "weight of the next element": wrong(
            lambda x, weight: norm(x, np.roll(weight, -1)),
            "each element has the weight of the next one",
        ),
        "weight transposed by heads": wrong(
            lambda x, weight: norm(x, weight.reshape(4, 25).T.ravel()),
            "the weight is that of rows of 4 x 25 elements, transposed",
        ),
        "weight of the first head for all": wrong(
            lambda x, weight: norm(x, np.tile(weight[:25], 4)),
            "the first 25 elements of the weight are repeated",
        ),
        "weight read as f16": wrong(
            lambda x, weight: norm(x, weight.view(F16)), "the bits of the weight are read as f16"
        ),
        "weight times 1 / RMS rounded": wrong(
            scaled_weight, "the weight times 1 / RMS is rounded to bf16"
        ),
        "weight forgotten": wrong(lambda x, weight: norm(x, np.ones(D, F32)), "weight is not used"),
        "weight twice": wrong(
            lambda x, weight: norm(x, f32(weight) ** 2), "the weight is multiplied twice"
        ),
        "weight before the norm": wrong(
            lambda x, weight: norm(x * weight, np.ones(D, F32)),
            "x is multiplied by the weight before the norm",
        ),
        "weight from the other end": wrong(
            lambda x, weight: norm(x, weight[::-1]), "the weight is read from its end"
        ),
        "1 + weight rounded": wrong(
            lambda x, weight: norm(x, weight + BF16(1)), "1 + weight is rounded to bf16"
        ),
        "weight rounded to bf16 in f32": wrong(
            lambda x, weight: norm(x, weight.astype(BF16)),
            "weight is rounded to bf16 first",
            dtype="float32",
        ),
        "x rounded to bf16 in f32": wrong(
            lambda x, weight: norm(f32(x.astype(BF16)), weight),
            "x is rounded to bf16 first",
            dtype="float32",
        ),
        "result cut off to bf16": wrong(
            functools.partial(norm, cast=cut_off),
            "the result is cut off to bf16 instead of rounded",
        ),
        "result cut off to f16": wrong(
            functools.partial(norm, cast=cut_off_to_f16),
            "the result is cut off to f16 instead of rounded",
            dtype="float16",
        ),
        "result rounded to bf16 with ties up": wrong(
            functools.partial(norm, cast=half_up), "ties away from zero"
        ),
        "result rounded to f16, then to bf16": wrong(
            functools.partial(norm, cast=lambda y: y.astype(F16).astype(BF16)), ""
        ),
        "last element not written": wrong(last_not_written, ""),
        "half the weight added": wrong(
            lambda x, weight: norm(x, F32(0.5) + f32(weight)), "0.5 added to the weight"
        ),
        "result times a constant": wrong(
            lambda x, weight: norm(x, F32(3) * f32(weight)), "the result is multiplied by 3"
        ),
        "a constant added": wrong(
            functools.partial(norm, cast=lambda y: (y + F32(0.1)).astype(BF16)),
            "0.1 is added to the result",
        ),
        "a constant added, f32": wrong(
            functools.partial(norm, cast=lambda y: y + F32(0.1)),
            "0.1 is added to the result",
            dtype="float32",
        ),
        "divided by d / 2": wrong(
            wrong_mean(lambda h: sum_of(h, D) / 50), "the sum of squares is divided by 50"
        ),
        "inverse root by two steps of Newton's method": wrong(
            functools.partial(with_inverse, lambda u: newton(newton(quick(u), u), u)),
            "",
            dtype="float32",
        ),
        "residual forgotten": wrong(
            lambda x, residual, weight: norm(x, weight), "residual is not used", residual=True
        ),
        "residual added to the norm": wrong(
            lambda x, residual, weight: norm(x, weight) + residual,
            "the residual is added to the norm",
            residual=True,
        ),
        "residual subtracted": wrong(
            added(lambda x, residual: residual - x), "-1 x added to the residual", residual=True
        ),
        "x added twice": wrong(
            added(lambda x, residual: residual + 2 * x), "2 x added to the residual", residual=True
        ),
        "gate forgotten": wrong(
            lambda x, gate, weight: norm(x, weight), "gate is not used", gate=True
        ),
        "gate without its activation": wrong(
            gated(lambda z: z), "the gate has no activation", gate=True
        ),
        "gelu of the gate instead of silu": wrong(
            gated(gelu), "gelu replaces the activation of the gate", gate=True
        ),
    },
    says_depends=True,
)


test_wrong_norms_are_named, test_page_has_the_wrong_norms = WRONG.tests()


def test_the_right_norm_is_called_right():
    for dtype in ("float32", "float16", "bfloat16"):
        answer = rmsnorm.identify(norm, D, dtype)
        assert answer.options == {"eps": pytest.approx(1e-6)}


# --------------------------------------------------------------------------- what a row depends on


def changed(f, *causes, **arguments):
    """Whether rows change with these causes alone."""
    depends = rmsnorm.identify(f, D, **arguments).depends
    return {cause for cause, rows in depends.items() if rows} == set(causes)


def twice_if(condition):
    """The norm, whose rows are doubled where an array of one element for each row says so."""
    return lambda x, weight: norm(x, weight) * np.where(condition(x), 2, 1).astype(F32)


def test_other_rows_change_a_row():
    assert changed(twice_if(lambda x: len(x) == 1), "batch")
    assert WRONG.answer("one RMS for the batch").depends["batch"] > 30
    line = "A row's bits change with the other rows of the batch: "
    assert line in str(WRONG.answer("one RMS for the batch"))


def test_the_place_changes_a_row():
    answer = rmsnorm.identify(twice_if(lambda x: np.arange(len(x))[:, np.newaxis] == 0), D)
    # The first and the last ordinary row. Those of the special rows are zeros and NaN, doubled or not.
    assert answer.depends["place"] == 2
    assert f"its place in the batch: 2 of {answer.rows} rows." in str(answer)


def test_the_alignment_changes_a_row():
    assert changed(twice_if(lambda x: x.ctypes.data % 16 != 0), "alignment")


def test_a_second_call_changes_a_row():
    calls = itertools.count()
    answer = rmsnorm.identify(twice_if(lambda x: next(calls) >= 2), D)
    assert answer.depends["repetition"] > 30
    assert "A row's bits change with a repetition of the call: " in str(answer)


def last_result(f):
    """Returns what the last call of the same shape computed."""
    last = {}

    def g(x, weight):
        now = f(x, weight)
        return last.pop(x.shape, now), last.__setitem__(x.shape, now)

    return lambda x, weight: g(x, weight)[0]


def test_the_call_before_changes_a_row():
    answer = rmsnorm.identify(last_result(norm), D)
    assert answer.depends["history"] > 30
    assert "A row's bits change with the call before: " in str(answer)
    assert not any(rows for cause, rows in answer.depends.items() if cause != "history")


def test_a_result_that_the_next_call_overwrites():
    memory = np.empty((100, D), F32)

    def f(x, weight):
        memory[: len(x)] = norm(x, weight)
        return memory[: len(x)]

    answer = rmsnorm.identify(f, D)
    assert (answer.fit, answer.writes, any(answer.depends.values())) == ("close", ("y",), False)
    assert "The function writes to the y that it returned before." in str(answer)


def test_arguments_that_are_written_to():
    def f(x, residual, weight):
        residual += x
        return norm(residual, weight)

    answer = rmsnorm.identify(f, D, residual=True)
    assert answer.options == {"eps": pytest.approx(1e-6)}
    assert answer.writes == ("residual",)
    assert "The function writes to its argument residual." in str(answer)


def test_special_rows():
    def without_nan(x, weight):
        return np.nan_to_num(norm(x, weight))

    answer = rmsnorm.identify(without_nan, D)
    assert answer.options == {"eps": pytest.approx(1e-6)}
    assert "Rows with a NaN become zeros, unlike in this library." in answer.special


# -------------------------------------------------------------------------------------- arguments


def refused(match, f=norm, d=D, error=ValueError, **arguments):
    with pytest.raises(error, match=match):
        rmsnorm.identify(f, d, **arguments)


def test_refused_arguments():
    refused("dtype: 'float64'; possible are float32, float16, bfloat16", dtype="float64")
    refused("weight_dtype: <class 'int'>", weight_dtype=int)
    refused("framework: 'numpie'; possible are numpy, torch, jax", framework="numpie")
    refused("device: 'cuda'; arrays of NumPy have none", device="cuda")
    refused("d: 0; possible are 1 to", d=0)
    refused("d: 1.5; an integer is possible", d=1.5, error=TypeError)


def test_refused_results():
    refused(r"the shape \(\d+, 99\) instead of y of shape \(\d+, 100\)", lambda x, w: x[:, 1:])
    refused("elements of type float64, instead of y", lambda x, w: norm(x, w).astype(float))
    refused("list, which is no array of NumPy", lambda x, w: norm(x, w).tolist())
    refused("NoneType, which is no array of NumPy", lambda x, w: None)
    refused("returns 2 results instead of y of shape", lambda x, w: (x, x))
    refused(
        r"returns 3 results instead of y of shape \(\d+, 100\) or \(y, residual_out\)",
        lambda x, r, w: (x, x, x),
        residual=True,
    )
    refused(
        "results of other types for other rows",
        lambda x, w: norm(x, w).astype(F16 if len(x) == 1 else F32),
    )


def test_an_exception_of_the_function_is_passed_on_with_the_shapes():
    with pytest.raises(ZeroDivisionError) as caught:
        rmsnorm.identify(lambda x, gate, weight: 1 // 0, D, gate=True)
    (note,) = caught.value.__notes__
    assert re.search(r"with x \(\d+, 100\), gate \(\d+, 100\), weight \(100,\)$", note)


# ------------------------------------------------------------------------------------------ files


def save(path, **tensors):
    save_file(tensors, path, {"from": "a test"})


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


def test_files(run, tmp_path):
    options = {"eps": 1e-6, "rounding": "before_weight"}
    y = rmsnorm.rms_norm(run["x"], run["weight"], **options)
    save(tmp_path / "run.safetensors", x=run["x"], y=y)
    save(tmp_path / "w.safetensors", weight=run["weight"])
    answer = rmsnorm.identify_files(
        f"{tmp_path}/run.safetensors:x",
        f"{tmp_path}/run.safetensors:y",
        tmp_path / "w.safetensors",  # which holds one tensor alone
    )
    assert answer.fit == "exact"
    assert answer.options == {"eps": pytest.approx(1e-6), "rounding": "before_weight"}
    assert (answer.rows, answer.depends, answer.writes) == (60, {}, ())


def test_files_of_numpy(run, tmp_path):
    x, weight = f32(run["x"]), f32(run["weight"]).astype(F16)
    y = rmsnorm.rms_norm(x, weight, eps=3e-6, weight_offset=1)
    for name, array in {"x": x, "weight": weight, "y": y.astype(">f4")}.items():
        np.save(tmp_path / name, array)
    answer = rmsnorm.identify_files(
        tmp_path / "x.npy", tmp_path / "y.npy", tmp_path / "weight.npy", eps=[3e-6]
    )
    assert answer.fit == "exact"
    assert answer.options == {"eps": pytest.approx(3e-6), "weight_offset": 1}


def identify_run(path, tensors, **results):
    save(path, **tensors, **results)
    names = {"x": "input", "y": "output", "residual_out": "residual_output"}
    return rmsnorm.identify_files(
        **{names.get(key, key): f"{path}:{key}" for key in {**tensors, **results}}
    )


def test_files_of_every_operand(run, tmp_path):
    options = {"eps": 1e-6, "residual_rounding": "unrounded", "activation": "sigmoid"}
    total = np.empty_like(run["residual"])
    operands = {name: run[name] for name in ("residual", "gate", "bias")}
    y = rmsnorm.rms_norm(run["x"], run["weight"], **operands, residual_out=total, **options)
    answer = identify_run(tmp_path / "run.safetensors", run, y=y, residual_out=total)
    assert answer.fit == "exact"
    assert answer.options == options | {"eps": pytest.approx(1e-6)}
    assert "residual_out is residual + x in every element." in answer.special


def test_a_bias_that_is_forgotten(run, tmp_path):
    tensors = {name: run[name] for name in ("x", "weight", "bias")}
    y = rmsnorm.rms_norm(run["x"], run["weight"], eps=1e-6)
    answer = identify_run(tmp_path / "run.safetensors", tensors, y=y)
    assert (answer.fit, answer.mistake) == ("exact", "the bias is not used")


def test_refused_files(run, tmp_path):
    save(tmp_path / "run.safetensors", x=run["x"], w=run["weight"], i=np.arange(5))
    np.save(tmp_path / "i.npy", np.arange(5))
    run_file = f"{tmp_path}/run.safetensors"

    def refused_file(match, path, error=ValueError):
        with pytest.raises(error, match=match):
            rmsnorm.identify_files(path, path)

    refused_file("it holds i, w, x; write .*run.safetensors:NAME", run_file)
    refused_file("it holds i, w, x; write", f"{run_file}:y")
    refused_file("run.safetensors:i: elements of type I64", f"{run_file}:i")
    refused_file("i.npy: elements of type int64", tmp_path / "i.npy")
    refused_file("x.txt: neither FILE.npy nor FILE.safetensors:NAME", "x.txt")
    refused_file("x.npy", tmp_path / "x.npy", FileNotFoundError)
    with pytest.raises(ValueError, match=r"^y: "):
        rmsnorm.identify_files(f"{run_file}:x", f"{run_file}:w")


# ------------------------------------------------------------------------------- table of hypotheses

STEP_OPTIONS = [{}, {"rounding": "before_weight"}, {"weight_offset": 1.0}]
STEP_OPTIONS += [{"eps_placement": "outside"}]


@pytest.mark.parametrize("other", [None, "residual", "gate"])
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_each_step_is_told_from_the_others(dtype, other):
    names = ["x", "weight", *([other] if other else [])]
    made = probe(108, {BF16: 3, F32: 1}[dtype])  # no multiple of a vector
    tensors = {name: made[name] for name in names}
    rows = np.arange(ORDINARY_ROWS)
    arrays = {
        name: hypotheses.Array(np.atleast_2d(tensor.values()), tensor.dtype)
        for name, tensor in tensors.items()
    }
    call = hypotheses.Call(arrays, arrays["x"].dtype).rows(rows)
    given = {name: rounded(*array) for name, array in call.operands.items()}
    numbers = hypotheses.Numbers([0.0, 1.0], [1.0])
    table = hypotheses.steps(call, numbers)
    assert len(table) > 60
    known = {""}
    if other:  # which adds steps
        plain = hypotheses.Call(
            {name: call.operands[name] for name in ("x", "weight")}, call.y_dtype
        )
        known = {step.words for step in hypotheses.steps(plain, numbers)}
    for step in (step for step in table if step.words not in known):
        for options in STEP_OPTIONS:
            tried = hypotheses.Options(**options)
            with np.errstate(all="ignore"):
                y = hypotheses.Trial(call, [tried]).result(step)
            if step.where in ("", tried.eps_placement) and y is not None:
                answer = find({**given, "y": rounded(y[0], call.y_dtype)}, [])
                open_steps = [each.values for each in answer.open if each.name == "step"]
                named = [answer.best.step.words, *itertools.chain(*open_steps)]
                # This is another eps inside the root, which may be as near.
                if step.words == "eps is added to the sum of squares before the division":
                    eps = pytest.approx(tried.eps / call.d, rel=1e-3)
                    named += [step.words] if answer.best.used.eps == eps else []
                assert step.words in named, text_of(answer)
                break
        else:
            raise AssertionError(f"no options fit: {step.words}")


# --------------------------------------------------------------------------------------- systems

VECTORS = programs.ROOT / "test" / "data" / "migration" / "vectors.safetensors"


def recorded():
    """The words of each case with results of a system, by its name."""
    with safe_open(VECTORS, "np") as file:
        return file.metadata()


@pytest.mark.parametrize("system", sorted({name.split(".")[0] for name in recorded()}))
def test_results_of_systems(system):
    """From the results of a system alone, its options are named, or left open."""
    for name, text in recorded().items():
        if name.split(".")[0] != system:
            continue
        words = dict(word.split("=") for word in text.split()[1:])
        wanted = {key: words.pop(key, each) for key, each in rmsnorm._options.DEFAULTS.items()}
        tensors = {operand: read_tensor(f"{VECTORS}:{key}") for operand, key in words.items()}
        answer = rmsnorm._identify._identification(tensors, [])
        assert answer.fit != "none", str(answer)
        if system == "vllm_cpu_residual":  # which takes two calls
            continue
        assert answer.variant is answer.mistake is None, str(answer)
        named = {**rmsnorm._options.DEFAULTS, **answer.options}
        is_open = {option: values.split(" or ") for option, values, _ in answer.ambiguous}
        is_wide = tensors["x"].dtype == 1  # where roundings change nothing
        for option, value in wanted.items():
            found = [named[option], *is_open.get(option, ())]
            if option in rmsnorm._options.WORDS:
                assert (is_wide and option.endswith("rounding")) or value in found, str(answer)
            else:
                numbers = [None if each is None else float(each) for each in found]
                assert (None if value is None else pytest.approx(float(value))) in numbers, option


# --------------------------------------------------------------------------------------- command


@pytest.fixture(name="command")
def run_command(capsys, tmp_path, monkeypatch):
    """Runs the command in a folder; returns its status and what it printed."""
    monkeypatch.chdir(tmp_path)

    def run_words(words):
        try:
            status = main(words.split())
        except SystemExit as done:
            status = done.code
        return (status, *capsys.readouterr())

    return run_words


GIVEN = "--input p.safetensors:x --weight p.safetensors:weight"


def test_command_names_a_norm(command):
    assert command("probe --output p.safetensors --d 64 --dtype bf16") == (0, "", "")
    tensors = load_file("p.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {
        "x": (42, 64),
        "residual": (42, 64),
        "gate": (42, 64),
        "weight": (64,),
    }
    y = rmsnorm.rms_norm(tensors["x"], tensors["weight"], eps=1e-6, rounding="before_weight")
    save_file({"y": y}, "y.safetensors")
    status, out, err = command(f"identify {GIVEN} --output y.safetensors")
    assert (status, err) == (0, "")
    for text in (
        "y is the RMSNorm of x: eps 1e-06 inside the root, rounded to bf16 before the weight. "
        "Every element is equal.\n",
        "options.rounding = rmsnorm::Rounding::before_weight;",
        "options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;",
        'rmsnorm.rms_norm(x, weight, eps=1e-06, rounding="before_weight")',
        "transformers Llama, Qwen3, DeepSeek-V3",
    ):
        assert text in out


def test_command_fails_where_no_norm_fits_or_one_with_a_mistake(command):
    command("probe --output p.safetensors --d 64")
    status, out, _ = command(f"identify {GIVEN} --output p.safetensors:gate")
    assert (status, out.startswith("y is no norm that is known here.")) == (1, True)
    x = load_file("p.safetensors")["x"]
    np.save("y.npy", rmsnorm.rms_norm(x))
    status, out, _ = command(f"identify {GIVEN} --output y.npy")
    assert (status, "the weight is not used" in out, "C++" in out) == (1, True, False)


@pytest.mark.parametrize(
    ("words", "error"),
    {
        "probe --output p.npy": "--output: the file of several tensors must end in .safetensors",
        "probe --output q.safetensors --d 15": "--d: '15' is not an integer from 16 to 1048576",
        "probe --output no/p.safetensors": "no/p.safetensors: No such file or directory",
        f"identify {GIVEN} --output p.safetensors:weight": "--output: 1 dimensions, but --input has 2",
        "identify --input p.safetensors:x": "the following arguments are required: --output",
        f"identify {GIVEN} --output none.npy": "none.npy: No such file or directory",
        f"identify {GIVEN} --output p.safetensors": "it holds x, residual, gate, weight; write",
        **{
            f"identify {GIVEN} --output p.safetensors:x --eps={eps}": f"{eps!r} is not a finite "
            "32-bit number from 0 up"
            for eps in ("-1", "nan", "inf", "x", "1e-60")
        },
    }.items(),
)
def test_command_refuses_in_one_line(command, words, error):
    command("probe --output p.safetensors --d 64")
    status, out, err = command(words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("rmsnorm-identify: ") and error in err


# ------------------------------------------------------------------------------------------ pages


def test_the_program_of_the_page():
    (block,) = (block for block in programs.blocks() if "rmsnorm.identify" in block)
    names = {"numpy": np, "rmsnorm": rmsnorm}
    exec(block, names)
    answer = names["answer"]
    assert (answer.fit, answer.options) == ("close", {"eps": pytest.approx(1e-6)})


if __name__ == "__main__":
    WRONG.write()

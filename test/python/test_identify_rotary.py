# SPDX-License-Identifier: Apache-2.0
"""identify_rotary(): this library, wrong ones in NumPy, transformers, and files."""

import importlib
from functools import partial

import ml_dtypes
import numpy as np
import programs
import pytest
import torch
from identify_page import Norm, make_tests
from test_identify import f32, identify_run, norm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

import rmsnorm

F32, F16, BF16 = np.float32, np.float16, ml_dtypes.bfloat16
D, PART = 100, {"rotated": 36}
WIDE_TABLES = {"table_dtype": "float32"}


def identify(f, d=D, dtype="bfloat16", **arguments):
    return rmsnorm.identify_rotary(f, d, dtype, **arguments)


# ------------------------------------------------------------------------------- other rotations


def halves(i, n):
    return i, i + n


def neighbours(i, n):
    return 2 * i, 2 * i + 1


def turned(m, cos, sin, pairs=halves, written=None, of_sin=None):
    """Rotates pairs of elements of rows; operations on bfloat16 round to it."""
    n = cos.shape[1]
    a, b = pairs(np.arange(n), n)
    to_a, to_b = (written or pairs)(np.arange(n), n)
    y, by_sin = m.copy(), m if of_sin is None else of_sin
    y[:, to_a] = m[:, a] * cos - by_sin[:, b] * sin
    y[:, to_b] = m[:, b] * cos + by_sin[:, a] * sin
    return y


def rotated(x, weight, cos, sin, tables=lambda cos, sin: (cos, sin), **parts):
    """The right norm and rotation, and the parts that others make wrong."""
    return turned(norm(x, weight), *tables(cos, sin), **parts)


def wrong(f=rotated, words=None, dtype="bfloat16", arguments=None, **parts):
    return Norm(partial(f, **parts), words, dtype, arguments or {})


def of_tokens(change):
    return lambda cos, sin: (change(cos), change(sin))


def with_repeated_tables(x, weight, cos, sin):
    """Rotates halves by tables for neighbours."""
    m, cos, sin = norm(x, weight), np.repeat(cos, 2, axis=1), np.repeat(sin, 2, axis=1)
    a, b = np.split(m, 2, axis=1)
    return m * cos + np.concatenate((-b, a), axis=1) * sin


def in_f16(x, weight, *tables):
    return turned(*(each.astype(F16) for each in (norm(x, weight), *tables))).astype(BF16)


def compiled(x, weight, cos, sin):
    """What Inductor makes of the code of Qwen 3."""
    m = norm(f32(x), weight)
    return turned(m, f32(cos), f32(sin), of_sin=f32(m.astype(BF16))).astype(BF16)


def contracted(x, weight, cos, sin):
    """What vLLM's kernel for CPUs does after this library's norm."""
    a, b = np.split(rmsnorm.rms_norm(x, weight, eps=1e-6), 2, axis=1)

    def fma(u, v, w):
        return (u.astype(float) * v + w).astype(F32)

    return np.concatenate((fma(-b, sin, a * cos), fma(a, sin, b * cos)), axis=1)


WRONG = {
    "the angle has the other sign": wrong(tables=lambda cos, sin: (cos, -sin)),
    "each token has the tables of the next one": wrong(
        tables=of_tokens(lambda rows: np.roll(rows, -1, axis=0))
    ),
    "each token has the tables of the one before": wrong(
        tables=of_tokens(lambda rows: np.roll(rows, 1, axis=0))
    ),
    "all tokens have the tables of the first one": wrong(tables=of_tokens(lambda rows: rows[:1])),
    "the tables are read from their end": wrong(tables=of_tokens(lambda rows: rows[::-1])),
    "cos and sin are swapped": wrong(tables=lambda cos, sin: (sin, cos)),
    "sin takes the place of cos": wrong(tables=lambda cos, sin: (sin, sin)),
    "the rotation is applied twice": wrong(
        lambda x, w, cos, sin: turned(rotated(x, w, cos, sin), cos, sin)
    ),
    "no element is rotated": wrong(lambda x, w, cos, sin: norm(x, w)),
    "neighbours instead of halves": wrong(pairs=neighbours, words="pairs of neighbours rotated"),
    "the last elements instead of the first": wrong(
        pairs=lambda i, n: (i - 2 * n, i - n),
        words="pairs of halves of the last 36 elements",
        arguments=PART,
    ),
    "the tables are repeated as for the other pairs": wrong(with_repeated_tables),
    "pairs are d / 2 apart, not R / 2": wrong(pairs=lambda i, n: (i, i + D // 2), arguments=PART),
    "the tables are rounded to f16": wrong(
        tables=of_tokens(lambda rows: rows.astype(F16).astype(BF16)), arguments=WIDE_TABLES
    ),
    "sin alone is rounded to bf16": wrong(
        tables=lambda cos, sin: (cos, f32(sin.astype(BF16))), dtype="float32"
    ),
    "every operation of the rotation rounds to f16": wrong(in_f16),
    "the weight multiplies after the rotation": wrong(
        lambda x, w, cos, sin: rotated(x, F32(1), cos, sin) * w
    ),
    "x is not normalised": wrong(lambda x, w, cos, sin: turned(x * w, cos, sin)),
    "x is not normalised, and the weight is not used": wrong(
        lambda x, w, cos, sin: turned(x, cos, sin)
    ),
    "x is rotated before its norm": wrong(
        lambda x, w, cos, sin: norm(turned(x, cos, sin), w)
    ),
    "neighbours rotated, written as halves": wrong(
        words="pairs of neighbours rotated, the norm, the tables, every",
        pairs=neighbours,
        written=halves,
    ),
    "the products of sin take the rounded norm (torch.compile)": wrong(compiled),
    "fma in f32": wrong(
        contracted,
        words="fma adds the product of sin in a and of sin in b of a pair",
        dtype="float32",
    ),
    "a norm with a mistake": wrong(
        lambda x, w, cos, sin: rotated(x, w[::-1], cos, -sin),
        "the angle has the other sign: sin is negated, the weight is read from its end",
    ),
    "a third of the angle": wrong(tables=lambda cos, sin: (cos, sin * BF16(1 / 3)), words=""),
}
test_wrong_rotations_are_named, test_page_has_the_wrong_rotations, answer_to = make_tests(
    "wrong rotation", WRONG, identify=identify
)
RIGHT_BUT_OTHER = ("neighbours instead of halves", "the last elements instead of the first")
VARIANTS = ("fma in f32", "neighbours rotated, written as halves", "x is rotated before its norm")
VARIANTS += ("the tables are rounded to f16",)
VARIANTS += ("the products of sin take the rounded norm (torch.compile)",)


@pytest.mark.parametrize("name", WRONG)
def test_what_is_a_mistake(name):
    answer = answer_to(name)
    assert (answer.options is not None) == (name in RIGHT_BUT_OTHER + VARIANTS)
    assert (answer.variant is not None) == (name in VARIANTS)
    is_fitting = name != "a third of the angle"
    assert (answer.mistake is not None) == (is_fitting and answer.options is None)


def test_a_known_norm_with_an_unknown_rotation():
    answer = answer_to("a third of the angle")
    assert "Where cos is 1 and sin is 0, it is a norm that is known" in str(answer)


def test_what_changes_a_row_and_what_is_written_to():
    answer = answer_to("each token has the tables of the next one")
    assert answer.depends["batch"] > 0

    def f(x, weight, cos, sin):
        sin *= BF16(-1)
        return rotated(x, weight, cos, -sin)

    answer = identify(f, D)
    assert (answer.fit, answer.mistake, answer.writes) == ("exact", None, ("sin",))
    assert "The function writes to its argument sin." in str(answer)


# ----------------------------------------------------------------------------------- transformers

# What the rotation of a model gives, and whether its tables repeat each element for neighbours.
MODELS = {
    "qwen3": ("pairs of halves rotated, the norm, the tables, every product", False, D),
    "gemma3": ("pairs of halves rotated, the norm, the tables, every product", False, D),
    "glm4_moe": ("pairs of halves of the first 36 elements rotated, the norm, the", False, 36),
    "glm": ("pairs of neighbours of the first 36 elements rotated, the norm, the", False, 36),
    "cohere": ("pairs of neighbours rotated, the norm rounded to {} before", True, D),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("model", MODELS)
def test_rotations_of_transformers(model, dtype):
    words, is_repeated, count = MODELS[model]
    rotate = importlib.import_module(
        f"transformers.models.{model}.modeling_{model}"
    ).apply_rotary_pos_emb
    layer = Qwen3RMSNorm(D, 1e-6)

    @torch.no_grad()
    def f(x, weight, cos, sin):
        layer.weight.data = weight
        q = layer(x)[None, None]
        cos, sin = (
            (table.repeat_interleave(2, -1) if is_repeated else torch.cat((table, table), -1))[None]
            for table in (cos, sin)
        )
        return rotate(q, q, cos, sin)[0][0, 0]

    answer = identify(f, D, dtype, rotated=count)
    assert answer.fit in ("exact", "close") and answer.mistake is None, str(answer)
    assert answer.options["eps"] == pytest.approx(1e-6)
    name = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: ""}[dtype]
    wanted = words.format(name) if name else words.partition(" rotated")[0]
    assert wanted in answer.sentence, str(answer)
    is_qwen3 = any(system.startswith("transformers Qwen3,") for system in answer.systems)
    assert is_qwen3 == (model in ("qwen3", "gemma3"))


def test_programs_of_the_page(capsys):
    """NumPy, and transformers' Qwen 3."""
    by_numpy, by_transformers = programs.code("doc/identify.md")
    exec(by_numpy, {})
    assert "eps 1e-06 inside the root" in capsys.readouterr().out
    exec(by_transformers, {})
    printed = capsys.readouterr().out
    for words in (
        "y is the RMSNorm of x: eps 1e-06 inside the root, rounded to bf16 before the weight, "
        "pairs of halves rotated, the norm, the tables, every product and sum rounded to bf16. ",
        "Every element is equal.",
        "transformers Qwen3,",
    ):
        assert words in printed


# ------------------------------------------------------------------------------------------ files

def test_tables_shared_by_heads_and_positions(tmp_path):
    """The tokens are the dimension in which the tables have rows."""
    random = np.random.default_rng(1)
    x = random.standard_normal((2, 3, 20, D)).astype(BF16)  # [batch, heads, tokens, d]
    angles = np.arange(20)[:, None] / 10 ** np.linspace(0, 2, D // 2)
    cos, sin = (f(angles).astype(F32).reshape(1, 1, 20, D // 2) for f in (np.cos, np.sin))
    path = tmp_path / "run.safetensors"
    for shift, mistake in ((0, None), (1, "each token has the tables of the one before")):
        tables = {"cos": np.roll(cos, shift, 2), "sin": np.roll(sin, shift, 2)}
        y = rmsnorm.rms_norm(x, eps=7e-3, **tables)
        # An eps that no model has.
        answer = identify_run(path, [7e-3], x=x, y=y, cos=cos, sin=sin)
        assert (answer.fit, answer.mistake) == ("exact", mistake), str(answer)
        assert mistake or answer.options == {"eps": pytest.approx(7e-3)}
    with pytest.raises(ValueError, match="sin: 50 elements in its last dimension, but cos has 49"):
        identify_run(path, x=x, y=y, cos=cos[..., 1:], sin=sin)

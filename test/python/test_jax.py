# SPDX-License-Identifier: Apache-2.0
import inspect
import itertools
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest

import rmsnorm.jax
from rmsnorm.jax import fused_add_rms_norm, quantized, rms_norm

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # 0.6
TYPES = ("bfloat16", "float16", "float32")
gemma = partial(rms_norm, weight_offset=1)


def draw(key, *shape, dtype="float32"):
    return jax.random.normal(jax.random.key(key), shape, "float32").astype(dtype)


def formula(x, weight, bias=0.0, *, cos=None, sin=None, **options):
    h = x.astype(jnp.result_type(float))
    mean, eps = jnp.sum(h * h, axis=-1, keepdims=True) / options.get("divisor", x.shape[-1]), 1e-5
    rms = {
        "inside": lambda: jnp.sqrt(mean + eps),
        "outside": lambda: jnp.sqrt(mean) + options["eps"],
        "floor": lambda: jnp.maximum(jnp.sqrt(mean), options["eps"]),
    }[options.get("eps_placement", "inside")]()
    y = h / rms * weight + bias
    if cos is not None:
        # Each element, times its cosine, and its partner, times its sine, by matrices of 0 and 1.
        d, half = x.shape[-1], cos.shape[-1]
        i = np.arange(half)
        a, b = (2 * i, 2 * i + 1) if options.get("rotary_pairs") == "neighbours" else (i, i + half)
        rest = d - 2 * half if options.get("rotary_part") == "end" else 0
        one, two = np.eye(d)[a + rest], np.eye(d)[b + rest]
        partner, others = one.T @ two + two.T @ one, 1 - (one + two).sum(0)

        def times(rows, matrix):  # JAX 0.6 refuses rows @ matrix where rows are split explicitly
            return jnp.sum(rows[..., None] * matrix, axis=-2)

        y = y * (times(cos, one + two) + others) + times(y, partner) * times(sin, two - one)
    return y.astype(x.dtype)


def close(got, expected, error=5e-6):
    """Compares arrays, whose largest elements may be off by a relative error."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=error * float(jnp.max(abs(b))))


OPERANDS = draw(0, 3, 2, 8), draw(1, 8), draw(2, 8)


each_mixture = pytest.mark.parametrize(
    "types", [*zip(TYPES, TYPES, TYPES), TYPES, TYPES[::-1]], ids=str
)


@each_mixture
@pytest.mark.parametrize("rounding", ["after_weight", "before_weight", "inverse"])
def test_results_and_gradients_have_the_bits_of_the_package_for_arrays(types, rounding):
    """test_bits.py compares those with exact results."""
    options = {"eps": 0.5, "rounding": rounding, "weight_offset": 1}
    shapes = (40, 100), (100,), (100,)
    arrays = [draw(i, *shape, dtype=kind) for i, (shape, kind) in enumerate(zip(shapes, types))]
    dy = np.asarray(draw(3, 40, 100, dtype=types[0]))
    x, weight, bias = map(np.asarray, arrays)
    y, pull = jax.vjp(partial(rms_norm, **options), *arrays)
    assert jnp.array_equal(y, rmsnorm.rms_norm(x, weight, bias=bias, **options))
    dx, dw, db = map(np.empty_like, (x, weight, bias))
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw, db=db, **options)
    for found, expected in zip(pull(dy), (dx, dw, db), strict=True):
        assert found.dtype == expected.dtype and jnp.array_equal(found, expected)
    for given in ({}, {"weight": weight}, {"bias": bias}):
        assert jnp.array_equal(rms_norm(x, **given), rmsnorm.rms_norm(x, **given))


@each_mixture
@pytest.mark.parametrize("pairs", ["halves", "neighbours"])
@pytest.mark.parametrize("half", [16, 5], ids=["all", "part"])
def test_rotations_have_the_bits_of_the_package_for_arrays(types, pairs, half):
    """Heads share the rows of the tables."""
    shapes = (6, 4, 32), (32,), (6, 1, half), (6, 1, half)
    kinds = (*types[:2], types[2], types[2])
    arrays = [draw(i, *shape, dtype=kind) for i, (shape, kind) in enumerate(zip(shapes, kinds))]
    dy = np.asarray(draw(4, 6, 4, 32, dtype=types[0]))
    x, weight, cos, sin = map(np.asarray, arrays)
    for part, rounding in itertools.product(("start", "end"), ("each", "norm", "none")):
        rows = {"rotary_pairs": pairs, "rotary_part": part, "rotary_rounding": rounding}
        options = {"cos": cos, "sin": sin, "weight_offset": 1, "rounding": "before_weight", **rows}
        y, pull = jax.vjp(jax.jit(partial(rms_norm, **options)), x, weight)
        assert jnp.array_equal(y, rmsnorm.rms_norm(x, weight, **options))
        dx, dw = map(np.empty_like, (x, weight))
        rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw, **options)
        for found, expected in zip(pull(dy), (dx, dw), strict=True):
            assert found.dtype == expected.dtype and jnp.array_equal(found, expected)


def test_rows_of_a_weight_and_a_bias():
    """Each sample has a scale and a shift."""
    x, weight, bias, dy = draw(0, 5, 7, 32), draw(1, 5, 1, 32), draw(2, 7, 32), draw(3, 5, 7, 32)
    options = {"weight_offset": 1, "eps_placement": "outside", "eps": 0.5, "divisor": 40}
    y, pull = jax.vjp(partial(rms_norm, **options), x, weight, bias)
    x, weight, bias, dy = map(np.asarray, (x, weight, bias, dy))
    assert jnp.array_equal(y, rmsnorm.rms_norm(x, weight, bias=bias, **options))
    dx, dw, db = map(np.empty_like, (x, weight, bias))
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw, db=db, **options)
    assert all(map(jnp.array_equal, pull(dy), (dx, dw, db)))


@pytest.mark.parametrize("axes", [*itertools.product((0, None), repeat=3)], ids=str)
def test_vmap_of_rotations(axes):
    """x, the weight and the tables are mapped or not."""
    if axes == (None, None, None):
        axes = (-1, 0, 1)
    arrays = draw(0, 3, 6, 4, 16), draw(1, 3, 16), draw(2, 3, 6, 1, 8)
    whole = [jnp.moveaxis(a, 0, axis or 0) for a, axis in zip(arrays, axes)]
    whole = [a[0] if axis is None else a for a, axis in zip(whole, axes)]

    def norm(x, weight, table):
        return rms_norm(x, weight, cos=table, sin=table * 0.5)

    def gradients(*operands):
        y, pull = jax.vjp(norm, *operands)
        return y, *pull(jnp.sin(y))

    found = jax.jit(jax.vmap(gradients, axes))(*whole)
    for i in range(3):
        each = [a if axis is None else jnp.take(a, i, axis) for a, axis in zip(whole, axes)]
        for one, two in zip([a[i] for a in found], gradients(*each), strict=True):
            assert jnp.array_equal(one, two)


def test_tables_are_constants():
    x, cos, sin = draw(0, 4, 8), draw(1, 4, 2), draw(2, 2)

    def norm(cos, sin):
        return rms_norm(x, cos=cos, sin=sin)

    for gradient in jax.grad(lambda *a: jnp.sum(norm(*a) ** 3), (0, 1))(cos, sin):
        assert not gradient.any()
    assert not jax.jvp(norm, (cos, sin), (cos, sin))[1].any()


def test_more_dimensions_than_the_library_takes():
    x, weight, cos = draw(0, *[2] * 11, 8), draw(1, 2, *[1] * 10, 8), draw(2, *[2, 2, 1] * 2, 4)
    y, pull = jax.vjp(lambda *a: rms_norm(*a, cos=cos, sin=cos), x, weight)
    rows = [a.reshape(2, -1, 8) for a in (x, weight)]
    whole = jnp.broadcast_to(cos, (*[2] * 11, 4)).reshape(2, -1, 4)
    flat, flat_pull = jax.vjp(lambda *a: rms_norm(*a, cos=whole, sin=whole), *rows)
    assert jnp.array_equal(y.reshape(flat.shape), flat)
    for one, two in zip(pull(jnp.sin(y)), flat_pull(jnp.sin(flat))):
        assert jnp.array_equal(one.reshape(two.shape), two)


@each_mixture
@pytest.mark.parametrize("residual_rounding", ["rounded", "unrounded"])
@pytest.mark.parametrize("factor", [None, 0.75])
def test_sums_have_the_bits_of_the_package_for_arrays(types, residual_rounding, factor):
    kinds = (*types, types[0])
    shapes = (6, 4, 32), (6, 4, 32), (32,), (32,)
    operands = [draw(i, *shape, dtype=kind) for i, (shape, kind) in enumerate(zip(shapes, kinds))]
    options = {"weight_offset": 1, "rounding": "before_weight"}
    of_sum = {"residual_rounding": residual_rounding, "residual_factor": factor}

    def norm(x, residual, weight, bias):
        return fused_add_rms_norm(x, residual, weight, bias=bias, **options, **of_sum)

    (y, total), pull = jax.vjp(jax.jit(norm), *operands)
    x, residual, weight, bias = map(np.asarray, operands)
    expected, residual_out = np.empty_like(x), np.empty_like(residual)
    rows = {"x": x, "residual": residual, "y": expected, "residual_out": residual_out}
    rmsnorm.forward(**rows, weight=weight, bias=bias, **options, **of_sum)
    assert jnp.array_equal(y, expected) and jnp.array_equal(total, residual_out)

    dy = np.asarray(draw(4, *x.shape, dtype=types[0]))
    dsum = np.asarray(draw(5, *x.shape, dtype=types[1]))
    h = residual_out.astype("float32")
    if residual_rounding == "unrounded":
        h = (residual.astype("float32") + x.astype("float32")) * np.float32(factor or 1)
    dh, dw, db = dsum.astype("float32"), np.empty_like(weight), np.empty_like(bias)
    gradients = {"dx": dh, "dw": dw, "db": db, "add_to": ["dx"], "residual_factor": factor}
    rmsnorm.backward(x=h, weight=weight, dy=dy, **gradients, **options)
    wanted = dh.astype(x.dtype), dh.astype(residual.dtype), dw, db
    for found, expected in zip(pull((dy, dsum)), wanted, strict=True):
        assert found.dtype == expected.dtype and jnp.array_equal(found, expected)


INT8 = {
    "symmetric": {},
    "asymmetric": {"asymmetric": True},
    "groups": {"group": 16},
    "asymmetric groups": {"group": 32, "asymmetric": True, "rounding": "inverse"},
}


@pytest.mark.parametrize("options", INT8.values(), ids=INT8)
@pytest.mark.parametrize("types", [TYPES, TYPES[::-1], ("float32",) * 3], ids=str)
@pytest.mark.parametrize("is_sum", [False, True], ids=["", "sum"])
def test_int8_has_the_bits_of_the_package_for_arrays(options, types, is_sum):
    shapes = {"x": (6, 4, 64), "weight": (64,), "bias": (64,)}
    if is_sum:
        shapes |= {"residual": (6, 4, 64), "post_norm_weight": (64,)}
        options = {**options, "residual_factor": 0.75}
    kinds = itertools.cycle(types)
    arrays = {name: draw(i, *shapes[name], dtype=next(kinds)) for i, name in enumerate(shapes)}
    found = quantized(**arrays, **options)
    arrays = {name: np.asarray(a) for name, a in arrays.items()}
    x, group = arrays["x"], options.get("group")
    of_groups = (6, 4) if group is None else (6, 4, 64 // group)
    outputs = {"q": np.empty(x.shape, "int8"), "scale": np.empty(of_groups, "float32")}
    if options.get("asymmetric"):
        outputs["zero"] = np.empty(of_groups, "int8")
    if is_sum:
        outputs["residual_out"] = np.empty_like(arrays["residual"])
    options = {name: value for name, value in options.items() if name != "asymmetric"}
    rmsnorm.forward(**arrays, **outputs, **options)
    for name, array in found._asdict().items():
        assert (array is None) == (name not in outputs)
        if array is not None:
            assert array.dtype == outputs[name].dtype and jnp.array_equal(array, outputs[name])


@pytest.mark.parametrize("options", INT8.values(), ids=INT8)
def test_int8_under_jit_and_vmap(options):
    x, residual, weights = draw(0, 3, 5, 64), draw(1, 5, 64), draw(2, 3, 64)

    def norm(x, residual, weight):
        return quantized(x, weight, residual=residual, **options)

    for axes in ((0, None, 0), (None, None, 0), (0, None, None)):
        mapped = zip((x, residual, weights), axes)
        given = [a[0] if axis is None and a is not residual else a for a, axis in mapped]
        found = jax.jit(jax.vmap(norm, axes))(*given)
        for i in range(3):
            each = norm(*(a if axis is None else a[i] for a, axis in zip(given, axes)))
            assert jax.tree.structure(each) == jax.tree.structure(found)
            same = jax.tree.map(lambda a, b, i=i: jnp.array_equal(a[i], b), found, each)
            assert all(jax.tree.leaves(same))


def test_int8_of_one_row_and_of_none():
    one = quantized(draw(0, 64), group=32)
    assert (one.q.shape, one.scale.shape, one.zero) == ((64,), (2,), None)
    assert quantized(draw(0, 64)).scale.shape == ()
    none = quantized(jnp.ones((0, 64)), asymmetric=True)
    assert (none.q.shape, none.scale.shape, none.zero.shape) == ((0, 64), (0,), (0,))


def test_int8_has_no_gradients():
    x = draw(0, 2, 64)
    for derivative in (jax.grad, jax.jacfwd):
        with pytest.raises(NotImplementedError, match=r"quantized\(\) has no gradients"):
            derivative(lambda x: jnp.sum(quantized(x).scale))(x)
    gradient = jax.grad(lambda x: jnp.sum(quantized(jax.lax.stop_gradient(x)).scale * x[0, 0]))(x)
    assert gradient[0, 0] > 0 and not gradient[1].any()


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_jit_vmap_and_gradients(axes):
    x, weights = draw(0, 3, 70, 64), draw(1, 3, 64)
    weight = weights if axes[1] == 0 else weights[0]
    y = jax.jit(jax.vmap(gemma, axes))(x, weight)
    for i in range(3):
        operands = (a if axis is None else a[i] for a, axis in zip((x, weight), axes))
        assert jnp.array_equal(y[i], gemma(*operands))
    got, expected = (
        jax.vmap(jax.grad(lambda *a, f=f: jnp.sum(f(*a) ** 3), (0, 1)), axes)(x, weight)
        for f in (gemma, lambda x, weight: formula(x, weight + 1))
    )
    close(got, expected, 2e-6)


def test_threads_do_not_change_bits():
    x, weight, dy = draw(0, 999, 4096), draw(1, 4096), draw(2, 999, 4096)
    y, pull = jax.vjp(rms_norm, x, weight)
    for i in range(0, 999, 37):
        y_i, pull_i = jax.vjp(rms_norm, x[i], weight)
        assert jnp.array_equal(y[i], y_i) and jnp.array_equal(pull(dy)[0][i], pull_i(dy[i])[0])


def test_an_absent_bias_adds_nothing():
    """Not even to the sign of a zero."""
    assert jnp.signbit(rms_norm(-jnp.zeros((1, 8)), weight=None)).all()
    assert not jnp.signbit(rms_norm(-jnp.zeros((1, 8)), bias=jnp.zeros(8))).any()


def cubes(f):
    """Returns the sum of the cubes of a norm."""
    return lambda *operands: jnp.sum(f(*operands) ** 3)


ALL = (0, 1, 2)
ROWS_ONLY = (0, None, None)
DERIVATIVES = {
    "jvp": lambda f: jax.jvp(f, OPERANDS, (draw(3, 3, 2, 8), *OPERANDS[:0:-1]))[1],
    "jacfwd": lambda f: jax.jacfwd(f, ALL)(*OPERANDS),
    "jacrev": lambda f: jax.jacrev(f, ALL)(*OPERANDS),
    "hessian": lambda f: jax.hessian(cubes(f), ALL)(*OPERANDS),
    "reverse over reverse": lambda f: jax.jacrev(jax.jacrev(cubes(f), 1), ALL)(*OPERANDS),
    "forward over forward": lambda f: jax.jacfwd(jax.jacfwd(cubes(f)))(*OPERANDS),
    "gradient of vmap": lambda f: jax.jit(jax.grad(cubes(jax.vmap(f, ROWS_ONLY)), 1))(*OPERANDS),
    "vmap of hessian": lambda f: jax.vmap(
        jax.hessian(lambda x, w: cubes(f)(x, w, w), 1), (0, None)
    )(*OPERANDS[:2]),
    "hessian of vmap": lambda f: jax.hessian(
        lambda w: cubes(jax.vmap(f, ROWS_ONLY))(OPERANDS[0], w, w)
    )(OPERANDS[1]),
    "checkpoint": lambda f: jax.grad(cubes(jax.checkpoint(f)), ALL)(*OPERANDS),
}


ROTATED = {"cos": draw(5, 2, 3), "sin": draw(6, 2, 3)}
OPTIONS = {
    "default": {},
    "rotated": ROTATED,
    "outside": {
        **{"eps_placement": "outside", "eps": 0.3, "divisor": 10.0},
        **{**ROTATED, "rotary_pairs": "neighbours", "rotary_part": "end"},
    },
    "floor": {"eps_placement": "floor", "eps": 0.9, "rotary_pairs": "neighbours", **ROTATED},
}




def of_sum(x, weight, bias):
    y, total = fused_add_rms_norm(x, x[..., ::-1] ** 2, weight, bias=bias, residual_factor=0.75)
    return y + jnp.sin(total)


def formula_of_sum(x, weight, bias):
    h = (x + x[..., ::-1] ** 2) * 0.75
    return formula(h, weight, bias) + jnp.sin(h)


NORMS = {name: (partial(rms_norm, **o), partial(formula, **o)) for name, o in OPTIONS.items()}
NORMS["sum"] = (of_sum, formula_of_sum)


@pytest.mark.parametrize("norms", NORMS.values(), ids=NORMS)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_the_formula(name, norms):
    found = DERIVATIVES[name](norms[0])
    with enable_x64(True):
        expected = DERIVATIVES[name](norms[1])
    close(found, expected, 1e-5)


def test_derivatives_of_large_and_small_rows():
    """With eps = 0 the size of x does not change the norm."""
    x = OPERANDS[0]
    for scale in (1e30, 1e38, 1e-25):
        y, tangent = jax.jvp(partial(rms_norm, eps=0), (x * scale,), (x[::-1] * scale,))
        expected = jax.jvp(partial(rms_norm, eps=0), (x,), (x[::-1],))
        close((y, tangent), expected)


def test_derivatives_of_rows_of_zeros():
    zeros, tangent = jnp.zeros((2, 8)), OPERANDS[0][0]
    for placement, eps in (("inside", 0.25), ("outside", 0.5), ("floor", 0.5)):
        norm = partial(rms_norm, eps_placement=placement, eps=eps)
        close(jax.jvp(norm, (zeros,), (tangent,))[1], tangent * 2)


def test_a_negative_zero_is_an_option_by_itself():
    x, weight = jnp.ones((1, 4)), -jnp.zeros(4)
    for offset in (0.0, -0.0, 0.0):  # offset + weight is -0 only for the second
        y = rms_norm(x, weight, weight_offset=offset)
        assert jnp.array_equal(jnp.signbit(y), jnp.full((1, 4), np.signbit(offset)))


def test_without_rows_or_columns():
    for shape in ((2, 0), (0,), (0, 8), (2, 0, 8)):
        x, weight, bias = jnp.ones(shape), jnp.ones(shape[-1]), jnp.ones(shape[-1])
        got, expected = (
            jax.value_and_grad(lambda *a, f=f: jnp.sum(f(*a)), (0, 1, 2))(x, weight, bias)
            for f in (rms_norm, formula)
        )
        assert rms_norm(x, weight).shape == shape
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert jnp.array_equal(a, b) and a.dtype == b.dtype


def test_numpy_arrays_of_other_types():
    x, weight, _ = (np.asarray(a) for a in OPERANDS)
    assert jnp.array_equal(rms_norm(x.astype("float64"), weight), rms_norm(x, weight))


ROW = draw(0, 2, 8)
#: The name in the message, and arguments.
WRONG_VALUES = {
    "scalar": ("x", {"x": jnp.float32(1)}),
    "integers": ("x", {"x": jnp.ones((2, 8), int)}),
    "weight of other rows": ("weight", {"weight": ROW[:, None]}),
    "bias of three rows": ("bias", {"bias": draw(0, 3, 8)}),
    "bool weight": ("weight", {"weight": ROW[0] > 0}),
    "short bias": ("bias", {"bias": ROW[0, :7]}),
    "offset alone": ("weight_offset", {"weight_offset": 1}),
    "unknown rounding": ("rounding", {"rounding": "never"}),
    "negative eps": ("eps", {"eps": -1}),
    "cos alone": ("sin", {"cos": ROW[:, :4]}),
    "sin alone": ("cos", {"sin": ROW[:, :4]}),
    "sin of another length": ("sin", {"cos": ROW[:, :4], "sin": ROW[:, :3]}),
    "tables of more than the row": ("cos", {"cos": ROW[:, :5], "sin": ROW[:, :5]}),
    "no pairs": ("cos", {"cos": ROW[:, :0], "sin": ROW[:, :0]}),
    "cos of three rows": ("cos", {"cos": draw(0, 3, 4), "sin": ROW[:, :4]}),
    "sin of more dimensions": ("sin", {"cos": ROW[:, :4], "sin": ROW[None, :, :4]}),
    "integers as cos": ("cos", {"cos": jnp.ones(4, int), "sin": ROW[0, :4]}),
    "rotation without tables": ("rotary_pairs", {"rotary_pairs": "neighbours"}),
    "unknown pairs": ("rotary_pairs", {"rotary_pairs": "both"}),
    "long row": ("5000", {"x": jnp.ones((1, 5000)), "cos": ROW[0], "sin": ROW[0]}),
}
WRONG_SUMS = {
    "residual None": (TypeError, "residual", {"residual": None}),
    "residual of other rows": (ValueError, "residual", {"residual": ROW[:1]}),
    "no columns": (ValueError, "x", {"x": ROW[:, :0], "residual": ROW[:, :0]}),
}
WRONG_INT8 = {
    "group": ("group", {"group": 12}),
    "group beyond the row": ("group", {"group": 16}),
    "residual of other rows": ("residual", {"residual": ROW[:1]}),
    "short post_norm_weight": ("post_norm_weight", {"post_norm_weight": ROW[0, :7]}),
    "offset alone": ("weight_offset", {"weight_offset": 1}),
}
WRONG_TYPES = {
    "None": ("x", {"x": None}),
    "list": ("x", {"x": [1.0, 2.0]}),
    "number": ("x", {"x": 1.0}),
    "list as weight": ("weight", {"weight": [1.0] * 8}),
    "number as bias": ("bias", {"bias": 0.0}),
    "eps None": ("eps", {"eps": None}),
    "eps array": ("eps", {"eps": jnp.float32(1e-5)}),
    "offset array": ("weight_offset", {"weight": ROW[0], "weight_offset": ROW[0]}),
    "rounding list": ("rounding", {"rounding": ["inverse"]}),
    "list as cos": ("cos", {"cos": [1.0] * 4, "sin": ROW[0, :4]}),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "function, name, wrong",
    [
        *((rms_norm, *wrong) for wrong in WRONG_VALUES.values()),
        *((quantized, *wrong) for wrong in WRONG_INT8.values()),
    ],
    ids=[*WRONG_VALUES, *(f"int8, {name}" for name in WRONG_INT8)],
)
def test_a_wrong_value_is_refused_by_name(function, name, wrong, jit):
    call = partial(function, **{"x": ROW, **wrong})
    with pytest.raises(ValueError, match=name):
        jax.jit(call)() if jit else call()


@pytest.mark.parametrize("error, name, wrong", WRONG_SUMS.values(), ids=WRONG_SUMS)
def test_a_wrong_sum_is_refused_by_name(error, name, wrong):
    with pytest.raises(error, match=f"^{name}: "):
        fused_add_rms_norm(**{"x": ROW, "residual": ROW, **wrong})


@pytest.mark.parametrize("function", [rms_norm, quantized])
def test_an_option_of_another_function_is_refused(function):
    with pytest.raises(TypeError, match=r"\(\) got an unexpected keyword argument 'gate_rounding'"):
        function(ROW, gate_rounding="rounded")


@pytest.mark.parametrize("name, wrong", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_a_wrong_type_is_refused_by_name(name, wrong):
    with pytest.raises(TypeError, match=f"^{name}: "):
        rms_norm(**{"x": ROW, **wrong})


@pytest.mark.parametrize("name", ["eps", "weight_offset"])
def test_an_option_from_a_tracer_is_refused(name):
    with pytest.raises(TypeError, match=f"^{name}: "):
        jax.jit(lambda value: rms_norm(ROW, ROW[0], **{name: value}))(1.0)


def test_several_devices():
    """XLA reads how many devices to make of this CPU when JAX starts."""
    file = Path(__file__).with_name("test_jax_devices.py")
    run = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and "passed" in run.stdout, run.stdout[-5000:]


@pytest.mark.parametrize("function", [rms_norm, fused_add_rms_norm, quantized])
def test_help(function):
    """The docstring explains every argument, and has the words of each option."""
    lines = function.__doc__.split("\n")
    for name in inspect.signature(function).parameters:
        assert any(line.startswith((f"{name}: ", f"{name}=")) for line in lines)
    assert '"before_weight"' in function.__doc__


def test_names():
    assert rmsnorm.jax.__all__ == ["Quantized", "fused_add_rms_norm", "quantized", "rms_norm"]


def test_blocks_of_the_pages():
    names = {"x": draw(0, 2, 256), "weight": draw(1, 256), "bias": draw(2, 256)}
    names |= {"cos": draw(3, 128), "sin": draw(4, 128), "stream": draw(5, 2, 256)}
    for block in programs.blocks("jax"):
        exec(block, names)
    qkv, weights = draw(5, 2, 3, 8, 64, dtype="bfloat16"), draw(6, 2, 64, dtype="bfloat16")
    positions = jnp.array([[5, 6, 7], [900, 901, 902]])
    found = names["attention"](qkv, *weights, positions)
    tables = {n: np.asarray(names[n][positions][:, :, None]) for n in ("cos", "sin")}
    q, k = (
        rmsnorm.rms_norm(x, weight, **tables, eps=1e-6, rounding="before_weight")
        for x, weight in zip(map(np.asarray, (qkv[:, :, :4], qkv[:, :, 4:6])), np.asarray(weights))
    )
    expected = jax.jit(partial(jax.nn.dot_product_attention, is_causal=True))(q, k, qkv[:, :, 6:])
    assert jnp.array_equal(found, expected)


def test_identify():
    f = partial(rmsnorm.jax.rms_norm, eps=1e-6, weight_offset=1.0)
    answer = rmsnorm.identify(f, 100, "bfloat16", framework="jax", device=jax.devices("cpu")[0])
    options = {"eps": pytest.approx(1e-6), "weight_offset": 1}
    assert (answer.fit, answer.options) == ("exact", options)
    assert answer.depends == {"repetition": 0, "history": 0, "batch": 0, "place": 0}
    with pytest.raises(ValueError, match="ndarray, which is no array of JAX, instead of y"):
        rmsnorm.identify(lambda x, weight: np.asarray(x), 100, framework="jax")

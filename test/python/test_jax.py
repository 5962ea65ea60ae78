# SPDX-License-Identifier: Apache-2.0
import inspect
import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
from formula import formula as exact

import rmsnorm.jax
from rmsnorm._options import WORDS
from rmsnorm.jax import fused_add_rms_norm, quantized, rms_norm

enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64  # 0.6
TYPES, TABLES = ("bfloat16", "float16", "float32"), ("cos", "sin")


def draw(key, *shape, dtype="float32"):
    return jax.random.normal(jax.random.key(key), shape, "float32").astype(dtype)


def formula(x, weight, bias=0.0, **options):
    wide = x.astype(jnp.result_type(float))
    return exact(jnp, wide, weight, bias=bias, **{"eps": 1e-5} | options)[0].astype(x.dtype)


def close(got, expected, error=5e-6):
    """Compares arrays, whose largest elements may be off by a relative error."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=error * float(jnp.max(abs(b))))


OPERANDS = draw(0, 3, 2, 8), draw(1, 8), draw(2, 8)


NORM = {"x": (6, 4, 32), "weight": (32,), "bias": (32,)}
SUM = {"x": NORM["x"], "residual": NORM["x"], **NORM}  # next to each other: of different types
GEMMA = {"weight_offset": 1, "rounding": "before_weight"}
OUTSIDE = {"weight_offset": 1, "eps_placement": "outside", "eps": 0.5, "divisor": 40}
INT8 = {
    "symmetric": {},
    "asymmetric": {"asymmetric": True},
    "groups": {"group": 8},
    "asymmetric groups": {"group": 16, "asymmetric": True, "rounding": "inverse"},
}


def options_of(*names):
    """Returns each choice of words for these options."""
    return [dict(zip(names, words)) for words in itertools.product(*(WORDS[n] for n in names))]


#: Calls: a function, the shapes of its operands, and options.
CALLS = [
    *((rms_norm, {"x": (3, 32)} | more, {}) for more in ({}, {"weight": (32,)}, {"bias": (32,)})),
    *((rms_norm, NORM, {"eps": 0.5, "weight_offset": 1} | o) for o in options_of("rounding")),
    # Each sample has a scale and a shift, and heads share the rows of tables.
    (rms_norm, {"x": (5, 7, 32), "weight": (5, 1, 32), "bias": (7, 32)}, OUTSIDE),
    *(
        (rms_norm, {**NORM, "cos": (6, 1, half), "sin": (6, 1, half)}, GEMMA | o)
        for o in options_of("rotary_pairs", "rotary_part", "rotary_rounding")
        for half in (16, 5)
    ),
    *(
        (fused_add_rms_norm, SUM, GEMMA | {"residual_factor": factor} | o)
        for o in options_of("residual_rounding")
        for factor in (None, 0.75)
    ),
    *((quantized, NORM, o) for o in INT8.values()),
    *(
        (quantized, {**SUM, "post_norm_weight": (32,)}, {"residual_factor": 0.75} | o)
        for o in INT8.values()
    ),
]


def gradients_of_library(arrays, total, dys, options):
    """Returns the gradients of a norm, or of a sum whose residual_out is `total`, by operand."""
    of_norm = {name: o for name, o in options.items() if name != "residual_rounding"}
    h, dh = arrays["x"], np.empty_like(arrays["x"])
    if total is not None:
        h, dh = total.astype("float32"), np.array(dys[1], "float32")
        if options["residual_rounding"] == "unrounded":
            h = sum(arrays[name].astype("float32") for name in ("x", "residual"))
            h *= np.float32(options["residual_factor"] or 1)
        of_norm["add_to"] = ["dx"]
    operands = {n: a for n, a in arrays.items() if n in ("weight", *TABLES)}
    outputs = {f"d{n[0]}": np.empty_like(a) for n, a in arrays.items() if n in ("weight", "bias")}
    rmsnorm.backward(x=h, dy=np.asarray(dys[0]), dx=dh, **operands, **outputs, **of_norm)
    outputs["dx"] = outputs["dr"] = dh
    return {n: outputs[f"d{n[0]}"].astype(a.dtype) for n, a in arrays.items() if n not in TABLES}


@pytest.mark.parametrize("types", [*zip(TYPES, TYPES, TYPES), TYPES, TYPES[::-1]], ids=str)
@pytest.mark.parametrize("function, shapes, options", CALLS)
def test_bits_of_the_package_for_arrays(function, shapes, options, types):
    """test_bits.py compares those with exact results. The types of operands take turns."""
    kinds = itertools.cycle(types)
    operands = {n: draw(i, *shapes[n], dtype=next(kinds)) for i, n in enumerate(shapes)}
    arrays = {name: np.asarray(a) for name, a in operands.items()}
    call = jax.jit(lambda operands: function(**operands, **options))
    found, pull = (call(operands), None) if function is quantized else jax.vjp(call, operands)
    names = found._fields if function is quantized else ("y", "residual_out")
    results = zip(names, found if isinstance(found, tuple) else (found,))
    results = {name: a for name, a in results if a is not None}
    assert ("zero" in results) == ("asymmetric" in options)
    assert ("residual_out" in results) == ("residual" in shapes)
    options = {name: value for name, value in options.items() if name != "asymmetric"}
    outputs = {name: np.empty(a.shape, a.dtype) for name, a in results.items()}
    rmsnorm.forward(**arrays, **outputs, **options)
    for name, of in (("y", "x"), ("residual_out", "residual")):
        assert name not in results or outputs[name].dtype == arrays[of].dtype
    assert all(jnp.array_equal(a, outputs[name]) for name, a in results.items())
    if pull:
        dys = [draw(9 + i, *a.shape, dtype=a.dtype) for i, a in enumerate(results.values())]
        (gradients,) = pull(tuple(dys) if len(dys) > 1 else dys[0])
        wanted = gradients_of_library(arrays, outputs.get("residual_out"), dys, options)
        for name, a in wanted.items():
            assert gradients[name].dtype == a.dtype and jnp.array_equal(gradients[name], a)


def with_gradients(norm):
    """Returns a function for y and the gradients by all operands."""

    def call(*operands):
        y, pull = jax.vjp(norm, *operands)
        return y, *pull(jnp.sin(y))

    return call


def rotated(x, weight, table):
    return rms_norm(x, weight, cos=table, sin=table * 0.5)


def in_int8(x, residual, weight, **options):
    return quantized(x, weight, residual=residual, **options)


#: Functions of three arrays, and the shapes of these.
MAPPED = {
    "rms_norm": (with_gradients(partial(rms_norm, weight_offset=1)), (70, 64), (64,), (64,)),
    "rotated": (with_gradients(rotated), (6, 4, 16), (16,), (6, 1, 8)),
    **{name: (partial(in_int8, **INT8[name]), (5, 64), (5, 64), (64,)) for name in INT8},
}


@pytest.mark.parametrize("axes", [*itertools.product((0, None), repeat=3)][:-1] + [(-1, 0, 1)])
@pytest.mark.parametrize("name", MAPPED)
def test_jit_of_vmap(name, axes):
    """Some operands are mapped."""
    call, *shapes = MAPPED[name]
    arrays = [draw(i, 3, *shape) for i, shape in enumerate(shapes)]
    given = [a[0] if n is None else jnp.moveaxis(a, 0, n) for a, n in zip(arrays, axes)]
    found = jax.jit(jax.vmap(call, axes))(*given)
    for i in range(3):
        each = call(*(a[0 if n is None else i] for a, n in zip(arrays, axes)))
        assert jax.tree.structure(each) == jax.tree.structure(found)
        same = jax.tree.map(lambda a, b, i=i: jnp.array_equal(a[i], b), found, each)
        assert all(jax.tree.leaves(same))


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
TABLE, NO_ROW = ROW[:, :4], ROW[:, :0]
#: Wrong calls of functions: the beginning of the message, and the arguments beside x.
WRONG_VALUES = {
    rms_norm: [
        ("x: ", {"x": jnp.float32(1)}),
        ("x: ", {"x": jnp.ones((2, 8), int)}),
        ("weight: ", {"weight": ROW[:, None]}),
        ("bias: ", {"bias": draw(0, 3, 8)}),
        ("weight: ", {"weight": ROW[0] > 0}),
        ("bias: ", {"bias": ROW[0, :7]}),
        ("bias: ", {"bias": np.ma.ones(8, "float32")}),
        ("bias: .*; rows of this x have no element", {"x": NO_ROW, "bias": ROW[0]}),
        ("cos: the last dimension is 0", {"x": NO_ROW, "cos": NO_ROW, "sin": NO_ROW}),
        ("(options: )?weight_offset", {"weight_offset": 1}),
        ("rounding: ", {"rounding": "never"}),
        ("(options: )?eps", {"eps": -1}),
        ("cos: there is no sin", {"cos": TABLE}),
        ("sin: there is no cos", {"sin": TABLE}),
        ("sin: ", {"cos": TABLE, "sin": ROW[:, :3]}),
        ("cos: ", {"cos": ROW[:, :5], "sin": ROW[:, :5]}),
        ("cos: ", {"cos": NO_ROW, "sin": NO_ROW}),
        ("cos: ", {"cos": draw(0, 3, 4), "sin": TABLE}),
        ("sin: ", {"cos": TABLE, "sin": TABLE[None]}),
        ("cos: ", {"cos": jnp.ones(4, int), "sin": TABLE}),
        ("(options: )?rotary_pairs", {"rotary_pairs": "neighbours"}),
        ("rotary_pairs: ", {"rotary_pairs": "both"}),
        (".*5000", {"x": jnp.ones((1, 5000)), "cos": ROW[0], "sin": ROW[0]}),
    ],
    fused_add_rms_norm: [
        ("residual: ", {"residual": ROW[:1]}),
        ("x: ", {"x": NO_ROW, "residual": NO_ROW}),
    ],
    quantized: [
        ("(options: )?group", {"group": 12}),
        ("(options: )?group", {"group": 16}),
        ("residual: ", {"residual": ROW[:1]}),
        ("post_norm_weight: ", {"post_norm_weight": ROW[0, :7]}),
        ("(options: )?weight_offset", {"weight_offset": 1}),
    ],
}
OTHER_OPTION = r"\w+\(\) got an unexpected keyword argument 'gate_rounding'"
WRONG_TYPES = {
    rms_norm: [
        *(("x: ", {"x": x}) for x in (None, [1.0, 2.0], 1.0)),
        ("weight: ", {"weight": [1.0] * 8}),
        ("bias: ", {"bias": 0.0}),
        ("bias: ", {"bias": np.ones(8, ">f4")}),
        ("eps: ", {"eps": None}),
        ("eps: ", {"eps": jnp.float32(1e-5)}),
        ("weight_offset: ", {"weight": ROW[0], "weight_offset": ROW[0]}),
        ("rounding: ", {"rounding": ["inverse"]}),
        ("cos: ", {"cos": [1.0] * 4, "sin": TABLE}),
        (OTHER_OPTION, {"gate_rounding": "rounded"}),
    ],
    fused_add_rms_norm: [("residual: ", {"residual": None})],
    quantized: [(OTHER_OPTION, {"gate_rounding": "rounded"})],
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize(
    "error, function, message, wrong",
    [
        (error, function, *call)
        for error, table in ((ValueError, WRONG_VALUES), (TypeError, WRONG_TYPES))
        for function, calls in table.items()
        for call in calls
    ],
)
def test_refusals_name_the_argument(error, function, message, wrong, jit):
    """Under jit arrays are tracers, also those for options."""
    given = {"x": ROW, **wrong}
    arrays = {name: given.pop(name) for name in [*given] if isinstance(given[name], jax.Array)}
    call = partial(function, **given)
    with pytest.raises(error, match=f"^{message}"):
        (jax.jit(call) if jit else call)(**arrays)


@pytest.mark.parametrize("function", [rms_norm, fused_add_rms_norm, quantized])
def test_help(function):
    """The docstring explains every argument, and has the words of each option."""
    assert rmsnorm.jax.__all__ == ["Quantized", "fused_add_rms_norm", "quantized", "rms_norm"]
    lines = function.__doc__.split("\n")
    for name in inspect.signature(function).parameters:
        assert any(line.startswith((f"{name}: ", f"{name}=")) for line in lines)
    assert '"before_weight"' in function.__doc__


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

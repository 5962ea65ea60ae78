# SPDX-License-Identifier: Apache-2.0
import inspect
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rmsnorm.jax
from rmsnorm.jax import rms_norm

TYPES = ("bfloat16", "float16", "float32")
gemma = partial(rms_norm, weight_offset=1)


def draw(key, *shape, dtype="float32"):
    return jax.random.normal(jax.random.key(key), shape).astype(dtype)


def formula(x, weight, bias=0.0):
    h = x.astype("float32")
    n = h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-5)
    return (n * weight + bias).astype(x.dtype)


def close(got, expected, error=5e-6):
    """Compares arrays, whose largest elements may be off by a relative error."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=error * float(jnp.max(abs(b))))


OPERANDS = draw(0, 3, 2, 8), draw(1, 8), draw(2, 8)


@pytest.mark.parametrize("types", [*zip(TYPES, TYPES, TYPES), TYPES, TYPES[::-1]], ids=str)
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


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_those_of_the_formula(name):
    close(DERIVATIVES[name](rms_norm), DERIVATIVES[name](formula), 1e-5)


def test_derivatives_of_large_and_small_rows():
    """With eps = 0 the size of x does not change the norm."""
    x = OPERANDS[0]
    for scale in (1e30, 1e38, 1e-25):
        y, tangent = jax.jvp(partial(rms_norm, eps=0), (x * scale,), (x[::-1] * scale,))
        expected = jax.jvp(partial(rms_norm, eps=0), (x,), (x[::-1],))
        close((y, tangent), expected)


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
    "matrix as weight": ("weight", {"weight": ROW}),
    "bool weight": ("weight", {"weight": ROW[0] > 0}),
    "short bias": ("bias", {"bias": ROW[0, :7]}),
    "offset alone": ("weight_offset", {"weight_offset": 1}),
    "unknown rounding": ("rounding", {"rounding": "never"}),
    "negative eps": ("eps", {"eps": -1}),
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
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name, wrong", WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_a_wrong_value_is_refused_by_name(name, wrong, jit):
    call = partial(rms_norm, **{"x": ROW, **wrong})
    with pytest.raises(ValueError, match=name):
        jax.jit(call)() if jit else call()


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


def test_help():
    """The docstring explains every argument, and each rounding is in the signature."""
    for name, parameter in inspect.signature(rms_norm).parameters.items():
        assert f"\n    {name}: " in rms_norm.__doc__ and parameter.annotation is not parameter.empty
    assert "before_weight" in str(inspect.signature(rms_norm))
    assert rmsnorm.jax.__all__ == ["rms_norm"]


def test_identify():
    f = partial(rmsnorm.jax.rms_norm, eps=1e-6, weight_offset=1.0)
    answer = rmsnorm.identify(f, 100, "bfloat16", framework="jax", device=jax.devices("cpu")[0])
    options = {"eps": pytest.approx(1e-6), "weight_offset": 1}
    assert (answer.fit, answer.options) == ("exact", options)
    assert answer.depends == {"repetition": 0, "history": 0, "batch": 0, "place": 0}
    with pytest.raises(ValueError, match="ndarray, which is no array of JAX, instead of y"):
        rmsnorm.identify(lambda x, weight: np.asarray(x), 100, framework="jax")

# SPDX-License-Identifier: Apache-2.0
import inspect
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rmsnorm.jax
from rmsnorm.jax import rms_norm

gemma = partial(rms_norm, weight_offset=1)


def draw(key: int, *shape: int, dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(key), shape).astype(dtype)


def formula(x: jax.Array, weight: jax.Array, rounding: str = "after_weight") -> Any:
    h = x.astype("float32")
    n = h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + 1e-5)
    rounded = n.astype(x.dtype) if rounding == "before_weight" else n
    return (rounded * (weight + 1)).astype(x.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_forward(dtype: str) -> None:
    x, weight = draw(0, 40, 5, 1000, dtype=dtype), draw(1, 1000)
    assert jnp.array_equal(rms_norm(x), gemma(x, jnp.zeros(1000)))
    for rounding, other in (("after_weight", "before_weight"), ("before_weight", "after_weight")):
        y, expected = gemma(x, weight, rounding=rounding), formula(x, weight, rounding)
        integer = f"int{8 * y.dtype.itemsize}"
        ulp = jnp.max(abs(y.view(integer) - expected.view(integer)))
        assert ulp <= (5 if dtype == "float32" else 2)
        if dtype != "float32":  # a sum in another order changes few of the rounded results
            assert jnp.mean(y != expected) < 1e-3 and jnp.mean(y != formula(x, weight, other)) > 0.1


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_jit_vmap_and_gradients(axes: tuple[int | None, int | None]) -> None:
    x, weights = draw(0, 3, 70, 64), draw(1, 3, 64)
    weight = weights if axes[1] == 0 else weights[0]
    y = jax.jit(jax.vmap(gemma, axes))(x, weight)
    for i in range(3):
        operands = (a if axis is None else a[i] for a, axis in zip((x, weight), axes))
        assert jnp.array_equal(y[i], gemma(*operands))
    got, expected = (
        jax.vmap(jax.grad(lambda *a, f=f: jnp.sum(f(*a) ** 3), (0, 1)), axes)(x, weight)
        for f in (gemma, formula)
    )
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-6 * float(jnp.max(abs(b))))


def test_threads_do_not_change_bits() -> None:
    x, weight, dy = draw(0, 999, 4096), draw(1, 4096), draw(2, 999, 4096)
    y, pull = jax.vjp(rms_norm, x, weight)
    for i in range(0, 999, 37):
        y_i, pull_i = jax.vjp(rms_norm, x[i], weight)
        assert jnp.array_equal(y[i], y_i) and jnp.array_equal(pull(dy)[0][i], pull_i(dy[i])[0])


def affine(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight + bias


OPERANDS = draw(0, 3, 2, 8), draw(1, 8), draw(2, 8)


def close(got: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * float(jnp.max(abs(b))))


def test_bias() -> None:
    x, weight, bias = OPERANDS
    close(rms_norm(x, weight, bias), affine(x, weight, bias))
    close(rms_norm(x, bias=bias), affine(x, jnp.ones(8), bias))
    assert jnp.array_equal(rms_norm(x, bias=bias), rms_norm(x, jnp.ones(8), bias))
    got, expected = (
        jax.grad(lambda *a, f=f: jnp.sum(jnp.sin(f(*a))), (0, 1, 2))(*OPERANDS)
        for f in (rms_norm, affine)
    )
    close(got, expected)
    # An absent bias adds nothing, not even to a zero's sign.
    assert jnp.signbit(rms_norm(-jnp.zeros((1, 8)), weight=None)).all()
    assert not jnp.signbit(rms_norm(-jnp.zeros((1, 8)), bias=jnp.zeros(8))).any()


def test_types_of_gradients() -> None:
    x, weight, bias = (a.astype(t) for a, t in zip(OPERANDS, ("bfloat16", "float16", "float32")))
    gradients = jax.grad(lambda *a: jnp.sum(rms_norm(*a).astype("float32")), (0, 1, 2))
    found = gradients(x, weight, bias)
    assert [a.dtype.name for a in found] == ["bfloat16", "float16", "float32"]
    assert jnp.array_equal(found[2], jnp.full(8, 6))


@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: jax.jvp(f, OPERANDS, (draw(3, 3, 2, 8), *OPERANDS[:0:-1]))[1],
        lambda f: jax.jacfwd(f, (0, 1, 2))(*OPERANDS),
        lambda f: jax.jacrev(f, (0, 1, 2))(*OPERANDS),
        lambda f: jax.hessian(lambda *a: jnp.sum(f(*a) ** 3), (0, 1, 2))(*OPERANDS),
        lambda f: jax.jacrev(jax.jacrev(lambda *a: jnp.sum(f(*a) ** 3), 1), (0, 1, 2))(*OPERANDS),
        lambda f: jax.jacfwd(jax.jacfwd(lambda x: jnp.sum(f(x, *OPERANDS[1:]) ** 3)))(OPERANDS[0]),
        lambda f: jax.jit(jax.grad(lambda *a: jnp.sum(jax.vmap(f, (0, None, None))(*a) ** 3), 1))(
            *OPERANDS
        ),
        lambda f: jax.vmap(jax.hessian(lambda x, w: jnp.sum(f(x, w, w) ** 3), 1), (0, None))(
            *OPERANDS[:2]
        ),
        lambda f: jax.hessian(
            lambda w: jnp.sum(jax.vmap(f, (0, None, None))(OPERANDS[0], w, w) ** 3)
        )(OPERANDS[1]),
        lambda f: jax.grad(lambda *a: jnp.sum(jax.checkpoint(f)(*a) ** 3), (0, 1, 2))(*OPERANDS),
    ],
    ids=[
        "jvp",
        "jacfwd",
        "jacrev",
        "hessian",
        "reverse over reverse",
        "forward over forward",
        "gradient of vmap",
        "vmap of hessian",
        "hessian of vmap",
        "checkpoint",
    ],
)
def test_derivatives(derivative: Any) -> None:
    close(derivative(rms_norm), derivative(affine))


def test_gradients_are_those_of_the_library() -> None:
    x, weight, bias = (np.asarray(a) for a in OPERANDS)
    dy = np.asarray(draw(3, 3, 2, 8))
    dx, dw, db = np.empty_like(x), np.empty_like(weight), np.empty_like(bias)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw, db=db, eps=1e-5)
    found = jax.vjp(rms_norm, x, weight, bias)[1](dy)
    for a, b in zip(found, (dx, dw, db), strict=True):
        assert jnp.array_equal(a, b)


def test_derivatives_of_large_and_small_rows() -> None:
    """With eps = 0 the size of x does not change the norm."""
    x = OPERANDS[0]
    for scale in (1e30, 1e-25):
        y, tangent = jax.jvp(partial(rms_norm, eps=0), (x * scale,), (x[::-1] * scale,))
        expected = jax.jvp(partial(rms_norm, eps=0), (x,), (x[::-1],))
        close((y, tangent), expected)


def test_a_negative_zero_is_an_option_by_itself() -> None:
    x, weight = jnp.ones((1, 4)), -jnp.zeros(4)
    for offset in (0.0, -0.0, 0.0):  # offset + weight is -0 only for the second
        y = rms_norm(x, weight, weight_offset=offset)
        assert jnp.array_equal(jnp.signbit(y), jnp.full((1, 4), np.signbit(offset)))


def test_without_rows_or_columns() -> None:
    for shape in ((2, 0), (0,), (0, 8), (2, 0, 8)):
        x, weight, bias = jnp.ones(shape), jnp.ones(shape[-1]), jnp.ones(shape[-1])
        got, expected = (
            jax.value_and_grad(lambda *a, f=f: (jnp.sum(f(*a))), (0, 1, 2))(x, weight, bias)
            for f in (rms_norm, affine)
        )
        assert rms_norm(x, weight).shape == shape
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
            assert jnp.array_equal(a, b) and a.dtype == b.dtype


def test_numpy_arrays() -> None:
    x, weight, bias = (np.asarray(a) for a in OPERANDS)
    assert jnp.array_equal(rms_norm(x, weight, bias), rms_norm(*OPERANDS))
    assert jnp.array_equal(rms_norm(x.astype("float64"), weight), rms_norm(x, weight))


ROW = draw(0, 2, 8)
WRONG_VALUES = {
    "scalar": ("x", {"x": jnp.float32(1)}),
    "integers": ("x", {"x": jnp.ones((2, 8), int)}),
    "matrix as weight": ("weight", {"weight": ROW}),
    "bool weight": ("weight", {"weight": ROW[0] > 0}),
    "short bias": ("bias", {"bias": ROW[0, :7]}),
    "offset alone": ("weight_offset", {"weight_offset": 1}),
    "unknown rounding": ("rounding", {"rounding": "never"}),
    "negative eps": ("eps", {"eps": -1}),
    "infinite eps": ("eps", {"eps": float("inf")}),
    "NaN as offset": ("weight_offset", {"weight": ROW[0], "weight_offset": float("nan")}),
}
WRONG_TYPES = {
    "None": ("x", {"x": None}),
    "list": ("x", {"x": [1.0, 2.0]}),
    "number": ("x", {"x": 1.0}),
    "list as weight": ("weight", {"weight": [1.0] * 8}),
    "number as bias": ("bias", {"bias": 0.0}),
    "eps None": ("eps", {"eps": None}),
    "eps array": ("eps", {"eps": jnp.float32(1e-5)}),
    "eps NumPy array": ("eps", {"eps": np.ones(8)}),
    "eps True": ("eps", {"eps": True}),
    "eps text": ("eps", {"eps": "1e-5"}),
    "offset array": ("weight_offset", {"weight": ROW[0], "weight_offset": ROW[0]}),
    "offset None": ("weight_offset", {"weight": ROW[0], "weight_offset": None}),
    "rounding None": ("rounding", {"rounding": None}),
    "rounding list": ("rounding", {"rounding": ["inverse"]}),
}


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("name, wrong", WRONG_VALUES.values(), ids=WRONG_VALUES)
def test_wrong_values(name: str, wrong: dict[str, Any], jit: bool) -> None:
    call = partial(rms_norm, **{"x": ROW, **wrong})
    with pytest.raises(ValueError, match=name):
        jax.jit(call)() if jit else call()


@pytest.mark.parametrize("name, wrong", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_wrong_types(name: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=f"^{name}: "):
        rms_norm(**{"x": ROW, **wrong})


def test_options_from_tracers() -> None:
    for name in ("eps", "weight_offset"):
        with pytest.raises(TypeError, match=f"^{name}: "):
            jax.jit(lambda value, name=name: rms_norm(ROW, ROW[0], **{name: value}))(1.0)


def test_several_devices() -> None:
    """XLA reads how many devices to make of this CPU when JAX starts."""
    file = Path(__file__).with_name("test_jax_devices.py")
    run = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", file],
        env={**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0 and "passed" in run.stdout, run.stdout[-5000:]


def test_help() -> None:
    """The docstring explains every argument, and each rounding is in the signature."""
    for name, parameter in inspect.signature(rms_norm).parameters.items():
        assert f"\n    {name}: " in rms_norm.__doc__ and parameter.annotation is not parameter.empty
    assert "before_weight" in str(inspect.signature(rms_norm))
    assert rmsnorm.jax.__all__ == ["rms_norm"]

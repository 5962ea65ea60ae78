# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.jax on four devices. test_jax.py runs this file in a process that has them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from rmsnorm.jax import rms_norm

if len(jax.devices()) < 4:
    pytest.skip("it needs four devices", allow_module_level=True)

Norm = Callable[..., jax.Array]

AUTO = Mesh(np.array(jax.devices()), ("b",), axis_types=(AxisType.Auto,))
EXPLICIT = Mesh(np.array(jax.devices()), ("b",), axis_types=(AxisType.Explicit,))


def draw(key: int, *shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(key), shape)


def formula(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-5) * weight + bias


def close(got: Any, expected: Any) -> None:
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=5e-6 * float(jnp.max(abs(b))))


# Each device has all of an operand, or a part: some rows, or one of four weights.
SPECS = {"all": P(), "part": P("b")}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("x_spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("weight_spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("bias_spec", SPECS.values(), ids=SPECS)
def test_shard_map(check_vma: bool, x_spec: P, weight_spec: P, bias_spec: P) -> None:
    operands = draw(0, 8, 4, 16), draw(1, 4, 16), draw(2, 4, 16)
    in_specs = x_spec, weight_spec, bias_spec

    def run(norm: Norm) -> Any:
        def loss(x: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
            y = norm(x, weight[0], bias[0])
            return jax.lax.psum(jnp.sum(jnp.sin(y) + 2) * (1 + jax.lax.axis_index("b")), "b"), y

        specs: Any = {"in_specs": in_specs, "out_specs": (P(), P("b"))}
        mapped = jax.shard_map(loss, mesh=AUTO, check_vma=check_vma, **specs)
        return jax.jit(jax.value_and_grad(mapped, (0, 1, 2), has_aux=True))(*operands)

    close(run(rms_norm), run(formula))


def test_second_derivatives_in_shard_map() -> None:
    operands = draw(0, 4, 8), draw(1, 8), draw(2, 8)

    def run(norm: Norm) -> Any:
        def loss(*operands: jax.Array) -> Any:
            return jax.lax.psum(jnp.sum(norm(*operands) ** 3), "b")

        specs: Any = {"in_specs": (P("b"), P(), P()), "out_specs": P()}
        mapped = jax.shard_map(loss, mesh=AUTO, **specs)
        gradient = jax.grad(mapped, 1)
        return jax.jit(jax.grad(lambda *a: jnp.sum(gradient(*a) ** 2), (0, 1, 2)))(*operands)

    close(run(rms_norm), run(formula))


@pytest.mark.skipif(not hasattr(jax.lax, "pcast"), reason="XLA of JAX 0.6 ends the process")
def test_shard_map_over_one_of_two_axes() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    x = jax.device_put(draw(0, 8, 4, 16), NamedSharding(mesh, P("a", "b")))
    weight, bias = draw(1, 16), draw(2, 16)

    def run(norm: Norm) -> Any:
        specs: Any = {"in_specs": (P("a"), P(), P()), "out_specs": P("a"), "axis_names": {"a"}}
        mapped = jax.shard_map(norm, mesh=mesh, **specs)
        loss = jax.grad(lambda *operands: jnp.sum(jnp.sin(mapped(*operands))), (0, 1, 2))
        return jax.jit(loss)(x, weight, bias)

    close(run(rms_norm), run(formula))


def test_pmap() -> None:
    x, weight, bias = draw(0, 4, 6, 16), draw(1, 16), draw(2, 16)

    def run(norm: Norm) -> Any:
        def loss(x: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
            return jnp.sum(jnp.sin(norm(x, weight, bias)) + 2)

        gradients = jax.value_and_grad(loss, (0, 1, 2))
        return jax.pmap(gradients, in_axes=(0, None, None))(x, weight, bias)

    close(run(rms_norm), run(formula))


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
@pytest.mark.parametrize("spec", [P("b"), P(None, "b")], ids=["first", "second"])
@pytest.mark.parametrize("vmap", [False, True])
def test_jit_leaves_rows_on_their_devices(mesh: Mesh, spec: P, vmap: bool) -> None:
    x = jax.device_put(draw(0, 8, 4, 16), NamedSharding(mesh, spec))
    columns = [jax.device_put(draw(i, 16), NamedSharding(mesh, P())) for i in (1, 2)]

    def run(norm: Norm) -> Any:
        norm = jax.vmap(norm, (0, None, None)) if vmap else norm

        def loss(*operands: jax.Array) -> Any:
            y = norm(*operands)
            return jnp.sum(jnp.sin(y) + 2), y

        program = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))
        return program.lower(x, *columns).compile()

    program = run(rms_norm)
    assert program.as_text().count('custom_call_target="rmsnorm"') == 2
    assert "f32[8,4,16]" not in program.as_text()  # no device has all rows
    ((_, y), gradients), expected = program(x, *columns), run(formula)(x, *columns)
    assert y.sharding.is_equivalent_to(x.sharding, 3)
    assert gradients[0].sharding.is_equivalent_to(x.sharding, 3)
    close(((_, y), gradients), expected)


@pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
def test_jit_with_a_split_last_dimension(mesh: Mesh) -> None:
    arrays = (draw(0, 3, 16), P(None, "b")), (draw(1, 16), P("b")), (draw(2, 16), P("b"))
    operands = [jax.device_put(a, NamedSharding(mesh, spec)) for a, spec in arrays]

    def run(norm: Norm) -> Any:
        def loss(*operands: jax.Array) -> Any:
            y = norm(*operands)
            return jnp.sum(jnp.sin(y) + 2), y

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(*operands)

    close(run(rms_norm), run(formula))


def test_jit_with_rows_over_two_mesh_axes() -> None:
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    x = jax.device_put(draw(0, 8, 4, 16), NamedSharding(mesh, P(("a", "b"))))
    z = jax.device_put(draw(0, 8, 4, 16), NamedSharding(mesh, P("a", "b")))
    weight, bias = draw(1, 16), draw(2, 16)

    def run(norm: Norm, x: jax.Array) -> Any:
        loss = jax.grad(lambda *operands: jnp.sum(jnp.sin(norm(*operands))), (0, 1, 2))
        return jax.jit(loss)(x, weight, bias)

    for operand in (x, z):
        close(run(rms_norm, operand), run(formula, operand))


def test_jit_where_devices_do_not_divide_the_rows() -> None:
    x, weight, bias = draw(0, 6, 16), draw(1, 16), draw(2, 16)

    def run(norm: Norm) -> Any:
        def loss(x: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
            split = jax.lax.with_sharding_constraint(x * 2, NamedSharding(AUTO, P("b")))
            return jnp.sum(jnp.sin(norm(split, weight, bias)) + 2)

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(x, weight, bias)

    close(run(rms_norm), run(formula))

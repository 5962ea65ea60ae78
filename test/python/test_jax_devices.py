# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.jax on four devices, which conftest.py asks for."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from test_jax import close, draw, formula

from rmsnorm.jax import fused_add_rms_norm, quantized, rms_norm

AUTO = Mesh(np.array(jax.devices()), ("b",), axis_types=(AxisType.Auto,))
EXPLICIT = Mesh(np.array(jax.devices()), ("b",), axis_types=(AxisType.Explicit,))
SQUARE = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
each_mesh = pytest.mark.parametrize("mesh", [AUTO, EXPLICIT], ids=["auto", "explicit"])
COLUMNS = draw(1, 16), draw(2, 16)
TABLES = draw(3, 8, 1, 6), draw(4, 8, 1, 6)  # of eight tokens, for all heads


def put(array, mesh, *axes):
    return jax.device_put(array, NamedSharding(mesh, P(*axes)))


def gradients(norm, in_specs=None, out_specs=None, **options):
    """Returns a function for a loss, the results of a norm and the gradients. With specs it is in
    shard_map, and each device adds its part to the loss, times its number."""

    def loss(*operands):
        results = norm(*operands)
        part = sum(jnp.sum(jnp.sin(y) + 2) for y in jax.tree.leaves(results))
        if in_specs:
            part = jax.lax.psum(part * (1 + jax.lax.axis_index("b")), "b")
        return part, results

    if in_specs:
        specs = {"in_specs": in_specs, "out_specs": (P(), out_specs)}
        loss = jax.shard_map(loss, mesh=AUTO, **specs, **options)
    return jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))


def rotated(norm):
    """Returns the norm as a function of its tables, too."""
    return lambda x, weight, bias, cos, sin: norm(x, weight, bias, cos=cos, sin=sin)


def assert_same(program, *operands):
    """A program computes the same with the library's norm and with the formula."""
    close(program(rms_norm)(*operands), program(formula)(*operands))


# Each device has all of an operand, or a part: some rows, or one of four weights.
SPECS = {"all": P(), "part": P("b")}


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("x_spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("weight_spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("bias_spec", SPECS.values(), ids=SPECS)
def test_shard_map(check_vma, x_spec, weight_spec, bias_spec):
    def program(norm):
        def of_one_row(x, weight, bias):
            return norm(x, weight[0], bias[0])

        specs = x_spec, weight_spec, bias_spec
        return gradients(of_one_row, specs, P("b"), check_vma=check_vma)

    assert_same(program, draw(0, 8, 4, 16), draw(1, 4, 16), draw(2, 4, 16))


def test_second_derivatives_in_shard_map():
    def program(norm):
        def loss(*operands):
            return jax.lax.psum(jnp.sum(norm(*operands) ** 3), "b")

        mapped = jax.shard_map(loss, mesh=AUTO, in_specs=(P("b"), P(), P()), out_specs=P())
        gradient = jax.grad(mapped, (1, 2))
        return jax.jit(jax.grad(lambda *a: sum(jnp.sum(g**2) for g in gradient(*a)), (0, 1, 2)))

    assert_same(program, draw(0, 4, 8), draw(1, 8), draw(2, 8))


@pytest.mark.skipif(not hasattr(jax.lax, "pcast"), reason="XLA of JAX 0.6 ends the process")
def test_shard_map_over_one_of_two_axes():
    def program(norm):
        specs = {"in_specs": (P("a"), P(), P()), "out_specs": P("a"), "axis_names": {"a"}}
        return gradients(jax.shard_map(norm, mesh=SQUARE, **specs))

    assert_same(program, put(draw(0, 8, 4, 16), SQUARE, "a", "b"), *COLUMNS)


@pytest.mark.parametrize("check_vma", [True, False])
@pytest.mark.parametrize("spec", [P("b"), P(None, "b")], ids=["tokens", "heads"])
def test_rotations_in_shard_map(check_vma, spec):
    """Devices have the rows of their tokens, or all rows for their heads."""

    def program(norm):
        specs = spec, P(), P(), P(*spec[:1]), P(*spec[:1])
        return gradients(rotated(norm), specs, spec, check_vma=check_vma)

    assert_same(program, draw(0, 8, 4, 16), *COLUMNS, *TABLES)


def formula_of_sum(x, residual, weight):
    h = (x + residual) * 0.5
    return formula(h, weight), h


@pytest.mark.parametrize("spec", [P("b"), P(None, "b")], ids=["first", "second"])
@pytest.mark.parametrize("map_shards", [False, True], ids=["jit", "shard_map"])
def test_sums(spec, map_shards):
    def program(norm):
        return gradients(norm, *[(spec, spec, P()), spec] * map_shards)

    rows = [put(draw(i, 8, 4, 16), AUTO, *spec) for i in (0, 3)]
    operands = *rows, put(COLUMNS[0], AUTO)
    found = program(partial(fused_add_rms_norm, residual_factor=0.5))
    assert "all-gather" not in found.lower(*operands).compile().as_text()
    close(found(*operands), program(formula_of_sum)(*operands))


def test_pmap():
    def program(norm):
        return jax.pmap(gradients(rotated(norm)), in_axes=(0, None, None, 0, None))

    assert_same(program, draw(0, 4, 8, 16), *COLUMNS, draw(3, 4, 1, 6), draw(4, 8, 6))


@each_mesh
@pytest.mark.parametrize("spec", [("b",), (None, "b")], ids=["first", "second"])
@pytest.mark.parametrize("vmap", [False, True])
@pytest.mark.parametrize("tables", [(), TABLES], ids=["", "rotated"])
def test_jit_leaves_rows_on_their_devices(mesh, spec, vmap, tables):
    """Heads share the rows of tables, which are split as the tokens."""
    x, columns = put(draw(0, 8, 4, 16), mesh, *spec), [put(a, mesh) for a in COLUMNS]
    tables = [put(a, mesh, *spec[:1]) for a in tables]

    def run(norm):
        norm = rotated(norm) if tables else norm
        norm = jax.vmap(norm, (0, None, None, *[0 for _ in tables])) if vmap else norm
        return gradients(norm).lower(x, *columns, *tables).compile()

    program = run(rms_norm)
    assert program.as_text().count('custom_call_target="rmsnorm"') == 2
    assert "f32[8,4,16]" not in program.as_text()  # no device has all rows
    assert "all-gather" not in program.as_text()
    (_, y), (dx, *_) = results = program(x, *columns, *tables)
    assert y.sharding.is_equivalent_to(x.sharding, 3)
    assert dx.sharding.is_equivalent_to(x.sharding, 3)
    close(results, run(formula)(x, *columns, *tables))


@each_mesh
@pytest.mark.parametrize("spec", [("b",), (None, "b")], ids=["first", "second"])
@pytest.mark.parametrize("group", [None, 8])
def test_int8_of_split_rows(mesh, spec, group):
    rows, norm = draw(0, 8, 4, 16), partial(quantized, asymmetric=True, group=group)
    x, weight = put(rows, mesh, *spec), put(COLUMNS[0], mesh)
    program = jax.jit(norm).lower(x, weight).compile()
    assert "all-gather" not in program.as_text()
    found, expected = program(x, weight), norm(rows, COLUMNS[0])
    for one, two in zip(found[:3], expected[:3], strict=True):
        assert jnp.array_equal(one, two)
        assert one.sharding.is_equivalent_to(NamedSharding(mesh, P(*spec)), one.ndim)


@each_mesh
def test_jit_with_a_split_last_dimension(mesh):
    columns = (put(array, mesh, "b") for array in COLUMNS)
    assert_same(gradients, put(draw(0, 3, 16), mesh, None, "b"), *columns)


@pytest.mark.parametrize("axes", [(("a", "b"),), ("a", "b")], ids=["first", "first and second"])
def test_jit_with_rows_over_two_mesh_axes(axes):
    assert_same(gradients, put(draw(0, 8, 4, 16), SQUARE, *axes), *COLUMNS)


def test_jit_where_devices_do_not_divide_the_rows():
    def program(norm):
        def of_split_rows(x, *columns):
            split = jax.lax.with_sharding_constraint(x * 2, NamedSharding(AUTO, P("b")))
            return norm(split, *columns)

        return gradients(of_split_rows)

    assert_same(program, draw(0, 6, 16), *COLUMNS)

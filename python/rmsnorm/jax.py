# SPDX-License-Identifier: Apache-2.0
"""RMSNorm for JAX on CPUs, through XLA's foreign function interface."""

# Much of JAX has no types.
# mypy: disable-error-code="no-untyped-call, no-any-return"

import ctypes
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from ._calls import c_options, call_library
from ._library import c, path_of_operators
from ._options import Options

if hasattr(jax.sharding, "reshard"):
    from jax.sharding import reshard
else:  # JAX 0.6
    from jax.experimental.shard import reshard  # type: ignore[import-not-found, no-redef]

__all__ = ["rms_norm"]

_handler = ctypes.CDLL(str(path_of_operators("rmsnorm_jax", "jaxlib"))).rmsnorm_jax
_capsule = jax.ffi.pycapsule(_handler)
jax.ffi.register_ffi_target("rmsnorm", _capsule, platform="cpu")

# The handler takes the names as numbers. Those of _ROWS have a row for each row of x.
_INPUTS = ("x", "dy", "weight", "bias")
_OUTPUTS = ("y", "dx", "dw", "db")
_ROWS = {"x", "dy", "y", "dx"}
_GRADIENTS = {"x": "dx", "weight": "dw", "bias": "db"}

Arrays = Mapping[str, jax.Array]


def rms_norm(
    x: jax.Array | np.ndarray[Any, Any],
    weight: jax.Array | np.ndarray[Any, Any] | None = None,
    bias: jax.Array | np.ndarray[Any, Any] | None = None,
    *,
    eps: float = 1e-5,
    rounding: Literal["after_weight", "before_weight", "inverse"] = "after_weight",
    weight_offset: float = 0.0,
) -> jax.Array:
    """Returns y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) + bias for each row of x.

    x: [..., d], an array of JAX or NumPy. y is a new array with its shape and type.
    weight: [d]; None counts as ones.
    bias: [d]; added after the weight. None adds nothing.
    eps: a number, finite and not negative. Its unit is x squared.
    rounding: "after_weight" rounds once, as PyTorch; "before_weight" rounds the norm to the type of
        x before the weight multiplies it, as Llama; "inverse" rounds 1 / RMS, too, as DeepSeek-V4.
    weight_offset: a number, added to the weight in float32: 1 for Gemma; needs a weight.

    x, weight and bias are float32, float16 or bfloat16, also mixed. Arithmetic is float32.

    jit, vmap, pmap and shard_map can trace the function, with eps, rounding and weight_offset as
    constants. In reverse mode the first gradients are the library's. Forward mode and further
    derivatives use the same formula in JAX's operations, in float32. XLA's threads share the rows.
    Under jit over several devices, rows stay where they are, and a last dimension that is split is
    gathered.

    Raises TypeError for an argument of a type that is not possible, and ValueError for an element
    type, a shape or a value that is not possible. Both name the argument.

    The formula is equation 4 of Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019,
    arXiv:1910.07467. The gradients are its derivatives.
    """
    options = bytes(c_options(eps=eps, rounding=rounding, weight_offset=weight_offset))
    given = {"x": x, "weight": weight, "bias": bias}
    operands = {
        name: _array(name, operand)
        for name, operand in given.items()
        if name == "x" or operand is not None
    }
    if operands["x"].ndim == 0:
        raise ValueError("x: its shape is (); it must have at least one dimension")
    columns = operands["x"].shape[-1:]
    for name, operand in operands.items():
        if name != "x" and operand.shape != columns:
            raise ValueError(f"{name}: its shape is {operand.shape}; with this x it is {columns}")
    if weight is None and weight_offset != 0:
        raise ValueError(f"weight_offset: {weight_offset}; it needs a weight")
    y: jax.Array = _rms_norm(operands, options=options)
    return y


def _array(name: str, value: Any) -> jax.Array:
    if not isinstance(value, (jax.Array, np.ndarray)) and not hasattr(value, "__jax_array__"):
        raise TypeError(f"{name}: {type(value).__name__}; it must be an array of JAX or NumPy")
    array = value if isinstance(value, jax.Array) else jnp.asarray(value)
    if array.dtype.name not in ("float32", "float16", "bfloat16"):
        possible = "float32, float16 and bfloat16"
        raise ValueError(f"{name}: its type is {array.dtype}; possible are {possible}")
    return array


@partial(jax.jit, static_argnames="options")
def _rms_norm(operands: Arrays, *, options: bytes) -> Any:
    # A call with one element checks the options before XLA compiles anything.
    one, y = np.ones(1, np.float32), np.empty(1, np.float32)
    arrays = {"x": one, "weight": one, "y": y}
    call_library(c.rmsnorm_forward, arrays, Options.from_buffer_copy(options), None)
    x = operands["x"]
    if x.shape[-1] == 0:
        return _formula(operands, options)
    # float32 has the same values, and adds up the gradients of several devices.
    operands = {name: a if name == "x" else a.astype("float32") for name, a in operands.items()}
    return _call({name: _whole(a) for name, a in operands.items()}, ("y",), options)[0]


# Where `batch` is given, the first `batch` dimensions of each operand come from vmap.


def _whole(array: jax.Array) -> jax.Array:
    """The array with its last dimension on each device, where its type says how it is split."""
    sharding: Any = jax.typeof(array).sharding
    if sharding.spec[-1] is None:
        return array
    spec = PartitionSpec(*sharding.spec[:-1], None)
    return reshard(array, NamedSharding(sharding.mesh, spec))


def _repeated(array: jax.Array, x: jax.Array, batch: int) -> jax.Array:
    """The array with the dimensions of x that come from vmap, split as those of x."""
    array = jnp.broadcast_to(array, x.shape[:batch] + array.shape[batch:])
    sharding: Any = jax.typeof(x).sharding
    if array.ndim == x.ndim or not any(sharding.spec[:batch]):
        return array
    spec = PartitionSpec(*sharding.spec[:batch], None)
    return reshard(array, NamedSharding(sharding.mesh, spec))


def _formula(operands: Arrays, options: bytes, batch: int = 0) -> jax.Array:
    """The norm in JAX's operations, for the derivatives that the library does not have."""
    x = operands["x"]
    values = Options.from_buffer_copy(options)

    def columns(name: str) -> jax.Array:
        a = operands[name]
        return a.reshape(*a.shape[:batch], *(1,) * (x.ndim - batch - 1), a.shape[-1])

    h = x.astype("float32")
    # All squares below are at most 16, whatever the size of x. XLA may multiply by 1 / scale, which
    # must be a normal number.
    root = math.sqrt(values.eps)
    least = max(root, float(np.finfo(np.float32).tiny))
    scale = jax.lax.stop_gradient(jnp.max(abs(h), axis=-1, keepdims=True, initial=least))
    scale = jnp.minimum(scale, 2.0**126)
    h = h / scale
    y = h * jax.lax.rsqrt(jnp.mean(h * h, axis=-1, keepdims=True) + jnp.square(root / scale))
    if "weight" in operands:
        y = y * (values.weight_offset + columns("weight"))
    if "bias" in operands:
        y = y + columns("bias")
    return y.astype(x.dtype)


# _library is a call of the library: y from the operands, or those of dx, dw and db that `outputs`
# names from the operands and dy. _tangent is the tangent of y, which is linear in the tangents of
# the operands. As a primitive it can have the library's backward as its transpose.
_library = Primitive("rmsnorm")
_library.multiple_results = True
_tangent = Primitive("rmsnorm_tangent")


def _call(
    operands: Arrays, outputs: tuple[str, ...], options: bytes, batch: int = 0
) -> list[jax.Array]:
    """Returns the outputs of a call of the library."""
    lead = jnp.broadcast_shapes(*(a.shape[:batch] for a in operands.values()))
    operands = {
        name: jnp.broadcast_to(a, lead + a.shape[batch:]) if name in _ROWS else a
        for name, a in _varying(operands).items()
    }
    shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in operands.items()}
    call = jax.make_jaxpr(_partitioned(shapes, outputs, options, batch))(shapes)
    leaves, tree = jax.tree.flatten(operands)
    results: list[jax.Array] = _library.bind(
        *leaves, tree=tree, outputs=outputs, options=options, batch=batch, call=call
    )
    return results


def _library_impl(*leaves: Any, call: Any, **_: Any) -> Any:
    return jaxpr_as_fun(call)(*leaves)


def _library_types(*leaves: Any, tree: Any, outputs: Any, batch: int, **_: Any) -> Any:
    x = jax.tree.unflatten(tree, leaves)["x"]
    columns = x.update(
        shape=x.shape[:batch] + x.shape[-1:],
        dtype=np.dtype("float32"),
        sharding=NamedSharding(x.sharding.mesh, PartitionSpec(*x.sharding.spec[:batch], None)),
    )
    return [x if name in _ROWS else columns for name in outputs]


def _library_batching(
    leaves: Any, dims: Any, *, tree: Any, outputs: Any, options: bytes, batch: int, **_: Any
) -> Any:
    wider = [
        a[None] if dim is None else batching.bdim_at_front(a, dim, a.shape[dim])
        for a, dim in zip(leaves, dims, strict=True)
    ]
    results = _call(jax.tree.unflatten(tree, wider), outputs, options, batch + 1)
    return results, [0] * len(outputs)


def _library_jvp(
    leaves: Any, tangents: Any, *, tree: Any, outputs: Any, options: bytes, batch: int, **_: Any
) -> Any:
    def unflatten(leaves: Any) -> Arrays:
        arrays = jax.tree.unflatten(tree, leaves)
        return {name: _repeated(a, arrays["x"], batch) for name, a in arrays.items()}

    def gradients(operands: Arrays) -> list[jax.Array]:
        primals = {name: a for name, a in operands.items() if name != "dy"}
        if "db" in outputs:
            x = operands["x"]
            primals["bias"] = jnp.zeros(x.shape[:batch] + x.shape[-1:])
        _, pull = jax.vjp(partial(_formula, options=options, batch=batch), primals)
        (found,) = pull(operands["dy"])
        return [found[name] for name, output in _GRADIENTS.items() if output in outputs]

    operands = unflatten(leaves)
    tangents = unflatten([ad.instantiate_zeros(a) for a in tangents])
    results = _call(operands, outputs, options, batch)
    if outputs == ("y",):
        both, both_tree = jax.tree.flatten((operands, tangents))
        return results, [_tangent.bind(*both, tree=both_tree, options=options, batch=batch)]
    return results, jax.jvp(gradients, (operands,), (tangents,))[1]


def _tangent_impl(*leaves: Any, tree: Any, options: bytes, batch: int) -> Any:
    operands, tangents = jax.tree.unflatten(tree, leaves)
    formula = partial(_formula, options=options, batch=batch)
    return jax.jvp(formula, (operands,), (tangents,))[1]


def _tangent_type(*leaves: Any, tree: Any, **_: Any) -> Any:
    return jax.tree.unflatten(tree, leaves)[0]["x"]


def _tangent_batching(leaves: Any, dims: Any, *, batch: int, **parameters: Any) -> Any:
    (size,) = {a.shape[dim] for a, dim in zip(leaves, dims, strict=True) if dim is not None}
    leaves = [batching.bdim_at_front(a, dim, size) for a, dim in zip(leaves, dims, strict=True)]
    return _tangent.bind(*leaves, batch=batch + 1, **parameters), 0


def _tangent_jvp(leaves: Any, tangents: Any, **parameters: Any) -> Any:
    tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    return jax.jvp(partial(_tangent_impl, **parameters), tuple(leaves), tangents)


def _tangent_transpose(dy: Any, *leaves: Any, tree: Any, options: bytes, batch: int) -> Any:
    operands, tangents = jax.tree.unflatten(tree, leaves)
    outputs = tuple(
        output
        for name, output in _GRADIENTS.items()
        if name in tangents and ad.is_undefined_primal(tangents[name])
    )
    needed = {name: a for name, a in operands.items() if name != "bias"}
    needed["dy"] = ad.instantiate_zeros(dy)
    found = dict(zip(outputs, _call(needed, outputs, options, batch), strict=True))
    return [None] * len(operands) + [found.get(_GRADIENTS[name]) for name in sorted(tangents)]


_library.def_impl(_library_impl)
_library.def_abstract_eval(_library_types)
mlir.register_lowering(_library, mlir.lower_fun(_library_impl, multiple_results=True))
batching.primitive_batchers[_library] = _library_batching
ad.primitive_jvps[_library] = _library_jvp

_tangent.def_impl(_tangent_impl)
_tangent.def_abstract_eval(_tangent_type)
mlir.register_lowering(_tangent, mlir.lower_fun(_tangent_impl, multiple_results=False))
batching.primitive_batchers[_tangent] = _tangent_batching
ad.primitive_jvps[_tangent] = _tangent_jvp
ad.primitive_transposes[_tangent] = _tangent_transpose


def _varying(arrays: Any) -> Any:
    """Lets all arrays vary over the mesh axes of a shard_map over which any of them varies. The
    transpose of this adds the gradients up over these axes."""

    def axes(a: jax.Array) -> frozenset[Any]:
        kind: Any = jax.typeof(a)
        return kind.mat.varying if hasattr(kind, "mat") else kind.vma  # vma: JAX 0.6

    def vary(a: jax.Array) -> jax.Array:
        missing = tuple(everywhere - axes(a))
        if not missing:
            return a
        lax: Any = jax.lax
        if hasattr(lax, "pcast"):
            return lax.pcast(a, missing, to="varying")
        return lax.pvary(a, missing)  # JAX 0.6

    everywhere = frozenset[Any]().union(*map(axes, jax.tree.leaves(arrays)))
    return jax.tree.map(vary, arrays)


def _partitioned(
    operands: Mapping[str, jax.ShapeDtypeStruct],
    outputs: tuple[str, ...],
    options: bytes,
    batch: int,
) -> Any:
    """The call for operands of these shapes, with its rule for several devices: x stays split as it
    is, but for its last dimension, and the devices add up their dw and db."""
    shape = operands["x"].shape
    lead = shape[:batch]

    def on_one_device(operands: Arrays) -> list[jax.Array]:
        shape = operands["x"].shape
        blocks = {
            name: a.reshape(*a.shape[:batch], math.prod(a.shape[batch:-1]), a.shape[-1])
            for name, a in operands.items()
        }
        inputs = [name for name in _INPUTS if name in operands]
        columns = jax.ShapeDtypeStruct((*shape[:batch], 1, shape[-1]), np.float32)
        types = [blocks["x"] if name in _ROWS else columns for name in outputs]
        results = jax.ffi.ffi_call("rmsnorm", types)(
            *(blocks[name] for name in inputs),
            options=np.frombuffer(options, np.int32),
            inputs=np.array([_INPUTS.index(name) for name in inputs], np.int32),
            outputs=np.array([_OUTPUTS.index(name) for name in outputs], np.int32),
        )
        return [
            a.reshape(shape if name in _ROWS else shape[:batch] + shape[-1:])
            for name, a in zip(outputs, results, strict=True)
        ]

    def axes_of_rows(mesh: Mesh, x: Any) -> list[Any]:
        """The mesh axes over which each dimension of x but the last is split, or None."""
        spec = () if x.sharding is None else x.sharding.spec
        axes: list[Any] = [*spec, *[None] * len(shape)][: len(shape) - 1]
        devices = [math.prod(mesh.shape[name] for name in jax.tree.leaves(names)) for names in axes]
        return [names if n % d == 0 else None for names, n, d in zip(axes, shape, devices)]

    def shardings(mesh: Mesh, x: Any) -> tuple[dict[str, NamedSharding], list[NamedSharding]]:
        rows = axes_of_rows(mesh, x)

        def sharding(name: str, mapped: tuple[int, ...]) -> NamedSharding:
            columns = [a if n == m else None for a, n, m in zip(rows, mapped, lead)]
            return NamedSharding(mesh, PartitionSpec(*(rows if name in _ROWS else columns)))

        of_operands = {name: sharding(name, a.shape[:batch]) for name, a in operands.items()}
        return of_operands, [sharding(name, lead) for name in outputs]

    def partition(mesh: Mesh, args: tuple[Any], _: Any) -> tuple[Any, ...]:
        of_operands, of_results = shardings(mesh, args[0]["x"])
        axes = tuple(jax.tree.leaves(axes_of_rows(mesh, args[0]["x"])[batch:]))

        def on_each_device(operands: Arrays) -> list[jax.Array]:
            results = on_one_device(operands)
            return [
                a if name in _ROWS or not axes else jax.lax.psum(a, axes)
                for name, a in zip(outputs, results, strict=True)
            ]

        return mesh, on_each_device, of_results, (of_operands,)

    def infer_sharding(mesh: Mesh, args: tuple[Any], _: Any) -> list[NamedSharding]:
        return shardings(mesh, args[0]["x"])[1]

    def factors(index: int, name: str, mapped: tuple[int, ...]) -> str:
        """The dimensions of an array, in which those that are split alike have one name."""
        columns = [f"b{i}" if m == lead[i] else f"b{i}_{index}" for i, m in enumerate(mapped)]
        rows = [f"r{i}" for i in range(batch, len(shape) - 1)] if name in _ROWS else []
        return " ".join([*columns, *rows, f"d_{index}"])

    arrays = [(name, operands[name].shape[:batch]) for name in sorted(operands)]
    arrays += [(name, lead) for name in outputs]
    texts = [factors(index, *array) for index, array in enumerate(arrays)]
    left, right = (", ".join(t) for t in (texts[: len(operands)], texts[len(operands) :]))
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        return on_one_device  # In shard_map, JAX has no custom partitioning of the other axes.
    call = custom_partitioning(on_one_device)
    call.def_partition(
        partition,
        infer_sharding_from_operands=infer_sharding,
        sharding_rule=f"{left} -> {right}",
    )
    return call

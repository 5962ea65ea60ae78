# SPDX-License-Identifier: Apache-2.0
"""RMSNorm for JAX on CPUs, through XLA's foreign function interface."""

# Much of JAX has no types.
# mypy: disable-error-code="no-untyped-call, no-any-return"

import ctypes
import itertools
import math
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from . import _arrays, _calls
from ._library import Operands, c, path_of_operators
from ._options import (
    WORDS,
    Options,
    QuantizedOptions,
    ResidualOptions,
    RotationOptions,
    RowOptions,
)

if hasattr(jax.sharding, "reshard"):
    from jax.sharding import reshard
else:  # JAX 0.6
    from jax.experimental.shard import reshard  # type: ignore[import-not-found, no-redef]

__all__ = ["Quantized", "fused_add_rms_norm", "quantized", "rms_norm"]

_handler = ctypes.CDLL(str(path_of_operators("rmsnorm_jax", "jaxlib"))).rmsnorm_jax
_capsule = jax.ffi.pycapsule(_handler)
jax.ffi.register_ffi_target("rmsnorm", _capsule, platform="cpu")

# Operands and results have the names of rmsnorm_operands. _ROWS names the operands with x's shape.
# Each leading dimension of the others is x's or 1.
_ROWS = {"x", "residual", "dy"}
_GRADIENTS = {"x": "dx", "weight": "dw", "bias": "db"}
# Constants: without gradients.
_TABLES = {"cos", "sin"}

AnyArray = jax.Array | np.ndarray[Any, Any]
Arrays = Mapping[str, jax.Array]
# The results of a call: names, shapes and types.
Results = tuple[tuple[str, jax.ShapeDtypeStruct], ...]


class NormOptions(RowOptions, RotationOptions, total=False):
    """The options of rms_norm(), but eps."""


class AddOptions(RowOptions, ResidualOptions, total=False):
    """The options of fused_add_rms_norm(), but eps."""


@_calls.documented(NormOptions)
def rms_norm(
    x: AnyArray,
    weight: AnyArray | None = None,
    bias: AnyArray | None = None,
    *,
    eps: float = 1e-5,
    cos: AnyArray | None = None,
    sin: AnyArray | None = None,
    **options: Unpack[NormOptions],
) -> jax.Array:
    """Returns y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) + bias for each row of x,
    and with cos and sin pairs of its elements rotated: the norm of q or k and its rotary positions.

    y is a new array with the shape and the type of x. Operands are arrays of JAX or NumPy of
    float32, float16 or bfloat16, also mixed. Arithmetic is float32. weight, bias, cos and sin may
    have leading dimensions that are each x's or 1: a row for each sample, for example. Angles
    are the caller's: cos and sin are the rows of the positions. Heads share them: for q of [batch,
    tokens, heads, d] the tables are [batch, tokens, 1, R / 2], or [tokens, 1, R / 2].

    jit, vmap, pmap and shard_map can trace the function, with eps and the options as constants. In
    reverse mode the first gradients are the library's. Forward mode and further derivatives use the
    same formula in JAX's operations, in float32. The tables count as constants: their gradients
    are 0. XLA's threads share the rows. Under jit over several devices, rows stay where they are,
    and a last dimension that is split is gathered.

    Raises TypeError for an argument of a type that is not possible, and ValueError for an element
    type, a shape or a value that is not possible. Both name the argument.

    The formula is equation 4 of Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019,
    arXiv:1910.07467. The gradients are its derivatives. The rotation is that of Su et al.,
    "RoFormer", 2021, arXiv:2104.09864.
    """
    operands = {"x": x, "weight": weight, "bias": bias, "cos": cos, "sin": sin}
    return _results(rms_norm, ("y",), operands, eps, options)["y"]


@_calls.documented(AddOptions)
def fused_add_rms_norm(
    x: AnyArray,
    residual: AnyArray,
    weight: AnyArray | None = None,
    *,
    eps: float = 1e-5,
    bias: AnyArray | None = None,
    **options: Unpack[AddOptions],
) -> tuple[jax.Array, jax.Array]:
    """Returns y, the norm of residual + x, and residual_out, that sum in the type of residual.

    All operands have gradients. For the rest see rms_norm().
    """
    operands = {"x": x, "residual": _array("residual", residual), "weight": weight, "bias": bias}
    names = ("y", "residual_out")
    results = _results(fused_add_rms_norm, names, operands, eps, options)
    return results["y"], results["residual_out"]


class Quantized(NamedTuple):
    """The results of quantized(). Those that were not asked for are None.

    q is int8 with the shape of x. scale is float32 and zero is int8, one for each row, or with a
    group [..., d / group]: y is about scale * (q - zero). residual_out is as in
    fused_add_rms_norm().
    """

    q: jax.Array
    scale: jax.Array
    zero: jax.Array | None
    residual_out: jax.Array | None


@_calls.documented(QuantizedOptions)
def quantized(
    x: AnyArray,
    weight: AnyArray | None = None,
    *,
    eps: float = 1e-5,
    residual: AnyArray | None = None,
    bias: AnyArray | None = None,
    post_norm_weight: AnyArray | None = None,
    asymmetric: bool = False,
    **options: Unpack[QuantizedOptions],
) -> Quantized:
    """Returns the norm in int8, with a scale for each row, or for each group of a row.

    The norm is that of rms_norm(), or of fused_add_rms_norm() with a residual. There are no
    gradients: take them of these, or give this function jax.lax.stop_gradient(x). For the rest see
    rms_norm().
    """
    operands = {"x": x, "weight": weight, "residual": residual, "bias": bias}
    operands["post_norm_weight"] = post_norm_weight
    absent = {"zero": not asymmetric, "residual_out": residual is None}
    names = tuple(name for name in Quantized._fields if not absent.get(name))
    results = _results(quantized, names, operands, eps, options)
    zero, residual_out = map(results.get, ("zero", "residual_out"))
    return Quantized(results["q"], results["scale"], zero, residual_out)


def _results(
    function: Any, names: tuple[str, ...], given: Mapping[str, Any], eps: float, options: Any
) -> dict[str, Any]:
    """Returns the results of these names of a call that a function makes."""
    for name in options:
        if name not in function.__signature__.parameters:
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
    operands = {
        name: _array(name, operand)
        for name, operand in given.items()
        if operand is not None or name == "x"
    }
    chosen = bytes(_calls.c_options(eps=eps, **options))
    return _forward(operands, names=names, options=chosen)


def _array(name: str, value: Any) -> jax.Array:
    if not isinstance(value, (jax.Array, np.ndarray)) and not hasattr(value, "__jax_array__"):
        raise TypeError(f"{name}: {type(value).__name__}; it must be an array of JAX or NumPy")
    try:
        array = value if isinstance(value, jax.Array) else jnp.asarray(value)
    except (TypeError, ValueError) as error:  # numbers of other types, or with a mask
        raise _arrays.named(name, error) from None
    if array.dtype.name not in ("float32", "float16", "bfloat16"):
        possible = "float32, float16 and bfloat16"
        raise ValueError(f"{name}: its type is {array.dtype}; possible are {possible}")
    if array.ndim == 0:
        raise ValueError(f"{name}: its shape is (); it must have at least one dimension")
    return array


@partial(jax.jit, static_argnames=("names", "options"))
def _forward(operands: Arrays, *, names: tuple[str, ...], options: bytes) -> dict[str, jax.Array]:
    """Returns the results of these names."""
    x = operands["x"]
    group = Options.from_buffer_copy(options).group
    of_groups = (*x.shape[:-1], x.shape[-1] // group) if group else x.shape[:-1]
    shapes = {"scale": of_groups, "zero": of_groups}
    types: dict[str, Any] = {"y": x.dtype, "q": np.int8, "scale": np.float32, "zero": np.int8}
    if "residual" in operands:
        types["residual_out"] = operands["residual"].dtype
    results = tuple(
        (name, jax.ShapeDtypeStruct(shapes.get(name, x.shape), types[name])) for name in names
    )
    _check(operands, results, options)
    if x.shape[-1] == 0 and names == ("y",):
        return {"y": _formula(operands, options)}
    # float32 has the same values, and adds up the gradients of several devices.
    in_float32 = _GRADIENTS.keys() - {"x"}
    operands = {n: a.astype("float32") if n in in_float32 else a for n, a in operands.items()}
    operands = {
        name: _whole(jnp.expand_dims(a, tuple(range(x.ndim - a.ndim))))
        for name, a in operands.items()
    }
    return dict(zip(names, _call(operands, results, options), strict=True))


def _check(operands: Arrays, results: Results, options: bytes) -> None:
    """Refuses, before XLA compiles anything, what the library refuses."""
    # A call on one row checks all but the leading dimensions. Rows of no element have a norm here.
    x = operands["x"]
    lead = x.shape[:-1]
    is_empty = x.shape[-1] == 0 and [name for name, _ in results] == ["y"]
    shapes = {name: a.shape[-1:] for name, a in operands.items()}
    if is_empty:
        for name, a in operands.items():
            if a.shape[-1] != 0:
                raise ValueError(f"{name}: its shape is {a.shape}; rows of this x have no element")
        shapes |= {name: (1,) for name in operands if name not in _TABLES}
    rows: dict[str, Any] = {name: np.zeros(shapes[name], a.dtype) for name, a in operands.items()}
    for name, of in results:
        rows[name] = np.zeros((1,) if is_empty else of.shape[len(lead) :] or (1,), of.dtype)
    _calls.call_library(c.rmsnorm_forward, rows, Options.from_buffer_copy(options), None)
    for name, a in operands.items():
        if name in _ROWS and a.shape[:-1] != lead:
            raise ValueError(f"{name}: its shape is {a.shape}; with this x it is {x.shape}")
        pairs = zip(reversed(a.shape[:-1]), reversed(lead), strict=False)
        if a.ndim > len(lead) + 1 or any(n not in (1, of_x) for n, of_x in pairs):
            wanted = f"with this x each dimension but the last is that of {lead} or 1"
            raise ValueError(f"{name}: its shape is {a.shape}; {wanted}")


def _whole(array: jax.Array) -> jax.Array:
    """The array with its last dimension on each device, where its type says how it is split."""
    sharding: Any = jax.typeof(array).sharding
    if sharding.spec[-1] is None:
        return array
    spec = PartitionSpec(*sharding.spec[:-1], None)
    return reshard(array, NamedSharding(sharding.mesh, spec))


def _formula(operands: Arrays, options: bytes) -> jax.Array:
    """The norm in JAX's operations, for the derivatives that the library does not have."""
    x = operands["x"]
    values = Options.from_buffer_copy(options)
    placement = WORDS["eps_placement"][values.eps_placement]
    h = x.astype("float32")
    # All squares below are at most 16, whatever the size of x. XLA may multiply by 1 / scale, which
    # must be a normal number.
    root = math.sqrt(values.eps) if placement == "inside" else values.eps
    tiny = float(np.finfo(np.float32).tiny)
    least = max(root, tiny)
    scale = jax.lax.stop_gradient(jnp.max(abs(h), axis=-1, keepdims=True, initial=least))
    scale = jnp.minimum(scale, 2.0**126)
    h = h / scale
    mean = jnp.sum(h * h, axis=-1, keepdims=True) / (values.divisor or h.shape[-1])
    if placement == "inside":
        y = h * jax.lax.rsqrt(mean + jnp.square(root / scale))
    else:
        rms = jnp.sqrt(jnp.maximum(mean, tiny))
        is_floor = placement == "floor"
        y = h / (jnp.maximum(rms, root / scale) if is_floor else rms + root / scale)
    if "weight" in operands:
        y = y * (values.weight_offset + operands["weight"])
    if "bias" in operands:
        y = y + operands["bias"]
    if "cos" in operands:
        y = _rotate(y, operands["cos"].astype("float32"), operands["sin"].astype("float32"), values)
    return y.astype(x.dtype)


def _rotate(m: jax.Array, cos: jax.Array, sin: jax.Array, values: Options) -> jax.Array:
    half = cos.shape[-1]
    first = m.shape[-1] - 2 * half if WORDS["rotary_part"][values.rotary_part] == "end" else 0
    part = m[..., first : first + 2 * half]
    is_halves = WORDS["rotary_pairs"][values.rotary_pairs] == "halves"
    # [..., 2, R / 2] or [..., R / 2, 2]
    axis, shape = (-2, (2, half)) if is_halves else (-1, (half, 2))
    pairs = part.reshape(*part.shape[:-1], *shape)
    a, b = (jax.lax.index_in_dim(pairs, i, axis, keepdims=False) for i in (0, 1))
    turned = jnp.stack((a * cos - b * sin, b * cos + a * sin), axis).reshape(part.shape)
    return jnp.concatenate((m[..., :first], turned, m[..., first + 2 * half :]), -1)


# _library calls the library on operands that all have as many dimensions as x, and returns the
# results. _tangent returns the tangent of y, which is linear in the tangents of the operands. It is
# a primitive so that its transpose can be the library's backward.
_library = Primitive("rmsnorm")
_library.multiple_results = True
_tangent = Primitive("rmsnorm_tangent")


def _call(operands: Arrays, results: Results, options: bytes) -> list[jax.Array]:
    """Returns the results of a call of the library. Where vmap maps an operand, all have its
    dimension, which may be 1."""
    lead = jnp.broadcast_shapes(*(a.shape[:-1] for a in operands.values()))
    wanted = {name: (*lead, operands["x"].shape[-1]) for name in _ROWS}
    wanted |= {"weight": of.shape for name, of in results if name == "dw"}
    operands = {
        name: jnp.broadcast_to(a, wanted.get(name, a.shape))
        for name, a in _varying(operands).items()
    }
    shapes = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in operands.items()}
    call = jax.make_jaxpr(_partitioned(shapes, results, options))(shapes)
    leaves, tree = jax.tree.flatten(operands)
    return _library.bind(*leaves, tree=tree, results=results, options=options, call=call)


def _library_impl(*leaves: Any, call: Any, **_: Any) -> Any:
    return jaxpr_as_fun(call)(*leaves)


def _library_types(*leaves: Any, tree: Any, results: Results, **_: Any) -> Any:
    x = jax.tree.unflatten(tree, leaves)["x"]

    def type_of(shape: tuple[int, ...], dtype: Any) -> Any:
        parts = zip(x.sharding.spec, shape, x.shape, strict=False)
        spec = PartitionSpec(*(axes if n == of_x else None for axes, n, of_x in parts))
        return x.update(shape=shape, dtype=dtype, sharding=NamedSharding(x.sharding.mesh, spec))

    return [type_of(of.shape, of.dtype) for _, of in results]


def _library_batching(
    leaves: Any, dims: Any, *, tree: Any, results: Results, options: bytes, **_: Any
) -> Any:
    wider = [
        a[None] if dim is None else batching.bdim_at_front(a, dim, a.shape[dim])
        for a, dim in zip(leaves, dims, strict=True)
    ]
    (size,) = {a.shape[dim] for a, dim in zip(leaves, dims, strict=True) if dim is not None}
    results = tuple(
        (name, jax.ShapeDtypeStruct((size, *of.shape), of.dtype)) for name, of in results
    )
    return _call(jax.tree.unflatten(tree, wider), results, options), [0] * len(results)


def _library_jvp(
    leaves: Any, tangents: Any, *, tree: Any, results: Results, options: bytes, **_: Any
) -> Any:
    names = [name for name, _ in results]
    if "q" in names:
        raise NotImplementedError(
            "rmsnorm.jax.quantized() has no gradients: call rms_norm(), or give it "
            "jax.lax.stop_gradient(x)"
        )
    operands = jax.tree.unflatten(tree, leaves)
    tangents = {
        name: ad.instantiate_zeros(tangent)
        for name, tangent in jax.tree.unflatten(tree, tangents).items()
        if name not in _TABLES
    }
    arrays = _call(operands, results, options)
    if "y" in names:
        return arrays, _tangents(operands, tangents, arrays, options)

    def gradients(variables: Arrays) -> list[jax.Array]:
        primals = {**operands, **variables}
        dy = primals.pop("dy")
        for name, of in results:
            if name == "db":
                primals["bias"] = jnp.zeros(of.shape)
        _, pull = jax.vjp(partial(_formula, options=options), _varying(primals))
        (found,) = pull(dy)
        return [found[name] for name, gradient in _GRADIENTS.items() if gradient in names]

    variables = {name: operands[name] for name in tangents}
    return arrays, jax.jvp(gradients, (variables,), (tangents,))[1]


def _tangents(
    operands: Arrays, tangents: Arrays, results: list[jax.Array], options: bytes
) -> list[jax.Array]:
    """Returns the tangents of y and, with a residual, of residual_out."""
    values = Options.from_buffer_copy(options)
    y, *sums = results
    of_sums = []
    if sums:
        factor = values.residual_factor or 1.0

        def added(arrays: Arrays) -> jax.Array:
            return (arrays["residual"].astype("float32") + arrays["x"].astype("float32")) * factor

        # y is the norm of this sum, whose tangent is not rounded before residual_out has it.
        is_rounded = WORDS["residual_rounding"][values.residual_rounding] == "rounded"
        total = sums[0].astype("float32") if is_rounded else added(operands)
        of_total = added(tangents)
        of_sums = [of_total.astype(sums[0].dtype)]
        operands, tangents = {**operands, "x": total}, {**tangents, "x": of_total}
        for arrays in (operands, tangents):
            del arrays["residual"]
        values.residual_factor = values.residual_rounding = 0
    leaves, tree = jax.tree.flatten((operands, tangents))
    of_y: jax.Array = _tangent.bind(*leaves, tree=tree, options=bytes(values))
    return [of_y.astype(y.dtype), *of_sums]


def _tangent_impl(*leaves: Any, tree: Any, options: bytes) -> Any:
    operands, tangents = jax.tree.unflatten(tree, leaves)

    def formula(variables: Arrays) -> jax.Array:
        return _formula({**operands, **variables}, options)

    variables = {name: operands[name] for name in tangents}
    return jax.jvp(formula, (variables,), (tangents,))[1]


def _tangent_type(*leaves: Any, tree: Any, **_: Any) -> Any:
    return jax.tree.unflatten(tree, leaves)[0]["x"]


def _tangent_batching(leaves: Any, dims: Any, **parameters: Any) -> Any:
    (size,) = {a.shape[dim] for a, dim in zip(leaves, dims, strict=True) if dim is not None}
    leaves = [batching.bdim_at_front(a, dim, size) for a, dim in zip(leaves, dims, strict=True)]
    return _tangent.bind(*leaves, **parameters), 0


def _tangent_jvp(leaves: Any, tangents: Any, **parameters: Any) -> Any:
    tangents = tuple(ad.instantiate_zeros(tangent) for tangent in tangents)
    return jax.jvp(partial(_tangent_impl, **parameters), tuple(leaves), tangents)


def _tangent_transpose(dy: Any, *leaves: Any, tree: Any, options: bytes) -> Any:
    operands, tangents = jax.tree.unflatten(tree, leaves)
    wanted = [name for name in _GRADIENTS if ad.is_undefined_primal(tangents.get(name))]
    results = tuple(
        (_GRADIENTS[name], jax.ShapeDtypeStruct(operands[name].shape, operands[name].dtype))
        for name in wanted
    )
    needed = {name: a for name, a in operands.items() if name != "bias"}
    needed["dy"] = ad.instantiate_zeros(dy)
    found = dict(zip(wanted, _call(needed, results, options), strict=True))
    return [None] * len(operands) + [found.get(name) for name in sorted(tangents)]


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
    operands: Mapping[str, jax.ShapeDtypeStruct], results: Results, options: bytes
) -> Any:
    """The call for operands of these shapes, with its rule for several devices: x stays split as it
    is, but for its last dimension, and the devices add up their dw and db."""
    x_shape = operands["x"].shape
    count = len(x_shape) - 1  # of the leading dimensions

    def on_one_device(operands: Arrays) -> list[jax.Array]:
        here = operands["x"].shape
        types = []
        for _, of in results:
            parts = zip(of.shape, x_shape, here, strict=False)
            shape = tuple(part if n == of_x else n for n, of_x, part in parts)
            types.append(jax.ShapeDtypeStruct(shape, of.dtype))
        shapes = [a.shape for a in operands.values()] + [of.shape for of in types]

        # The library takes eight dimensions. Neighbours are one where each array has both or none.
        def which(i: int) -> list[bool]:
            return [shape[i] == here[i] for shape in shapes]

        dims = [i for i in range(count) if here[i] != 1]
        groups = [list(g) for _, g in itertools.groupby(dims, which)]

        def merged(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (*(math.prod(shape[i] for i in g) for g in groups), *shape[count:]) or (1,)

        fields = [*operands, *(name for name, _ in results)]
        arrays = jax.ffi.ffi_call(
            "rmsnorm", [jax.ShapeDtypeStruct(merged(of.shape), of.dtype) for of in types]
        )(
            *(a.reshape(merged(a.shape)) for a in operands.values()),
            options=np.frombuffer(options, np.int32),
            fields=np.array([getattr(Operands, name).offset for name in fields], np.int32),
        )
        return [a.reshape(of.shape) for a, of in zip(arrays, types, strict=True)]

    def axes_of_rows(mesh: Mesh, x: Any) -> list[Any]:
        """The mesh axes over which each dimension of x but the last is split, or None."""
        spec = () if x.sharding is None else x.sharding.spec
        axes: list[Any] = [*spec, *[None] * len(x_shape)][:count]
        devices = [math.prod(mesh.shape[name] for name in jax.tree.leaves(names)) for names in axes]
        return [names if n % d == 0 else None for names, n, d in zip(axes, x_shape, devices)]

    def shardings(mesh: Mesh, x: Any) -> tuple[dict[str, NamedSharding], list[NamedSharding]]:
        axes = axes_of_rows(mesh, x)

        def sharding(shape: tuple[int, ...]) -> NamedSharding:
            parts = zip(axes, shape, x_shape, strict=False)
            return NamedSharding(mesh, PartitionSpec(*(a if n == m else None for a, n, m in parts)))

        of_operands = {name: sharding(a.shape) for name, a in operands.items()}
        return of_operands, [sharding(of.shape) for _, of in results]

    def partition(mesh: Mesh, args: tuple[Any], _: Any) -> tuple[Any, ...]:
        of_operands, of_results = shardings(mesh, args[0]["x"])
        axes = axes_of_rows(mesh, args[0]["x"])

        def on_each_device(operands: Arrays) -> list[jax.Array]:
            arrays = on_one_device(operands)
            for i, (_, of) in enumerate(results):
                parts = zip(axes, of.shape, x_shape, strict=False)
                shared = tuple(jax.tree.leaves([a for a, n, m in parts if n != m]))
                arrays[i] = jax.lax.psum(arrays[i], shared) if shared else arrays[i]
            return arrays

        return mesh, on_each_device, of_results, (of_operands,)

    def infer_sharding(mesh: Mesh, args: tuple[Any], _: Any) -> list[NamedSharding]:
        return shardings(mesh, args[0]["x"])[1]

    def factors(index: int, shape: tuple[int, ...]) -> str:
        """The dimensions of an array, in which those that are split alike have one name."""
        dims = zip(range(count), shape, x_shape, strict=False)
        rows = [f"r{i}" if n == of_x else f"r{i}_{index}" for i, n, of_x in dims]
        return " ".join([*rows, *[f"d_{index}" for _ in shape[count:]]])

    arrays = [operands[name].shape for name in sorted(operands)]
    arrays += [of.shape for _, of in results]
    texts = [factors(index, shape) for index, shape in enumerate(arrays)]
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

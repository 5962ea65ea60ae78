# SPDX-License-Identifier: Apache-2.0
"""The functions of rmsnorm.torch.

What a call does depends on the state of PyTorch. The first row that holds decides:

    state                     what happens                           why
    ------------------------  -------------------------------------  -------------------------------
    an argument has its own   its __torch_function__ takes the call  torch.fx traces by it: each
    __torch_function__ (fx)                                          function is one node
    eager or compiled, where  an operator without gradients is       autograd's part of an operator
    no gradient is recorded   called                                 takes microseconds
    a DTensor is given        each process norms the rows that it    a norm takes whole rows
    (sharded)                 has: _sharded.py
    forward mode, jvp, ONNX   the formula in PyTorch's operations:   PyTorch must look inside
                              _composite.py
    compiled, exported,       the operator with gradients goes into  others differentiate the graph
    traced, dispatch modes    the graph                              later
    transforms of torch.func  a Function that has a rule for vmap    only that kind can be part of
                                                                     transforms
    eager, with gradients     a Function of the other kind           it takes 5 microseconds, and an
                                                                     operator with a formula 50

_norm() has the rows from the second on; the last three are Operator.__call__() of _operators.py.
A call that writes into tensors has no gradients, and asks the first three: _write().

Here only objects that are no tensors are refused. Types and shapes are checked where memory is
read: python/torch/operators.cc tells the library the shape of each tensor, and the library refuses
what does not fit before it writes anything. Shapes without memory (on meta, in compiled code)
follow from x.
"""

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, Unpack

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from .._options import (
    OPTIONS,
    GatedAddOptions,
    GatedOptions,
    NormOptions,
    OtherOptions,
    QuantizedOptions,
    RotaryOptions,
)
from . import _composite
from ._composite import DTYPE_CODES
from ._operators import (
    FORWARD,
    INPUTS,
    NORM,
    NORM_NO_GRAD,
    NORMS,
    NORMS_EACH,
    OUTPUTS,
    RMS_NORM,
    has_modes,
    has_transform,
    is_compiling,
    is_exporting,
    is_grad_enabled,
    is_transformed,
    tracing_state,
    write,
)
from ._options import constant_result, packed, takes

# The types of tensors that PyTorch's dispatcher alone handles.
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
_PLAIN_OR_NONE = _PLAIN | {type(None)}
# The types of tensors, and of usual options.
_USUAL = _PLAIN_OR_NONE | {float, int, str, torch.dtype}


# ------------------------------------------------------------------------------------- arguments


def check_dtype(dtype: Any) -> None:
    """Raises TypeError where a result's type is none of PyTorch's."""
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype is {dtype!r}; it must be a torch.dtype or None")


def check_tensors(required: Sequence[str], **tensors: Any) -> None:
    """Raises TypeError, with the name, where an operand is no tensor."""
    for name, tensor in tensors.items():
        if isinstance(tensor, Tensor) or tensor is None and name not in required:
            continue
        kind = type(tensor)
        text = f"{name} is of type {kind.__module__}.{kind.__qualname__}; it must be a torch.Tensor"
        if hasattr(tensor, "__array__") or hasattr(tensor, "__dlpack__"):
            text += f", such as torch.from_dlpack({name})"
        raise TypeError(text)


def _given(name: str, tensor: Any) -> Any:
    """Returns an operand. Raises TypeError where it is None."""
    if tensor is None:
        check_tensors((name,), **{name: tensor})
    return tensor


def _tensors(
    x: Any, weight: Any = None, residual: Any = None, gate: Any = None, *others: Any
) -> tuple[Any, ...]:
    """Returns the first tensors of the operator `norm`, which it checks, in the order of INPUTS."""
    tensors = (x, weight, residual, gate, *others)
    if x is None or not _are_plain(*tensors):
        check_tensors(("x",), **dict(zip(INPUTS, tensors, strict=False)))
    if gate is not None:
        tensors = (x, weight, residual, _repeated(gate, x), *others)
    return tensors


def _repeated(gate: Tensor, x: Tensor) -> Tensor:
    """Returns a gate of fewer rows as a view in the shape of x, where there is one."""
    if not is_compiling() and tracing_state() is not None:
        with warnings.catch_warnings():  # a trace is for gates of as many rows
            warnings.simplefilter("ignore")
            return _expanded(gate, x)
    return _expanded(gate, x)


def _expanded(gate: Tensor, x: Tensor) -> Tensor:
    if gate.ndim == x.ndim and gate.shape == x.shape:
        return gate
    rows = zip(reversed(gate.shape[:-1]), reversed(x.shape[:-1]), strict=False)
    is_like = 0 < gate.ndim <= x.ndim and gate.shape[-1] == x.shape[-1]
    if not (is_like and all(size in (1, of_x) for size, of_x in rows)):
        return gate  # the library refuses it
    return gate.expand(x.shape)


def _has_overrides(values: Sequence[Any]) -> bool:
    """Returns whether a type among them takes the call by its __torch_function__."""
    for value in values:
        if isinstance(value, Tensor) and value.is_nested:
            raise RuntimeError("rmsnorm takes no nested tensors; call it on x.values()")
    return has_torch_function(values)


# --------------------------------------------------------------------------- the state of PyTorch


def _are_plain(*tensors: Any) -> bool:
    """Returns whether all are tensors of PyTorch's own types, or None."""
    for tensor in tensors:
        if type(tensor) not in _PLAIN_OR_NONE:
            return False
    return True


@constant_result
def _is_plain_program(*types: type) -> bool:
    """Returns whether compiled code needs nothing of tensors of these types but their values. What
    it asks, guards of torch.compile hold fixed; those for asking here would take microseconds."""
    return _PLAIN_OR_NONE.issuperset(types) and not (is_exporting() or is_transformed())


def _is_direct(*tensors: Any) -> bool:
    """Returns whether the operators without gradients compute a call as PyTorch wants it."""
    if is_compiling():
        if not _is_plain_program(*[type(tensor) for tensor in tensors]):
            return False
    else:
        for tensor in tensors:
            if type(tensor) not in _PLAIN_OR_NONE:
                return False
        if has_modes() or is_transformed() or tracing_state() is not None:
            return False
    if is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return False
    # In forward mode a tensor does not tell cheaply whether it has a tangent.
    return forward_ad._current_level < 0


def _is_sharded(*tensors: Any) -> bool:
    """Returns whether one is a DTensor, without an import of that class, which takes a second."""
    return not _are_plain(*tensors) and any(type(t).__name__ == "DTensor" for t in tensors)


def _is_looked_into() -> bool:
    """Returns whether PyTorch needs the formula in its own operations."""
    if forward_ad._current_level >= 0:
        return True
    is_traced = is_compiling() or tracing_state() is not None
    if is_traced and torch.onnx.is_in_onnx_export():
        return True
    return is_transformed() and has_transform("Jvp")


def _check_by_library(tensors: tuple[Any, ...], options: str, dtype: Any) -> None:
    """Calls the library on zeros of the same shapes, so that it refuses what it refuses without
    forward mode: the formula would broadcast wrong shapes, and ignore options."""

    def zeros(t: Tensor) -> Tensor:
        return torch.zeros(t.shape[-1:], dtype=t.dtype, device=t.device).expand(t.shape)

    x, *others = (None if t is None else zeros(t) for t in tensors)
    NORM_NO_GRAD(x, options, dtype, *others)


def _norm(tensors: tuple[Any, ...], options: str, dtype: Any) -> Sequence[Tensor]:
    """Calls the operator `norm` in the way that the state of PyTorch needs."""
    x, *others = tensors
    if _is_direct(*tensors):
        return NORM_NO_GRAD(x, options, dtype, *others)
    if _is_sharded(*tensors):
        from ._sharded import norm_of_shards

        return norm_of_shards(x, options, dtype, *others)
    if _is_looked_into():
        if not (is_compiling() or tracing_state() is not None):
            _check_by_library(tensors, options, dtype)
        return _composite.norm(x, options, dtype, *others)
    return NORM(x, options, dtype, *others)


def _write(tensors: tuple[Any, ...], options: str, **outputs: Any) -> None:
    """Calls the operator `forward`."""
    if not _are_plain(*outputs.values()):
        check_tensors((), **outputs)
    written = [output for output in outputs.values() if output is not None]
    x, *others = tensors
    absent = [None] * (len(INPUTS) - len(tensors))
    arguments = (x, options, *others, *absent, *map(outputs.get, OUTPUTS))
    if _is_direct(*tensors, *written):
        write(written, *arguments)
    elif not _is_sharded(*tensors, *written):
        FORWARD(*arguments)
    else:
        from ._sharded import write_shards

        write_shards(*arguments)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_for_script(function: _Function) -> _Function:
    """Lets torch.jit.script, whose language cannot express a function, say what to do instead."""

    def prepare_scriptable() -> None:
        raise RuntimeError(
            f"torch.jit.script does not take {function.__module__.replace('._functions', '')}."
            f"{function.__name__}(): use torch.export or torch.jit.trace, or the module "
            "rmsnorm.torch.RMSNorm, which torch.jit.script takes"
        )

    function.__prepare_scriptable__ = prepare_scriptable  # type: ignore[attr-defined]
    return function


def overridable(function: _Function) -> _Function:
    """Lets types with __torch_function__, such as the proxies of torch.fx, take the call."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for value in (*arguments, *named.values()):
            if type(value) not in _USUAL:
                values = [*arguments, *named.values()]
                for each in values:  # the list grows by what is in lists and dictionaries
                    if type(each) in _USUAL:
                        continue
                    if isinstance(each, list | tuple):
                        values += each
                    elif isinstance(each, Mapping):
                        values += each.values()
                if _has_overrides(values):
                    return handle_torch_function(call, values, *arguments, **named)
                break
        return function(*arguments, **named)

    return not_for_script(call)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------- functions


@not_for_script
@takes(NormOptions)
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    dtype: torch.dtype | None = None,
    **options: Unpack[NormOptions],
) -> Tensor:
    """Returns y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) + bias for each row of x.

    y has the shape of x. x, weight and bias have gradients. A weight and a bias may have leading
    dimensions, each x's or 1: the scale and the shift of each sample, [batch, 1, d], with
    weight_offset=1.
    """
    if dtype is not None:
        check_dtype(dtype)
    if x is not None and bias is None and out is None and _is_direct(x, weight):
        return RMS_NORM(x, weight, packed("rms_norm", eps, options), dtype)
    if type(x) not in _PLAIN or not _are_plain(weight, bias, out):
        if _has_overrides(operands := (x, weight, bias, out)):
            named: dict[str, Any] = {"bias": bias, "out": out, "dtype": dtype, **options}
            y: Tensor = handle_torch_function(rms_norm, operands, x, weight, eps, **named)
            return y
        check_tensors((), out=out)
    tensors = _tensors(x, weight, None, None, bias)
    chosen = packed("rms_norm", eps, options)
    if out is not None:
        if dtype not in (None, out.dtype):
            raise ValueError(f"dtype is {dtype}, and out has {out.dtype}")
        _write(tensors, chosen, y=out)
        return out
    return _norm(tensors, chosen, dtype)[0]


@overridable
@takes(GatedAddOptions)
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    dtype: torch.dtype | None = None,
    **options: Unpack[GatedAddOptions],
) -> tuple[Tensor, Tensor]:
    """Returns y, the norm of residual + x, and residual_out, that sum in the type of residual.

    All operands have gradients.

    With a post_norm_weight, x is first normalised by this weight and rounded to its type, with the
    same eps, offset, divisor and rounding: the boundary of Gemma 2 and 3. factor multiplies x, or
    its norm by post_norm_weight, before the addition.

    A gate multiplies y, or with gate_placement="before" what is added to residual. The step of
    diffusion transformers, residual + gate * x, is

        fused_add_rms_norm(x, residual, weight, eps, gate=gate, activation="none",
                           gate_placement="before", gate_rounding="rounded")

    A gate for each sample, [batch, 1, d], serves all rows of the sample, and is not copied.
    """
    if dtype is not None:
        check_dtype(dtype)
    has_both = x is not None and residual is not None
    is_short = has_both and gate is None and bias is None and post_norm_weight is None
    if is_short and _is_direct(x, residual, weight):
        chosen = packed("fused_add_rms_norm", eps, options)
        y, residual_out, *_ = NORM_NO_GRAD(x, chosen, dtype, weight, residual)
        return y, residual_out
    tensors = _tensors(x, weight, _given("residual", residual), gate, bias, post_norm_weight)
    y, residual_out = _norm(tensors, packed("fused_add_rms_norm", eps, options), dtype)[:2]
    return y, residual_out


@overridable
@takes(GatedAddOptions)
def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    **options: Unpack[GatedAddOptions],
) -> None:
    """Writes what fused_add_rms_norm() returns: y over x, and residual_out over residual.

    The last dimensions of x and residual must be contiguous. There are no gradients: where an
    operand needs one, the call raises RuntimeError.
    """
    has_both = x is not None and residual is not None
    is_short = has_both and gate is None and bias is None and post_norm_weight is None
    if is_short and _is_direct(x, residual, weight):  # a short way: doc/data/changes.csv
        chosen = packed("fused_add_rms_norm_", eps, options)
        others = (None,) * (len(INPUTS) - 3)
        write((x, residual), x, chosen, weight, residual, *others, x, residual)
        return
    tensors = _tensors(x, weight, _given("residual", residual), gate, bias, post_norm_weight)
    _write(tensors, packed("fused_add_rms_norm_", eps, options), y=x, residual_out=residual)


@overridable
@takes(GatedOptions)
def gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    **options: Unpack[GatedOptions],
) -> Tensor:
    """Returns the norm of x, times an activation of the gate. All operands have gradients.

    Each leading dimension of the gate is that of x or 1, or absent. The gate is not copied.
    """
    check_dtype(dtype)
    tensors = _tensors(x, weight, None, _given("gate", gate), bias)
    return _norm(tensors, packed("gated", eps, options), dtype)[0]


@overridable
@takes(
    NormOptions,
    xs="tensors, or dictionaries of operands and options.",
    weights="a weight or None for each of xs; absent, all are None.",
)
def norms(
    xs: Sequence[Tensor | Mapping[str, Any]],
    weights: Sequence[Tensor | None] | None = None,
    eps: float | None = None,
    **options: Unpack[NormOptions],
) -> list[Any]:
    """Returns the norm of each of xs, as rms_norm() does, from one call of the library.

    Each of xs is [..., d], with leading dimensions and d of its own. All have gradients; where one
    is needed, each norm is a separate call.

    For norms of different kinds, each of xs may be a dictionary of operands and options instead:

        q, (y, stream) = norms([{"x": q, "weight": w}, {"x": x, "residual": stream}], eps=1e-6)

    It takes the arguments of fused_add_rms_norm(), gated() and rotary() together, by their names.
    They replace `weights` and the options of norms(). The result for a dictionary with a residual
    is y and residual_out. Messages name an operand of the second norm "calls[1].weight".
    """
    return _norms("norms", xs, weights, eps, options)


def _norms(
    function: str,
    xs: Sequence[Any],
    weights: Sequence[Tensor | None] | None,
    eps: float | None,
    options: Any,
) -> list[Any]:
    xs = list(xs)
    if not xs:
        return []
    weights = [None] * len(xs) if weights is None else list(weights)
    if len(weights) != len(xs):
        raise ValueError(f"weights has {len(weights)} elements, and xs has {len(xs)}")
    common = packed(function, eps, options)
    if _is_direct(*xs, *weights) and not any(x is None for x in xs):
        return NORMS(xs, weights, common)
    calls = []
    for i, (x, weight) in enumerate(zip(xs, weights, strict=True)):
        own = x if isinstance(x, Mapping) else {"x": x}
        calls.append(_arguments_of_call(i, {"weight": weight, "eps": eps, **options, **own}))
    tensors = [tensor for call, _, _ in calls for tensor in call]
    if _is_direct(*tensors) and all(dtype in DTYPE_CODES for _, _, dtype in calls):
        codes = [DTYPE_CODES[dtype] for _, _, dtype in calls]
        outputs = iter(NORMS_EACH(tensors, [chosen for _, chosen, _ in calls], codes))
    else:
        outputs = iter([t for i, call in enumerate(calls) for t in _norm_of_call(i, call)])
    residual = INPUTS.index("residual")
    return [
        next(outputs) if call[residual] is None else (next(outputs), next(outputs))
        for call, _, _ in calls
    ]


def _arguments_of_call(
    i: int, given: Mapping[str, Any]
) -> tuple[tuple[Any, ...], str, torch.dtype | None]:
    """Returns the arguments of _norm(). Messages name arguments as the library does."""
    possible = (*INPUTS, *OPTIONS, "dtype")
    for name in given:
        if name not in possible:
            raise TypeError(
                f"calls[{i}]: unknown argument {name!r}; possible are {', '.join(possible)}"
            )
    dtype = given.get("dtype")
    try:
        tensors = _tensors(*map(given.get, INPUTS))
        check_dtype(dtype)
        options = {n: value for n, value in given.items() if n in OPTIONS and n != "eps"}
        return tensors, packed("forward", given.get("eps"), options), dtype
    except (TypeError, ValueError) as error:
        raise type(error)(f"calls[{i}].{error}") from None


def _norm_of_call(
    i: int, call: tuple[tuple[Any, ...], str, torch.dtype | None]
) -> Sequence[Tensor]:
    """Returns y and, with a residual, residual_out."""
    try:
        return _norm(*call)[:2]
    except RuntimeError as error:
        raise RuntimeError(f"calls[{i}].{error}") from None


@overridable
@takes(RotaryOptions)
def rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
    **options: Unpack[RotaryOptions],
) -> Tensor:
    """Returns the norm of x, as rms_norm() does, with pairs of its elements rotated.

    Angles are the caller's: cos and sin are the rows of the positions, [R / 2] or with leading
    dimensions that are each x's or 1. A view of the first half of a row serves where the cosines
    are repeated in R elements, as in transformers, where q is [batch, heads, tokens, d]:

        q = rotary(q, cos[:, None, :, : d // 2], sin[:, None, :, : d // 2], weight, 1e-6,
                   rounding="before_weight")

    x, weight and bias have gradients. The tables have none: they count as constants.
    """
    check_dtype(dtype)
    cos, sin = _given("cos", cos), _given("sin", sin)
    tensors = _tensors(x, weight, None, None, bias, None, cos, sin)
    return _norm(tensors, packed("rotary", eps, options), dtype)[0]


@overridable
@takes(
    RotaryOptions,
    q="[..., d]: rows.",
    k="[..., d]: rows, with leading dimensions and d of their own.",
    q_weight="[d] of q; None counts as ones.",
    k_weight="[d] of k; None counts as ones.",
)
def qk(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    **options: Unpack[RotaryOptions],
) -> tuple[Tensor, Tensor]:
    """Returns the norms of q and k, as norms() does, and with tables as rotary() does. Heads share
    the rows of the tables: for q of [batch, tokens, heads, d] these are [batch, tokens, 1, R / 2].
    """
    if q is None or k is None or not _are_plain(q, k, q_weight, k_weight, cos, sin):
        tensors = {"q_weight": q_weight, "k_weight": k_weight, "cos": cos, "sin": sin}
        check_tensors(("q", "k"), q=q, k=k, **tensors)
    if cos is None and sin is None:
        q, k = _norms("qk", (q, k), (q_weight, k_weight), eps, options)
    elif _is_direct(q, k, q_weight, k_weight, cos, sin):
        rest, chosen = (None, None, None, None, cos, sin), packed("qk", eps, options)
        both = [q, q_weight, *rest, k, k_weight, *rest]
        q, k = NORMS_EACH(both, [chosen, chosen], [DTYPE_CODES[None]] * 2)
    else:
        tables = {"cos": cos, "sin": sin}
        xs = {"x": q, **tables}, {"x": k, **tables}
        q, k = _norms("qk", xs, (q_weight, k_weight), eps, options)
    return q, k


class Quantized(NamedTuple):
    """The results of quantized(). Those that were not asked for are None.

    q is int8 with the shape of x. scale is float32 and zero is int8, one for each row, or with a
    group [..., d / group]: y is about scale * (q - zero). residual_out is as in
    fused_add_rms_norm().
    """

    q: Tensor
    scale: Tensor
    zero: Tensor | None
    residual_out: Tensor | None


@overridable
@takes(QuantizedOptions)
def quantized(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    asymmetric: bool = False,
    **options: Unpack[QuantizedOptions],
) -> Quantized:
    """Returns the norm in int8, with a scale for each row, or for each group of a row.

    The norm is that of rms_norm(), or of fused_add_rms_norm() with a residual. There are no
    gradients.
    """
    tensors = _tensors(x, weight, residual, None, bias, post_norm_weight)
    # Under vmap a result needs each mapped dimension that an operand has.
    like = sum(t.sum() for t in tensors if t is not None) if is_transformed() else x
    text = packed("quantized", eps, options)
    group = options.get("group")
    shape = x.shape[:-1] if group is None else (*x.shape[:-1], x.shape[-1] // group)
    q = like.new_empty(x.shape, dtype=torch.int8)
    scale = like.new_empty(shape, dtype=torch.float32)
    zero = like.new_empty(shape, dtype=torch.int8) if asymmetric else None
    residual_out = None if residual is None else like.new_empty(x.shape, dtype=residual.dtype)
    outputs = {"residual_out": residual_out, "q": q, "scale": scale, "zero": zero}
    _write(tensors, text, **outputs)
    return Quantized(q, scale, zero, residual_out)


@overridable
@takes(OtherOptions)
def forward(
    *,
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    y: Tensor | None = None,
    residual_out: Tensor | None = None,
    q: Tensor | None = None,
    rstd: Tensor | None = None,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    eps: float | None = None,
    **options: Unpack[OtherOptions],
) -> None:
    """Writes every output that is given, and allocates none.

    Only y and residual_out may share memory with an operand, which they replace. The last dimension
    of an output must be contiguous.

    The operations are those of rms_norm(), fused_add_rms_norm(), gated(), rotary() and quantized(),
    in any combination that doc/interface.md allows. There are no gradients.
    """
    tensors = _tensors(x, weight, residual, gate, bias, post_norm_weight, cos, sin)
    outputs = {"y": y, "residual_out": residual_out, "q": q, "rstd": rstd, "scale": scale}
    _write(tensors, packed("forward", eps, options), **outputs, zero=zero)

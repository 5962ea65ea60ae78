# SPDX-License-Identifier: Apache-2.0
"""The functions of rmsnorm.torch."""

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from .._library import WORDS
from . import _composite
from ._composite import CODES, DTYPE_CODES
from ._operators import (
    FORWARD,
    NORM,
    NORMS,
    NORMS_EACH,
    OUTPUTS,
    RMS_NORM,
    is_compiling,
    is_grad_enabled,
    is_transformed,
    requires_grad,
    tracing_state,
    write,
)

EpsPlacement = Literal["inside", "outside", "floor"]
Rounding = Literal["after_weight", "before_weight", "inverse"]
ResidualRounding = Literal["rounded", "unrounded"]
Activation = Literal["silu", "sigmoid"]
GatePlacement = Literal["after", "before"]
GateRounding = Literal["unrounded", "rounded"]

# torch.nn.functional.rms_norm computes types of 16 bits in float32, too, and takes its epsilon.
_DEFAULT_EPS = torch.finfo(torch.float32).eps
# The types of tensors that PyTorch's dispatcher alone handles.
_PLAIN = frozenset((Tensor, torch.nn.Parameter))
# The words of the options where none is given.
_DEFAULT_WORDS = tuple(next(iter(words)) for words in WORDS.values())
# The types of tensors, and of usual options.
_USUAL = _PLAIN | {type(None), float, int, str, torch.dtype}

_norm_no_grad = NORM.no_grad


# ------------------------------------------------------------------------------------- arguments


def code_of(option: str, word: str) -> int:
    """Returns the code of a word of an option. Raises ValueError where there is none."""
    try:
        return CODES[option][word]
    except (KeyError, TypeError):
        words = ", ".join(CODES[option])
        raise ValueError(f"{option} is {word!r}; it must be one of {words}") from None


def _number(name: str, value: Any) -> Any:
    """Returns a number as a float, or as the symbol that torch.compile has for it."""
    if not isinstance(value, bool):
        if isinstance(value, int | float | torch.SymInt | torch.SymFloat):
            return value
        if isinstance(value, numbers.Real):  # NumPy's, whose bool is none
            return float(value)
    raise TypeError(f"{name} is {value!r}; it must be a number")


def number(name: str, value: Any) -> Any:
    """Returns an option as a float."""
    return value if type(value) is float else _number(name, value)


def eps_of(value: Any) -> Any:
    """Returns eps, where None means the epsilon of float32."""
    return _DEFAULT_EPS if value is None else number("eps", value)


def _not_zero(name: str, value: Any) -> Any:
    """Returns an option for which the library takes 0, in float32, as its default."""
    value = _number(name, value)
    if abs(value) <= 2.0**-150:
        raise ValueError(f"{name} is {value}; it must not be 0 in float32")
    return value


def _divisor(value: Any) -> Any:
    """Returns the operators' divisor, where 0 stands for d."""
    return 0.0 if value is None else _not_zero("divisor", value)


def _factor(value: Any) -> Any:
    """Returns the operators' factor."""
    return 1.0 if value == 1 else _not_zero("factor", value)


def _given(name: str, tensor: Any) -> Any:
    """Returns an operand. Raises TypeError where it is None."""
    if tensor is None:
        check_tensors((name,), **{name: tensor})
    return tensor


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


def _inputs(
    x: Any,
    weight: Any = None,
    eps: Any = None,
    *,
    residual: Any = None,
    gate: Any = None,
    bias: Any = None,
    post_norm_weight: Any = None,
    eps_placement: Any = "inside",
    rounding: Any = "after_weight",
    residual_rounding: Any = "rounded",
    weight_offset: Any = 0.0,
    divisor: Any = None,
    factor: Any = 1.0,
    activation: Any = "silu",
    gate_placement: Any = "after",
    gate_rounding: Any = "unrounded",
    dtype: Any = None,
) -> tuple[Any, ...]:
    """Returns the arguments of the operator `norm` for those of a function, which it checks."""
    if x is None or not _are_plain(x, weight, residual, gate, bias, post_norm_weight):
        check_tensors(
            ("x",),
            x=x,
            weight=weight,
            residual=residual,
            gate=gate,
            bias=bias,
            post_norm_weight=post_norm_weight,
        )
    if dtype is not None:
        check_dtype(dtype)
    words = (eps_placement, rounding, residual_rounding, activation, gate_placement, gate_rounding)
    return (
        x,
        weight,
        eps if type(eps) is float else eps_of(eps),
        0 if words == _DEFAULT_WORDS else sum(map(code_of, WORDS, words)),
        number("weight_offset", weight_offset),
        dtype,
        residual,
        gate,
        bias,
        post_norm_weight,
        _divisor(divisor),
        _factor(factor),
    )


_ARGUMENTS = tuple(inspect.signature(_inputs).parameters)


def _are_plain(*tensors: Any) -> bool:
    """Returns whether all are tensors of PyTorch's own types, or None."""
    for tensor in tensors:
        if tensor is not None and type(tensor) not in _PLAIN:
            return False
    return True


def _is_looked_into() -> bool:
    """Returns whether PyTorch needs the formula in its own operations."""
    if forward_ad._current_level >= 0:
        return True
    is_traced = is_compiling() or tracing_state() is not None
    if is_traced and torch.onnx.is_in_onnx_export():
        return True
    if not is_transformed():
        return False
    jvp = torch._C._functorch.TransformType.Jvp
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key() == jvp for level in levels)


def _is_direct(*tensors: Tensor | None) -> bool:
    """Returns whether the operator without gradients computes a call as PyTorch wants it."""
    if is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return False
    for tensor in tensors:
        if tensor is not None and type(tensor) not in _PLAIN:
            return False
    # In forward mode a tensor does not tell cheaply whether it has a tangent.
    return not (
        is_compiling()
        or is_transformed()
        or tracing_state() is not None
        or forward_ad._current_level >= 0
    )


def _is_sharded(*tensors: Any) -> bool:
    """Returns whether one is a DTensor, without an import of that class, which takes a second."""
    return not _are_plain(*tensors) and any(type(t).__name__ == "DTensor" for t in tensors)


def _tensors_of(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns the tensors, and None, among the arguments of the operator `norm`."""
    return (inputs[0], inputs[1], *inputs[6:10])


def _norm(*inputs: Any) -> Any:
    """Calls the operator `norm` in the way that the tensors need. Arguments may be left out."""
    tensors = _tensors_of(inputs)
    if _is_direct(*tensors):
        return _norm_no_grad(*inputs)
    if _is_sharded(*tensors):
        from ._sharded import norm_of_shards

        return norm_of_shards(*inputs)
    if _is_looked_into():
        _composite.check(*tensors)
        return _composite.norm(*inputs)
    return NORM(*inputs)


def _write(inputs: tuple[Any, ...], **outputs: Any) -> None:
    """Calls the operator `forward` with the arguments of `norm`, which have no dtype for it."""
    if not _are_plain(*outputs.values()):
        check_tensors((), **outputs)
    written = [output for output in outputs.values() if output is not None]
    tensors = (*_tensors_of(inputs), *written)
    arguments = (*inputs[:5], *inputs[6:], *map(outputs.get, OUTPUTS))
    if _is_direct(*tensors):
        write(written, *arguments)
    elif not _is_sharded(*tensors):
        FORWARD(*arguments)
    else:
        from ._sharded import write_shards

        write_shards(*arguments)


def _has_overrides(values: Sequence[Any]) -> bool:
    """Returns whether a type among them takes the call by its __torch_function__."""
    for value in values:
        if isinstance(value, Tensor) and value.is_nested:
            raise RuntimeError("rmsnorm takes no nested tensors; call it on x.values()")
    return has_torch_function(values)


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
                    elif isinstance(each, dict):
                        values += each.values()
                if _has_overrides(values):
                    return handle_torch_function(call, values, *arguments, **named)
                break
        return function(*arguments, **named)

    return not_for_script(call)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------- functions


@not_for_script
def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    eps_placement: EpsPlacement = "inside",
    rounding: Rounding = "after_weight",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    factor: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns y = x / sqrt(mean(x^2) + eps) * (weight_offset + weight) + bias for each row of x.

    x is [..., d]. weight and bias are [d] or absent. y has the shape of x, and the type `dtype`,
    x's by default. x, weight and bias have gradients.

    eps           what is added to the mean; by default the epsilon of float32, 1.19e-7, which
                  torch.nn.functional.rms_norm takes for types of 16 bits, too
    eps_placement "inside", "outside" or "floor": see the head of rmsnorm.torch
    rounding      "after_weight", "before_weight" or "inverse": see the head of rmsnorm.torch
    weight_offset added to the weight, in float32: 1 for Gemma
    divisor       the sum of squares is divided by it; None means d
    factor        x is first multiplied by it, and rounded to its type
    out           a tensor for y, which may be x. The call then returns it and has no gradients.
    """
    if type(x) not in _PLAIN or not _are_plain(weight, bias, out):
        if _has_overrides(operands := (x, weight, bias, out)):
            y: Tensor = handle_torch_function(
                rms_norm,
                operands,
                x,
                weight,
                eps,
                bias=bias,
                out=out,
                eps_placement=eps_placement,
                rounding=rounding,
                weight_offset=weight_offset,
                divisor=divisor,
                factor=factor,
                dtype=dtype,
            )
            return y
        check_tensors(("x",), x=x, weight=weight, bias=bias, out=out)
    words = 0 if rounding == "after_weight" else code_of("rounding", rounding)
    if eps_placement != "inside":
        words += code_of("eps_placement", eps_placement)
    if type(eps) is not float:
        eps = eps_of(eps)
    if type(weight_offset) is not float:
        weight_offset = number("weight_offset", weight_offset)
    if dtype is not None:
        check_dtype(dtype)
    inputs: tuple[Any, ...] = (x, weight, eps, words, weight_offset, dtype)
    is_short = bias is None and divisor is None and factor == 1 and out is None
    if is_short and _is_direct(x, weight):
        y = RMS_NORM(*inputs)
        return y
    inputs += (None, None, bias, None, _divisor(divisor), _factor(factor))
    if out is not None:
        if dtype not in (None, out.dtype):
            raise ValueError(f"dtype is {dtype}, and out has {out.dtype}")
        _write(inputs, y=out)
        return out
    y = _norm(*inputs)[0]
    return y


@overridable
def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    eps_placement: EpsPlacement = "inside",
    rounding: Rounding = "after_weight",
    residual_rounding: ResidualRounding = "rounded",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    factor: float = 1.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y, the norm of residual + x, and residual_out, that sum in the type of residual.

    x and residual are [..., d], and so are the results. y has the type `dtype`, x's by default.
    weight, bias and post_norm_weight are [d] or absent. All operands have gradients.

    post_norm_weight   with it, x is first normalised by this weight and rounded to its type, with
                       the same eps, offset, divisor and rounding: the boundary of Gemma 2 and 3
    residual_rounding  "rounded": y is the norm of residual_out; "unrounded": of the float32 sum
    factor             multiplies x, or its norm by post_norm_weight, before the addition

    The other options are those of rms_norm().
    """
    inputs = _inputs(
        x,
        weight,
        eps,
        residual=_given("residual", residual),
        bias=bias,
        post_norm_weight=post_norm_weight,
        eps_placement=eps_placement,
        rounding=rounding,
        residual_rounding=residual_rounding,
        weight_offset=weight_offset,
        divisor=divisor,
        factor=factor,
        dtype=dtype,
    )
    y, residual_out = _norm(*inputs)[:2]
    return y, residual_out


@overridable
def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    rounding: Rounding = "after_weight",
    residual_rounding: ResidualRounding = "rounded",
    weight_offset: float = 0.0,
) -> None:
    """Writes what fused_add_rms_norm() returns: y over x, and residual_out over residual.

    x and residual are [..., d], and their last dimension must be contiguous. The options are those
    of fused_add_rms_norm(). There are no gradients: where an operand needs one, the call raises
    RuntimeError.
    """
    inputs = _inputs(
        x,
        weight,
        eps,
        residual=_given("residual", residual),
        bias=bias,
        post_norm_weight=post_norm_weight,
        rounding=rounding,
        residual_rounding=residual_rounding,
        weight_offset=weight_offset,
    )
    _write(inputs, y=x, residual_out=residual)


@overridable
def gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    bias: Tensor | None = None,
    activation: Activation = "silu",
    gate_placement: GatePlacement = "after",
    gate_rounding: GateRounding = "unrounded",
    eps_placement: EpsPlacement = "inside",
    rounding: Rounding = "after_weight",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the norm of x, times an activation of the gate, of `dtype`, x's type by default.

    x and gate are [..., d]. weight and bias are [d] or absent. All have gradients.

    activation      "silu": z * sigmoid(z) of the gate z; "sigmoid"
    gate_placement  "after": the activation multiplies the norm; "before": it multiplies x
    gate_rounding   "rounded": the norm is rounded to x's type before the product

    The other options are those of rms_norm().
    """
    inputs = _inputs(
        x,
        weight,
        eps,
        gate=_given("gate", gate),
        bias=bias,
        eps_placement=eps_placement,
        rounding=rounding,
        weight_offset=weight_offset,
        divisor=divisor,
        activation=activation,
        gate_placement=gate_placement,
        gate_rounding=gate_rounding,
        dtype=dtype,
    )
    y: Tensor = _norm(*inputs)[0]
    return y


@overridable
def norms(
    xs: Sequence[Tensor | Mapping[str, Any]],
    weights: Sequence[Tensor | None] | None = None,
    eps: float | None = None,
    *,
    rounding: Rounding = "after_weight",
    weight_offset: float = 0.0,
) -> list[Any]:
    """Returns the norm of each of xs, as rms_norm() does, from one call of the library.

    Each of xs is [..., d], with leading dimensions and d of its own. weights has one [d] or None
    for each, or is absent. All have gradients; where one is needed, each norm is a separate call.

    For norms of different kinds, each of xs may be a dictionary of operands and options instead:

        q, (y, stream) = norms([{"x": q, "weight": w}, {"x": x, "residual": stream}], eps=1e-6)

    It takes the arguments of fused_add_rms_norm() and gated() together, by their names. They
    replace `weights` and the options of norms(). The result for a dictionary with a residual is y
    and residual_out. Messages name an operand of the second norm "calls[1].weight".
    """
    return _norms(xs, weights, eps, rounding, weight_offset)


def _norms(
    xs: Sequence[Any],
    weights: Sequence[Tensor | None] | None,
    eps: float | None,
    rounding: Rounding,
    weight_offset: float,
) -> list[Any]:
    xs = list(xs)
    weights = [None] * len(xs) if weights is None else list(weights)
    if len(weights) != len(xs):
        raise ValueError(f"weights has {len(weights)} elements, and xs has {len(xs)}")
    is_plain = _are_plain(*xs, *weights) and not any(x is None for x in xs)
    if is_plain and _is_one_call(*xs, *weights):
        code = code_of("rounding", rounding)
        offset = number("weight_offset", weight_offset)
        ys: list[Tensor] = NORMS(xs, weights, eps_of(eps), code, offset)
        return ys
    common = {"eps": eps, "rounding": rounding, "weight_offset": weight_offset}
    calls = []
    for i, (x, weight) in enumerate(zip(xs, weights, strict=True)):
        own = x if isinstance(x, dict) else {"x": x}
        calls.append(_inputs_of_call(i, {"x": None, "weight": weight, **common, **own}))
    tensors = [tensor for inputs in calls for tensor in _tensors_of(inputs)]
    if _is_one_call(*tensors) and all(inputs[5] in DTYPE_CODES for inputs in calls):
        columns = [list(column) for column in zip(*calls, strict=True)]
        columns[5] = [DTYPE_CODES[dtype] for dtype in columns[5]]
        outputs = iter(NORMS_EACH(*columns))
    else:
        outputs = iter([t for i, inputs in enumerate(calls) for t in _norm_of_call(i, inputs)])
    return [
        next(outputs) if residual is None else (next(outputs), next(outputs))
        for _, _, _, _, _, _, residual, *_ in calls
    ]


def _inputs_of_call(i: int, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """Returns what _inputs() returns. Messages name arguments as the library does."""
    for name in given:
        if name not in _ARGUMENTS:
            possible = ", ".join(_ARGUMENTS)
            raise TypeError(f"calls[{i}]: unknown argument {name!r}; possible are {possible}")
    try:
        return _inputs(**given)
    except (TypeError, ValueError) as error:
        raise type(error)(f"calls[{i}].{error}") from None


def _norm_of_call(i: int, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Returns y and, with a residual, residual_out."""
    try:
        outputs: list[Tensor] = _norm(*inputs)[:2]
    except RuntimeError as error:
        raise RuntimeError(f"calls[{i}].{error}") from None
    return outputs


def _is_one_call(*tensors: Any) -> bool:
    """Returns whether the operators for several norms compute them as PyTorch wants it."""
    if not is_compiling():
        return _is_direct(*tensors)
    is_one_by_one = is_transformed() or _is_looked_into() or requires_grad(*tensors)
    return not is_one_by_one and _are_plain(*tensors)


@overridable
def qk(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float | None = None,
    *,
    rounding: Rounding = "after_weight",
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns the norms of q and k, as norms() does.

    q and k are [..., d], with leading dimensions and d of their own. q_weight is [d] of q, and
    k_weight is [d] of k; either may be None.
    """
    if q is None or k is None or not _are_plain(q, k, q_weight, k_weight):
        check_tensors(("q", "k"), q=q, k=k, q_weight=q_weight, k_weight=k_weight)
    weights = (q_weight, k_weight)
    q, k = _norms((q, k), weights, eps, rounding, weight_offset)
    return q, k


class Quantized(NamedTuple):
    """The results of quantized(). Those that were not asked for are None.

    q is int8 with the shape of x. scale is float32 and zero is int8, one for each row: y is about
    scale * (q - zero). residual_out is as in fused_add_rms_norm().
    """

    q: Tensor
    scale: Tensor
    zero: Tensor | None
    residual_out: Tensor | None


@overridable
def quantized(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    residual: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    asymmetric: bool = False,
    eps_placement: EpsPlacement = "inside",
    rounding: Rounding = "after_weight",
    residual_rounding: ResidualRounding = "rounded",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    factor: float = 1.0,
) -> Quantized:
    """Returns the norm in int8, with a scale for each row.

    The norm is that of rms_norm(), or of fused_add_rms_norm() with a residual. x and residual are
    [..., d]; the weights and bias are [d] or absent. asymmetric=True adds a zero point to each row.
    The other options are those of fused_add_rms_norm(). There are no gradients.
    """
    check_tensors(("x",), x=x, residual=residual)
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32, device=x.device)
    zero = torch.empty(x.shape[:-1], dtype=torch.int8, device=x.device) if asymmetric else None
    residual_out = None
    if residual is not None:
        residual_out = torch.empty(x.shape, dtype=residual.dtype, device=x.device)
    forward(
        x=x,
        weight=weight,
        eps=eps,
        residual=residual,
        bias=bias,
        post_norm_weight=post_norm_weight,
        residual_out=residual_out,
        q=q,
        scale=scale,
        zero=zero,
        eps_placement=eps_placement,
        rounding=rounding,
        residual_rounding=residual_rounding,
        weight_offset=weight_offset,
        divisor=divisor,
        factor=factor,
    )
    return Quantized(q, scale, zero, residual_out)


@overridable
def forward(
    *,
    x: Tensor,
    weight: Tensor | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    y: Tensor | None = None,
    residual_out: Tensor | None = None,
    q: Tensor | None = None,
    rstd: Tensor | None = None,
    scale: Tensor | None = None,
    zero: Tensor | None = None,
    eps: float | None = None,
    eps_placement: EpsPlacement = "inside",
    rounding: Rounding = "after_weight",
    residual_rounding: ResidualRounding = "rounded",
    weight_offset: float = 0.0,
    divisor: float | None = None,
    factor: float = 1.0,
    activation: Activation = "silu",
    gate_placement: GatePlacement = "after",
    gate_rounding: GateRounding = "unrounded",
) -> None:
    """Writes every output that is given, and allocates none.

    x, residual, gate, y and residual_out are [..., d] of any of the three types; q is [..., d] of
    int8. weight, bias and post_norm_weight are [d]. rstd (1 / RMS) and scale, of float32, and zero,
    of int8, are [...], without d. y may be x, and residual_out may be residual; other outputs share
    no memory with an operand. The last dimension of an output must be contiguous.

    The operations and options are those of rms_norm(), fused_add_rms_norm(), gated() and
    quantized(), in any combination that doc/interface.md allows. There are no gradients.
    """
    inputs = _inputs(
        x,
        weight,
        eps,
        residual=residual,
        gate=gate,
        bias=bias,
        post_norm_weight=post_norm_weight,
        eps_placement=eps_placement,
        rounding=rounding,
        residual_rounding=residual_rounding,
        weight_offset=weight_offset,
        divisor=divisor,
        factor=factor,
        activation=activation,
        gate_placement=gate_placement,
        gate_rounding=gate_rounding,
    )
    outputs = {"y": y, "residual_out": residual_out, "q": q, "rstd": rstd, "scale": scale}
    _write(inputs, **outputs, zero=zero)

# SPDX-License-Identifier: Apache-2.0
"""The functions of rmsnorm.torch."""

import functools
import numbers
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import handle_torch_function, has_torch_function

from . import _composite
from ._composite import CODES
from ._operators import (
    FORWARD,
    NORM,
    NORMS,
    RMS_NORM,
    is_compiling,
    is_grad_enabled,
    is_transformed,
    requires_grad,
    tracing_state,
    write,
)

__all__ = [
    "forward",
    "fused_add_rms_norm",
    "fused_add_rms_norm_",
    "gated",
    "norms",
    "qk",
    "quantized",
    "rms_norm",
]

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
# These and the types of usual options.
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


def _norm(*inputs: Any) -> Any:
    """Calls the operator `norm` in the way that the tensors need. Arguments may be left out."""
    tensors = (inputs[0], inputs[1], *inputs[6:10])
    if _is_sharded(*tensors):
        from ._sharded import norm_of_shards

        return norm_of_shards(*inputs)
    if _is_looked_into():
        _composite.check(*tensors)
        return _composite.norm(*inputs)
    return NORM(*inputs)


def _write(outputs: list[Tensor], *inputs: Any) -> None:
    """Calls the operator `forward`. outputs are those of the inputs that are written."""
    tensors = (inputs[0], inputs[1], *inputs[5:9], *outputs)
    if _is_direct(*tensors):
        write(outputs, *inputs)
    elif not _is_sharded(*tensors):
        FORWARD(*inputs)
    else:
        from ._sharded import write_shards

        write_shards(*inputs)


def _has_overrides(values: Sequence[Any]) -> bool:
    """Returns whether a type among them takes the call by its __torch_function__."""
    for value in values:
        if isinstance(value, Tensor) and value.is_nested:
            raise RuntimeError("rmsnorm takes no nested tensors; call it on x.values()")
    return has_torch_function(values)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def overridable(function: _Function) -> _Function:
    """Lets types with __torch_function__, such as the proxies of torch.fx, take the call."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for value in (*arguments, *named.values()):
            if type(value) not in _USUAL:
                values = [*arguments, *named.values()]
                for sequence in arguments:
                    if isinstance(sequence, list | tuple):
                        values += sequence
                if _has_overrides(values):
                    return handle_torch_function(call, values, *arguments, **named)
                break
        return function(*arguments, **named)

    return call  # type: ignore[return-value]


# ------------------------------------------------------------------------------------- functions


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
    rows: tuple[Any, ...] = ()
    if bias is not None or divisor is not None or factor != 1 or out is not None:
        rows = (None, None, bias, None, _divisor(divisor), _factor(factor))
    if out is not None:
        if dtype not in (None, out.dtype):
            raise ValueError(f"dtype is {dtype}, and out has {out.dtype}")
        _write([out], x, weight, eps, words, weight_offset, *rows, out)
        return out
    is_direct = _is_direct(x, weight, bias)
    if is_direct and not rows:
        y = RMS_NORM(x, weight, eps, words, weight_offset, dtype)
        return y
    call = _norm_no_grad if is_direct else _norm
    y = call(x, weight, eps, words, weight_offset, dtype, *rows)[0]
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
    if x is None or residual is None or not _are_plain(x, residual, weight, bias, post_norm_weight):
        check_tensors(
            ("x", "residual"),
            x=x,
            residual=residual,
            weight=weight,
            bias=bias,
            post_norm_weight=post_norm_weight,
        )
    words = code_of("rounding", rounding)
    if residual_rounding != "rounded":
        words += code_of("residual_rounding", residual_rounding)
    if eps_placement != "inside":
        words += code_of("eps_placement", eps_placement)
    if dtype is not None:
        check_dtype(dtype)
    call = _norm_no_grad if _is_direct(x, residual, weight, bias, post_norm_weight) else _norm
    y, residual_out = call(
        x,
        weight,
        eps_of(eps),
        words,
        number("weight_offset", weight_offset),
        dtype,
        residual,
        None,
        bias,
        post_norm_weight,
        _divisor(divisor),
        _factor(factor),
    )[:2]
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
    if x is None or residual is None or not _are_plain(x, residual, weight, bias, post_norm_weight):
        check_tensors(
            ("x", "residual"),
            x=x,
            residual=residual,
            weight=weight,
            bias=bias,
            post_norm_weight=post_norm_weight,
        )
    words = code_of("rounding", rounding)
    if residual_rounding != "rounded":
        words += code_of("residual_rounding", residual_rounding)
    offset = number("weight_offset", weight_offset)
    rows = (residual, None, bias, post_norm_weight, 0.0, 1.0)
    _write([x, residual], x, weight, eps_of(eps), words, offset, *rows, x, residual)


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
    if x is None or gate is None or not _are_plain(x, gate, weight, bias):
        check_tensors(("x", "gate"), x=x, gate=gate, weight=weight, bias=bias)
    words = code_of("rounding", rounding) + code_of("activation", activation)
    words += code_of("gate_placement", gate_placement) + code_of("gate_rounding", gate_rounding)
    if eps_placement != "inside":
        words += code_of("eps_placement", eps_placement)
    if dtype is not None:
        check_dtype(dtype)
    call = _norm_no_grad if _is_direct(x, gate, weight, bias) else _norm
    y: Tensor = call(
        x,
        weight,
        eps_of(eps),
        words,
        number("weight_offset", weight_offset),
        dtype,
        None,
        gate,
        bias,
        None,
        _divisor(divisor),
        1.0,
    )[0]
    return y


@overridable
def norms(
    xs: Sequence[Tensor],
    weights: Sequence[Tensor | None] | None = None,
    eps: float | None = None,
    *,
    rounding: Rounding = "after_weight",
    weight_offset: float = 0.0,
) -> list[Tensor]:
    """Returns the norm of each of xs, as rms_norm() does, from one call of the library.

    Each of xs is [..., d], with leading dimensions and d of its own. weights has one [d] or None
    for each, or is absent. All have gradients; where one is needed, each norm is a separate call.
    """
    return _norms(xs, weights, eps, rounding, weight_offset)


def _norms(
    xs: Sequence[Tensor],
    weights: Sequence[Tensor | None] | None,
    eps: float | None,
    rounding: Rounding,
    weight_offset: float,
) -> list[Tensor]:
    xs = list(xs)
    columns = [None] * len(xs) if weights is None else list(weights)
    if len(columns) != len(xs):
        raise ValueError(f"weights has {len(columns)} elements, and xs has {len(xs)}")
    is_compiled = is_compiling() and not torch.onnx.is_in_onnx_export()
    is_one_call = (
        not any(x is None for x in xs)
        and _are_plain(*xs, *columns)
        and not requires_grad(*xs, *columns)
        and (is_compiled or _is_direct(*xs, *columns))
    )
    if not is_one_call:
        for i, (x, weight) in enumerate(zip(xs, columns, strict=True)):
            check_tensors((f"xs[{i}]",), **{f"xs[{i}]": x, f"weights[{i}]": weight})
        options: Any = {"rounding": rounding, "weight_offset": weight_offset}
        return [rms_norm(x, w, eps, **options) for x, w in zip(xs, columns, strict=True)]
    code = code_of("rounding", rounding)
    offset = number("weight_offset", weight_offset)
    ys: list[Tensor] = NORMS(xs, columns, eps_of(eps), code, offset)
    return ys


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
    check_tensors(
        ("x",),
        x=x,
        weight=weight,
        residual=residual,
        gate=gate,
        bias=bias,
        post_norm_weight=post_norm_weight,
        y=y,
        residual_out=residual_out,
        q=q,
        rstd=rstd,
        scale=scale,
        zero=zero,
    )
    words = code_of("rounding", rounding) + code_of("eps_placement", eps_placement)
    words += code_of("residual_rounding", residual_rounding) + code_of("activation", activation)
    words += code_of("gate_placement", gate_placement) + code_of("gate_rounding", gate_rounding)
    outputs = [y, residual_out, q, rstd, scale, zero]
    _write(
        [output for output in outputs if output is not None],
        x,
        weight,
        eps_of(eps),
        words,
        number("weight_offset", weight_offset),
        residual,
        gate,
        bias,
        post_norm_weight,
        _divisor(divisor),
        _factor(factor),
        *outputs,
    )

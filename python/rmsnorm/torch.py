# SPDX-License-Identifier: Apache-2.0
"""RMSNorm for PyTorch tensors on the CPU, with gradients.

    import rmsnorm.torch

    y = rmsnorm.torch.rms_norm(x, weight, 1e-6)
    norm = rmsnorm.torch.RMSNorm(4096, eps=1e-6, dtype=torch.bfloat16)

A tensor x has any shape [..., d] and any strides. It is read where it lies; only a tensor whose
last dimension is not contiguous is copied. The types are float32, float16 and bfloat16, in any
combination. All arithmetic is in float32. Results are contiguous, like the
results of torch.nn.functional.rms_norm. PyTorch's own threads share the rows, and their number
changes no bit of y.

The C interface, rmsnorm/rmsnorm.h, has the formulas: with offset = weight_offset,

    y_j = x_j / sqrt(sum_i(x_i^2) / d + eps) * (offset + weight_j)

which is equation 4 of Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019,
arXiv:1910.07467, with the eps and the offset of the models that use them.

An option that is a word has the words of the library:

    rounding            "after_weight"   y = cast_y(n * w): PyTorch, Gemma
                        "before_weight"  y = cast_y(cast_x(n) * w): Llama
                        "inverse"        the same with n = x * cast_x(1 / RMS): DeepSeek-V4
    eps_placement       "inside"         x / sqrt(mean(x^2) + eps)
                        "outside"        x / (sqrt(mean(x^2)) + eps)
                        "floor"          x / max(sqrt(mean(x^2)), eps)
    residual_rounding   "rounded"        the norm of the sum as residual_out holds it
                        "unrounded"      the norm of the sum in float32
    activation          "silu", "sigmoid"
    gate_placement      "after"          the gate multiplies the norm: Qwen3-Next, Kimi-Linear
                        "before"         the gate multiplies x: Mamba-2
    gate_rounding       "unrounded"      y = cast_y(m * act(gate)): Kimi-Linear
                        "rounded"        y = cast_y(cast_x(m) * act(gate)): Qwen3-Next

Gradients are of the first order, from the library's backward function: a second derivative raises
a RuntimeError. They pass through the unrounded values, so that all rounding orders have the same.
torch.compile takes every function without a graph break. Automatic mixed precision changes no
type, as with torch.nn.functional.rms_norm on the CPU.

Errors: an operand that the library refuses raises RuntimeError with the library's text, and an
unknown word raises ValueError. `import rmsnorm.torch` raises ImportError where PyTorch is older
than 2.10, or where the operators are missing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._library import WORDS, path_of

__all__ = ["RMSNorm", "fused_add_rms_norm", "fused_add_rms_norm_", "gated", "qk", "rms_norm"]

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 10):
    raise ImportError(f"rmsnorm.torch needs PyTorch 2.10 or newer, and this is {torch.__version__}")

_PATH = path_of("rmsnorm_torch")
if not _PATH.exists():
    raise ImportError(
        f"{_PATH} is missing: install a wheel of rmsnorm that has it, "
        "or build rmsnorm where PyTorch is installed"
    )
torch.ops.load_library(_PATH)  # type: ignore[no-untyped-call]

_OPS = torch.ops.rmsnorm
_LIBRARY: Any = torch.library.Library("rmsnorm", "FRAGMENT")  # type: ignore[no-untyped-call]


def _number(option: str, word: str) -> int:
    try:
        return WORDS[option][word]
    except KeyError:
        words = ", ".join(WORDS[option])
        raise ValueError(f"{option} is {word!r}; it must be one of {words}") from None


# ------------------------------------------------------------------------------------- gradients


def _requires_grad(*tensors: Tensor | None) -> bool:
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def _is_recorded(*tensors: Tensor | None) -> bool:
    """Returns whether a call must go through autograd, or be part of a transform."""
    # In forward mode autograd refuses the call. A tensor does not tell cheaply whether it has a
    # tangent.
    return (
        _requires_grad(*tensors)
        or torch.compiler.is_compiling()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


class _Operator:
    """An operator with gradients, called in the cheapest way that is right.

    PyTorch takes some 50 microseconds for a call with gradients of an operator whose formula it
    was told, and some 5 without gradients. torch.autograd.Function takes 5 and 0. So the formula
    serves torch.compile and those who call the operator themselves, and a Function everyone else.
    Of the two kinds of Function only the slower one can be part of torch.func's transforms.
    """

    def __init__(
        self,
        name: str,
        setup_context: Callable[[Any, tuple[Any, ...], Any], None],
        backward: Callable[..., Any],
        rows: int,
    ) -> None:
        """The first `rows` inputs are [..., d]. Other tensors among the inputs are weights."""
        self.rows = rows
        self.operator = getattr(_OPS, name).default
        self.no_grad = no_grad = getattr(_OPS, f"{name}_no_grad").default

        def forward(ctx: Any, *inputs: Any) -> Any:
            output = no_grad(*inputs)
            setup_context(ctx, inputs, output)
            return output

        members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.function: Any = type(f"rmsnorm_{name}", (torch.autograd.Function,), members)
        members |= {
            "forward": staticmethod(no_grad),
            "setup_context": staticmethod(setup_context),
            "vmap": staticmethod(functools.partial(self.vmap, self)),
        }
        self.transform: Any = type(f"rmsnorm_{name}", (torch.autograd.Function,), members)
        torch.library.register_autograd(self.operator, backward, setup_context=setup_context)
        for operator in (self.operator, self.no_grad):
            torch.library.register_vmap(operator, functools.partial(self.vmap, operator))
        _LIBRARY.impl(f"{name}_no_grad", torch.library.fallthrough_kernel, "Autograd")

    def with_gradients(self, *inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.operator(*inputs)
        if torch._C._are_functorch_transforms_active():
            return self.transform.apply(*inputs)
        return self.function.apply(*inputs)

    def __call__(self, *inputs: Any) -> Any:
        tensors = (value for value in inputs if isinstance(value, Tensor))
        return (self.with_gradients if _is_recorded(*tensors) else self.no_grad)(*inputs)

    def vmap(
        self, call: Callable[..., Any], info: Any, in_dims: tuple[int | None, ...], *inputs: Any
    ) -> Any:
        """Calls the operator once for all where they share the weights, and else one by one."""
        rows, size = self.rows, info.batch_size
        if all(dim is None for dim in in_dims[rows:]):
            moved = (
                tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
                for tensor, dim in zip(inputs[:rows], in_dims[:rows], strict=True)
            )
            output = call(*moved, *inputs[rows:])
        else:
            outputs = [
                call(
                    *(
                        value if dim is None else value.select(dim, i)
                        for value, dim in zip(inputs, in_dims, strict=True)
                    )
                )
                for i in range(size)
            ]
            if isinstance(outputs[0], Tensor):
                return torch.stack(outputs), 0
            output = tuple(map(torch.stack, zip(*outputs, strict=True)))
        return output, 0 if isinstance(output, Tensor) else (0,) * len(output)


def _wanted(ctx: Any, count: int) -> tuple[bool, ...]:
    """Returns which of the first inputs need gradients. PyTorch omits inputs at their defaults."""
    wanted = ctx.needs_input_grad[:count]
    return (*wanted, *[False] * (count - len(wanted)))


def _backward(*inputs: Any) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = _RMS_NORM_BACKWARD(*inputs)
    return result


def _refuse_second_order(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("rmsnorm has first derivatives only, and this is a second derivative")


def _keep_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    pass


_RMS_NORM_BACKWARD = _Operator("rms_norm_backward", _keep_nothing, _refuse_second_order, rows=0)


def _rms_norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, ctx.eps, _, ctx.weight_offset, ctx.eps_placement, ctx.divisor, ctx.factor, _ = inputs
    ctx.save_for_backward(x, weight)


def _rms_norm_gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, weight = ctx.saved_tensors
    wants_dx, wants_dw = _wanted(ctx, 2)
    if ctx.factor != 1:
        x = x * ctx.factor
    options = (ctx.eps, ctx.weight_offset, ctx.eps_placement, ctx.divisor)
    dx, dw = _backward(dy, x, weight, None, None, wants_dx, wants_dw, *options)
    if ctx.factor != 1:
        dx = dx * ctx.factor
    return dx if wants_dx else None, dw if wants_dw else None, *[None] * 7


_RMS_NORM = _Operator("rms_norm", _rms_norm_setup, _rms_norm_gradients, rows=1)


def _fused_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, _, weight, ctx.eps, _, ctx.weight_offset, residual_rounding, _ = inputs
    _, residual_out, rstd = output
    ctx.x_dtype = x.dtype
    ctx.has_rstd = residual_rounding == WORDS["residual_rounding"]["unrounded"]
    ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(weight, residual_out, rstd)


def _fused_gradients(ctx: Any, dy: Tensor | None, dsum: Tensor | None, _: None) -> tuple[Any, ...]:
    weight, residual_out, rstd = ctx.saved_tensors
    wants_dx, wants_dresidual, wants_dw = _wanted(ctx, 3)
    dx, dw = dsum, None
    if dy is not None:
        rstd = rstd if ctx.has_rstd else None
        options = (ctx.eps, ctx.weight_offset)
        wanted = (wants_dx or wants_dresidual, wants_dw)
        dx, dw = _backward(dy, residual_out, weight, rstd, dsum, *wanted, *options)
    return (
        dx.to(ctx.x_dtype) if wants_dx and dx is not None else None,
        dx if wants_dresidual else None,
        dw if wants_dw else None,
        *[None] * 5,
    )


_FUSED_ADD_RMS_NORM = _Operator("fused_add_rms_norm", _fused_setup, _fused_gradients, rows=2)


def _gated_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, gate, weight, ctx.eps, _, ctx.weight_offset, ctx.activation, ctx.placement, _, _ = inputs
    ctx.save_for_backward(x, gate, weight)


def _gated_gradients(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
    x, gate, weight = ctx.saved_tensors
    wants_dx, wants_dgate, wants_dw = _wanted(ctx, 3)
    dy, z = dy.float(), gate.float()
    sigmoid = torch.sigmoid(z)
    if ctx.activation == WORDS["activation"]["silu"]:
        activated, slope = z * sigmoid, sigmoid * (1 + z * (1 - sigmoid))
    else:
        activated, slope = sigmoid, sigmoid * (1 - sigmoid)
    options = (ctx.eps, ctx.weight_offset)
    dx = dgate = None
    if ctx.placement == WORDS["gate_placement"]["after"]:
        # y = m * act(z), where m is the norm of x
        dm = dy * activated
        wanted = (wants_dx, wants_dw)
        dx, dw = _backward(dm, x, weight, None, None, *wanted, *options)
        if wants_dgate:
            m = rms_norm(x, weight, ctx.eps, weight_offset=ctx.weight_offset, dtype=torch.float32)
            dgate = dy * m * slope
    else:
        # y = the norm of h, where h = x * act(z)
        h = x.float() * activated
        wanted = (wants_dx or wants_dgate, wants_dw)
        dh, dw = _backward(dy, h, weight, None, None, *wanted, *options)
        if wants_dx:
            dx = dh * activated
        if wants_dgate:
            dgate = dh * x.float() * slope
    return (
        dx.to(x.dtype) if wants_dx and dx is not None else None,
        dgate.to(gate.dtype) if dgate is not None else None,
        dw if wants_dw else None,
        *[None] * 7,
    )


_GATED = _Operator("gated", _gated_setup, _gated_gradients, rows=2)


def _qk_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, q_weight, k_weight, ctx.eps, _, ctx.weight_offset = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, q_weight, k_weight)


def _qk_gradients(ctx: Any, *dys: Tensor | None) -> tuple[Any, ...]:
    gradients: list[Tensor | None] = [None] * 7
    wanted = _wanted(ctx, 4)
    for i, dy in enumerate(dys):
        wants_dx, wants_dw = wanted[i], wanted[i + 2]
        if dy is None or not (wants_dx or wants_dw):
            continue
        x, weight = ctx.saved_tensors[i], ctx.saved_tensors[i + 2]
        options = (ctx.eps, ctx.weight_offset)
        dx, dw = _backward(dy, x, weight, None, None, wants_dx, wants_dw, *options)
        gradients[i] = dx if wants_dx else None
        gradients[i + 2] = dw if wants_dw else None
    return tuple(gradients)


_QK = _Operator("qk", _qk_setup, _qk_gradients, rows=2)


def _fused_in_place_autograd(keys: Any, *inputs: Any) -> None:
    """Refuses gradients, and tells autograd that x and residual have changed."""
    x, residual, weight = inputs[0], inputs[1], inputs[2] if len(inputs) > 2 else None
    if _requires_grad(x, residual, weight) or forward_ad._current_level >= 0:
        raise RuntimeError(
            "fused_add_rms_norm_ has no gradients: call fused_add_rms_norm, "
            "or call it in torch.no_grad() or torch.inference_mode()"
        )
    with torch._C._AutoDispatchBelowAutograd():
        _OPS.fused_add_rms_norm_.default.redispatch(keys & torch._C._after_autograd_keyset, *inputs)
    torch.autograd.graph.increment_version((x, residual))


_LIBRARY.impl("fused_add_rms_norm_", _fused_in_place_autograd, "Autograd", with_keyset=True)


# ------------------------------------------------------ shapes, for torch.compile and device "meta"


def _result(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    return x.new_empty(x.shape, dtype=dtype)


def _nothing(x: Tensor) -> Tensor:
    return x.new_empty((0,))


def _rms_norm_shapes(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    rounding: int = 0,
    weight_offset: float = 0,
    eps_placement: int = 0,
    divisor: float = 0,
    factor: float = 1,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return _result(x, dtype)


def _backward_shapes(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor | None,
    dsum: Tensor | None,
    wants_dx: bool,
    wants_dw: bool,
    eps: float = 1e-5,
    weight_offset: float = 0,
    eps_placement: int = 0,
    divisor: float = 0,
) -> tuple[Tensor, Tensor]:
    dx = _result(x, None) if wants_dx else _nothing(x)
    return dx, _result(weight, None) if wants_dw and weight is not None else _nothing(x)


def _fused_shapes(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    rounding: int = 0,
    weight_offset: float = 0,
    residual_rounding: int = 0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    has_rstd = residual_rounding == WORDS["residual_rounding"]["unrounded"]
    rstd = x.new_empty(x.shape[:-1] if has_rstd else (0,), dtype=torch.float32)
    return _result(x, dtype), _result(residual, None), rstd


def _fused_in_place_shapes(x: Tensor, residual: Tensor, *options: Any) -> None:
    pass


def _gated_shapes(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    rounding: int = 0,
    weight_offset: float = 0,
    activation: int = 0,
    gate_placement: int = 0,
    gate_rounding: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    return _result(x, dtype)


def _qk_shapes(q: Tensor, k: Tensor, *options: Any) -> tuple[Tensor, Tensor]:
    return _result(q, None), _result(k, None)


_SHAPES: dict[str, Callable[..., Any]] = {
    "rms_norm": _rms_norm_shapes,
    "rms_norm_no_grad": _rms_norm_shapes,
    "rms_norm_backward": _backward_shapes,
    "rms_norm_backward_no_grad": _backward_shapes,
    "fused_add_rms_norm": _fused_shapes,
    "fused_add_rms_norm_no_grad": _fused_shapes,
    "fused_add_rms_norm_": _fused_in_place_shapes,
    "gated": _gated_shapes,
    "gated_no_grad": _gated_shapes,
    "qk": _qk_shapes,
    "qk_no_grad": _qk_shapes,
}
for _name, _shapes in _SHAPES.items():
    torch.library.register_fake(f"rmsnorm::{_name}", _shapes)


# --------------------------------------------------------------------------------- public functions


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    eps_placement: str = "inside",
    rounding: str = "after_weight",
    weight_offset: float = 0.0,
    divisor: float = 0.0,
    factor: float = 1.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the norm of x, of x's shape and of `dtype`, x's type by default.

    x is [..., d] and weight is [d] or absent. The sum of squares is divided by `divisor`, where 0
    means d. x is first multiplied by `factor` and rounded to its type. x and weight have gradients.
    """
    inputs = (
        x,
        weight,
        eps,
        _number("rounding", rounding),
        weight_offset,
        _number("eps_placement", eps_placement),
        divisor,
        factor,
        dtype,
    )
    call = _RMS_NORM.with_gradients if _is_recorded(x, weight) else _RMS_NORM.no_grad
    y: Tensor = call(*inputs)
    return y


def fused_add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    rounding: str = "after_weight",
    residual_rounding: str = "rounded",
    weight_offset: float = 0.0,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """Returns y, the norm of residual + x, and residual_out, that sum in the type of residual.

    x and residual are [..., d], and so are the results. y has the type `dtype`, x's by default.
    weight is [d] or absent. x, residual and weight have gradients.
    """
    inputs = (
        x,
        residual,
        weight,
        eps,
        _number("rounding", rounding),
        weight_offset,
        _number("residual_rounding", residual_rounding),
        dtype,
    )
    operator = _FUSED_ADD_RMS_NORM
    call = operator.with_gradients if _is_recorded(x, residual, weight) else operator.no_grad
    y, residual_out, _ = call(*inputs)
    return y, residual_out


def fused_add_rms_norm_(
    x: Tensor,
    residual: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    rounding: str = "after_weight",
    residual_rounding: str = "rounded",
    weight_offset: float = 0.0,
) -> None:
    """Writes what fused_add_rms_norm() returns: y over x, and residual_out over residual.

    x and residual are [..., d], and their last dimension must be contiguous. weight is [d] or
    absent. There are no gradients: where an argument needs one, the call raises RuntimeError.
    """
    _OPS.fused_add_rms_norm_.default(
        x,
        residual,
        weight,
        eps,
        _number("rounding", rounding),
        weight_offset,
        _number("residual_rounding", residual_rounding),
    )


def gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    *,
    activation: str = "silu",
    gate_placement: str = "after",
    gate_rounding: str = "unrounded",
    rounding: str = "after_weight",
    weight_offset: float = 0.0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Returns the norm of x, times an activation of the gate, of `dtype`, x's type by default.

    x and gate are [..., d] and weight is [d] or absent. With gate_placement="before" it is the norm
    of x times the activation. x, gate and weight have gradients.
    """
    inputs = (
        x,
        gate,
        weight,
        eps,
        _number("rounding", rounding),
        weight_offset,
        _number("activation", activation),
        _number("gate_placement", gate_placement),
        _number("gate_rounding", gate_rounding),
        dtype,
    )
    call = _GATED.with_gradients if _is_recorded(x, gate, weight) else _GATED.no_grad
    y: Tensor = call(*inputs)
    return y


def qk(
    q: Tensor,
    k: Tensor,
    q_weight: Tensor | None,
    k_weight: Tensor | None,
    eps: float = 1e-5,
    *,
    rounding: str = "after_weight",
    weight_offset: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Returns the norms of q and k, as rms_norm() does, from one call of the library.

    q and k are [..., d], with leading dimensions and d of their own. q_weight is [d] of q, and
    k_weight is [d] of k; either may be None. All four have gradients.
    """
    number = _number("rounding", rounding)
    call = _QK.with_gradients if _is_recorded(q, k, q_weight, k_weight) else _QK.no_grad
    q_norm, k_norm = call(q, k, q_weight, k_weight, eps, number, weight_offset)
    return q_norm, k_norm


_FLOAT32_EPSILON = torch.finfo(torch.float32).eps


class RMSNorm(torch.nn.RMSNorm):
    """A torch.nn.RMSNorm, with the same arguments and state_dict, that calls rms_norm().

    rounding and weight_offset are as in rms_norm(). weight_offset + weight is 1 at first. The norm
    is over the last dimensions of x, which are those of normalized_shape. Another shape of x raises
    RuntimeError.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        rounding: str = "after_weight",
        weight_offset: float = 0.0,
    ) -> None:
        _number("rounding", rounding)
        # The constructor of the class below resets the weight, which needs the offset.
        self.rounding = rounding
        self.weight_offset = weight_offset
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        """Makes weight_offset + weight 1."""
        if self.elementwise_affine:
            torch.nn.init.constant_(self.weight, 1 - self.weight_offset)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the norm of x, in x's shape and type."""
        # torch.nn.RMSNorm computes in float32, too, and takes its epsilon.
        eps = _FLOAT32_EPSILON if self.eps is None else self.eps
        weight: Tensor | None = self.weight
        rounding, offset = self.rounding, self.weight_offset
        ndim = len(self.normalized_shape)
        if ndim == 1 and weight is not None:
            return rms_norm(x, weight, eps, rounding=rounding, weight_offset=offset)
        if x.shape[-ndim:] != self.normalized_shape:
            raise RuntimeError(
                f"x: the shape {tuple(x.shape)} does not end in {self.normalized_shape}"
            )
        weight = None if weight is None else weight.flatten()
        y = rms_norm(x.flatten(-ndim), weight, eps, rounding=rounding, weight_offset=offset)
        return y.view(x.shape)

    def extra_repr(self) -> str:
        """Returns the arguments, for the text of a model."""
        text = super().extra_repr()
        if self.rounding != "after_weight":
            text += f", rounding={self.rounding}"
        if self.weight_offset != 0:
            text += f", weight_offset={self.weight_offset}"
        return text

# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.rmsnorm.*, with their gradients, shapes and rules for vmap.

python/torch/operators.cc registers them:

    norm        returns [y], or [y, residual_out] with a residual; has gradients
    backward    the gradients of a norm of rows by x, weight and bias
    forward     writes the outputs that are given; has no gradients
    norms       the norms of several tensors with common options, in one call; has no gradients
    norms.each  several calls of `norm` in one; has no gradients
    rms_norm    the y of `norm` without other operands; has no gradients

`norm`, `backward` and `forward` exist twice. PyTorch takes some microseconds for a call that goes
through autograd's part in Python, so `norm_no_grad`, `backward_no_grad` and `forward_no_grad` skip
it.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from .._library import path_of_operators
from . import _composite
from ._composite import DTYPE_CODES, DTYPES, Options, has_word

__all__ = [
    "FORWARD",
    "NORM",
    "NORMS",
    "NORMS_EACH",
    "OUTPUTS",
    "RMS_NORM",
    "is_compiling",
    "is_grad_enabled",
    "is_transformed",
    "names_of",
    "requires_grad",
    "tracing_state",
    "write",
]

_PATH = path_of_operators("rmsnorm_torch", "PyTorch")
torch.ops.load_library(_PATH)  # type: ignore[no-untyped-call]

_OPS = torch.ops.rmsnorm
_LIBRARY: Any = torch.library.Library("rmsnorm", "FRAGMENT")  # type: ignore[no-untyped-call]

# What a call asks PyTorch, by names without a look-up.
is_compiling = torch.compiler.is_compiling
is_grad_enabled = torch.is_grad_enabled
is_transformed = torch._C._are_functorch_transforms_active
tracing_state = torch._C._get_tracing_state

FORWARD = _OPS.forward.default
_FORWARD_NO_GRAD = _OPS.forward_no_grad.default
NORMS = _OPS.norms.default
NORMS_EACH = _OPS.norms.each
RMS_NORM = _OPS.rms_norm.default


def requires_grad(*values: Any) -> bool:
    """Returns whether autograd must record a call with these arguments."""
    if is_grad_enabled():
        for value in values:
            if isinstance(value, Tensor) and value.requires_grad:
                return True
    return False


def names_of(operator: Any) -> tuple[str, ...]:
    """Returns the names of an operator's arguments."""
    return tuple(argument.name for argument in operator._schema.arguments)


# --------------------------------------------------------- shapes, without memory to compute in


_WORDS_OF = {DTYPES: "float32, float16 or bfloat16", (torch.int8,): "int8"}


def _check(x: Tensor, rows: dict[str, Tensor | None], columns: dict[str, Tensor | None]) -> None:
    """Raises RuntimeError where operands are not on x's device or do not have the shapes of x."""
    if x.ndim == 0:
        raise RuntimeError("x: 0 dimensions; it must have at least one")
    for name, tensor in {"x": x, **rows, **columns}.items():
        if tensor is None:
            continue
        if tensor.device != x.device:
            raise RuntimeError(f"{name}: it is on {tensor.device}, and x is on {x.device}")
        dtypes = {"q": (torch.int8,), "zero": (torch.int8,)}.get(name, DTYPES)
        if tensor.dtype not in dtypes:
            raise RuntimeError(f"{name}: the type must be {_WORDS_OF[dtypes]}")
        shape = x.shape[-1:] if name in columns else x.shape
        if name in ("rstd", "scale", "zero"):
            shape = x.shape[:-1]
        if tensor.shape != shape:
            raise RuntimeError(
                f"{name}: the shape {tuple(tensor.shape)}; it must be {tuple(shape)}, as x has "
                f"{tuple(x.shape)}"
            )


def _empty(like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    return like.new_empty(like.shape, dtype=dtype)


def _norm_shapes(
    x: Tensor,
    weight: Tensor | None = None,
    eps: float = 1e-5,
    words: int = 0,
    weight_offset: float = 0,
    dtype: torch.dtype | None = None,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    bias: Tensor | None = None,
    post_norm_weight: Tensor | None = None,
    divisor: float = 0,
    factor: float = 1,
) -> list[Tensor]:
    columns = {"weight": weight, "bias": bias, "post_norm_weight": post_norm_weight}
    _check(x, {"residual": residual, "gate": gate}, columns)
    outputs = [_empty(x, dtype)]
    if residual is not None:
        outputs.append(x.new_empty(x.shape, dtype=residual.dtype))
        if has_word(words, "residual_rounding", "unrounded"):
            outputs.append(x.new_empty(x.shape[:-1], dtype=torch.float32))
    return outputs


def _backward_shapes(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor | None,
    dsum: Tensor | None,
    wants_dx: bool,
    wants_dw: bool,
    wants_db: bool,
    *options: Any,
) -> list[Tensor]:
    _check(x, {"dy": dy, "rstd": rstd, "dsum": dsum}, {"weight": weight, "bias": bias})
    wanted = ((x, wants_dx), (weight, wants_dw), (bias, wants_db))
    return [_empty(tensor) for tensor, is_wanted in wanted if is_wanted and tensor is not None]


_ROWS_OF_FORWARD = ("residual", "gate", "y", "residual_out", "q", "rstd", "scale", "zero")
_ARGUMENTS_OF_FORWARD = names_of(FORWARD)


def _forward_shapes(*values: Any, **named: Any) -> None:
    given = dict(zip(_ARGUMENTS_OF_FORWARD, values, strict=False)) | named
    columns = {name: given.get(name) for name in ("weight", "bias", "post_norm_weight")}
    _check(given["x"], {name: given.get(name) for name in _ROWS_OF_FORWARD}, columns)


def _norms_shapes(xs: list[Tensor], weights: list[Tensor | None], *options: Any) -> list[Tensor]:
    return _shapes_of_all(xs, weights)


def _norms_each_shapes(*columns: list[Any]) -> list[Tensor]:
    dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}
    return _shapes_of_all(*columns[:5], [dtypes[code] for code in columns[5]], *columns[6:])


def _shapes_of_all(*columns: list[Any]) -> list[Tensor]:
    """Returns y and residual_out of each of several norms. Columns are arguments of `norm`."""
    outputs = []
    for i, inputs in enumerate(zip(*columns, strict=True)):
        try:
            outputs += _norm_shapes(*inputs)[:2]
        except RuntimeError as error:
            raise RuntimeError(f"calls[{i}].{error}") from None
    return outputs


# ------------------------------------------------------------------------------------- gradients


class Operator:
    """An operator with gradients, called in the cheapest way that is right.

    PyTorch takes some 50 microseconds for a call with gradients of an operator whose formula it
    was told, and some 5 without gradients. torch.autograd.Function takes 5 and 0. So the formula
    serves torch.compile, torch.jit.trace and those who call the operator themselves, and a Function
    everyone else. Of the two kinds of Function only the slower one can be part of torch.func's
    transforms.
    """

    def __init__(
        self,
        name: str,
        setup_context: Callable[[Any, tuple[Any, ...], Any], None],
        backward: Callable[..., Any],
        columns: tuple[int, ...],
        shapes: Callable[..., list[Tensor]],
    ) -> None:
        """`columns` are the places of the arguments that rows share; all others have a dimension
        more where vmap maps them."""
        self.columns = columns
        self.operator = getattr(_OPS, name).default
        self.no_grad = no_grad = getattr(_OPS, f"{name}_no_grad").default

        def forward(ctx: Any, *inputs: Any) -> Any:
            output = tuple(no_grad(*inputs))
            setup_context(ctx, inputs, output)
            return output

        members: dict[str, Any] = {
            "forward": staticmethod(forward),
            "backward": staticmethod(backward),
        }
        self.function: Any = type(f"rmsnorm_{name}", (torch.autograd.Function,), members)
        members |= {
            "forward": staticmethod(lambda *inputs: tuple(no_grad(*inputs))),
            "setup_context": staticmethod(setup_context),
            "vmap": staticmethod(functools.partial(self.vmap, lambda *each: tuple(self(*each)))),
        }
        self.transform: Any = type(f"rmsnorm_{name}", (torch.autograd.Function,), members)
        torch.library.register_autograd(self.operator, backward, setup_context=setup_context)
        for operator in (self.operator, self.no_grad):
            torch.library.register_vmap(operator, functools.partial(self.vmap, operator))
            torch.library.register_fake(operator, shapes)
        _LIBRARY.impl(f"{name}_no_grad", torch.library.fallthrough_kernel, "Autograd")

    def __call__(self, *inputs: Any) -> Any:
        if is_compiling() or tracing_state() is not None:
            return self.operator(*inputs)
        if is_transformed():
            return self.transform.apply(*inputs)
        return (self.function.apply if requires_grad(*inputs) else self.no_grad)(*inputs)

    def vmap(self, call: Callable[..., Any], info: Any, in_dims: Any, *inputs: Any) -> Any:
        """Calls the operator once for all where they share the weights, and else one by one."""
        size = info.batch_size
        in_dims = (*in_dims, *[None] * (len(inputs) - len(in_dims)))
        mapped = {place for place, dim in enumerate(in_dims) if dim is not None}
        if self.columns and not mapped.intersection(self.columns):
            output = call(
                *(
                    value
                    if not isinstance(value, Tensor) or place in self.columns
                    else value.expand(size, *value.shape)
                    if dim is None
                    else value.movedim(dim, 0)
                    for place, (value, dim) in enumerate(zip(inputs, in_dims, strict=True))
                )
            )
        else:
            outputs = [call(*each) for each in _each(size, in_dims, inputs)]
            output = type(outputs[0])(map(torch.stack, zip(*outputs, strict=True)))
        return output, type(output)(0 for _ in output)


def _each(size: int, in_dims: Any, inputs: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Yields the arguments of each call that vmap maps."""
    for i in range(size):
        yield [
            value if dim is None else value.select(dim, i)
            for value, dim in zip(inputs, in_dims, strict=True)
        ]


def _wanted(ctx: Any, *places: int) -> list[bool]:
    """Returns which inputs need gradients. PyTorch leaves out inputs at their defaults."""
    needs = ctx.needs_input_grad
    return [place < len(needs) and bool(needs[place]) for place in places]


def _for_inputs(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns a gradient for each input. PyTorch 2.10 takes no more than these."""
    count = len(ctx.needs_input_grad)
    return (*gradients, *[None] * count)[:count]


def _keep(ctx: Any, *tensors: Tensor | None) -> None:
    """Keeps tensors for the gradients. Autograd refuses those made in torch.inference_mode()."""
    ctx.save_for_backward(
        *[t.clone() if t is not None and t.is_inference() else t for t in tensors]
    )


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, x, weight, bias, _, dsum = inputs[:6]
    ctx.wanted = inputs[6:9]
    ctx.options = Options(*inputs[9:])
    ctx.set_materialize_grads(False)
    _keep(ctx, dy, x, weight, bias, dsum)


def _second_gradients(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    """Differentiates the gradients, by the formula in PyTorch's operations."""
    operands = ctx.saved_tensors
    given = [tensor for tensor in operands if tensor is not None]

    def first(*tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        dy, x, weight, bias, dsum = (None if t is None else next(rest) for t in operands)
        assert dy is not None and x is not None
        return _composite.backward(dy, x, weight, bias, dsum, ctx.wanted, ctx.options)

    outputs, pull, *_ = torch.func.vjp(first, *given)
    cotangents = [
        torch.zeros_like(output) if gradient is None else gradient.to(output.dtype)
        for output, gradient in zip(outputs, _flat(gradients), strict=True)
    ]
    pulled = iter(pull(cotangents))
    dy, x, weight, bias, dsum = (None if t is None else next(pulled) for t in operands)
    return _for_inputs(ctx, dy, x, weight, bias, None, dsum)


def _flat(gradients: tuple[Any, ...]) -> tuple[Tensor | None, ...]:
    """Returns the gradients of an operator's results, which PyTorch hands over as one list."""
    is_list = len(gradients) == 1 and isinstance(gradients[0], list | tuple)
    return tuple(gradients[0]) if is_list else gradients


BACKWARD = Operator("backward", _backward_setup, _second_gradients, (), _backward_shapes)


# The defaults of the operator's last arguments, which a call may leave out.
_NO_ROWS = (None, None, None, None, 0.0, 1.0)


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    rows = (*inputs[6:], *_NO_ROWS[len(inputs) - 6 :])
    x, weight, eps, words, weight_offset = inputs[:5]
    residual, gate, bias, post_norm_weight, divisor, ctx.factor = rows
    ctx.options = Options(eps, words, weight_offset, divisor)
    ctx.x_dtype = x.dtype
    _, residual_out, rstd = (*output, None, None)[:3]
    if rstd is not None:
        ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    needs_x = residual is None or post_norm_weight is not None
    kept = (residual_out, gate, weight, bias, post_norm_weight, rstd)
    _keep(ctx, x if needs_x else None, *kept)


def _norm_gradients(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    dy, dsum, _ = (*_flat(gradients), None, None)[:3]
    x, residual_out, gate, weight, bias, post_norm_weight, rstd = ctx.saved_tensors
    wants_x, wants_weight, wants_residual, wants_gate, wants_bias, wants_post = _wanted(
        ctx, 0, 1, 6, 7, 8, 9
    )
    options: Options = ctx.options
    words = options.words
    gate_is_before = gate is not None and has_word(words, "gate_placement", "before")
    activated: Any = None
    slope: Any = None
    scaled: Any = None
    if gate is not None:
        activated, slope = _composite.activation(gate, words)

    # h is the input of the last norm.
    if residual_out is not None:
        h = residual_out
    else:
        h = x
        if post_norm_weight is not None:
            h = _norm(h, post_norm_weight, options, x.dtype)
        if ctx.factor != 1:
            h = h * ctx.factor
        scaled = h
        if gate_is_before:
            h = h.float() * activated

    dh, dw, db, dgate = dsum, None, None, None
    if dy is not None:
        dm = dy.float() * activated if gate is not None and not gate_is_before else dy
        wants_dh = wants_x or wants_residual or wants_post or gate_is_before and wants_gate
        wanted = (wants_dh, wants_weight, wants_bias)
        dh, dw, db = _gradients_of_rows(dm, h, weight, bias, rstd, dsum, wanted, options)
        if wants_gate and not gate_is_before:
            dgate = dy.float() * _norm(h, weight, options, torch.float32, bias) * slope
    dx, dpost = dh, None
    if gate_is_before and dh is not None:
        if wants_gate:
            dgate = dh * scaled.float() * slope
        dx = dh * activated
    if ctx.factor != 1 and dx is not None:
        dx = dx * ctx.factor
    if post_norm_weight is not None and dx is not None:
        wanted = (wants_x, wants_post, False)
        dx, dpost, _ = _gradients_of_rows(
            dx, x, post_norm_weight, None, None, None, wanted, options
        )
    return _for_inputs(
        ctx,
        dx.to(ctx.x_dtype) if wants_x and dx is not None else None,
        dw,
        *[None] * 4,
        dh if wants_residual else None,
        dgate.to(gate.dtype) if dgate is not None else None,
        db,
        dpost,
    )


def _norm(
    x: Tensor,
    weight: Tensor | None,
    options: Options,
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Returns the norm of rows without another operand."""
    eps, words, weight_offset, divisor = options
    offset = 0.0 if weight is None else weight_offset
    words &= _composite.WORDS_OF_NORM
    y: Tensor = NORM(x, weight, eps, words, offset, dtype, None, None, bias, None, divisor, 1.0)[0]
    return y


def _gradients_of_rows(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor | None,
    dsum: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: Options,
) -> list[Tensor | None]:
    """Returns the gradients by x, weight and bias, and None where one is not wanted."""
    eps, words, weight_offset, divisor = options
    offset = 0.0 if weight is None else weight_offset
    words &= _composite.WORDS_OF_BACKWARD
    results = BACKWARD(dy, x, weight, bias, rstd, dsum, *wanted, eps, words, offset, divisor)
    rest = iter(results)
    return [next(rest) if is_wanted else None for is_wanted in wanted]


NORM = Operator("norm", _norm_setup, _norm_gradients, (1, 8, 9), _norm_shapes)


# ------------------------------------------------------------------ the operators without gradients

OUTPUTS = ("y", "residual_out", "q", "rstd", "scale", "zero")
_PLACES_OF_OUTPUTS = tuple(_ARGUMENTS_OF_FORWARD.index(name) for name in OUTPUTS)


def _outputs_of(inputs: tuple[Any, ...]) -> list[Tensor]:
    values = (inputs[place] for place in _PLACES_OF_OUTPUTS if place < len(inputs))
    return [value for value in values if value is not None]


def _refuse_gradients(keys: Any, *inputs: Any) -> None:
    from torch.autograd import forward_ad

    if requires_grad(*inputs) or forward_ad._current_level >= 0:
        raise RuntimeError(
            "rmsnorm.torch.forward() and fused_add_rms_norm_() have no gradients: call rms_norm() "
            "or fused_add_rms_norm(), or call in torch.no_grad() or torch.inference_mode()"
        )
    with torch._C._AutoDispatchBelowAutograd():
        FORWARD.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


def _check_writable(outputs: list[Tensor]) -> None:
    if not torch.is_inference_mode_enabled() and any(map(Tensor.is_inference, outputs)):
        raise RuntimeError(
            "an inference tensor cannot be written outside torch.inference_mode(): "
            "make a clone of it, which is a normal tensor"
        )


def _tell_of_changes(keys: Any, *inputs: Any) -> None:
    """Tells autograd that outputs have changed, as PyTorch's own operators do."""
    outputs = _outputs_of(inputs)
    _check_writable(outputs)
    FORWARD.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *inputs)
    torch.autograd.graph.increment_version(outputs)


def _map_forward(info: Any, in_dims: Any, *inputs: Any) -> tuple[None, None]:
    """Calls the operator for each of the rows that vmap maps."""
    if any(
        inputs[place] is not None and in_dims[place] is None
        for place in _PLACES_OF_OUTPUTS
        if place < len(inputs)
    ):
        raise RuntimeError(
            "vmap: an input of rmsnorm.torch.forward() is mapped, and an output is not, so that it "
            "has no place for all results"
        )
    for each in _each(info.batch_size, in_dims, inputs):
        FORWARD(*each)
    return None, None


def write(outputs: list[Tensor], *inputs: Any) -> None:
    """Calls FORWARD where autograd records nothing, without its detours through Python.

    outputs are those of the inputs that are written.
    """
    _check_writable(outputs)
    _FORWARD_NO_GRAD(*inputs)
    torch._C._increment_version(outputs)


for _name, _key in (
    ("forward_no_grad", "Autograd"),
    ("forward_no_grad", "ADInplaceOrView"),
    ("rms_norm", "Autograd"),
    ("norms", "Autograd"),
    ("norms.each", "Autograd"),
):
    _LIBRARY.impl(_name, torch.library.fallthrough_kernel, _key)
_LIBRARY.impl("forward", _refuse_gradients, "Autograd", with_keyset=True)
_LIBRARY.impl("forward", _tell_of_changes, "ADInplaceOrView", with_keyset=True)
torch.library.register_vmap(FORWARD, _map_forward)
torch.library.register_fake(FORWARD, _forward_shapes)
torch.library.register_fake(_FORWARD_NO_GRAD, _forward_shapes)
torch.library.register_fake(NORMS, _norms_shapes)
torch.library.register_fake(NORMS_EACH, _norms_each_shapes)
torch.library.register_fake(RMS_NORM, lambda *inputs: _norm_shapes(*inputs)[0])

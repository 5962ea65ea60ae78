# SPDX-License-Identifier: Apache-2.0
"""The operators torch.ops.rmsnorm.*, with their gradients, shapes and rules for vmap.

python/torch/operators.cc registers them:

    norm        returns [y], or [y, residual_out] with a residual; has gradients
    backward    the gradients of a norm of rows by x, weight and bias
    forward     writes the outputs that are given; has no gradients
    norms       the norms of several tensors with common options, in one call; has no gradients
    norms.each  several calls of `norm` in one; has no gradients
    rms_norm    the y of `norm` without other operands; has no gradients

The argument `options` is what packed() returns. The tensors of `norm` and `forward` beside x are
those of the tables kInputs and kOutputs there.

`norm`, `backward` and `forward` exist twice. PyTorch takes some microseconds for a call that goes
through autograd's part in Python, so `norm_no_grad`, `backward_no_grad` and `forward_no_grad` skip
it.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .._library import MAX_DIMS, path_of_operators
from . import _composite
from ._composite import DTYPE_CODES
from ._options import constant_result, kept, unpacked

_PATH = path_of_operators("rmsnorm_torch", "PyTorch")
torch.ops.load_library(_PATH)  # type: ignore[no-untyped-call]

_OPS = torch.ops.rmsnorm
_LIBRARY: Any = torch.library.Library("rmsnorm", "FRAGMENT")  # type: ignore[no-untyped-call]

# What a call asks PyTorch, by names without a look-up.
has_modes = torch._C._len_torch_dispatch_stack
is_compiling = torch.compiler.is_compiling
is_exporting = torch.compiler.is_exporting
is_grad_enabled = torch.is_grad_enabled
is_transformed = torch._C._are_functorch_transforms_active
tracing_state = torch._C._get_tracing_state

FORWARD = _OPS.forward.default
_FORWARD_NO_GRAD = _OPS.forward_no_grad.default
NORM_NO_GRAD: Callable[..., list[Tensor]] = _OPS.norm_no_grad.default
NORMS: Callable[..., list[Tensor]] = _OPS.norms.default
NORMS_EACH: Callable[..., list[Tensor]] = _OPS.norms.each
RMS_NORM: Callable[..., Tensor] = _OPS.rms_norm.default


def _is_compiled() -> bool:
    """Returns whether AOTAutograd traces a call, and not for torch.export."""
    mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL)
    return mode is not None and not (mode.export or is_exporting())


@constant_result
def has_transform(name: str) -> bool:
    """Returns whether a call is part of this transform of torch.func."""
    levels = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key().name == name for level in levels)


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


# The tensors of `norm` in the order of its arguments, and the outputs that `forward` writes.
INPUTS = ("x", *names_of(_OPS.norm.default)[3:])
OUTPUTS = names_of(FORWARD)[len(INPUTS) + 1 :]

# The tensors that rows share: each leading dimension is x's or 1.
SHARED = frozenset(("weight", "bias", "post_norm_weight", "cos", "sin"))


# --------------------------------------------------------- shapes, without memory to compute in


def _check_devices(x: Tensor, others: dict[str, Tensor | None]) -> None:
    """Raises RuntimeError where operands are on two devices. PyTorch calls these functions, not the
    operators, where one operand is on meta."""
    for name, tensor in others.items():
        if tensor is not None and tensor.device != x.device:
            raise RuntimeError(f"{name}: it is on {tensor.device}, and x is on {x.device}")


def _norm_shapes(
    x: Tensor, options: str, dtype: torch.dtype | None = None, *tensors: Tensor | None, **named: Any
) -> list[Tensor]:
    others = dict(zip(INPUTS[1:], tensors, strict=False)) | named
    _check_devices(x, others)
    outputs = [x.new_empty(x.shape, dtype=dtype)]
    residual = others.get("residual")
    if residual is not None:
        outputs.append(x.new_empty(x.shape, dtype=residual.dtype))
        if unpacked(options).residual_rounding == "unrounded":
            outputs.append(x.new_empty(x.shape[:-1], dtype=torch.float32))
    return outputs


def _backward_shapes(*inputs: Any) -> list[Tensor]:
    dy, x, weight, bias, rstd, dsum, *wanted, _, cos, sin = (*inputs, None, None)[:12]
    others = {"dy": dy, "rstd": rstd, "dsum": dsum, "weight": weight, "bias": bias}
    _check_devices(x, others | {"cos": cos, "sin": sin})
    pairs = zip((x, weight, bias), wanted, strict=True)
    return [t.new_empty(t.shape) for t, is_wanted in pairs if is_wanted and t is not None]


def _forward_shapes(x: Tensor, options: str, *tensors: Tensor | None, **named: Any) -> None:
    _check_devices(x, dict(zip((*INPUTS[1:], *OUTPUTS), tensors, strict=False)) | named)


def _norms_shapes(xs: list[Tensor], weights: list[Tensor | None], options: str) -> list[Tensor]:
    return _shapes_of_all((x, options, None, w) for x, w in zip(xs, weights, strict=True))


def _norms_each_shapes(
    tensors: list[Tensor | None], options: list[str], codes: list[int]
) -> list[Tensor]:
    dtypes = {code: dtype for dtype, code in DTYPE_CODES.items()}
    rows = zip(*[iter(tensors)] * len(INPUTS), strict=True)
    return _shapes_of_all(
        (x, chosen, dtypes[code], *others)
        for (x, *others), chosen, code in zip(rows, options, codes, strict=True)
    )


def _shapes_of_all(calls: Iterable[tuple[Any, ...]]) -> list[Tensor]:
    """Returns y and residual_out of each of several calls of `norm`."""
    outputs: list[Tensor] = []
    for i, inputs in enumerate(calls):
        own, first = inputs[0].device, (outputs or inputs)[0].device
        if own != first:
            raise RuntimeError(f"calls[{i}].x: it is on {own}, and calls[0].x is on {first}")
        try:
            outputs += _norm_shapes(*inputs)[:2]
        except RuntimeError as error:
            raise RuntimeError(f"calls[{i}].{error}") from None
    return outputs


# ------------------------------------------------------------------------------------- gradients


class Operator:
    """An operator with gradients, called in the cheapest way that is right.

    PyTorch takes some 50 microseconds for a call with gradients of an operator whose formula is in
    Python, and some 5 without gradients. torch.autograd.Function takes 5 and 0. So the formula
    serves torch.export, torch.jit.trace, make_fx and those who call the operator themselves, and a
    Function everyone else. Of the two kinds of Function only the slower one can be part of
    torch.func's transforms. Compiled code holds the operators without gradients, as AOTAutograd
    records the formula.
    """

    def __init__(
        self,
        name: str,
        setup_context: Callable[[Any, tuple[Any, ...], Any], None],
        backward: Callable[..., Any],
        shapes: Callable[..., list[Tensor]],
        formula: Callable[..., list[Tensor]],
        short: Callable[..., list[Tensor]] | None = None,
        *,
        is_joint: bool,
    ) -> None:
        """`formula` computes the results in PyTorch's operations, and `short` what the operator
        without gradients does. `is_joint` says whether vmap makes one call instead of many."""
        self.is_joint, self.formula = is_joint, formula
        self.operator = getattr(_OPS, name).default
        operator_no_grad = getattr(_OPS, f"{name}_no_grad").default
        self.no_grad = no_grad = short or operator_no_grad

        def forward(ctx: Any, *inputs: Any) -> Any:
            given, call = inputs[:-1], inputs[-1]
            output = tuple(call(*given))
            setup_context(ctx, given, output)
            return output

        def function(kind: str, **members: Callable[..., Any]) -> Any:
            members = {"backward": backward, **members}
            static = {member: staticmethod(f) for member, f in members.items()}
            return type(f"rmsnorm_{name}_{kind}", (torch.autograd.Function,), static)

        self.function = function("eager", forward=forward)  # its last input computes the results
        self.transform = function(
            "transformed",
            forward=lambda *inputs: tuple(no_grad(*inputs)),
            setup_context=setup_context,
            vmap=functools.partial(self.vmap, lambda *each: tuple(self(*each))),
        )
        for operator in (self.operator, operator_no_grad):
            torch.library.register_vmap(operator, functools.partial(self.vmap, operator))
            torch.library.register_fake(operator, shapes)
        rule = functools.partial(self._map_batched, operator_no_grad)
        _LIBRARY.impl(f"{name}_no_grad", rule, "Batched")
        _LIBRARY.impl(name, self._differentiate, "Autograd", with_keyset=True)
        _LIBRARY.impl(f"{name}_no_grad", torch.library.fallthrough_kernel, "Autograd")

    def __call__(self, *inputs: Any) -> Sequence[Tensor]:
        call: Callable[..., Sequence[Tensor]] = self.no_grad
        if forward_ad._current_level >= 0:  # also of gradients whose norm had no tangent
            call = self.formula
        elif is_compiling() or has_modes() or tracing_state() is not None:  # they record the call
            call = self.operator
        elif is_transformed():
            call = self.operator if has_transform("Functionalize") else self.transform.apply
        elif requires_grad(*inputs):
            call, inputs = self.function.apply, (*inputs, call)
        return call(*inputs)

    def _differentiate(self, keys: Any, *inputs: Any) -> Any:
        """The operator as autograd calls it."""
        records = requires_grad(*inputs)
        if forward_ad._current_level >= 0 or records and is_transformed():
            # A program that was recorded, and may read rstd. The library refuses what is wrong.
            given = self._redispatch(keys, *inputs)
            outputs = self.formula(*inputs)
            return [*outputs, *given[len(outputs) :]]
        is_compiled = _is_compiled() and not is_transformed()
        call = self.no_grad if is_compiled else functools.partial(self._redispatch, keys)
        return list(self.function.apply(*inputs, call)) if records else call(*inputs)

    def _redispatch(self, keys: Any, *inputs: Any) -> Any:
        """Calls the operator below autograd."""
        with torch._C._AutoDispatchBelowAutograd():
            return self.operator.redispatch(keys & torch._C._after_autograd_keyset, *inputs)

    def _map_batched(self, operator: Any, *inputs: Any) -> list[Tensor]:
        """The operator under the vmap of torch.autograd, which is not that of torch.func:
        torch.autograd.grad(..., is_grads_batched=True) and what is made of it."""
        is_mapped = [
            isinstance(value, Tensor) and torch._C._functorch.is_legacy_batchedtensor(value)
            for value in inputs
        ]
        level = torch._C._vmapmode_increment_nesting() - 1
        torch._C._vmapmode_decrement_nesting()
        values = [
            torch._remove_batch_dim(value, level, 1, 0) if mapped else value
            for value, mapped in zip(inputs, is_mapped, strict=True)
        ]
        in_dims = tuple(0 if mapped else None for mapped in is_mapped)
        outputs = torch.vmap(operator, in_dims)(*values)
        return [torch._add_batch_dim(output, 0, level) for output in outputs]

    def vmap(self, call: Callable[..., Any], info: Any, in_dims: Any, *inputs: Any) -> Any:
        """Makes one call of the operator if it can: a view of the library has at most eight
        dimensions, and the gradient by a weight has a dimension of vmap only where the weight does.
        A weight with more dimensions than x, and an x without dimensions, are refused one by one.
        """
        size, ndim = info.batch_size, inputs[0].dim() - (in_dims[0] is not None)
        in_dims = (*in_dims, *[None] * (len(inputs) - len(in_dims)))
        each = list(zip(names_of(self.operator), inputs, in_dims, strict=False))
        fits = all(
            value.dim() - (dim is not None) <= ndim
            for name, value, dim in each
            if name in SHARED and value is not None
        )
        if self.is_joint and fits and 0 < ndim < MAX_DIMS:
            output = call(*(_mapped(*argument, size, ndim) for argument in each))
        else:
            outputs = [call(*each) for each in _each(size, in_dims, inputs)]
            output = type(outputs[0])(map(torch.stack, zip(*outputs, strict=True)))
        return output, type(output)(0 for _ in output)


def _mapped(name: str, value: Any, dim: int | None, size: int, ndim: int) -> Any:
    """Returns an argument with the dimension of vmap in front. A tensor that rows share has it only
    where vmap maps the tensor. `ndim` is the number of dimensions of x without it."""
    if not isinstance(value, Tensor) or dim is None and name in SHARED:
        return value
    if dim is None:
        return value.expand(size, *value.shape)
    value = value.movedim(dim, 0)
    return value[(slice(None), *[None] * (ndim + 1 - value.dim()))] if name in SHARED else value


def _each(size: int, in_dims: Any, inputs: tuple[Any, ...]) -> Iterator[list[Any]]:
    """Yields the arguments of each call that vmap maps."""
    for i in range(size):
        yield [
            value if dim is None else value.select(dim, i)
            for value, dim in zip(inputs, in_dims, strict=True)
        ]


def _for_inputs(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    """Returns a gradient for each input. PyTorch 2.10 takes no more than these."""
    count = len(ctx.needs_input_grad)
    return (*gradients, *[None] * count)[:count]


def _keep(ctx: Any, *tensors: Tensor | None) -> None:
    """Keeps tensors for the gradients. Autograd refuses those made in torch.inference_mode().

    Autograd does not notice changes of a view that compiled code makes and keeps. So compiled code
    keeps the tensor behind the view, and makes the view again.
    """
    kept = [t.clone() if t is not None and t.is_inference() else t for t in tensors]
    ctx.views = [None] * len(kept)
    if has_modes() and _is_compiled():
        for i, t in enumerate(kept):
            if t is not None and t._is_view():
                ctx.views[i] = t._view_func_unsafe
                kept[i] = t._base
    ctx.save_for_backward(*kept)


def _kept(ctx: Any) -> list[Any]:
    """Returns the tensors that _keep() keeps."""
    return [
        t if view is None else _made_again(view, t)
        for t, view in zip(ctx.saved_tensors, ctx.views, strict=True)
    ]


def _made_again(view: Callable[[Tensor], Tensor], base: Tensor) -> Tensor:
    """Makes a view in compiled code, which does not keep it."""
    meta = torch.fx.traceback.current_meta
    meta["recompute"] = torch.utils.checkpoint.CheckpointPolicy.MUST_RECOMPUTE
    try:
        return view(base)
    finally:
        del meta["recompute"]


def _backward_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, x, weight, bias, _, dsum, *wanted, ctx.options, cos, sin = (*inputs, None, None)[:12]
    ctx.wanted = tuple(wanted)
    ctx.set_materialize_grads(False)
    _keep(ctx, dy, x, weight, bias, dsum, cos, sin)


def _second_gradients(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    """Differentiates the gradients, by the formula in PyTorch's operations."""
    *operands, cos, sin = _kept(ctx)
    given = [tensor for tensor in operands if tensor is not None]

    def first(*tensors: Tensor) -> list[Tensor]:
        rest = iter(tensors)
        dy, x, weight, bias, dsum = (None if t is None else next(rest) for t in operands)
        assert dy is not None and x is not None
        return _composite.backward(dy, x, weight, bias, dsum, ctx.wanted, ctx.options, cos, sin)

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


def _backward_by_formula(*inputs: Any) -> list[Tensor]:
    dy, x, weight, bias, _, dsum, *wanted, options, cos, sin = (*inputs, None, None)[:12]
    return _composite.backward(dy, x, weight, bias, dsum, tuple(wanted), options, cos, sin)


BACKWARD = Operator(
    "backward",
    _backward_setup,
    _second_gradients,
    _backward_shapes,
    _backward_by_formula,
    is_joint=False,
)


def _norm_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.options, *_ = inputs
    given = dict(zip(INPUTS[1:], inputs[3:], strict=False))
    ctx.x_dtype = x.dtype
    _, residual_out, rstd = (*output, None, None)[:3]
    if rstd is not None:
        ctx.mark_non_differentiable(rstd)
    ctx.set_materialize_grads(False)
    is_sum = given.get("residual") is not None
    is_gated = given.get("gate") is not None and unpacked(ctx.options).gate_placement == "before"
    needs_x = not is_sum or is_gated or given.get("post_norm_weight") is not None
    names = ("weight", "gate", "bias", "post_norm_weight")
    tables = () if given.get("cos") is None else (given["cos"], given["sin"])
    _keep(ctx, x if needs_x else None, residual_out, rstd, *map(given.get, names), *tables)


def _norm_gradients(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
    dy, dsum, _ = (*_flat(gradients), None, None)[:3]
    x, residual_out, rstd, weight, gate, bias, post_norm_weight, *tables = _kept(ctx)
    # PyTorch leaves out inputs at their defaults.
    wanted_inputs = (ctx.needs_input_grad[0], *ctx.needs_input_grad[3:])
    wants = dict.fromkeys(INPUTS, False) | dict(zip(INPUTS, wanted_inputs, strict=False))
    options = unpacked(ctx.options)
    factor = options.factor or 1.0
    gate_is_before = gate is not None and options.gate_placement == "before"
    activated: Any = None
    slope: Any = None
    scaled: Any = None
    if gate is not None:
        activated, slope = _composite.activation(gate, options.activation)

    # h is the input of the last norm, and scaled what a gate before it multiplies.
    if residual_out is None or gate_is_before and wants["gate"]:
        scaled = x
        if post_norm_weight is not None:
            scaled = _norm(x, post_norm_weight, ctx.options, x.dtype)
        if factor != 1:
            scaled = scaled * factor
    if residual_out is not None:
        h = residual_out
    else:
        h = scaled
        if gate_is_before:
            h = h.float() * activated
            h = h.to(x.dtype) if options.gate_rounding == "rounded" else h

    dh, dw, db, dgate = dsum, None, None, None
    if dy is not None:
        dm = dy.float() * activated if gate is not None and not gate_is_before else dy
        wants_dh = wants["x"] or wants["residual"] or wants["post_norm_weight"]
        wants_dh = wants_dh or gate_is_before and wants["gate"]
        wanted = (wants_dh, wants["weight"], wants["bias"])
        others = ("residual_factor",) if residual_out is not None else ()
        dh, dw, db = _gradients_of_rows(
            dm, h, weight, bias, rstd, dsum, wanted, ctx.options, *others, tables=tables
        )
        if wants["gate"] and not gate_is_before:
            dgate = dy.float() * _norm(h, weight, ctx.options, torch.float32, bias) * slope
    elif dsum is not None and options.residual_factor != 0:
        dh = dsum * options.residual_factor
    dx, dpost = dh, None
    if gate_is_before and dh is not None:
        if wants["gate"]:
            dgate = dh * scaled.float() * slope
        dx = dh * activated
    if factor != 1 and dx is not None:
        dx = dx * factor
    if post_norm_weight is not None and dx is not None:
        wanted = (wants["x"], wants["post_norm_weight"], False)
        dx, dpost, _ = _gradients_of_rows(
            dx, x, post_norm_weight, None, None, None, wanted, ctx.options
        )
    found = {
        "weight": dw,
        "residual": dh if wants["residual"] else None,
        "gate": dgate.to(gate.dtype) if dgate is not None else None,
        "bias": db,
        "post_norm_weight": dpost,
    }
    dx = dx.to(ctx.x_dtype) if wants["x"] and dx is not None else None
    return _for_inputs(ctx, dx, None, None, *map(found.get, INPUTS[1:]))


# The options of a norm of rows, without a weight and with one.
_OF_ROWS = ("eps", "eps_placement", "divisor")
_OF_WEIGHTED_ROWS = (*_OF_ROWS, "weight_offset")


def _options_of_rows(options: str, weight: Tensor | None, *others: str) -> str:
    names = _OF_ROWS if weight is None else _OF_WEIGHTED_ROWS
    return kept(options, *names, *others)


def _norm(
    x: Tensor,
    weight: Tensor | None,
    options: str,
    dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """Returns the norm of rows without another operand."""
    options = _options_of_rows(options, weight, "rounding")
    return NORM(x, options, dtype, weight, None, None, bias)[0]


def _gradients_of_rows(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    rstd: Tensor | None,
    dsum: Tensor | None,
    wanted: tuple[bool, bool, bool],
    options: str,
    *others: str,
    tables: Sequence[Tensor] = (),
) -> list[Tensor | None]:
    """Returns the gradients by x, weight and bias, and None where one is not wanted. `others` names
    options that matter beside those of rows. `tables` are cos and sin."""
    if tables:
        others = (*others, "rotary_pairs", "rotary_part")
    options = _options_of_rows(options, weight, *others)
    rest = iter(BACKWARD(dy, x, weight, bias, rstd, dsum, *wanted, options, *tables))
    return [next(rest) if is_wanted else None for is_wanted in wanted]


def _norm_no_grad(
    x: Tensor,
    options: str,
    dtype: torch.dtype | None = None,
    weight: Tensor | None = None,
    *others: Tensor | None,
) -> list[Tensor]:
    """Calls the shortest operator without gradients that returns what `norm` does."""
    for other in others:
        if other is not None:
            return NORM_NO_GRAD(x, options, dtype, weight, *others)
    return [RMS_NORM(x, weight, options, dtype)]


NORM = Operator(
    "norm",
    _norm_setup,
    _norm_gradients,
    _norm_shapes,
    _composite.norm,
    _norm_no_grad,
    is_joint=True,
)


# ------------------------------------------------------------------ the operators without gradients

_FIRST_OUTPUT = 1 + len(INPUTS)


def _outputs_of(inputs: tuple[Any, ...]) -> list[Tensor]:
    return [value for value in inputs[_FIRST_OUTPUT:] if value is not None]


def _refuse_gradients(keys: Any, *inputs: Any) -> None:
    if requires_grad(*inputs) or forward_ad._current_level >= 0:
        raise RuntimeError(
            "rmsnorm.torch.forward(), quantized() and fused_add_rms_norm_() have no gradients: call "
            "rms_norm() or fused_add_rms_norm(), or call in torch.no_grad() or "
            "torch.inference_mode()"
        )
    with torch._C._AutoDispatchBelowAutograd():
        FORWARD.redispatch(keys & torch._C._after_autograd_keyset, *inputs)


def _check_writable(outputs: Sequence[Tensor]) -> None:
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


def _write_negated(operator: Any, *inputs: Any) -> None:
    """Calls an operator that writes, on tensors some of which hold their numbers negated, as
    z.conj().imag does. PyTorch's own fallback fails for an operator without a result."""
    plain = [value.resolve_neg() if isinstance(value, Tensor) else value for value in inputs]
    operator(*plain)
    for output, value in zip(_outputs_of(inputs), _outputs_of(tuple(plain)), strict=True):
        if output is not value:
            output.copy_(value)


def _map_forward(info: Any, in_dims: Any, *inputs: Any) -> tuple[None, None]:
    """Calls the operator for each of the rows that vmap maps."""
    outputs = zip(inputs[_FIRST_OUTPUT:], in_dims[_FIRST_OUTPUT:], strict=True)
    if any(output is not None and dim is None for output, dim in outputs):
        raise RuntimeError(
            "vmap: an input of rmsnorm.torch.forward() is mapped, and an output is not, so that it "
            "has no place for all results"
        )
    for each in _each(info.batch_size, in_dims, inputs):
        FORWARD(*each)
    return None, None


def write(outputs: Sequence[Tensor], *inputs: Any) -> None:
    """Calls FORWARD where autograd records nothing, without its detours through Python.

    outputs are those of the inputs that are written.
    """
    if is_compiling():  # compiled code tells autograd of changes
        _FORWARD_NO_GRAD(*inputs)
        return
    _check_writable(outputs)
    _FORWARD_NO_GRAD._op(*inputs)  # __call__() does no more, and takes 0.3 microseconds for it
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
_LIBRARY.impl("forward", functools.partial(_write_negated, FORWARD), "Negative")
_LIBRARY.impl("forward_no_grad", functools.partial(_write_negated, _FORWARD_NO_GRAD), "Negative")
torch.library.register_vmap(FORWARD, _map_forward)
torch.library.register_fake(FORWARD, _forward_shapes)
torch.library.register_fake(_FORWARD_NO_GRAD, _forward_shapes)
torch.library.register_fake(_OPS.norms.default, _norms_shapes)
torch.library.register_fake(_OPS.norms.each, _norms_each_shapes)
torch.library.register_fake(
    _OPS.rms_norm.default,
    lambda x, weight, options, dtype: _norm_shapes(x, options, dtype, weight)[0],
)

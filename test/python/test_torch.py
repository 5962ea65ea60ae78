# SPDX-License-Identifier: Apache-2.0
"""The calls of torch_models.py in every state of PyTorch, against the package for arrays.

Then what is not a call with one expected value: layouts, PyTorch's own norm, threads, loading.
"""

import functools
import importlib
import inspect
import itertools
import math
import re
import runpy
import sys

import programs
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch_models import (
    CALLS,
    EPS,
    STEP,
    TENSOR_FUNCTIONS,
    WITH_FORMULA,
    WITH_GRADIENTS,
    Call,
    assert_bits,
    gated,
    gradients,
    operands,
    operators_of,
    rms_norm,
    rotary,
    stored,
    sum_of_sines,
    whole_rows,
)

import rmsnorm
import rmsnorm.torch
from rmsnorm import _library
from rmsnorm.torch import _operators, _options

rt = rmsnorm.torch
OPS = torch.ops.rmsnorm
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = list(itertools.product(DTYPES, DTYPES))


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def packed(**options):
    """Returns options as the operators of PyTorch take them."""
    return _options.packed("forward", 1e-6, options)


# ------------------------------------------------------------------- every call in every state


class Program(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x, r, w, v):
        return self.call(x, r, w, v)


def compiled(call, backend):
    torch._dynamo.reset()  # the cases compile the code of one function
    return torch.compile(lambda *t: call(*t), backend=backend, fullgraph=True, dynamic=True)


def exported(call, strict):
    rows = {0: torch.export.Dim("rows", min=2, max=64)}
    shapes, tensors = (rows, rows, None, None), tuple(operands(rows=(2, 3)))
    program = torch.export.export(Program(call), tensors, dynamic_shapes=shapes, strict=strict)
    program = program.run_decompositions() if strict else program
    return stored(torch.export.save, torch.export.load, program).module()


def traced_by_fx(call):
    graph = torch.fx.symbolic_trace(Program(call))
    assert {node.target for node in graph.graph.nodes} & {*TENSOR_FUNCTIONS, OPS.norm}
    return graph


class Counted(torch.Tensor):
    """A subclass whose __torch_function__ sees the functions that are called."""

    seen = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        cls.seen.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


def with_a_subclass(call):
    def step(*tensors):
        Counted.seen.clear()
        ys = call(*(t.as_subclass(Counted) for t in tensors))
        assert {*Counted.seen} & {*TENSOR_FUNCTIONS, OPS.norm.default}
        assert all(type(y) is Counted for y in ys)
        return [y.as_subclass(torch.Tensor) for y in ys]

    return step


#: Each state of PyTorch makes a function of a call, with the same results and gradients.
STATES = {
    "eager": lambda call: call,
    "no_grad": lambda call: torch.no_grad()(call),
    "inference_mode": lambda call: torch.inference_mode()(call),
    "compile": functools.partial(compiled, backend="aot_eager"),
    "inductor": functools.partial(compiled, backend="inductor"),
    "export": functools.partial(exported, strict=False),
    "export, strict": functools.partial(exported, strict=True),
    "jit.trace": lambda call: torch.jit.trace(Program(call), operands(rows=(2, 3))),
    "fx": traced_by_fx,
    "make_fx": lambda call: make_fx(call)(*operands(rows=(4, 3))),
    "functionalize": lambda call: make_fx(torch.func.functionalize(call))(*operands(rows=(4, 3))),
    "vmap": lambda call: torch.vmap(call, (0, 0, None, None)),
    "vmap of dimension 1": lambda call: torch.vmap(call, (1, 1, None, None), 1),
    "subclass": with_a_subclass,
}
WITHOUT_GRADIENTS = ("no_grad", "inference_mode")
#: Calls that a state does not take (writing, named tuples, modules), or that would repeat others. Of
#: Inductor, only the effects of writing are tested. The strict export traces as torch.compile does,
#: so one call of each function is enough.
LEFT_OUT = {
    "inductor": WITH_GRADIENTS + ["operator"],
    "export, strict": CALLS.keys() - {call.function: name for name, call in CALLS.items()}.values(),
    "functionalize": CALLS.keys() - WITH_GRADIENTS,
    "jit.trace": ("module",),
    "subclass": ("quantized", "quantized sum", "quantized groups", "operator"),
    "fx": ("quantized", "module", "operator"),
}


def operator(norm):
    """Others call torch.ops.rmsnorm themselves."""
    given = {n: value for n, value in norm.items() if n != "weight_offset"}
    return OPS.norm(options=_options.packed("forward", EPS, {"weight_offset": 1.0}), **given)


OPERATOR = Call(operator, residual="r", bias="v", post_norm_weight="w", weight="w", weight_offset=1)
ALL_CALLS = CALLS | {"operator": OPERATOR}


@pytest.mark.parametrize(
    "name, state",
    [(name, s) for s in STATES for name in ALL_CALLS if name not in LEFT_OUT.get(s, ())],
)
def test_every_call_in_every_state(name, state):
    call, tensors = ALL_CALLS[name], operands(rows=(4, 3))
    function, expected = STATES[state](call), call.library(*tensors)
    given = [t.clone() for t in tensors]
    assert_bits(list(function(*given)), expected)
    assert_bits(given[call.writes or 0 :], tensors[call.writes or 0 :])
    if not call.has_gradients:
        assert all(t._version > 0 for t in given[: call.writes])
        return
    leaves = [t.clone().requires_grad_() for t in tensors]
    results = function(*leaves)
    assert_bits(list(results), expected)
    if state in WITHOUT_GRADIENTS:
        assert not any(y.requires_grad for y in results)
        return
    dys = [torch.randn_like(y) for y in expected]
    found = torch.autograd.grad(results, leaves, dys, allow_unused=True)
    # Or else sums over rows are in another order.
    is_in_order = state != "vmap of dimension 1" and not (state == "vmap" and "of all rows" in name)
    assert_same = assert_bits if is_in_order else torch.testing.assert_close
    assert_same(found, gradients(call, tensors, dys))


@pytest.mark.parametrize("dtype, other", PAIRS)
@pytest.mark.parametrize("name", CALLS)
def test_every_call_in_every_type(name, dtype, other):
    call, types = CALLS[name], (dtype, other, other, dtype)
    tensors = [t.to(kind) for t, kind in zip(operands(), types)]
    expected = call.library(*tensors)
    assert_bits(list(call(*tensors)), expected)


@pytest.mark.parametrize("axes", [(0, 0, 0, 0), (None, None, 0, 0), (0, None, None, None)])
@pytest.mark.parametrize("name", CALLS)
def test_vmap_of_some_operands(name, axes):
    call, all_tensors = CALLS[name], [*torch.randn(2, 4, 3, 16), *torch.randn(2, 4, 16)]
    tensors = [t if axis == 0 else t[0] for t, axis in zip(all_tensors, axes)]
    if None in axes[: 1 if name == "forward" else call.writes or 0]:
        with pytest.raises(RuntimeError, match="^vmap: .* it has no place for all results"):
            torch.vmap(call, axes)(*tensors)
        return
    each = [
        call(*(t if a is None else t[i].clone() for t, a in zip(tensors, axes))) for i in range(4)
    ]
    ys = torch.vmap(call, axes)(*tensors)
    # Some results depend on nothing that is mapped.
    ys = [y.expand(4, *one.shape) for y, one in zip(ys, each[0], strict=True)]
    assert_bits(ys, list(map(torch.stack, zip(*each))))


def test_norms_are_one_call():
    x, half, weight = normal(4, 64), normal(3, 2, 80)[..., ::2].half(), normal(64)
    kinds = [{"x": half, "gate": half, "eps": 0.5}, x, {"x": x, "residual": x, "weight": weight}]
    before = {"eps": 1e-3, "rounding": "before_weight"}
    results = rt.norms(kinds, [weight[:40], weight, None], **before)
    assert_bits(results[0], rt.gated(half, half, weight[:40], 0.5, rounding="before_weight"))
    assert_bits(results[1], rt.rms_norm(x, weight, **before))
    assert_bits(results[2], rt.fused_add_rms_norm(x, x, weight, **before))
    for calls in (kinds, [x, half]):
        assert operators_of(rt.norms, calls)[0] == ["rmsnorm::norms"]
    assert rt.norms([]) == []
    with pytest.raises(RuntimeError, match=r"^calls\[1\].x: it is on cpu, and calls\[0\].x is on"):
        rt.norms([x.to("meta"), x])


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_the_sign_of_zero_counts_whatever_was_called_before(zeros):
    """0.0 + -0.0 is 0.0, and -0.0 + -0.0 is -0.0."""
    for zero in zeros:
        y = rt.rms_norm(torch.ones(1, 4), torch.full((4,), -0.0), weight_offset=zero)
        assert (torch.signbit(y) == (math.copysign(1, zero) < 0)).all()


def test_help_names_each_argument():
    for function in TENSOR_FUNCTIONS:
        for name in inspect.signature(function).parameters:
            assert re.search(rf"^{name}[:=]", function.__doc__, re.MULTILINE), name


# --------------------------------------------------------------------------------------- layouts


def layouts():
    """Returns rows of each layout, and whether they are copied."""
    qkv = normal(6, 4, 3 * 64)
    many = normal(2, 3, 2, 2, 3, 2, 2, 64)
    return {
        "a slice of a fused buffer": (qkv[..., 64:128], False),
        "every other row": (qkv.view(24, 192)[::2], False),
        "one row, repeated": (normal(64).expand(5, 64), False),
        "leading dimensions exchanged": (qkv.transpose(0, 1)[..., :64], False),
        "eight dimensions that do not merge": (normal(*[3] * 7, 64)[(slice(2),) * 7], False),
        "eight that merge to three": (many[:, :, :, :, :2], False),
        "single elements": (normal(1, 5).t(), False),
        "a row that begins off any alignment": (normal(65)[1:], False),
        "columns for rows": (normal(64, 5).t(), True),
        "every other element": (normal(5, 128)[:, ::2], True),
        "one number, repeated": (torch.ones(()).expand(5, 64), True),
        "nine dimensions": (normal(*[2] * 8, 64).permute(*range(7, -1, -1), 8), True),
        "nine that merge": (normal(*[2] * 8, 128)[..., :64], True),
    }


@pytest.mark.parametrize("name", layouts())
def test_layouts(name):
    x, is_copied = layouts()[name]
    wide, dense = normal(2 * x.shape[-1])[::2], x.contiguous()
    weight = wide.contiguous()
    for call in (
        lambda x, w: rt.rms_norm(x, w),
        lambda x, w: rt.fused_add_rms_norm(x, x, w)[0],
        lambda x, w: rt.gated(x, x, w),
        lambda x, w: rt.qk(x, x, w, w)[1],
    ):
        y = call(x, weight)
        assert y.is_contiguous()
        assert_bits((y, call(x, wide)), (call(dense, weight),) * 2)
        ran = operators_of(call, x, weight)[1]
        assert ("aten::copy_" in ran) if is_copied else ran == []
    dy = normal(*x.shape)
    assert_bits(gradients(rt.rms_norm, [x], [dy]), gradients(rt.rms_norm, [dense], [dy]))
    assert_bits(gradients(rt.rms_norm, [dy], [x]), gradients(rt.rms_norm, [dy], [dense]))


def test_tables_are_read_where_they_lie():
    """A cache has a row for each position, cosines, then sines. Heads share the rows of tokens."""
    x, k, cache = normal(2, 7, 3, 64), normal(2, 7, 1, 64), normal(20, 64)
    cos, sin = cache[5:12, None].split(32, -1)
    dense = [t.expand(2, 7, 3, 32).contiguous() for t in (cos, sin)]
    y = rt.rotary(x, *dense)
    of_k = rt.rotary(k, *(t[:, :, :1] for t in dense))
    step = functools.partial(rt.qk, x, k, None, None, None, cos, sin)
    assert_bits(step(), (y, of_k))
    leaves = [t.clone().requires_grad_() for t in (cos, sin)]
    found = gradients(lambda x: rt.rotary(x, *leaves), [x], [x])
    assert_bits(found, gradients(lambda x: rt.rotary(x, *dense), [x], [x]))
    with pytest.raises(RuntimeError, match="not have been used"):  # they count as constants
        torch.autograd.grad(rt.rotary(x.clone().requires_grad_(), *leaves).sum(), leaves)
    call = lambda: (step(), rt.forward(x=x, cos=cos, sin=sin, y=x))
    assert operators_of(call)[1] == []
    assert_bits(x, y)


def test_operands_of_different_layouts():
    x, residual = normal(4, 6, 64).transpose(0, 1), normal(6, 4, 128)[..., :64]
    y, total = rt.fused_add_rms_norm(x, residual)
    assert_bits(total, residual + x)
    assert_bits(y, rt.rms_norm(residual + x))
    # Writing leaves what is beside the rows.
    rows = torch.stack([x, x, residual])
    before, versions = rows.clone(), (rows[0]._version, rows[2]._version)
    assert rt.fused_add_rms_norm_(rows[0], rows[2]) is None
    assert_bits(rows, torch.stack([y, before[1], total]))
    assert rows[0]._version > versions[0] and rows[2]._version > versions[1]
    assert rt.rms_norm(x, out=rows[0]) is not None
    # Tensors may hold their numbers with the other sign.
    x, residual = (torch.view_as_complex(normal(6, 16, 2)).conj().imag for _ in range(2))
    expected = rt.fused_add_rms_norm(x.clone(), residual.clone())
    rt.fused_add_rms_norm_(x, residual)
    assert x.is_neg() and residual.is_neg()
    assert_bits((x.resolve_neg(), residual.resolve_neg()), expected)


def test_more_dimensions_than_a_view_has():
    for shape in ([2] * 8 + [64], [1] * 17 + [64]):
        x, residual = normal(*shape), normal(*shape)
        expected = rt.fused_add_rms_norm(x.view(-1, 64), residual.view(-1, 64))
        y, total = rt.fused_add_rms_norm(x, residual)
        assert y.shape == total.shape == x.shape
        assert_bits((y.view(-1, 64), total.view(-1, 64)), expected)
        tables = normal(shape[-3], 1, 16), normal(16)  # rows of cosines for a dimension
        wide = [t.expand(*shape[:-1], 16).reshape(-1, 16) for t in tables]
        expected = rt.rotary(x.view(-1, 64), *wide)
        [dx] = gradients(lambda x: rt.rotary(x, *tables), [x], [x])
        [of_rows] = gradients(lambda x: rt.rotary(x, *wide), [x.view(-1, 64)], [x.view(-1, 64)])
        assert_bits(rt.rotary(x, *tables).view(-1, 64), expected)
        assert_bits(dx.view(-1, 64), of_rows)
        rt.fused_add_rms_norm_(x, residual)
        assert_bits((x, residual), (y, total))
    x, weights = normal(*[2] * 8, 16), normal(3, 16)
    mapped = torch.vmap(rt.rms_norm, (None, 0))(x, weights)
    assert_bits(mapped, torch.stack([rt.rms_norm(x, weight) for weight in weights]))


# ----------------------------------------------------------------------------------- gradients


def gradients_of_library(x, weight, dy, dtype=None, **arguments):
    """Returns dx in a type, and dw."""
    dx, dw = torch.empty(x.shape, dtype=dtype or x.dtype), torch.empty_like(weight)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw, **arguments)
    return dx, dw


@pytest.mark.parametrize("dtype, weight_dtype", PAIRS)
@pytest.mark.parametrize("residual_rounding", ("rounded", "unrounded"))
@pytest.mark.parametrize("factor", (1.0, 0.7))
def test_gradients_of_fused_add_are_those_of_the_sum(
    dtype, weight_dtype, residual_rounding, factor
):
    x, residual, dy, dsum = (normal(6, 96, dtype=dtype) for _ in range(4))
    weight, total, rstd = normal(96, dtype=weight_dtype), torch.empty_like(x), torch.empty(6)
    # The inverse RMS belongs to the sum before it is rounded, if so asked.
    options = {"residual_rounding": residual_rounding, "eps": EPS, "residual_factor": factor}
    rmsnorm.forward(x=x, residual=residual, residual_out=total, rstd=rstd, **options)
    call = functools.partial(rt.fused_add_rms_norm, **options)
    leaves = x, residual, weight
    wide, dw = gradients_of_library(total, weight, dy, torch.float32, eps=EPS, rstd=rstd)
    dx = (wide * factor).to(dtype)
    assert_bits(gradients(lambda *a: call(*a)[0], leaves, (dy,)), (dx, dx, dw))
    both = ((wide + dsum.float()) * factor).to(dtype)
    assert_bits(gradients(lambda *a: tuple(call(*a)), leaves, (dy, dsum)), (both, both, dw))
    dx = (dsum.float() * factor).to(dtype)
    assert_bits(gradients(lambda *a: call(*a)[1], leaves, (dsum,)), (dx, dx, None))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gate_for_each_sample(dtype):
    """It is that gate for each row, and its gradient the sum over them."""
    shapes = [(2, 3, 96)] * 2 + [(2, 1, 96)] * 3
    x, residual, gate, scale, shift = tensors = [normal(*shape, dtype=dtype) for shape in shapes]
    whole = [x, residual, gate.repeat(1, 3, 1), scale, shift]
    dys = [normal(2, 3, 96, dtype=dtype) for _ in range(2)]

    def add(x, residual, gate, scale, shift):
        return tuple(rt.fused_add_rms_norm(x, residual, scale, gate=gate, bias=shift, **STEP))

    def gated(x, _, gate, scale, shift):
        return rt.gated(x, gate, scale, bias=shift)

    for call in add, gated:
        assert_bits(call(*tensors), call(*whole))
        expected = [*gradients(call, whole, dys)]
        expected[2] = expected[2].sum(1, keepdim=True)
        assert_bits(gradients(call, tensors, dys), expected)
    y, total = torch.empty_like(x), torch.empty_like(x)
    rt.forward(x=x, gate=gate, residual=residual, residual_out=total, y=y, **STEP)
    assert_bits((y, total), rt.fused_add_rms_norm(x, residual, gate=gate, **STEP))
    rt.fused_add_rms_norm_(x, residual, gate=gate, **STEP)
    assert_bits((x, residual), (y, total))


# A product with a gate that is rounded gives the norm other numbers, and PyTorch adds up the
# gradients of a gate that rows share.
ROUND_ONCE = [n for n in WITH_FORMULA if CALLS[n].function in (rms_norm, gated, rotary)]
ROUND_ONCE = [
    n for n in ROUND_ONCE if n not in ("no activation before, rounded", "gate of all rows")
]


@pytest.mark.parametrize("name", ROUND_ONCE)
def test_gradients_round_once(name):
    """Gradients in bfloat16 are those of the same numbers in float32, rounded."""
    call = Call(CALLS[name].function, **CALLS[name].norms[0], dtype=torch.float32)
    low, dys = [t.bfloat16() for t in operands(rows=(6,))], [normal(6, 16)]
    wide = gradients(call, [t.float() for t in low], dys)
    expected = [g if g is None else g.bfloat16() for g in wide]
    assert_bits(gradients(call, low, dys), expected)


# ----------------------------------------------------------------------------------- transforms


def test_compiled_with_options_that_are_arguments():
    def step(x, eps, offset):
        y = rt.rms_norm(x, x[0], eps, weight_offset=offset)
        return y

    x = normal(3, 64)
    for dynamic in (None, True):
        torch._dynamo.reset()
        compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        for eps, offset in ((1e-6, 0.5), (1e-5, 1.0), (0.25, 0.0), (1, 2)):
            assert_bits(compiled(x, eps, offset), step(x, eps, offset))
    slope = torch.func.grad(lambda x: step(x, 0.5, 1.0).sin().sum())
    compiled = torch.compile(slope, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), slope(x))


def test_operators_pass_the_checks_of_pytorch():
    x, weight, bare = normal(3, 64).requires_grad_(), normal(64).requires_grad_(), normal(3, 64)
    half = {"dtype": torch.bfloat16}
    unrounded = packed(residual_rounding="unrounded")
    tables = {"cos": bare[:, :32], "sin": bare[:, 32:]}
    cases = [
        ("norm", (x, packed(), None, weight), {}),
        ("norm", (x, packed()), half),
        ("norm", (normal(64, 3).t().requires_grad_(), packed(eps_placement="floor")), {}),
        ("norm_no_grad", (bare, packed(rounding="inverse")), half),
        ("norm", (x, packed(), None, weight, bare, None, weight, weight), {}),
        ("norm", (x, unrounded, torch.bfloat16, weight, x), {}),
        ("norm", (x, packed(factor=0.5), torch.bfloat16, weight, None, x), {}),
        ("norm", (x, packed(), None, weight), tables),
        ("forward", (bare, packed(), weight.detach()), {"y": bare.clone()}),
        ("rms_norm", (bare, weight.detach(), packed()), half),
        ("norms", ([bare, bare], [weight.detach(), None], packed()), {}),
    ]
    for mask in itertools.product((False, True), repeat=3):
        vectors = (weight.detach(), weight.detach())
        arguments = (bare, bare, *vectors, None, bare, *mask, packed())
        cases += [("backward", arguments, given) for given in ({}, tables)]
    for name, arguments, options in cases:
        torch.library.opcheck(getattr(OPS, name).default, arguments, options)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_transforms(name):
    call = CALLS[name]
    # PyTorch's sigmoid, in the gradients of a gate, depends on the place of an element.
    assert_same = torch.testing.assert_close if call.is_gated else assert_bits
    x, r, w, v = tensors = operands(rows=(4, 3))

    def or_zeros(*tensors):
        found = gradients(call, tensors)
        return [torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors)]

    def gradient(call):
        return torch.func.grad(lambda *tensors: sum_of_sines(call(*tensors)), (0, 1, 2, 3))

    rows = (0, 0, None, None)
    for of in (gradient(call), gradient(torch.vmap(call, rows))):
        assert_same(list(of(*tensors)), or_zeros(*tensors))
    each = [or_zeros(*both, w, v) for both in zip(x, r)]
    found = torch.vmap(gradient(call), rows)(*tensors)
    assert_same(list(found), list(map(torch.stack, zip(*each))))
    row = x[0, 0]
    jacobian = torch.func.jacrev(lambda row: call(row, r[0, 0], w, v)[0])(row)
    for i in (0, 7, 15):
        slope = torch.func.grad(lambda row, i=i: call(row, r[0, 0], w, v)[0][i])(row)
        assert_same(jacobian[i], slope)


# -------------------------------------------------------------------------------------- module


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype, weight_dtype", PAIRS)
def test_module_has_the_bits_of_pytorchs(dtype, weight_dtype):
    for shape, affine in itertools.product((64, (8, 64), [4, 8, 64]), (True, False)):
        theirs = torch.nn.RMSNorm(shape, 0.0, affine, dtype=weight_dtype)
        ours = rt.RMSNorm(shape, 0.0, affine, dtype=weight_dtype)
        if affine:
            torch.nn.init.normal_(theirs.weight)
        assert ours.load_state_dict(theirs.state_dict()).missing_keys == []
        # The mean over several dimensions of whole rows is 169, too.
        rows = whole_rows(4, 4, 8, 64, dtype=dtype)
        for x in (rows, rows.transpose(0, 1), rows.transpose(1, 2).contiguous().transpose(1, 2)):
            y = ours(x)
            assert_bits(y, theirs(x))
            assert y.stride() == theirs(x).stride()


def test_module_is_pytorchs():
    assert issubclass(rt.RMSNorm, torch.nn.RMSNorm)
    theirs, ours = (inspect.signature(kind).parameters for kind in (torch.nn.RMSNorm, rt.RMSNorm))
    for own, other in zip(ours.values(), theirs.values(), strict=False):
        assert (own.name, own.kind, own.default) == (other.name, other.kind, other.default)
    assert list(ours)[len(theirs) :] == ["rounding", "weight_offset"]
    assert all(ours[name].kind == inspect.Parameter.KEYWORD_ONLY for name in list(ours)[-2:])
    assert list(rt.RMSNorm((5, 64)).state_dict()) == ["weight"]
    assert torch.equal(rt.RMSNorm(64, weight_offset=1).weight, torch.zeros(64))
    assert rt.RMSNorm(64, elementwise_affine=False).weight is None
    assert repr(rt.RMSNorm(64, 1e-6)) == repr(torch.nn.RMSNorm(64, 1e-6))
    text = repr(rt.RMSNorm(64, rounding="inverse", weight_offset=1.0))
    assert text.endswith("elementwise_affine=True, rounding='inverse', weight_offset=1.0)")
    assert repr(eval(text, {"RMSNorm": rt.RMSNorm})) == text


# ------------------------------------------------------------------------------ threads, loading


def test_bits_for_every_number_of_threads():
    calls = [CALLS[name] for name in ("rms_norm", "add, post-norm", "qk", "norms")]
    tensors, long = operands(rows=(96,), d=4096), normal(1, 1 << 17)
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        results.append([rt.rms_norm(long), *(y for call in calls for y in call(*tensors))])
        results[-1] += [g for call in calls for g in gradients(call, tensors)]
    torch.set_num_threads(before)
    assert_bits(results[1], results[0])
    assert_bits(results[2], results[0])


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_threads_are_pytorchs_and_there_is_one_openmp():
    # A new process has started no threads yet.
    program = """
import os, torch, rmsnorm.torch
x = torch.empty(512, 4096)

def started_by(function, *arguments):
    before = len(os.listdir("/proc/self/task"))
    function(*arguments)
    return len(os.listdir("/proc/self/task")) - before

torch.set_num_threads(1)
print(started_by(rmsnorm.torch.rms_norm, x))
torch.set_num_threads(3)
print(started_by(rmsnorm.torch.rms_norm, x))
print(started_by(x.fill_, 1))  # PyTorch's own work, on the threads that are there now
names = {line.split("/")[-1].strip() for line in open("/proc/self/maps") if "/" in line}
print(*[name for name in names if name.startswith(("libgomp", "libomp", "libiomp"))])
"""
    *started, openmp = programs.run(program).splitlines()
    assert started == ["0", "2", "0"]
    assert len(openmp.split()) == 1, openmp


def test_missing_operators(monkeypatch, tmp_path):
    monkeypatch.setattr(_library, "path_of", lambda name: tmp_path / name)
    message = f"^rmsnorm was built without its operators for PyTorch, and {tmp_path}/rmsnorm_torch is"
    with pytest.raises(ImportError, match=message):
        importlib.reload(_operators)


def test_old_pytorch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(ImportError, match="needs PyTorch 2.10 or newer, and this is 2.9.1"):
        runpy.run_path(rt.__file__)


@pytest.mark.parametrize("block", programs.blocks("torch"))
def test_programs_of_the_pages(block, capsys):
    x, stream, gate, weight = normal(2, 64), normal(2, 64), normal(2, 64), normal(64)
    names = {"torch": torch, "rmsnorm": rmsnorm, "x": x, "stream": stream}
    names |= {"gate": gate, "weight": weight, "q": x.clone(), "k": x.clone()}
    names |= {"q_weight": weight, "k_weight": weight, "model": torch.nn.RMSNorm(64)}
    names |= {"cos": normal(2, 32), "sin": normal(2, 32)}
    exec(block, names)
    printed = capsys.readouterr().out
    assert programs.expected(block) in ("", printed)
    if "run_rmsnorm" in names:
        y = names["run_rmsnorm"](64, 1e-5, weight, x)
        assert_bits(y, rt.rms_norm(x, weight, 1e-5))
    if "new_q" in names:
        assert_bits(names["q"], names["new_q"])

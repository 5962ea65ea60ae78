# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch, compared with PyTorch's own norm and with the package for arrays.

The sum of squares of whole_rows() is exact in any order, and so is the mean over a power of two.
The definitions of PyTorch and of the library then give the same bits.
"""

import functools
import inspect
import itertools
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import programs
import pytest
import torch
import torch.nn.functional as F
from torch_models import (
    CALLS,
    EPS,
    TENSOR_FUNCTIONS,
    assert_bits,
    gradients,
    operands,
    sum_of_sines,
)

import rmsnorm
import rmsnorm.torch
from rmsnorm.torch import _options

rt = rmsnorm.torch
forward_ad = torch.autograd.forward_ad
OPS = torch.ops.rmsnorm
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PAIRS = list(itertools.product(DTYPES, DTYPES))


def normal(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def whole_rows(*shape, dtype=torch.float32):
    """Returns rows of 7 and 17 with random signs and places, whose RMS is 13."""
    half = torch.arange(math.prod(shape)).view(shape) % 2
    order = torch.rand(shape).argsort(-1)
    return ((7 + 10 * half.gather(-1, order)) * (1 - 2 * torch.randint(0, 2, shape))).to(dtype)


def packed(**options):
    """Returns options as the operators of PyTorch take them."""
    return _options.packed("forward", 1e-6, options)


def library(x, dtype=None, **arguments):
    """Returns what the package gives for arrays. test_bits.py compares that with exact results."""
    y = torch.empty(x.shape, dtype=dtype or x.dtype)
    rmsnorm.forward(x=x, y=y, **arguments)
    return y


def operations(call):
    """Returns the operations of PyTorch that a call runs, without this package's."""
    with torch.autograd.profiler.profile() as profile:
        call()
    names = [event.name for event in profile.function_events]
    return [name for name in names if not name.startswith("rmsnorm::")]


# ------------------------------------------------------------------------------------- forward


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype, weight_dtype", [*PAIRS, *((dtype, None) for dtype in DTYPES)])
def test_bits_of_pytorch(dtype, weight_dtype):
    for shape in ((1, 64), (5, 3, 256), (4096,), (0, 8)):
        x = whole_rows(*shape, dtype=dtype)
        weight = None if weight_dtype is None else normal(shape[-1], dtype=weight_dtype)
        y = rt.rms_norm(x, weight, 0.0)
        assert_bits(y, F.rms_norm(x, shape[-1:], weight, 0.0))


def quantized(**arguments):
    results = rt.quantized(**arguments, asymmetric=True)
    assert rt.quantized(arguments["x"])[2:] == (None, None)
    return results._asdict()


def in_place(x, residual, **arguments):
    buffer = torch.stack([x, x, residual])
    before, (y, beside, total) = buffer.clone(), buffer
    versions = y._version, total._version
    assert rt.fused_add_rms_norm_(y, total, **arguments) is None
    assert y._version > versions[0] and total._version > versions[1]
    assert_bits(beside, before[1])
    return {"y": y, "residual_out": total}


def out(x, **arguments):
    y = x.clone()
    assert rt.rms_norm(y, out=y, **arguments) is y
    return {"y": y}


def qk(x, weight, **options):
    q, k = rt.qk(x[:3], x, weight, weight, **options)
    assert_bits(q, k[:3])
    return {"y": k}


ROW_OPTIONS = (
    {},
    {"weight_offset": 1.0},
    {"rounding": "before_weight"},
    {"rounding": "inverse"},
    {"eps_placement": "outside"},
    {"eps_placement": "floor"},
    {"divisor": 16.0},
    {"factor": 0.5, "divisor": 64.0},
)
ADD_OPTIONS = (*ROW_OPTIONS, {"residual_rounding": "unrounded"})
GATE_OPTIONS = [
    {"activation": activation, **options}
    for activation in ("silu", "sigmoid")
    for options in ({}, {"gate_rounding": "rounded"}, {"gate_placement": "before"})
]
ADDED = "x residual weight bias post_norm_weight"
#: Each function: its results by their names, its operands, and options that differ in their bits.
FUNCTIONS = {
    "rms_norm": (lambda **a: {"y": rt.rms_norm(**a)}, "x weight bias", ROW_OPTIONS),
    "rms_norm, out": (out, "x weight bias", ROW_OPTIONS),
    "fused_add_rms_norm": (
        lambda **a: dict(zip(("y", "residual_out"), rt.fused_add_rms_norm(**a))),
        ADDED,
        ADD_OPTIONS,
    ),
    "fused_add_rms_norm_": (in_place, ADDED, ADD_OPTIONS),
    "gated": (lambda **a: {"y": rt.gated(**a)}, "x gate weight bias", GATE_OPTIONS),
    "quantized": (quantized, ADDED, ADD_OPTIONS),
    "qk": (qk, "x weight", ROW_OPTIONS),
}


@pytest.mark.parametrize("dtype, other", PAIRS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_have_the_bits_of_the_package_for_arrays(name, dtype, other):
    """test_bits.py compares that with exact results."""
    function, names, options_to_try = FUNCTIONS[name]
    residual = dtype if name == "fused_add_rms_norm_" else other
    operands = {n: normal(256, dtype=other) for n in names.split()}
    rows = {"x": dtype, "gate": dtype, "residual": residual}
    operands |= {n: normal(8, 256, dtype=rows[n]) for n in names.split() if n in rows}
    before = {n: tensor.clone() for n, tensor in operands.items()}
    found = []
    for options in options_to_try:
        own = {"dtype": other} if name in ("rms_norm", "fused_add_rms_norm", "gated") else {}
        results = function(**operands, eps=0.25, **options, **own)
        expected = {n: torch.empty_like(tensor) for n, tensor in results.items()}
        rmsnorm.forward(**operands, **expected, eps=0.25, **options)
        assert results.get("y", operands["x"]).dtype == own.get("dtype", dtype)
        assert_bits(list(results.values()), list(expected.values()))
        assert_bits(list(operands.values()), list(before.values()))
        found.append(next(iter(results.values())))
    if torch.float32 not in (dtype, residual):  # rounding does nothing to float32
        for one, two in itertools.combinations(found, 2):
            assert not torch.equal(one, two)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", (1, 100, 4096, 10000))
def test_rows_of_any_length(dtype, d):
    x, weight, y = normal(3, d, dtype=dtype), normal(d, dtype=dtype), torch.empty(3, d, dtype=dtype)
    rmsnorm.forward(x=x, weight=weight, y=y, eps=EPS)
    assert_bits(rt.rms_norm(x, weight), y)


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


def layouts():
    qkv = normal(6, 4, 3 * 64)
    many = normal(2, 3, 2, 2, 3, 2, 2, 64)
    return {
        "a slice of a fused buffer": qkv[..., 64:128],
        "every other row": qkv.view(24, 192)[::2],
        "one row, repeated": normal(64).expand(5, 64),
        "leading dimensions exchanged": qkv.transpose(0, 1)[..., :64],
        "eight dimensions that do not merge": normal(*[3] * 7, 64)[(slice(2),) * 7],
        "eight that merge to three": many[:, :, :, :, :2],
        "single elements": normal(1, 5).t(),
        "a row that begins off any alignment": normal(65)[1:],
    }


def copied_layouts():
    return {
        "columns for rows": normal(64, 5).t(),
        "every other element": normal(5, 128)[:, ::2],
        "one number, repeated": torch.ones(()).expand(5, 64),
        "nine dimensions that do not merge": normal(*[2] * 8, 64).permute(*range(7, -1, -1), 8),
        "nine that merge": normal(*[2] * 8, 128)[..., :64],
    }


@pytest.mark.parametrize("name", layouts())
def test_layouts_without_copies(name):
    x = layouts()[name]
    weight = normal(x.shape[-1])
    y = rt.rms_norm(x, weight)
    assert y.is_contiguous()
    assert_bits(y, rt.rms_norm(x.contiguous(), weight))
    assert operations(lambda: rt.rms_norm(x, weight)) == []
    assert operations(lambda: rt.fused_add_rms_norm(x, x, weight)) == []
    assert operations(lambda: rt.gated(x, x, weight)) == []
    assert operations(lambda: rt.qk(x, x, weight, weight)) == []


@pytest.mark.parametrize("name", copied_layouts())
def test_layouts_with_copies(name):
    x = copied_layouts()[name]
    assert_bits(rt.rms_norm(x), rt.rms_norm(x.contiguous()))
    assert "aten::copy_" in operations(lambda: rt.rms_norm(x))
    assert_bits(rt.gated(x, x), rt.gated(x.contiguous(), x.contiguous()))
    weight = normal(2 * x.shape[-1])[::2]
    assert_bits(rt.rms_norm(x, weight), rt.rms_norm(x.contiguous(), weight.contiguous()))


def test_operands_of_different_layouts():
    x, residual = normal(4, 6, 64).transpose(0, 1), normal(6, 4, 128)[..., :64]
    y, total = rt.fused_add_rms_norm(x, residual)
    assert_bits(total, residual + x)
    assert_bits(y, rt.rms_norm(residual + x))


def test_more_dimensions_than_a_view_has():
    for shape in ([2] * 8 + [64], [1] * 17 + [64]):
        x, residual = normal(*shape), normal(*shape)
        expected = rt.fused_add_rms_norm(x.view(-1, 64), residual.view(-1, 64))
        y, total = rt.fused_add_rms_norm(x, residual)
        assert y.shape == total.shape == x.shape
        assert_bits((y.view(-1, 64), total.view(-1, 64)), expected)
        rt.fused_add_rms_norm_(x, residual)
        assert_bits((x, residual), (y, total))


def norms_of_kinds(dtype):
    """Returns the arguments of norms that differ in their operands, options, shapes and types."""
    x, residual, gate = normal(5, 64, dtype=dtype), normal(5, 64), normal(5, 64, dtype=dtype)
    weight, bias, post = normal(64), normal(64, dtype=dtype), normal(64)
    return [
        {"x": x, "weight": weight, "rounding": "before_weight", "weight_offset": 1, "eps": 0.5},
        {"x": x, "residual": residual, "weight": bias, "bias": bias, "post_norm_weight": post},
        {"x": x, "residual": gate, "residual_rounding": "unrounded", "factor": 0.5},
        {"x": x, "gate": gate, "bias": bias, "activation": "sigmoid", "gate_rounding": "rounded"},
        {"x": gate, "gate": x, "gate_placement": "before", "eps_placement": "floor", "divisor": 1},
        {"x": normal(3, 2, 40, dtype=dtype)[:, :, ::2], "dtype": torch.float16},
    ]


def single_norm(call):
    function = rt.fused_add_rms_norm if "residual" in call else rt.rms_norm
    return (rt.gated if "gate" in call else function)(**{"eps": 1e-6, **call})


@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_kinds_have_the_bits_of_each_function(dtype):
    calls = norms_of_kinds(dtype)
    expected = list(map(single_norm, calls))
    results = rt.norms(calls, eps=1e-6)
    assert list(map(type, results)) == list(map(type, expected))
    assert_bits(results, expected)
    # A tensor among dictionaries is a norm with the options of the call.
    x, weight, before = normal(4, 64, dtype=dtype), normal(64), {"rounding": "before_weight"}
    given = rt.fused_add_rms_norm(**calls[1], eps=1e-6, **before)
    both = rt.norms([calls[1], x], [None, weight], 1e-6, **before)
    assert_bits(both, [given, rt.rms_norm(x, weight, 1e-6, **before)])
    with torch.profiler.profile() as profile:
        rt.norms(calls, eps=1e-6)
    ours = [e.key for e in profile.key_averages() if e.key.startswith("rmsnorm::")]
    assert ours == ["rmsnorm::norms"]


@pytest.mark.parametrize("name", CALLS)
def test_results_have_no_gradients_where_none_are_recorded(name):
    call, _ = CALLS[name]
    x, r, w, v = operands()
    expected = call(x, r, w, v)
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            ys = call(x, r, w.requires_grad_(), v)
            assert not any(y.requires_grad for y in ys)
            assert_bits(ys, expected)


# ----------------------------------------------------------------------------------- gradients


def gradients_of_library(x, weight, dy, dtype=None, **arguments):
    """Returns dx in a type, and dw."""
    dx, dw = torch.empty(x.shape, dtype=dtype or x.dtype), torch.empty_like(weight)
    rmsnorm.backward(x=x, weight=weight, dy=dy, dx=dx, dw=dw, **arguments)
    return dx, dw


@pytest.mark.parametrize("dtype, weight_dtype", PAIRS)
@pytest.mark.parametrize("rounding", ("after_weight", "before_weight"))
def test_gradients_have_the_bits_of_the_package_for_arrays(dtype, weight_dtype, rounding):
    options = {"eps": 1e-6, "rounding": rounding}
    for shape in ((1, 4096), (96, 512), (3, 5, 200)):
        x, dy = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype)
        weight = normal(shape[-1], dtype=weight_dtype)
        found = gradients(functools.partial(rt.rms_norm, **options), (x, weight), (dy,))
        assert_bits(found, gradients_of_library(x, weight, dy, **options))


def test_gradients_of_every_layout():
    # The gradient of a sum is one number with strides of 0, and that of y.t() has columns for rows.
    x, weight, other = normal(8, 64), normal(64), normal(64, 8)
    for loss, dy in (
        (lambda *a: rt.rms_norm(*a).sum(), torch.ones(8, 64)),
        (lambda *a: (rt.rms_norm(*a).t() * other).sum(), other.t().contiguous()),
    ):
        actual = gradients(loss, (x, weight), (torch.ones(()),))
        assert_bits(actual, gradients(rt.rms_norm, (x, weight), (dy,)))
    for strided in (*layouts().values(), *copied_layouts().values()):
        dy = normal(*strided.shape)
        dense = strided.contiguous()
        assert_bits(gradients(rt.rms_norm, [strided], [dy]), gradients(rt.rms_norm, [dense], [dy]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("residual_rounding", ("rounded", "unrounded"))
def test_gradients_of_fused_add_are_those_of_the_sum(dtype, residual_rounding):
    x, residual, dy, dsum = (normal(6, 96, dtype=dtype) for _ in range(4))
    weight, total, rstd = normal(96), torch.empty_like(x), torch.empty(6)
    # The inverse RMS belongs to the sum before it is rounded, if so asked.
    options = {"residual_rounding": residual_rounding, "eps": EPS}
    library(x, residual=residual, residual_out=total, rstd=rstd, **options)
    call = functools.partial(rt.fused_add_rms_norm, **options)
    leaves = x, residual, weight
    dx, dw = gradients_of_library(total, weight, dy, eps=EPS, rstd=rstd)
    assert_bits(gradients(lambda *a: call(*a)[0], leaves, (dy,)), (dx, dx, dw))
    wide, _ = gradients_of_library(total, weight, dy, torch.float32, eps=EPS, rstd=rstd)
    both = (wide + dsum.float()).to(dtype)
    assert_bits(gradients(lambda *a: tuple(call(*a)), leaves, (dy, dsum)), (both, both, dw))
    assert_bits(gradients(lambda *a: call(*a)[1], leaves, (dsum,)), (dsum, dsum, None))


def test_gradients_of_fused_add_keep_their_types():
    x = normal(4, 64, dtype=torch.bfloat16).requires_grad_()
    residual = normal(4, 64).requires_grad_()
    *_, rstd = OPS.norm(x, packed(residual_rounding="unrounded"), residual=residual)
    assert not rstd.requires_grad
    y, out = rt.fused_add_rms_norm(x, residual)
    dx, dresidual = torch.autograd.grad((y.float() * out).sum(), (x, residual))
    assert (dx.dtype, dresidual.dtype) == (torch.bfloat16, torch.float32)
    assert_bits(dx, dresidual.to(torch.bfloat16))


@pytest.mark.parametrize("activation", ("silu", "sigmoid"))
@pytest.mark.parametrize("placement", ("after", "before"))
def test_gradients_of_gated_round_once(activation, placement):
    options = {"activation": activation, "gate_placement": placement, "weight_offset": 1.0}
    call = functools.partial(rt.gated, dtype=torch.float32, **options)
    low = [normal(*shape, dtype=torch.bfloat16) for shape in ((6, 96), (6, 96), (96,))]
    dys = [normal(6, 96, dtype=torch.bfloat16).float()]
    wide = gradients(call, [t.float() for t in low], dys)
    assert_bits(gradients(call, low, dys), [gradient.bfloat16() for gradient in wide])


def test_gradients_of_the_operator():
    # Others call torch.ops.rmsnorm themselves.
    leaves, dy = (
        [normal(*shape) for shape in ((4, 64), (64,), (4, 64), (64,), (64,))],
        normal(4, 64),
    )

    def operator(x, weight, residual, bias, post):
        others = {"bias": bias, "post_norm_weight": post}
        return OPS.norm(x, packed(), None, weight, residual, **others)[0]

    def function(x, weight, residual, bias, post):
        others = {"bias": bias, "post_norm_weight": post}
        return rt.fused_add_rms_norm(x, residual, weight, 1e-6, **others)[0]

    assert_bits(gradients(operator, leaves, [dy]), gradients(function, leaves, [dy]))


@pytest.mark.parametrize("wanted", range(3))
def test_gradients_in_place_are_refused(wanted):
    operands = [normal(4, 64), normal(4, 64), normal(64)]
    operands[wanted] = operands[wanted].requires_grad_() * 1
    before = [operand.detach().clone() for operand in operands]
    message = r"fused_add_rms_norm_\(\) have no gradients: call "
    with pytest.raises(RuntimeError, match=message):
        rt.fused_add_rms_norm_(*operands)
    assert_bits(operands, before)
    with torch.no_grad():
        rt.fused_add_rms_norm_(*operands)


# ------------------------------------------------------------------------- compiled, transformed


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("requires_grad", (True, False))
def test_compiled_functions_have_the_same_bits(name, requires_grad):
    torch._dynamo.reset()  # the cases compile the code of one function
    call, _ = CALLS[name]
    tensors = operands()

    def step(*tensors):
        return tuple(y + 1 for y in call(*(tensor * 2 for tensor in tensors)))

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
    if requires_grad:
        dys = [torch.randn_like(y) for y in step(*tensors)]
        assert_bits(gradients(compiled, tensors, dys), gradients(step, tensors, dys))
        tensors = [t.requires_grad_() for t in tensors]
    assert_bits(compiled(*tensors), step(*tensors))


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


def test_compiled_module():
    for shape in (64, (4, 64)):
        module = rt.RMSNorm(shape, weight_offset=1.0, rounding="before_weight")
        x = normal(3, 4, 64, dtype=torch.bfloat16)
        compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
        assert_bits(compiled(x), module(x))


def test_operators_pass_the_checks_of_pytorch():
    x, weight, bare = normal(3, 64).requires_grad_(), normal(64).requires_grad_(), normal(3, 64)
    half = {"dtype": torch.bfloat16}
    unrounded = packed(residual_rounding="unrounded")
    cases = [
        ("norm", (x, packed(), None, weight), {}),
        ("norm", (x, packed()), half),
        ("norm", (normal(64, 3).t().requires_grad_(), packed(eps_placement="floor")), {}),
        ("norm_no_grad", (bare, packed(rounding="inverse")), half),
        ("norm", (x, packed(), None, weight, bare, None, weight, weight), {}),
        ("norm", (x, unrounded, torch.bfloat16, weight, x), {}),
        ("norm", (x, packed(factor=0.5), torch.bfloat16, weight, None, x), {}),
        ("forward", (bare, packed(), weight.detach()), {"y": bare.clone()}),
        ("rms_norm", (bare, weight.detach(), packed()), half),
        ("norms", ([bare, bare], [weight.detach(), None], packed()), {}),
    ]
    for mask in itertools.product((False, True), repeat=3):
        vectors = (weight.detach(), weight.detach())
        cases.append(("backward", (bare, bare, *vectors, None, bare, *mask, packed()), {}))
    for name, arguments, options in cases:
        torch.library.opcheck(getattr(OPS, name).default, arguments, options)


@pytest.mark.parametrize("name", CALLS)
def test_vmap_has_the_bits_of_each_call(name):
    call, _ = CALLS[name]
    x, r, w, v = operands(rows=(4, 3))
    ws, vs = torch.randn(2, 4, 16)
    shared = [call(*rows, w, v) for rows in zip(x, r, strict=True)]
    apart = [call(*each) for each in zip(x, r, ws, vs, strict=True)]
    columns = [call(x, r, *each) for each in zip(ws, vs, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for axes, tensors, each in (
            ((0, 0, None, None), (x, r, w, v), shared),
            ((1, 1, None, None), (x.transpose(0, 1), r.transpose(0, 1), w, v), shared),
            (0, (x, r, ws, vs), apart),
            ((None, None, 0, 0), (x, r, ws, vs), columns),
        ):
            ys = [y.expand(4, *y.shape[1:]) for y in torch.vmap(call, axes)(*tensors)]
            assert_bits(ys, list(map(torch.stack, zip(*each, strict=True))))


def test_vmap_of_rows_beside_a_fixed_one():
    x = normal(3, 5, 64)
    y, total = torch.vmap(rt.fused_add_rms_norm, (1, None))(x, x[:, 0])
    assert_bits(total, (x + x[:, :1]).transpose(0, 1))
    assert_bits(y, rt.rms_norm(total))
    mapped = torch.vmap(lambda row: OPS.norm(row, packed())[0])(x)
    assert_bits(mapped, rt.rms_norm(x, None, 1e-6))


@pytest.mark.parametrize("name", CALLS)
def test_transforms(name):
    call, _ = CALLS[name]
    # PyTorch's sigmoid, in the gradients of a gate, depends on the place of an element.
    is_gated = name.split()[0] in ("silu", "sigmoid")
    assert_same = torch.testing.assert_close if is_gated else assert_bits
    x, r, w, v = tensors = operands(rows=(4, 3))

    def loss(*tensors):
        return sum_of_sines(call(*tensors))

    def or_zeros(*tensors):
        found = gradients(call, tensors)
        return tuple(torch.zeros_like(t) if g is None else g for g, t in zip(found, tensors))

    expected = or_zeros(*tensors)
    everything = torch.func.grad(loss, (0, 1, 2, 3))
    assert_same(everything(*tensors), expected)
    each = torch.vmap(everything, (0, 0, None, None))(*tensors)
    for i in range(4):
        assert_same(tuple(one[i] for one in each), or_zeros(x[i], r[i], w, v))

    # Gradients reach what a mapped function uses, from inside and from outside the map.
    def mapped(x, weight):
        return sum_of_sines(torch.vmap(lambda x, r: call(x, r, weight, v))(x, r))

    weight = w.clone().requires_grad_()
    total = mapped(x, weight)
    if total.requires_grad:
        assert_same(torch.autograd.grad(total, weight)[0], expected[2])
    assert_same(torch.func.grad(mapped)(x, w), expected[0])
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
    assert rt.RMSNorm(64, elementwise_affine=False).weight is None
    assert repr(rt.RMSNorm(64, 1e-6)) == repr(torch.nn.RMSNorm(64, 1e-6))
    text = repr(rt.RMSNorm(64, rounding="inverse", weight_offset=1.0))
    assert text.endswith("elementwise_affine=True, rounding='inverse', weight_offset=1.0)")
    assert repr(eval(text, {"RMSNorm": rt.RMSNorm})) == text


def test_module_options():
    x = normal(4, 64, dtype=torch.bfloat16)
    module = rt.RMSNorm(64, 1e-6, dtype=torch.bfloat16, rounding="before_weight", weight_offset=1)
    assert_bits(module.weight, torch.zeros(64, dtype=torch.bfloat16))
    assert_bits(module(x), rt.rms_norm(x, None, 1e-6, rounding="before_weight"))
    torch.nn.init.normal_(module.weight)
    expected = rt.rms_norm(x, module.weight, 1e-6, rounding="before_weight", weight_offset=1.0)
    assert_bits(module(x), expected)


def test_module_refuses_other_shapes():
    for module in (rt.RMSNorm(64), rt.RMSNorm(64, elementwise_affine=False), rt.RMSNorm((4, 64))):
        for shape in ((4, 63), (64, 4), (2, 5, 65)):
            with pytest.raises(RuntimeError, match="64"):
                module(normal(*shape))


# ------------------------------------------------------------------------------ threads, loading


def test_bits_for_every_number_of_threads():
    x, weight, long = normal(96, 4096), normal(4096), normal(1, 1 << 17)
    results, before = [], torch.get_num_threads()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found = [*gradients(rt.rms_norm, (x, weight), (x,)), rt.rms_norm(x, weight)]
        found += [rt.rms_norm(long), *rt.fused_add_rms_norm(x, x), *rt.qk(x, x, None, None)]
        results.append([*found, rt.gated(x, x)])
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


def test_missing_operators(tmp_path):
    package = Path(rmsnorm.__file__).parent
    shutil.copytree(package, tmp_path / "rmsnorm")
    libraries = package.parent / ".rmsnorm.mesonpy.libs"
    shutil.copytree(libraries, tmp_path / libraries.name, ignore=lambda *_: ["librmsnorm_torch.so"])
    path = tmp_path / libraries.name / "librmsnorm_torch.so"
    result = subprocess.run(
        [sys.executable, "-c", "import rmsnorm.torch"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (
        f"ImportError: rmsnorm was built without its operators for PyTorch, and {path} is"
        in result.stderr
    )


def test_old_pytorch(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(ImportError, match="needs PyTorch 2.10 or newer, and this is 2.9.1"):
        runpy.run_path(rt.__file__)


@pytest.mark.parametrize("block", programs.blocks("torch"))
def test_programs_of_the_page(block):
    x, stream, gate, weight = normal(2, 64), normal(2, 64), normal(2, 64), normal(64)
    names = {"torch": torch, "rmsnorm": rmsnorm, "x": x, "stream": stream}
    names |= {"gate": gate, "weight": weight, "q": x.clone(), "k": x.clone()}
    names |= {"q_weight": weight, "k_weight": weight, "model": torch.nn.RMSNorm(64)}
    exec(block, names)
    if "run_rmsnorm" in names:
        y = names["run_rmsnorm"](64, 1e-5, weight, x)
        assert_bits(y, rt.rms_norm(x, weight, 1e-5))

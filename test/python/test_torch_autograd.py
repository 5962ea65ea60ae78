# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch under autograd: derivatives of every order, inference mode, versions of tensors."""

import functools
import itertools

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch_models import (
    CALLS,
    WITH_FORMULA,
    WITH_GRADIENTS,
    assert_bits,
    gradients,
    operands,
    sum_of_sines,
)

import rmsnorm.torch

rt = rmsnorm.torch


def assert_near(actual, expected, roundings=300, least=1.0):
    """Compares float32 with float64: terms as large as the largest, and `least`, are rounded."""
    for one, two in zip(actual, expected, strict=True):
        one, two = (torch.zeros(()) if t is None else t.detach() for t in (one, two))
        assert (one.double() - two).abs().max() <= roundings * 2.0**-24 * (least + two.abs().max())


@pytest.mark.parametrize("name", WITH_FORMULA)
def test_first_second_and_third_derivatives(name):
    call = CALLS[name]
    leaves = operands(True)

    def derivatives(function, tensors):
        loss, found = sum_of_sines(function(*tensors)), []
        for reduce in (torch.cos, torch.square, torch.square):
            gradient = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
            found.append(gradient)
            loss = sum(reduce(g).sum() for g in gradient if g is not None)
        return found

    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    own, expected = derivatives(call, leaves), derivatives(call.exact, doubles)
    assert_near(own[0], expected[0], roundings=64, least=0.0)
    assert_near(own[1], expected[1])
    scale = max(float(g.abs().max()) for g in expected[2] if g is not None)
    assert_near(*([g / scale for g in third if g is not None] for third in (own[2], expected[2])))


@pytest.mark.parametrize("name", WITH_FORMULA)
def test_forward_mode(name):
    call = CALLS[name]
    tensors, tangents = operands(), operands()
    doubles, double_tangents = ([t.double() for t in ts] for ts in (tensors, tangents))
    values, slopes = torch.func.jvp(call.exact, tuple(doubles), tuple(double_tangents))
    own_values, own_slopes = torch.func.jvp(call, tuple(tensors), tuple(tangents))
    assert_near((*own_values, *own_slopes), (*values, *slopes))
    with forward_ad.dual_level():
        duals = map(forward_ad.unpack_dual, call(*map(forward_ad.make_dual, tensors, tangents)))
        for found, expected in zip(duals, zip(values, slopes, strict=True), strict=True):
            assert_near(found, expected)

    # Gradients of a norm without a tangent, which are linear in dy, and of recorded operators.
    step = lambda *tensors: tuple(call(*tensors))
    ys, pull = torch.func.vjp(step, *tensors)
    dys, program = tuple(map(torch.randn_like, ys)), make_fx(step)(*tensors)
    assert_near(torch.func.jvp(pull, (dys,), (dys,))[1], pull(dys))
    assert_near(torch.func.jvp(program, tuple(tensors), tuple(tangents))[1], slopes)
    assert_near(torch.func.vjp(program, *tensors)[1](dys), pull(dys))

    def seconds(function, x, r, w, v):
        hessian = torch.func.hessian(lambda x: sum_of_sines(function(x, r, w, v)))(x)
        return hessian, *torch.func.jacfwd(lambda w: function(x, r, w, v))(w)

    for own, expected in zip(seconds(call, *tensors), seconds(call.exact, *doubles), strict=True):
        assert_near([own], [expected])


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients_do_not_depend_on_which_are_wanted(name):
    call = CALLS[name]
    tensors = operands()
    dys = [torch.randn_like(y) for y in call(*tensors)]

    def gradients(wanted):
        leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
        products = [(y * dy).sum() for y, dy in zip(call(*leaves), dys, strict=True)]
        loss = torch.stack(products).sum()
        if not loss.requires_grad:
            return [None] * len(wanted)
        return torch.autograd.grad(loss, [leaves[i] for i in wanted], allow_unused=True)

    expected = gradients((0, 1, 2, 3))
    for count in (1, 2, 3):
        for wanted in itertools.combinations(range(4), count):
            assert_bits(gradients(wanted), [expected[i] for i in wanted])


@pytest.mark.parametrize("default", [torch.float32, torch.float16])
def test_forward_mode_of_large_rows(default, request):
    x, tangent = torch.randn(2, 16), torch.randn(2, 16)
    request.addfinalizer(functools.partial(torch.set_default_dtype, torch.float32))
    torch.set_default_dtype(default)
    expected = torch.func.jvp(rt.rms_norm, (x,), (tangent,))
    for scale in (2.0**64, 2.0**120):
        for options in ({}, {"eps_placement": "outside"}, {"eps_placement": "floor"}):
            norm = functools.partial(rt.rms_norm, eps=0.0, **options)
            large = torch.func.jvp(norm, (x * scale,), (tangent * scale,))
            torch.testing.assert_close(large, expected)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_features_of_inference_mode_and_weights_that_learn(name):
    call = CALLS[name]
    x, r, weight, vector = operands()
    with torch.inference_mode():
        features = x.clone(), r.clone()
    found = []
    for rows in (features, (x, r)):
        leaves = [v.clone().requires_grad_() for v in (weight, vector)]
        loss = sum_of_sines(call(*rows, *leaves))
        wanted = loss.requires_grad
        found.append(torch.autograd.grad(loss, leaves, allow_unused=True) if wanted else None)
    assert_bits(*found)


#: Calls that write into a tensor.
WRITES = (
    lambda x: rt.fused_add_rms_norm_(x, torch.ones(3, 16)),
    lambda x: rt.fused_add_rms_norm_(torch.ones(3, 16), x),
    lambda x: rt.rms_norm(x, out=x),
    lambda x: rt.forward(x=torch.ones(3, 16), y=x),
)


def test_inference_tensors_are_not_written_outside_inference_mode():
    with torch.inference_mode():
        x = torch.randn(3, 16)
    before = x.clone()
    for write in WRITES:
        for mode in (torch.enable_grad, torch.no_grad):
            with mode(), pytest.raises(RuntimeError, match="[Ii]nference"):
                write(x)
        assert torch.equal(x, before)
    with torch.inference_mode():
        rt.fused_add_rms_norm_(x, torch.ones(3, 16))
    assert not torch.equal(x, before)


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("placement", ["after", "before"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_infinite_gates(activation, placement, dtype):
    x, gate, weight, dy = (torch.randn(s).to(dtype) for s in ((2, 8), (2, 8), (8,), (2, 8)))
    call = functools.partial(rt.gated, activation=activation, gate_placement=placement)

    def found(value):
        gate[0, 3] = value
        return gradients(call, (x, gate, weight), (dy,))

    # The activation and its derivative are 0 in float32 already at -200.
    assert_bits(found(-torch.inf), found(-200.0))
    if activation == "sigmoid":
        assert_bits(found(torch.inf), found(200.0))
    assert found(torch.nan)[1][0].isnan().any()


@pytest.mark.parametrize("name", WITH_GRADIENTS)
@pytest.mark.parametrize("rows, d", [((3,), 0), ((0,), 8)])
def test_no_rows_and_rows_of_no_element(name, rows, d):
    call = CALLS[name]
    leaves = operands(rows=rows, d=d)
    ys = call(*leaves)
    assert all(y.shape == (*rows, d) for y in ys)
    for gradient, leaf in zip(gradients(call, leaves, ys), leaves, strict=True):
        assert gradient is None or torch.equal(gradient, torch.zeros_like(leaf))


@pytest.mark.parametrize(
    "dtype, eps, is_finite",
    [
        (torch.float16, 1e-12, False),
        (torch.float16, 1.53e-5, True),
        (torch.bfloat16, 1e-12, True),
        (torch.float32, 1e-12, True),
    ],
)
def test_gradients_of_l2_norms_of_zero_rows(dtype, eps, is_finite):
    # doc/forward.md says from which eps on they are finite.
    norm = functools.partial(rt.rms_norm, eps=eps, eps_placement="floor", divisor=1.0)
    [dx] = gradients(norm, [torch.zeros(2, 8, dtype=dtype)], [torch.ones(2, 8, dtype=dtype)])
    assert bool(dx.isfinite().all()) == is_finite


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_batched_gradients(name):
    call = CALLS[name]
    tensors = tuple(operands(True))
    ys = call(*tensors)
    dys = [torch.randn(3, *y.shape) for y in ys]

    def gradients(dys, **batched):
        return torch.autograd.grad(
            ys, tensors, dys, retain_graph=True, allow_unused=True, **batched
        )

    found = gradients(dys, is_grads_batched=True)
    each = zip(*[gradients([dy[i] for dy in dys]) for i in range(3)], strict=True)
    for one, many in zip(found, each, strict=True):
        assert one is None or torch.allclose(one, torch.stack(many), rtol=1e-5, atol=1e-6)

    def loss(x):
        return sum_of_sines(call(x, *tensors[1:]))

    hessians = [torch.autograd.functional.hessian(loss, tensors[0], vectorize=v) for v in (0, 1)]
    torch.testing.assert_close(*hessians, rtol=1e-4, atol=1e-4)


# Inductor of PyTorch 2.10 makes one view of two equal ones, and keeps it.
KEEPS_VIEWS = pytest.mark.xfail(torch.__version__.startswith("2.10."), strict=True, reason="2.10")


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=KEEPS_VIEWS)])
@pytest.mark.parametrize("dynamic", [None, True])
def test_compiled_code_notices_changes_of_what_it_makes_views_of(backend, dynamic):
    for view in (lambda x: x[None], lambda x: x[1:], lambda x: x.transpose(0, 1)):
        torch._dynamo.reset()
        call = torch.compile(
            lambda x, w, view=view: rt.rms_norm(view(x), w), backend=backend, dynamic=dynamic
        )
        x, w = torch.randn(3, 4, 16), torch.randn(16)
        dy = torch.randn_like(view(x))
        expected = gradients(lambda x, w: rt.rms_norm(view(x), w), (x, w), (dy,))
        assert_bits(gradients(call, (x, w), (dy,)), expected)
        leaf = x.requires_grad_() * 1
        y = call(leaf, w.requires_grad_())
        with torch.no_grad():
            leaf.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(y.sum(), (x, w))

# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch under autograd: derivatives of every order, inference mode, versions of tensors."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch_models import CALLS, operands

import rmsnorm.torch

rt: Any = rmsnorm.torch  # options come from dictionaries, which mypy cannot follow


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(1)


def assert_near(actual: Any, expected: Any, roundings: int = 300, least: float = 1.0) -> None:
    """Compares float32 with float64: terms as large as the largest, and `least`, are rounded."""
    for one, two in zip(actual, expected, strict=True):
        one, two = (torch.zeros(()) if t is None else t.detach() for t in (one, two))
        assert (one.double() - two).abs().max() <= roundings * 2.0**-24 * (least + two.abs().max())


@pytest.mark.parametrize("name", CALLS)
def test_first_and_second_derivatives(name: str) -> None:
    call, exact = CALLS[name]
    leaves = operands(True)

    def derivatives(function: Callable[..., Any], tensors: list[Tensor]) -> tuple[Any, ...]:
        loss = torch.stack([y.sin().sum() for y in function(*tensors)]).sum()
        first = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
        total = sum(g.cos().sum() for g in first if g is not None)
        second = torch.autograd.grad(total, tensors, create_graph=True, allow_unused=True)
        total = sum(g.square().sum() for g in second if g is not None)
        return first, second, torch.autograd.grad(total, tensors, allow_unused=True)

    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    own, expected = derivatives(call, leaves), derivatives(exact, doubles)
    assert_near(own[0], expected[0], roundings=64, least=0.0)
    assert_near(own[1], expected[1])
    scale = max(float(g.abs().max()) for g in expected[2] if g is not None)
    assert_near(*([g / scale for g in third if g is not None] for third in (own[2], expected[2])))


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode(name: str) -> None:
    call, exact = CALLS[name]
    tensors, tangents = operands(), operands()
    doubles, double_tangents = ([t.double() for t in ts] for ts in (tensors, tangents))
    values, slopes = torch.func.jvp(exact, tuple(doubles), tuple(double_tangents))
    own_values, own_slopes = torch.func.jvp(call, tuple(tensors), tuple(tangents))
    assert_near((*own_values, *own_slopes), (*values, *slopes))
    with forward_ad.dual_level():
        for y, value, slope in zip(
            call(*map(forward_ad.make_dual, tensors, tangents)), values, slopes, strict=True
        ):
            assert_near(forward_ad.unpack_dual(y), (value, slope))

    def loss(function: Callable[..., Any], x: Tensor, others: list[Tensor]) -> Tensor:
        return torch.stack([y.sin().sum() for y in function(x, *others)]).sum()

    hessian = torch.func.hessian(lambda x: loss(call, x, tensors[1:]))(tensors[0])
    exact_hessian = torch.func.hessian(lambda x: loss(exact, x, doubles[1:]))(doubles[0])
    assert_near([hessian], [exact_hessian])
    jacobian = torch.func.jacfwd(lambda w: call(*tensors[:2], w, tensors[3]))(tensors[2])
    exact_jacobian = torch.func.jacfwd(lambda w: exact(*doubles[:2], w, doubles[3]))(doubles[2])
    assert_near(jacobian, exact_jacobian)


@pytest.mark.parametrize("name", CALLS)
def test_gradients_do_not_depend_on_which_are_wanted(name: str) -> None:
    call, _ = CALLS[name]
    tensors = operands()
    dys = [torch.randn_like(y) for y in call(*tensors)]

    def gradients(wanted: tuple[int, ...]) -> dict[int, Tensor | None]:
        leaves = [t.clone().requires_grad_(i in wanted) for i, t in enumerate(tensors)]
        products = [(y * dy).sum() for y, dy in zip(call(*leaves), dys, strict=True)]
        loss = torch.stack(products).sum()
        if not loss.requires_grad:
            return dict.fromkeys(wanted)
        inputs = [leaves[i] for i in wanted]
        return dict(zip(wanted, torch.autograd.grad(loss, inputs, allow_unused=True), strict=True))

    expected = gradients((0, 1, 2, 3))
    for count in (1, 2, 3):
        for wanted in itertools.combinations(range(4), count):
            for i, gradient in gradients(wanted).items():
                whole = expected[i]
                assert (gradient is None) == (whole is None)
                assert gradient is None or whole is None or torch.equal(gradient, whole)


def test_forward_mode_refuses_what_the_operator_refuses() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(2, 4).double(), torch.ones(2, 4).double())
        with pytest.raises(RuntimeError, match="the type must be float32, float16 or bfloat16"):
            rt.rms_norm(x)


@pytest.mark.parametrize("name", CALLS)
def test_features_of_inference_mode_and_weights_that_learn(name: str) -> None:
    call, _ = CALLS[name]
    x, r, weight, vector = operands()
    with torch.inference_mode():
        features = x.clone(), r.clone()
    gradients = []
    for rows in (features, (x, r)):
        leaves = [v.clone().requires_grad_() for v in (weight, vector)]
        loss = torch.stack([y.sin().sum() for y in call(*rows, *leaves)]).sum()
        if loss.requires_grad:
            gradients.append(torch.autograd.grad(loss, leaves, allow_unused=True))
        else:
            gradients.append((None, None))
    for one, two in zip(*gradients, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)


def test_writing_over_a_saved_tensor_is_noticed() -> None:
    for mode in (torch.no_grad, torch.inference_mode):
        for write in (
            lambda x: rt.fused_add_rms_norm_(x, torch.ones(3, 16)),
            lambda x: rt.fused_add_rms_norm_(torch.ones(3, 16), x),
            lambda x: rt.rms_norm(x, out=x),
            lambda x: rt.forward(x=torch.ones(3, 16), y=x),
        ):
            x = torch.randn(3, 16)
            scale = torch.ones(16, requires_grad=True)
            loss = (x * scale).sum()
            with mode():
                write(x)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(loss, scale)


def test_inference_tensors_are_not_written_outside_inference_mode() -> None:
    with torch.inference_mode():
        x = torch.randn(3, 16)
    before = x.clone()
    for write in (
        lambda: rt.fused_add_rms_norm_(x, torch.ones(3, 16)),
        lambda: rt.fused_add_rms_norm_(torch.ones(3, 16), x),
        lambda: rt.rms_norm(torch.ones(3, 16), out=x),
    ):
        with pytest.raises(RuntimeError, match="[Ii]nference"):
            write()
        with torch.no_grad(), pytest.raises(RuntimeError, match="[Ii]nference"):
            write()
        assert torch.equal(x, before)
    with torch.inference_mode():
        rt.fused_add_rms_norm_(x, torch.ones(3, 16))
    assert not torch.equal(x, before)


def test_versions_in_compiled_code() -> None:
    def step(x: Tensor, residual: Tensor) -> None:
        rt.fused_add_rms_norm_(x, residual)

    x, residual = torch.randn(3, 16), torch.randn(3, 16)
    with torch.no_grad():
        versions = x._version, residual._version
        torch.compile(step, backend="aot_eager", fullgraph=True)(x, residual)
    assert x._version > versions[0] and residual._version > versions[1]


def test_in_place_under_vmap() -> None:
    x, residual, weight = torch.randn(4, 3, 16), torch.randn(4, 3, 16), torch.randn(16)
    expected = rt.fused_add_rms_norm(x, residual, weight)
    stored = x.clone(), residual.clone()
    with torch.no_grad():
        torch.vmap(lambda x, r: (rt.fused_add_rms_norm_(x, r, weight), x)[1])(*stored)
    assert torch.equal(stored[0], expected[0]) and torch.equal(stored[1], expected[1])
    with pytest.raises(RuntimeError, match="vmap"):
        torch.vmap(lambda x: (rt.fused_add_rms_norm_(x, residual[0]), x)[1])(x.clone())


@pytest.mark.parametrize("activation", ["silu", "sigmoid"])
@pytest.mark.parametrize("placement", ["after", "before"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_of_infinite_gates(activation: str, placement: str, dtype: torch.dtype) -> None:
    x, gate, weight, dy = (torch.randn(s).to(dtype) for s in ((2, 8), (2, 8), (8,), (2, 8)))
    options = {"activation": activation, "gate_placement": placement}

    def gradients(value: float) -> tuple[Tensor, ...]:
        z = gate.clone()
        z[0, 3] = value
        leaves = [t.clone().requires_grad_() for t in (x, z, weight)]
        return torch.autograd.grad(rt.gated(leaves[0], leaves[1], leaves[2], **options), leaves, dy)

    # The activation and its derivative are 0 in float32 already at -200.
    for one, two in zip(gradients(-torch.inf), gradients(-200.0), strict=True):
        assert torch.equal(one, two)
    if activation == "sigmoid":
        for one, two in zip(gradients(torch.inf), gradients(200.0), strict=True):
            assert torch.equal(one, two)
    assert gradients(torch.nan)[1][0].isnan().any()


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("rows, d", [((3,), 0), ((0,), 8)])
def test_no_rows_and_rows_of_no_element(name: str, rows: tuple[int, ...], d: int) -> None:
    call, _ = CALLS[name]
    leaves = operands(True, rows, d)
    ys = call(*leaves)
    assert all(y.shape == (*rows, d) for y in ys)
    gradients = torch.autograd.grad(ys, leaves, ys, allow_unused=True)
    for gradient, leaf in zip(gradients, leaves, strict=True):
        assert gradient is None or torch.equal(gradient, torch.zeros_like(leaf))


def test_gradients_of_l2_norms_of_zero_rows() -> None:
    # doc/forward.md says from which eps on they are finite.
    for dtype, eps, is_finite in (
        (torch.float16, 1e-12, False),
        (torch.float16, 1.53e-5, True),
        (torch.bfloat16, 1e-12, True),
        (torch.float32, 1e-12, True),
    ):
        x = torch.zeros(2, 8, dtype=dtype, requires_grad=True)
        y = rt.rms_norm(x, None, eps, eps_placement="floor", divisor=1.0)
        [dx] = torch.autograd.grad(y, x, torch.ones(2, 8, dtype=dtype))
        assert bool(dx.isfinite().all()) == is_finite

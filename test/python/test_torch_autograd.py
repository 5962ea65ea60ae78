# SPDX-License-Identifier: Apache-2.0
"""rmsnorm.torch under autograd: derivatives of every order, inference mode, versions of tensors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

import rmsnorm.torch

rt: Any = rmsnorm.torch  # options come from dictionaries, which mypy cannot follow
EPS = 2.0**-23


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(1)


def exact_norm(x: Tensor, weight: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight + bias


def silu(z: Tensor) -> Tensor:
    return z * torch.sigmoid(z)


#: A call of each function, and its formula, both of x, a tensor of its shape, and two vectors.
CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "rms_norm": (
        lambda x, r, w, v: rt.rms_norm(x, w, bias=v),
        lambda x, r, w, v: exact_norm(x, w, v),
    ),
    "offset": (
        lambda x, r, w, v: rt.rms_norm(x, w, weight_offset=1.0, divisor=32.0),
        lambda x, r, w, v: x / (x.square().sum(-1, keepdim=True) / 32 + EPS).sqrt() * (1 + w),
    ),
    "outside": (
        lambda x, r, w, v: rt.rms_norm(x, w, 0.5, eps_placement="outside"),
        lambda x, r, w, v: x / (x.square().mean(-1, keepdim=True).sqrt() + 0.5) * w,
    ),
    "factor": (
        lambda x, r, w, v: rt.rms_norm(x, w, 0.5, factor=0.5),
        lambda x, r, w, v: x / 2 / (x.square().mean(-1, keepdim=True) / 4 + 0.5).sqrt() * w,
    ),
    "fused_add_rms_norm": (
        lambda x, r, w, v: torch.stack(rt.fused_add_rms_norm(x, r, w, bias=v)),
        lambda x, r, w, v: torch.stack([exact_norm(x + r, w, v), x + r]),
    ),
    "unrounded": (
        lambda x, r, w, v: rt.fused_add_rms_norm(x, r, w, residual_rounding="unrounded")[0],
        lambda x, r, w, v: exact_norm(x + r, w),
    ),
    "post_norm_weight": (
        lambda x, r, w, v: rt.fused_add_rms_norm(x, r, w, post_norm_weight=v, factor=2.0)[0],
        lambda x, r, w, v: exact_norm(r + 2 * exact_norm(x, v), w),
    ),
    "gate after": (
        lambda x, r, w, v: rt.gated(x, r, w, bias=v),
        lambda x, r, w, v: exact_norm(x, w, v) * silu(r),
    ),
    "gate before": (
        lambda x, r, w, v: rt.gated(x, r, w, gate_placement="before", activation="sigmoid"),
        lambda x, r, w, v: exact_norm(x * torch.sigmoid(r), w),
    ),
    "qk": (
        lambda x, r, w, v: torch.stack(rt.qk(x, r, w, v)),
        lambda x, r, w, v: torch.stack([exact_norm(x, w), exact_norm(r, v)]),
    ),
}


def operands(requires_grad: bool = True) -> list[Tensor]:
    shapes = ((3, 16), (3, 16), (16,), (16,))
    return [torch.randn(shape).requires_grad_(requires_grad) for shape in shapes]


def assert_near(actual: Any, expected: Any) -> None:
    """Compares float32 with float64: some hundred roundings of terms as large as the largest."""
    for one, two in zip(actual, expected, strict=True):
        one, two = (torch.zeros(()) if t is None else t.detach() for t in (one, two))
        assert (one.double() - two).abs().max() <= 300 * 2.0**-24 * (1 + two.abs().max())


@pytest.mark.parametrize("name", CALLS)
def test_first_and_second_derivatives(name: str) -> None:
    call, exact = CALLS[name]
    leaves = operands()

    def derivatives(function: Callable[..., Tensor], tensors: list[Tensor]) -> tuple[Any, ...]:
        y = function(*tensors)
        first = torch.autograd.grad(y.sin().sum(), tensors, create_graph=True, allow_unused=True)
        total = sum(g.cos().sum() for g in first if g is not None)
        second = torch.autograd.grad(total, tensors, create_graph=True, allow_unused=True)
        total = sum(g.square().sum() for g in second if g is not None)
        return first, second, torch.autograd.grad(total, tensors, allow_unused=True)

    doubles = [leaf.detach().double().requires_grad_() for leaf in leaves]
    own, expected = derivatives(call, leaves), derivatives(exact, doubles)
    assert_near(own[0], expected[0])
    assert_near(own[1], expected[1])
    scale = max(float(g.abs().max()) for g in expected[2] if g is not None)
    assert_near(*([g / scale for g in third if g is not None] for third in (own[2], expected[2])))


@pytest.mark.parametrize("name", CALLS)
def test_forward_mode(name: str) -> None:
    call, exact = CALLS[name]
    tensors, tangents = operands(False), operands(False)
    doubles, double_tangents = ([t.double() for t in ts] for ts in (tensors, tangents))
    expected = torch.func.jvp(exact, tuple(doubles), tuple(double_tangents))
    assert_near(torch.func.jvp(call, tuple(tensors), tuple(tangents)), expected)
    with forward_ad.dual_level():
        y = call(*map(forward_ad.make_dual, tensors, tangents))
        assert_near(forward_ad.unpack_dual(y), expected)
    hessian = torch.func.hessian(lambda x: call(x, *tensors[1:]).sin().sum())(tensors[0])
    exact_hessian = torch.func.hessian(lambda x: exact(x, *doubles[1:]).sin().sum())(doubles[0])
    assert_near([hessian], [exact_hessian])
    jacobian = torch.func.jacfwd(lambda w: call(*tensors[:2], w, tensors[3]))(tensors[2])
    exact_jacobian = torch.func.jacfwd(lambda w: exact(*doubles[:2], w, doubles[3]))(doubles[2])
    assert_near([jacobian], [exact_jacobian])


def test_forward_mode_refuses_what_the_operator_refuses() -> None:
    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(2, 4).double(), torch.ones(2, 4).double())
        with pytest.raises(RuntimeError, match="the type must be float32, float16 or bfloat16"):
            rt.rms_norm(x)


@pytest.mark.parametrize("name", CALLS)
def test_features_of_inference_mode_and_weights_that_learn(name: str) -> None:
    call, _ = CALLS[name]
    x, r, weight, vector = operands(False)
    with torch.inference_mode():
        features = x.clone(), r.clone()
    gradients = []
    for rows in (features, (x, r)):
        leaves = [v.clone().requires_grad_() for v in (weight, vector)]
        loss = call(*rows, *leaves).sin().sum()
        gradients.append(torch.autograd.grad(loss, leaves, allow_unused=True))
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


def test_rows_of_no_element() -> None:
    x = torch.zeros(3, 0, requires_grad=True)
    weight = torch.zeros(0, requires_grad=True)
    for y in (
        rt.rms_norm(x, weight),
        rt.gated(x, x, weight),
        *rt.fused_add_rms_norm(x, x, weight),
        *rt.qk(x, x, weight, weight),
    ):
        assert y.shape == (3, 0)
    gradients = torch.autograd.grad(rt.rms_norm(x, weight).sum(), (x, weight))
    expected = torch.autograd.grad(F.rms_norm(x, (0,), weight).sum(), (x, weight))
    assert [g.shape for g in gradients] == [g.shape for g in expected]


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

# SPDX-License-Identifier: Apache-2.0
"""Steps on the residual stream: rmsnorm.torch beside the layers of transformers and diffusers.

../data/models.py has the layers. It recorded their results, which test_bits.py compares."""

import sys
from pathlib import Path

import pytest
import torch

import rmsnorm.torch

pytest.importorskip("diffusers")
pytest.importorskip("transformers")
sys.path.append(str(Path(__file__).parents[1] / "data"))
import models  # pylint: disable=wrong-import-position

DTYPES = (torch.float32, torch.bfloat16)


def step(name, given):
    operands = models.operands_of(name, given)
    return rmsnorm.torch.fused_add_rms_norm(**operands, **models.OPTIONS[name])


@pytest.mark.filterwarnings("ignore:Mismatch dtype")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", models.STEPS)
def test_steps(name, dtype):
    """The results have the layer's bits, but for y in f32 after a post-norm, whose sum is not
    exact. The layer rounds each of its gradients to bf16, and the library once."""
    given = models.arguments_of(name, dtype)
    leaves = [given[each].requires_grad_() for each in ("x", "residual", "gate") if each in given]
    found, expected = step(name, given), models.STEPS[name](**given)
    assert torch.equal(found[1], expected[1])
    if dtype == torch.float32 and name in ("gemma4_layer", *models.TANH):
        torch.testing.assert_close(found[0], expected[0], rtol=2e-6, atol=0)
    else:
        assert torch.equal(found[0], expected[0])
    tolerance = 1e-5 if dtype == torch.float32 else 2**-6
    dys = [torch.randn_like(y) for y in expected]
    both = (torch.autograd.grad(results, leaves, dys) for results in (found, expected))
    for one, two in zip(*both, strict=True):
        assert (one.dtype, one.shape) == (two.dtype, two.shape)
        assert (one - two).abs().max() <= tolerance * two.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_and_shift_in_one_call(dtype):
    """LTX's norm has no weight, so scale and shift can be weight and bias. y is rounded once, where
    the layer rounds the norm, 1 + scale, the product and the sum."""
    given = models.arguments_of("ltx", dtype)
    scale, shift = (torch.randn(2, 1, models.D).to(dtype) for _ in range(2))
    n, stream = models.ltx(**given)
    options = models.OPTIONS["ltx"] | {"weight_offset": 1}
    y, total = rmsnorm.torch.fused_add_rms_norm(**given, weight=scale, bias=shift, **options)
    assert torch.equal(total, stream)
    h = stream.double()
    product = h / (h.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + scale.double())
    exact = product + shift.double()
    rounding = {torch.float32: 2**-24, torch.bfloat16: 2**-8}[dtype]
    assert ((y - exact).abs() <= rounding * exact.abs() + 2**-21 * product.abs()).all()
    layers = n * (1 + scale) + shift
    assert (y - exact).abs().mean() < (layers - exact).abs().mean()

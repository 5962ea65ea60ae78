# SPDX-License-Identifier: Apache-2.0
"""Calls of the functions of rmsnorm.torch with their formulas, and models to be exported."""

import torch
from torch import Tensor

import rmsnorm.torch

rt = rmsnorm.torch
EPS = 2.0**-23  # the default

Tensors = tuple[Tensor, ...]

TENSOR_FUNCTIONS = (
    *(rt.rms_norm, rt.fused_add_rms_norm, rt.fused_add_rms_norm_, rt.gated, rt.norms, rt.qk),
    *(rt.quantized, rt.forward, rt.functional.rms_norm),
)


def exact_norm(x, weight=1.0, bias=0.0, eps=EPS):
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def silu(z):
    return z * torch.sigmoid(z)


def norms_of_kinds(x, r, w, v):
    q, (y, total), z = rt.norms(
        [{"x": x, "weight": w}, {"x": x, "residual": r}, {"x": r, "gate": x, "bias": v}]
    )
    return q, y, total, z


#: Calls of each function, and their formulas, both of x, a tensor of its shape, and two vectors.
#: Results are tuples.
CALLS = {
    "rms_norm": (
        lambda x, r, w, v: (rt.rms_norm(x, w, bias=v),),
        lambda x, r, w, v: (exact_norm(x, w, v),),
    ),
    "without a weight": (
        lambda x, r, w, v: (rt.rms_norm(x),),
        lambda x, r, w, v: (exact_norm(x),),
    ),
    "offset": (
        lambda x, r, w, v: (rt.rms_norm(x, w, weight_offset=1.0, divisor=32.0),),
        lambda x, r, w, v: (x / (x.square().sum(-1, keepdim=True) / 32 + EPS).sqrt() * (1 + w),),
    ),
    "outside": (
        lambda x, r, w, v: (rt.rms_norm(x, w, 0.5, eps_placement="outside"),),
        lambda x, r, w, v: (x / (x.square().mean(-1, keepdim=True).sqrt() + 0.5) * w,),
    ),
    "floor": (
        lambda x, r, w, v: (rt.rms_norm(x, w, 0.9, eps_placement="floor"),),
        lambda x, r, w, v: (x / x.square().mean(-1, keepdim=True).sqrt().clamp(min=0.9) * w,),
    ),
    "factor": (
        lambda x, r, w, v: (rt.rms_norm(x, w, 0.5, factor=0.5),),
        lambda x, r, w, v: (exact_norm(x / 2, w, eps=0.5),),
    ),
    "fused_add_rms_norm": (
        lambda x, r, w, v: rt.fused_add_rms_norm(x, r, w, bias=v),
        lambda x, r, w, v: (exact_norm(x + r, w, v), x + r),
    ),
    "unrounded": (
        lambda x, r, w, v: rt.fused_add_rms_norm(x, r, w, residual_rounding="unrounded"),
        lambda x, r, w, v: (exact_norm(x + r, w), x + r),
    ),
    "post_norm_weight": (
        lambda x, r, w, v: rt.fused_add_rms_norm(x, r, w, post_norm_weight=v, factor=2.0),
        lambda x, r, w, v: (exact_norm(r + 2 * exact_norm(x, v), w), r + 2 * exact_norm(x, v)),
    ),
    "silu after": (
        lambda x, r, w, v: (rt.gated(x, r, w, bias=v),),
        lambda x, r, w, v: (exact_norm(x, w, v) * silu(r),),
    ),
    "sigmoid after": (
        lambda x, r, w, v: (rt.gated(x, r, w, activation="sigmoid", weight_offset=1.0),),
        lambda x, r, w, v: (exact_norm(x, 1 + w) * torch.sigmoid(r),),
    ),
    "silu before": (
        lambda x, r, w, v: (rt.gated(x, r, w, gate_placement="before", weight_offset=1.0),),
        lambda x, r, w, v: (exact_norm(x * silu(r), 1 + w),),
    ),
    "sigmoid before": (
        lambda x, r, w, v: (rt.gated(x, r, w, gate_placement="before", activation="sigmoid"),),
        lambda x, r, w, v: (exact_norm(x * torch.sigmoid(r), w),),
    ),
    "qk": (
        lambda x, r, w, v: rt.qk(x, r, w, v),
        lambda x, r, w, v: (exact_norm(x, w), exact_norm(r, v)),
    ),
    "norms": (
        norms_of_kinds,
        lambda x, r, w, v: (
            exact_norm(x, w),
            exact_norm(x + r),
            x + r,
            exact_norm(r, 1.0, v) * silu(x),
        ),
    ),
}


def assert_bits(actual, expected):
    """Compares tensors, or results and gradients, of which some may be None."""
    if isinstance(expected, (tuple, list)):
        for one, two in zip(actual, expected, strict=True):
            assert_bits(one, two)
        return
    assert (actual is None) == (expected is None)
    if actual is not None:
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        bits = {4: torch.int32, 2: torch.int16, 1: torch.int8}[actual.itemsize]
        assert torch.equal(*(t.detach().contiguous().view(bits) for t in (actual, expected)))


def sum_of_sines(ys):
    return torch.stack([y.sin().sum() for y in ys]).sum()


def gradients(call, tensors, dys=None):
    """Returns the gradient by each tensor, or None: for dys, or of the sum of the sines."""
    leaves = [t.detach().requires_grad_() for t in tensors]
    ys = call(*leaves)
    ys = (ys,) if isinstance(ys, Tensor) else ys
    if dys is None:
        return torch.autograd.grad(sum_of_sines(ys), leaves, allow_unused=True)
    return torch.autograd.grad(ys, leaves, dys[: len(ys)], allow_unused=True)


def operands(requires_grad=False, rows=(3,), d=16):
    """Returns random operands of a call."""
    shapes = ((*rows, d), (*rows, d), (d,), (d,))
    return [torch.randn(shape).requires_grad_(requires_grad) for shape in shapes]


class Model(torch.nn.Module):
    """A layer with a norm, of weights that learn."""

    def __init__(self, shape=16, **options):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norm = rt.RMSNorm(shape, 1e-6, **options)
        torch.nn.init.normal_(self.norm.weight)

    def forward(self, x):
        y = self.norm(self.linear(x))
        return y


class Functions(torch.nn.Module):
    """Every function that returns tensors."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(16))
        self.bias = torch.nn.Parameter(torch.randn(16))

    def forward(self, x):
        w, b = self.weight, self.bias
        y, total = rt.fused_add_rms_norm(x, x * 2, w, 1e-6, post_norm_weight=b)
        z = rt.gated(y, total, w, 1e-6, rounding="before_weight", gate_rounding="rounded")
        q, k = rt.qk(y, z, w, b, 1e-6)
        u = rt.rms_norm(x, w, 1e-6, bias=b, eps_placement="outside", factor=0.5, divisor=8.0)
        v = rt.functional.rms_norm(x, (16,), w)
        s, t = rt.norms([y, z], [w, None], 1e-6)
        [(a, c)] = rt.norms([{"x": y, "residual": z, "gate": x}], eps=1e-6)
        result = q + k + u + v + s + t + a + c
        return result


class Textbook(torch.nn.Module):
    """A norm as people write it, for rmsnorm.torch.use()."""

    def __init__(self, d=16):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d))

    def forward(self, x):
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6) * self.weight


class TwoKinds(torch.nn.Module):
    """A model of norms that are not this library's."""

    def __init__(self, *others):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.norms = torch.nn.ModuleList([Textbook(), *others])

    def forward(self, x):
        for norm in self.norms:
            x = self.linear(x) + norm(x)
        return x


MODELS = {
    "module": Model,
    "module of two dimensions": lambda: Model((3, 16)),
    "rounding": lambda: Model(rounding="before_weight", weight_offset=1.0),
    "functions": Functions,
}

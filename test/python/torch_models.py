# SPDX-License-Identifier: Apache-2.0
"""Calls of rmsnorm.torch as data, with their results by NumPy and by formula; models to export."""

import io
import math

import torch
from formula import formula
from torch import Tensor

import rmsnorm.torch

rt = rmsnorm.torch
EPS = 2.0**-23  # the default

TENSOR_FUNCTIONS = (
    *(rt.rms_norm, rt.fused_add_rms_norm, rt.fused_add_rms_norm_, rt.gated, rt.norms, rt.qk),
    *(rt.quantized, rt.rotary, rt.forward, rt.functional.rms_norm),
)


ROWS, STEPS, INT8 = ("y", "residual_out", "q"), ("scale", "zero"), ("q", "zero")


def new_outputs(names, x, residual=None, dtype=None, group=None, **_others):
    """Returns tensors for the outputs of a norm. Only with a residual there is residual_out."""
    types = {"y": dtype or x.dtype, **dict.fromkeys(INT8, torch.int8)}
    types["residual_out"] = None if residual is None else residual.dtype
    of_groups = x.shape[:-1] if group is None else (*x.shape[:-1], x.shape[-1] // group)
    shapes = dict.fromkeys(ROWS, x.shape) | dict.fromkeys(STEPS, of_groups)
    return {
        name: x.new_empty(shapes.get(name, x.shape[:-1]), dtype=types.get(name, torch.float32))
        for name in names.split()
        if name != "residual_out" or residual is not None
    }


class Call:
    """Norms that one call of a function makes, of x, a tensor r of its shape and vectors w and v.

    A norm is a dictionary of operands, as "x", "r", "w" or "v" or a function of the four, and of
    options. x is "x" unless given. The function takes the norms, and returns their outputs. One
    that writes has no gradients: `writes` says over how many of x and r.
    """

    def __init__(self, function, *norms, outputs="y residual_out", writes=None, **norm):
        self.function, self.outputs, self.writes = function, outputs, writes
        self.has_gradients = writes is None
        self.norms = [{"x": "x", **given} for given in norms or (norm,)]
        self.is_gated = any("gate" in given for given in self.norms)

    def arguments(self, x, r, w, v):
        tensors = {"x": x, "r": r, "w": w, "v": v}
        return [
            {n: a(x, r, w, v) if callable(a) else tensors.get(a, a) for n, a in given.items()}
            for given in self.norms
        ]

    def __call__(self, *tensors):
        return self.function(*self.arguments(*tensors))

    def library(self, *tensors):
        """Returns what the package for arrays gives: test_bits.py holds it to exact results."""
        results = []
        for given in self.arguments(*tensors):
            outputs = new_outputs(self.outputs, **given)
            given.pop("dtype", None)
            if "gate" in given:  # arrays are not made wider
                given["gate"] = given["gate"].expand_as(given["x"])
            rmsnorm.forward(**{"eps": EPS} | given, **outputs)
            results += outputs.values()
        return results

    def exact(self, *tensors):
        norms = self.arguments(*tensors)
        return tuple(y for given in norms for y in formula(torch, **{"eps": EPS} | given))


def one_result(function):
    return lambda norm: (function(**norm),)


rms_norm, gated, rotary = map(one_result, (rt.rms_norm, rt.gated, rt.rotary))


MODULE = rt.RMSNorm(16, weight_offset=1.0, rounding="before_weight")


def module(norm):
    return (torch.func.functional_call(MODULE, {"weight": norm["weight"]}, norm["x"]),)


# Iterating over what a function returns would stop torch.fx, so results are unpacked.
def add(norm):
    y, total = rt.fused_add_rms_norm(**norm)
    return y, total


def qk(q, k):
    options = {n: value for n, value in q.items() if n not in ("x", "weight")}
    y, z = rt.qk(q["x"], k["x"], q.get("weight"), k.get("weight"), **options)
    return y, z


def alike(one, two):
    y, z = rt.norms([one["x"], two["x"]], [one["weight"], two.get("weight")])
    return y, z


def of_kinds(*norms):
    q, (y, total), z = rt.norms(list(norms))
    return q, y, total, z


def out(norm):
    return (rt.rms_norm(**norm, out=norm["x"]),)


def rotated_in_place(norm):
    rt.forward(**norm, y=norm["x"])
    return (norm["x"],)


def in_place(norm):
    rt.fused_add_rms_norm_(**norm)
    return norm["x"], norm["residual"]


def quantized(norm):
    q, scale, *none = rt.quantized(**norm)
    assert none == [None, None]
    return q, scale


def quantized_sum(norm):
    result = rt.quantized(**norm, asymmetric=True)
    return result.q, result.scale, result.zero, result.residual_out


def forward(norm):
    outputs = new_outputs(ALL, **norm)
    rt.forward(**norm, **outputs)
    return list(outputs.values())


ALL = "y residual_out q scale zero rstd"
W, BOTH = {"weight": "w"}, {"weight": "w", "bias": "v"}
ADDED = {"residual": "r", **W}
GATED = {"gate": "r", **W}
BEFORE = {"gate_placement": "before"}
#: Tables that rows have, strided, and tables that all rows share, of a part of a row.
TABLES = {
    "cos": lambda x, r, w, v: r.detach()[..., : r.shape[-1] // 2],
    "sin": lambda x, r, w, v: r.detach()[..., r.shape[-1] // 2 :],
}
PART = {
    "cos": lambda x, r, w, v: v.detach()[: v.shape[-1] // 4],
    "sin": lambda x, r, w, v: v.detach()[v.shape[-1] // 4 : v.shape[-1] // 2],
    **{"rotary_pairs": "neighbours", "rotary_part": "end", "rotary_rounding": "norm"},
}
STEP = {**BEFORE, "activation": "none", "gate_rounding": "rounded"}
STREAM = {"gate": "x", **STEP}
UNROUNDED = {"residual_rounding": "unrounded"}
SMALL = {"outputs": "q scale zero residual_out", "writes": 0}

#: Calls of each function, and of each operand and option. eps and the divisor are large where bits
#: would not show them.
CALLS = {
    "rms_norm": Call(rms_norm, **BOTH),
    "no weight": Call(rms_norm),
    "module": Call(module, **W, weight_offset=1.0, rounding="before_weight"),
    "offset": Call(rms_norm, **W, weight_offset=1.0, divisor=32.0),
    "outside": Call(rms_norm, **W, eps=0.5, eps_placement="outside"),
    "floor": Call(rms_norm, **W, eps=0.9, eps_placement="floor"),
    "factor": Call(rms_norm, **W, eps=0.5, factor=0.5),
    "before_weight": Call(rms_norm, **W, rounding="before_weight"),
    "inverse": Call(rms_norm, **BOTH, rounding="inverse"),
    "add": Call(add, **ADDED, bias="v"),
    "add, unrounded": Call(add, **ADDED, **UNROUNDED),
    "add, post-norm": Call(add, **ADDED, post_norm_weight="v", factor=2.0),
    "add, factor of the sum": Call(add, **ADDED, bias="v", residual_factor=0.75),
    "add, unrounded, factor": Call(add, **ADDED, **UNROUNDED, residual_factor=0.75),
    "add, gate": Call(add, **ADDED, gate="x", activation="sigmoid"),
    "add, gate before": Call(add, **ADDED, **STREAM, residual_factor=0.75),
    "add, gate of all rows": Call(add, **ADDED, **{**STREAM, "gate": "v"}),
    "add, gate before, unrounded": Call(add, **ADDED, gate="x", **BEFORE, **UNROUNDED),
    "add, post-norm, gate before": Call(add, **ADDED, post_norm_weight="v", **STREAM, factor=2.0),
    "silu": Call(gated, **GATED, bias="v"),
    "silu, rounded": Call(gated, **GATED, gate_rounding="rounded"),
    "silu before": Call(gated, **GATED, **BEFORE, weight_offset=1.0),
    "sigmoid": Call(gated, **GATED, activation="sigmoid", weight_offset=1.0),
    "sigmoid before": Call(gated, **GATED, **BEFORE, activation="sigmoid"),
    "gate of all rows": Call(gated, gate="v", **W),
    "no activation": Call(gated, **GATED, activation="none"),
    "no activation before, rounded": Call(gated, **GATED, **STEP),
    "rotary": Call(rotary, **BOTH, **TABLES),
    "rotary, part": Call(rotary, **W, **PART, rounding="before_weight"),
    "rotary, unrounded": Call(rotary, **TABLES, rotary_rounding="none", factor=0.5, eps=0.5),
    "dtype": Call(rms_norm, dtype=torch.bfloat16),
    "add, dtype": Call(add, **ADDED, dtype=torch.float16),
    "silu, dtype": Call(gated, **GATED, dtype=torch.bfloat16),
    "qk": Call(qk, {**W, "factor": 2.0}, {"x": "r", "weight": "v", "factor": 2.0}),
    "qk, rotary": Call(
        qk, *({"x": x, "weight": w, **TABLES, "eps": 0.5, "factor": 2.0} for x, w in ("xw", "rv"))
    ),
    "norms": Call(alike, W, {"x": "r"}),
    "norms of kinds": Call(
        of_kinds, {**W, **PART}, {"residual": "r"}, {"x": "r", "gate": "x", "bias": "v"}
    ),
    "rms_norm, out": Call(out, **BOTH, writes=1),
    "rotary in place": Call(rotated_in_place, **BOTH, **TABLES, writes=1),
    "add in place": Call(in_place, **ADDED, bias="v", writes=2),
    "quantized": Call(quantized, **BOTH, outputs="q scale", writes=0),
    "quantized sum": Call(quantized_sum, **ADDED, post_norm_weight="v", **SMALL),
    "quantized groups": Call(quantized_sum, **ADDED, group=8, **SMALL),
    "forward": Call(forward, **GATED, **BEFORE, bias="v", outputs=ALL, writes=0),
}
WITH_GRADIENTS = [name for name, call in CALLS.items() if call.has_gradients]
WITH_FORMULA = [name for name in WITH_GRADIENTS if "dtype" not in CALLS[name].norms[0]]


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


def operators_of(call, *inputs):
    """Returns the names of the operators that a call runs: this library's, and PyTorch's."""
    with torch.autograd.profiler.profile() as profile:
        call(*inputs)
    names = [event.name for event in profile.function_events]
    ours = [name for name in names if name.startswith("rmsnorm::")]
    return ours, [name for name in names if name not in ours]


def is_computed_by_library(module, *inputs):
    return bool(operators_of(module, *inputs)[0])


def stored(save, load, value):
    """Returns what is read from a file that a value was written to."""
    file = io.BytesIO()
    save(value, file)
    file.seek(0)
    return load(file)


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


def whole_rows(*shape, dtype=torch.float32):
    """Returns rows of 7 and 17 with random signs and places, whose RMS is 13.

    The sum of squares is exact in any order, and so is the mean over a power of two.
    """
    half = torch.arange(math.prod(shape)).view(shape) % 2
    order = torch.rand(shape).argsort(-1)
    return ((7 + 10 * half.gather(-1, order)) * (1 - 2 * torch.randint(0, 2, shape))).to(dtype)


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
        calls = (CALLS[name] for name in WITH_FORMULA if name != "module")
        return sum(y for call in calls for y in call(x, x * 2, self.weight, self.bias))


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

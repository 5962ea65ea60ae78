# SPDX-License-Identifier: Apache-2.0
"""Calls that rmsnorm.torch refuses, and tensors on meta. Each error names the argument."""

import numpy as np
import pytest
import torch
from torch_models import CALLS, operands

import rmsnorm.torch
from rmsnorm.torch import _options

rt = rmsnorm.torch
OPS = torch.ops.rmsnorm
ROWS, COLUMNS, PER_ROW = (3, 8), (8,), (3,)

#: The shape of each operand.
SHAPES = {
    **dict.fromkeys(("x", "residual", "gate", "y", "out", "residual_out", "q", "k"), ROWS),
    **dict.fromkeys(("weight", "bias", "post_norm_weight", "q_weight", "k_weight"), COLUMNS),
    **dict.fromkeys(("rstd", "scale", "zero"), PER_ROW),
}

#: Each function with the operands that it takes.
ADDED = "x residual weight bias post_norm_weight"
FUNCTIONS = {
    "rms_norm": (rt.rms_norm, "x weight bias"),
    "rms_norm, out": (lambda x, weight, out: rt.rms_norm(x, weight, out=out), "x weight out"),
    "fused_add_rms_norm": (rt.fused_add_rms_norm, ADDED),
    "fused_add_rms_norm_": (rt.fused_add_rms_norm_, ADDED),
    "gated": (rt.gated, "x gate weight bias"),
    "quantized": (rt.quantized, ADDED),
    "forward": (rt.forward, "x residual gate weight bias y residual_out rstd"),
    "forward, int8": (rt.forward, "x weight q scale zero"),
    "qk": (rt.qk, "q k q_weight k_weight"),
    "norms": (lambda **operands: tuple(rt.norms([operands])[0]), f"{ADDED} gate"),
}
PAIRS = [(name, operand) for name, (_, names) in FUNCTIONS.items() for operand in names.split()]


def tensors_of(name, device):
    def make(operand):
        is_int8 = operand == "zero" or operand == "q" and name != "qk"
        dtype = torch.int8 if is_int8 else torch.float32
        return torch.ones(SHAPES[operand], device=device).to(dtype)

    return {operand: make(operand) for operand in FUNCTIONS[name][1].split()}


@pytest.mark.parametrize("name, operand", PAIRS)
@pytest.mark.parametrize("device, other", [("cpu", "meta"), ("meta", "cpu")])
@pytest.mark.parametrize("grad", [False, True])
def test_operands_on_two_devices_are_refused_by_name(name, operand, device, other, grad):
    tensors = tensors_of(name, device)
    tensors[operand] = tensors_of(name, other)[operand]
    before = {key: t.clone() for key, t in tensors.items() if t.device.type == "cpu"}
    if grad and name in ("rms_norm", "fused_add_rms_norm", "gated", "qk", "norms"):
        tensors = {key: t.requires_grad_() for key, t in tensors.items()}
    with pytest.raises(
        RuntimeError, match=r"^[\w\[\].]+: (it is on|the tensor must be on)"
    ) as error:
        FUNCTIONS[name][0](**tensors)
    if operand not in ("x", "q"):  # if x is elsewhere, the others seem to be
        own = {
            "q_weight": "calls[0].weight",
            "k_weight": "calls[1].weight",
            "k": "calls[1].",
            "out": "y",
        }
        expected = own.get(operand, f"calls[0].{operand}" if name == "norms" else operand)
        assert str(error.value).startswith(expected)
    for key, value in before.items():
        assert torch.equal(tensors[key], value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_operands_on_meta(name):
    result = FUNCTIONS[name][0](**tensors_of(name, "meta"))
    outputs = result if isinstance(result, tuple) else (result,)
    assert all(output is None or output.is_meta for output in outputs)


@pytest.mark.parametrize("name", CALLS)
def test_results_on_meta(name):
    """They have the shapes, types and strides of the results on the CPU."""
    tensors = [t.bfloat16() for t in operands(rows=(6, 4))]
    tensors[:2] = [t.transpose(0, 1) for t in tensors[:2]]
    results = CALLS[name][0](*(t.to("meta") for t in tensors))
    for one, two in zip(results, CALLS[name][0](*tensors), strict=True):
        assert one.is_meta and one.is_contiguous()
        assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())


X, W, SMALL = torch.randn(4, 64), torch.randn(64), torch.ones(3, 8)
META = torch.ones(3, 8, device="meta")
NINE = torch.randn(*[2] * 8, 64).permute(*range(7, -1, -1), 8)
PACKED = _options.packed("forward", 1e-6, {})
OF_TYPE = "the type must be float32, float16 or bfloat16$"


def backward(**others):
    operands = {"dy": X, "x": X, "weight": W, "bias": None, "rstd": None, "dsum": None} | others
    return OPS.backward(*operands.values(), True, True, False, PACKED)


def compiled(*operands):
    return torch.compile(rt.rms_norm, backend="eager", fullgraph=True)(*operands)


#: Wrong calls: the message, and the function with its arguments.
REFUSED = [
    (f"^x: {OF_TYPE}", rt.rms_norm, X.double()),
    (f"^x: {OF_TYPE}", rt.rms_norm, X.int()),
    ("^weight: the type must be ", rt.rms_norm, X, W.int()),
    ("^weight: i8; it must be f32, f16 or bf16", rt.rms_norm, X, W.to(torch.int8)),
    ("^weight: 2 dimensions", rt.rms_norm, X, W[None]),
    ("^weight: 63 elements in its last dimension for rows of 64$", rt.rms_norm, X, W[:63]),
    ("^weight: its rows have elements", rt.rms_norm, X[:, :0], W),
    ("^PyTorch could not allocate a result$", rt.rms_norm, X[:1].expand(2**50, 64)),
    ("^x: 0 dimensions", rt.rms_norm, torch.tensor(1.0)),
    ("SparseCPU", rt.rms_norm, X.to_sparse()),
    ("^options: eps is -1; it must be finite and not negative$", rt.rms_norm, X, None, -1),
    (
        "^options: weight_offset is 1, but there is no weight$",
        lambda: rt.rms_norm(X, weight_offset=1.0),
    ),
    ("^gate: 63 in dimension 1, but x has 64 in dimension 1$", rt.gated, X, X[:, :63]),
    ("^gate: its shape differs from that of x$", rt.gated, NINE, NINE[:1]),
    ("^gate: 9 dimensions, but x has 2$", rt.gated, X, NINE),
    ("^residual: 1 dimensions, but x has 2$", rt.fused_add_rms_norm, X, X[0]),
    (r"^calls\[1\].weight: 63 elements", rt.qk, X, X, W, W[:63]),
    ("^x: stride 4 in the last dimension", rt.fused_add_rms_norm_, torch.randn(64, 4).t(), X),
    ("^x: 9 dimensions; with more than 8 it must be", rt.fused_add_rms_norm_, NINE, NINE),
    (
        "^residual_out: its strides do not tell rows apart",
        lambda: rt.fused_add_rms_norm_(X, W.expand(4, 64)),
    ),
    ("^residual_out: overlaps x", lambda: rt.fused_add_rms_norm_(X[:3], X[1:])),
    ("^rstd: 3 in dimension 0, but x has 4", lambda: backward(rstd=torch.ones(3))),
    ("^dx: 1 dimensions, but x has 2", lambda: backward(dsum=W)),
    ("^dw: there is no operand with this gradient$", lambda: backward(weight=None)),
    ("^options: they are not those of this version of rmsnorm$", OPS.norm, X, PACKED + "00"),
    ("^options: they are not those of this version of rmsnorm$", OPS.norm, X, "-1"),
    ("^weight: it is on meta, and x is on cpu", rt.RMSNorm(8, device="meta"), SMALL),
    ("^weight: it is on cpu, and x is on meta", rt.RMSNorm(8), META),
    ("^weight: 9 elements in its last dimension", compiled, SMALL, torch.ones(9)),
    ("weight: it is on meta", compiled, SMALL, torch.ones(8, device="meta")),
    *(
        ("is on", OPS.backward, *operands[:i], operands[i].to("meta"), *operands[i + 1 :])
        for operands in [(SMALL, SMALL, W[:8], W[:8], W[:3], SMALL, True, True, True, PACKED)]
        for i in range(6)
    ),
    *(
        (rf"^calls\[1\].{message}", rt.norms, [X, call])
        for message, call in (
            ("weight: 63 elements", {"x": X, "weight": W[:63]}),
            ("gate: 3 in dimension 0", {"x": X, "gate": X[:3]}),
            ("residual: it is on meta", {"x": X, "residual": X.to("meta")}),
            ("x: 0 dimensions", {"x": torch.tensor(1.0)}),
            ("*eps is -1", {"x": X, "eps": -1}),
            ("y: the type must be", {"x": X, "dtype": torch.float64}),
        )
    ),
]
REFUSED_VALUES = [
    *(
        (f"^{name}: .*; it must not be 0 in float32", lambda call=call, o={name: zero}: call(**o))
        for name in ("divisor", "factor")
        for zero in (0, 0.0, -0.0, 1e-60)
        for call in (
            lambda **o: rt.rms_norm(SMALL, **o),
            lambda **o: rt.fused_add_rms_norm(SMALL, SMALL, **o),
            lambda **o: rt.forward(x=SMALL, y=torch.empty(3, 8), **o),
        )
    ),
    *(
        (f"^{name}: 'In'; possible are {words}$", lambda o={name: "In"}: rt.rms_norm(X, **o))
        for name, words in (
            ("rounding", "after_weight, before_weight, inverse"),
            ("eps_placement", "inside, outside, floor"),
        )
    ),
    ("^rounding: 'late'", lambda: rt.RMSNorm(64, rounding="late")),
    (r"^calls\[1\].rounding: 'up'", rt.norms, [X, {"x": X, "rounding": "up"}]),
    (r"^calls\[1\].factor: 0.*; it must not be 0", rt.norms, [X, {"x": X, "factor": 0}]),
    ("^dtype is torch.float16, and out has", lambda: rt.rms_norm(X, out=X, dtype=torch.float16)),
    ("^weights has 1 elements, and xs has 2$", rt.norms, [X, X], [W]),
]
REFUSED_TYPES = [
    *(
        (f"^{name}: ", lambda call=call, o={name: wrong}: call(**o))
        for name, values in {
            "eps": ("1e-6", torch.ones(3), [1], True, False, np.True_, 1j),
            "weight_offset": ("1e-6", torch.ones(3), [1], True, False, np.True_, 1j),
            "rounding": (None, 1, ["after_weight"]),
        }.items()
        for wrong in values
        for call in (
            lambda **o: rt.rms_norm(SMALL, W[:8], **o),
            lambda **o: rt.RMSNorm(4, **o),
        )
    ),
    *(
        ("^eps_placement: ", lambda wrong=wrong: rt.gated(X, X, eps_placement=wrong))
        for wrong in (None, 1, ["inside"])
    ),
    ("^dtype is 'bf16'; it must be a torch.dtype", lambda: rt.rms_norm(X, dtype="bf16")),
    ("^dtype is 'bf16'; it must be a torch.dtype", lambda: rt.RMSNorm(4, dtype="bf16")),
    # The order of PyTorch's function.
    ("^weight is of type builtins.tuple", rt.rms_norm, SMALL, (8,), W[:8]),
    (
        r"^rms_norm\(\) got an unexpected .* 'residual_rounding'$",
        lambda: rt.rms_norm(X, residual_rounding="rounded"),
    ),
    (r"^gated\(\) got an unexpected .* 'factor'$", lambda: rt.gated(X, X, factor=1.0)),
    *(
        (rf"^calls\[1\].{message}", rt.norms, [X, call])
        for message, call in (
            ("x is of type builtins.NoneType", {"weight": W}),
            ("x is of type builtins.int", 3),
            ("bias is of type builtins.list", {"x": X, "bias": [1.0] * 64}),
            ("dtype is 'f16'", {"x": X, "dtype": "f16"}),
        )
    ),
    (r"^calls\[1\]: unknown argument 'y'; possible are x, ", rt.norms, [X, {"x": X, "y": X}]),
]


@pytest.mark.parametrize(
    "error, message, call, arguments",
    [
        (error, message, call, arguments)
        for error, table in (
            (RuntimeError, REFUSED),
            (ValueError, REFUSED_VALUES),
            (TypeError, REFUSED_TYPES),
        )
        for message, call, *arguments in table
    ],
)
def test_refusals_name_the_argument_and_write_nothing(error, message, call, arguments):
    before = X.clone()
    with pytest.raises(error, match=message):
        call(*arguments)
    assert torch.equal(X, before)


@pytest.mark.parametrize("name, operand", PAIRS)
def test_given_that_are_no_tensors_are_refused_by_name(name, operand):
    tensors = tensors_of(name, "cpu")
    prefix = r"calls\[0\]." if name == "norms" else ""
    values = [np.ones(SHAPES[operand], "float32"), [1.0] * 8, 3, "x"]
    needed = ("x", "q", "k") if name != "forward, int8" else ()
    values += [None] * (operand in needed or (name, operand) == ("gated", "gate"))
    for wrong in values:
        kind = "builtins.NoneType" if wrong is None else ".*; it must be a torch.Tensor"
        with pytest.raises(TypeError, match=f"^{prefix}{operand} is of type {kind}"):
            FUNCTIONS[name][0](**tensors | {operand: wrong})

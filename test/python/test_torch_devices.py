# SPDX-License-Identifier: Apache-2.0
"""Operands of rmsnorm.torch that PyTorch's operators refuse: other devices, types and objects.

Each error names the operand.
"""

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


def test_modules_on_meta():
    with pytest.raises(RuntimeError, match="^weight: it is on meta, and x is on cpu"):
        rt.RMSNorm(8, device="meta")(torch.randn(3, 8))
    with pytest.raises(RuntimeError, match="^weight: it is on cpu, and x is on meta"):
        rt.RMSNorm(8)(torch.randn(3, 8, device="meta"))
    module = rt.RMSNorm(8, device="meta", dtype=torch.float16)
    assert module.weight.is_meta and module(torch.randn(3, 8, device="meta")).is_meta


def test_operators_on_two_devices():
    x, weight = torch.ones(ROWS), torch.ones(COLUMNS)
    options = _options.packed("forward", 1e-6, {})
    for place in range(6):
        operands = [x, x, weight, weight, torch.ones(PER_ROW), x]
        operands[place] = operands[place].to("meta")
        with pytest.raises(RuntimeError, match="is on"):
            OPS.backward(*operands, True, True, True, options)


def test_shapes_on_meta_and_under_compile():
    x, compiled = torch.ones(3, 8), torch.compile(rt.rms_norm, backend="eager", fullgraph=True)
    for call, given, message in (
        (
            rt.rms_norm,
            (x.to("meta"), torch.ones(9, device="meta")),
            r"^weight: the shape \(9,\); it must be \(8,\)",
        ),
        (
            rt.fused_add_rms_norm,
            (x.to("meta"), torch.ones(2, 8, device="meta")),
            r"^residual: the shape \(2, 8\)",
        ),
        (compiled, (x, torch.ones(9)), r"weight: the shape \(9,\)"),
        (compiled, (x, torch.ones(8, device="meta")), "weight: it is on meta"),
    ):
        with pytest.raises(Exception if call == compiled else RuntimeError, match=message):
            call(*given)


# -------------------------------------------------------------------------------- other objects


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


WRONG_OPTIONS = {
    "eps": ("1e-6", torch.ones(3), [1], True, False, np.True_, 1j),
    "weight_offset": ("1e-6", torch.ones(3), [1], True, False, np.True_, 1j),
    "dtype": ("bf16",),
    "rounding": (None, 1, ["after_weight"]),
    "eps_placement": (None, 1, ["after_weight"]),
}


@pytest.mark.parametrize("option", WRONG_OPTIONS)
def test_options_of_other_types_are_refused_by_name(option):
    x, weight = torch.ones(3, 8), torch.ones(8)
    error = ValueError if option in ("rounding", "eps_placement") else TypeError
    message = "dtype is 'bf16'; it must be a torch.dtype" if option == "dtype" else f"{option} is "
    for wrong in WRONG_OPTIONS[option]:
        with pytest.raises(error, match=f"^{message}"):
            rt.rms_norm(x, weight, **{option: wrong})
        if option in ("eps", "dtype"):
            with pytest.raises(error, match=f"^{message}"):
                rt.RMSNorm(4, **{option: wrong})


def test_arguments_in_the_order_of_pytorchs_function_are_refused():
    x, weight = torch.ones(3, 8), torch.ones(8)
    with pytest.raises(TypeError, match=r"^weight is of type builtins.tuple"):
        rt.rms_norm(x, (8,), weight)
    assert torch.equal(rt.rms_norm(x, weight, np.float32(1)), rt.rms_norm(x, weight, 1))


@pytest.mark.parametrize("option", ["divisor", "factor"])
@pytest.mark.parametrize("zero", [0, 0.0, -0.0, 1e-60])
def test_zero_does_not_mean_a_default(option, zero):
    x, weight = torch.ones(3, 8), torch.ones(8)
    for call in (
        lambda **o: rt.rms_norm(x, weight, **o),
        lambda **o: rt.fused_add_rms_norm(x, x, weight, **o),
        lambda **o: rt.forward(x=x, y=torch.empty(3, 8), **o),
    ):
        with pytest.raises(ValueError, match=f"^{option} is .*; it must not be 0"):
            call(**{option: zero})


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32])
def test_another_type_is_refused(dtype, device):
    with pytest.raises(RuntimeError, match="^x: the type must be float32, float16 or bfloat16"):
        rt.rms_norm(torch.ones(3, 8, dtype=dtype, device=device))

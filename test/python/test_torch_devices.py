# SPDX-License-Identifier: Apache-2.0
"""Operands of rmsnorm.torch that PyTorch's operators refuse: other devices, types and objects.

Each error names the operand.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_models import CALLS, operands

import rmsnorm.torch
from rmsnorm.torch import _options

rt: Any = rmsnorm.torch  # options come from dictionaries, which mypy cannot follow
OPS = torch.ops.rmsnorm
ROWS, COLUMNS, PER_ROW = (3, 8), (8,), (3,)

#: The shape of each operand.
SHAPES = {
    **dict.fromkeys(("x", "residual", "gate", "y", "residual_out", "q", "k"), ROWS),
    **dict.fromkeys(("weight", "bias", "post_norm_weight", "q_weight", "k_weight"), COLUMNS),
    **dict.fromkeys(("rstd", "scale", "zero"), PER_ROW),
}

#: Each function with the operands that it takes.
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "rms_norm": (rt.rms_norm, ("x", "weight", "bias")),
    "rms_norm, out": (
        lambda x, weight, y: rt.rms_norm(x, weight, out=y),
        ("x", "weight", "y"),
    ),
    "fused_add_rms_norm": (
        rt.fused_add_rms_norm,
        ("x", "residual", "weight", "bias", "post_norm_weight"),
    ),
    "fused_add_rms_norm_": (
        rt.fused_add_rms_norm_,
        ("x", "residual", "weight", "bias", "post_norm_weight"),
    ),
    "gated": (rt.gated, ("x", "gate", "weight", "bias")),
    "quantized": (rt.quantized, ("x", "residual", "weight", "bias", "post_norm_weight")),
    "forward": (
        rt.forward,
        ("x", "residual", "gate", "weight", "bias", "y", "residual_out", "rstd"),
    ),
    "forward, int8": (rt.forward, ("x", "weight", "q", "scale", "zero")),
    "qk": (rt.qk, ("q", "k", "q_weight", "k_weight")),
    "norms": (
        lambda **operands: tuple(rt.norms([operands])[0]),
        ("x", "residual", "gate", "weight", "bias", "post_norm_weight"),
    ),
}
PAIRS = [(name, operand) for name, (_, names) in FUNCTIONS.items() for operand in names]


def tensors_of(name: str, device: str) -> dict[str, Tensor]:
    tensors = {}
    for operand in FUNCTIONS[name][1]:
        is_int8 = operand == "zero" or operand == "q" and name != "qk"
        dtype = torch.int8 if is_int8 else torch.float32
        tensors[operand] = torch.ones(SHAPES[operand], device=device).to(dtype)
    return tensors


@pytest.mark.parametrize("name, operand", PAIRS)
@pytest.mark.parametrize("device, other", [("cpu", "meta"), ("meta", "cpu")])
@pytest.mark.parametrize("grad", [False, True])
def test_operands_on_two_devices(
    name: str, operand: str, device: str, other: str, grad: bool
) -> None:
    function, operands = FUNCTIONS[name]
    tensors = tensors_of(name, device)
    tensors[operand] = tensors_of(name, other)[operand]
    before = {key: t.clone() for key, t in tensors.items() if t.device.type == "cpu"}
    if grad and name in ("rms_norm", "fused_add_rms_norm", "gated", "qk", "norms"):
        tensors = {key: t.requires_grad_() for key, t in tensors.items()}
    with pytest.raises(
        RuntimeError, match=r"^[\w\[\].]+: (it is on|the tensor must be on)"
    ) as error:
        function(**tensors)
    if operand not in ("x", "q"):  # if x is elsewhere, the others seem to be
        call, own = {
            "q_weight": ("calls[0].", "weight"),
            "k_weight": ("calls[1].", "weight"),
            "k": ("calls[1].", ""),
        }.get(operand, ("calls[0]." if name == "norms" else "", operand))
        assert str(error.value).startswith(call + own)
    for key, value in before.items():
        assert torch.equal(tensors[key], value)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_operands_on_meta(name: str) -> None:
    result = FUNCTIONS[name][0](**tensors_of(name, "meta"))
    outputs = result if isinstance(result, tuple) else (result,)
    assert all(output is None or output.is_meta for output in outputs)


@pytest.mark.parametrize("name", CALLS)
def test_results_on_meta(name: str) -> None:
    """They have the shapes, types and strides of the results on the CPU."""
    tensors = [t.bfloat16() for t in operands(rows=(6, 4))]
    tensors[:2] = [t.transpose(0, 1) for t in tensors[:2]]
    results = CALLS[name][0](*(t.to("meta") for t in tensors))
    for one, two in zip(results, CALLS[name][0](*tensors), strict=True):
        assert one.is_meta and one.is_contiguous()
        assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())


def test_modules_on_meta() -> None:
    with pytest.raises(RuntimeError, match="^weight: it is on meta, and x is on cpu"):
        rt.RMSNorm(8, device="meta")(torch.randn(3, 8))
    with pytest.raises(RuntimeError, match="^weight: it is on cpu, and x is on meta"):
        rt.RMSNorm(8)(torch.randn(3, 8, device="meta"))
    module = rt.RMSNorm(8, device="meta", dtype=torch.float16)
    assert module.weight.is_meta and module(torch.randn(3, 8, device="meta")).is_meta


def test_operators_on_two_devices() -> None:
    x, weight = torch.ones(ROWS), torch.ones(COLUMNS)
    options = _options.packed("forward", 1e-6, {})
    for place in range(6):
        operands: list[Any] = [x, x, weight, weight, torch.ones(PER_ROW), x]
        operands[place] = operands[place].to("meta")
        with pytest.raises(RuntimeError, match="is on"):
            OPS.backward(*operands, True, True, True, options)


def test_shapes_on_meta_and_under_compile() -> None:
    x = torch.ones(3, 8, device="meta")
    with pytest.raises(RuntimeError, match=r"^weight: the shape \(9,\); it must be \(8,\)"):
        rt.rms_norm(x, torch.ones(9, device="meta"))
    with pytest.raises(RuntimeError, match=r"^residual: the shape \(2, 8\)"):
        rt.fused_add_rms_norm(x, torch.ones(2, 8, device="meta"))
    compiled = torch.compile(rt.rms_norm, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"weight: the shape \(9,\)"):
        compiled(torch.ones(3, 8), torch.ones(9))
    with pytest.raises(Exception, match="weight: it is on meta"):
        compiled(torch.ones(3, 8), torch.ones(8, device="meta"))


# -------------------------------------------------------------------------------- other objects


@pytest.mark.parametrize("name, operand", PAIRS)
def test_operands_that_are_no_tensors(name: str, operand: str) -> None:
    function, _ = FUNCTIONS[name]
    tensors: dict[str, Any] = tensors_of(name, "cpu")
    given = "out" if name == "rms_norm, out" and operand == "y" else operand
    prefix = r"calls\[0\]." if name == "norms" else ""
    for wrong in (np.ones(SHAPES[operand], "float32"), [1.0] * 8, 3, "x"):
        with pytest.raises(
            TypeError, match=rf"^{prefix}{given} is of type .*; it must be a torch.Tensor"
        ):
            function(**tensors | {operand: wrong})
    if (
        operand in ("x", "q", "k")
        and name != "forward, int8"
        or operand == "gate"
        and name == "gated"
    ):
        with pytest.raises(TypeError, match=f"^{prefix}{given} is of type builtins.NoneType"):
            function(**tensors | {operand: None})


def test_options_of_other_types() -> None:
    x, weight = torch.ones(3, 8), torch.ones(8)
    for wrong in ("1e-6", torch.ones(3), [1], True, False, np.True_, 1j):
        with pytest.raises(TypeError, match="^eps is "):
            rt.rms_norm(x, weight, wrong)
        with pytest.raises(TypeError, match="^weight_offset is "):
            rt.rms_norm(x, weight, weight_offset=wrong)
    with pytest.raises(TypeError, match=r"^weight is of type builtins.tuple"):
        rt.rms_norm(x, (8,), weight)
    for option in ("rounding", "eps_placement"):
        for wrong in (None, 1, ["after_weight"]):
            with pytest.raises(ValueError, match=f"^{option} is "):
                rt.rms_norm(x, weight, **{option: wrong})
    with pytest.raises(TypeError, match="^dtype is 'bf16'; it must be a torch.dtype"):
        rt.rms_norm(x, weight, dtype="bf16")
    with pytest.raises(TypeError, match="^dtype is 'bf16'; it must be a torch.dtype"):
        rt.RMSNorm(4, dtype="bf16")
    with pytest.raises(TypeError, match="^eps is 'small'"):
        rt.RMSNorm(4, eps="small")
    assert torch.equal(rt.rms_norm(x, weight, np.float32(1)), rt.rms_norm(x, weight, 1))


def test_zero_does_not_mean_a_default() -> None:
    x, weight = torch.ones(3, 8), torch.ones(8)
    for option in ("divisor", "factor"):
        for call in (
            lambda **o: rt.rms_norm(x, weight, **o),
            lambda **o: rt.fused_add_rms_norm(x, x, weight, **o),
            lambda **o: rt.forward(x=x, y=torch.empty(3, 8), **o),
        ):
            for zero in (0, 0.0, -0.0, 1e-60):
                with pytest.raises(ValueError, match=f"^{option} is .*; it must not be 0"):
                    call(**{option: zero})


def test_float64_is_refused() -> None:
    for x in (torch.ones(3, 8).double(), torch.ones(3, 8, dtype=torch.int32)):
        with pytest.raises(RuntimeError, match="^x: the type must be float32, float16 or bfloat16"):
            rt.rms_norm(x)
        with pytest.raises(RuntimeError, match="^x: the type must be float32, float16 or bfloat16"):
            rt.rms_norm(x.to("meta"))

# SPDX-License-Identifier: Apache-2.0
"""Calls that rmsnorm.torch refuses, and tensors on meta. Each error names the argument.

test_numpy.py and the tests of the library have what the library refuses.
"""

import inspect

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch_models import CALLS, INT8, ROWS, STEPS, TENSOR_FUNCTIONS, operands

import rmsnorm.torch
from rmsnorm.torch import _options

rt = rmsnorm.torch
OPS, NORM = torch.ops.rmsnorm, rt.functional.rms_norm
#: The shape of each operand.
SHAPES = {
    **dict.fromkeys((*ROWS, "x", "residual", "gate", "out", "k"), (3, 8)),
    **dict.fromkeys(("weight", "bias", "post_norm_weight", "q_weight", "k_weight"), (8,)),
    **dict.fromkeys(("rstd", *STEPS), (3,)),
    **dict.fromkeys(("cos", "sin"), (4,)),
}


def norms(**given):
    return tuple(rt.norms([given])[0])


#: The operands of each function.
FUNCTIONS = {
    function: [n for n in inspect.signature(function).parameters if n in SHAPES]
    for function in TENSOR_FUNCTIONS
    if function not in (rt.norms, rt.functional.rms_norm)
}
FUNCTIONS[norms] = ["x", "residual", "gate", "weight", "bias", "post_norm_weight", "cos", "sin"]
NEEDED = ((rt.fused_add_rms_norm, "residual"), (rt.fused_add_rms_norm_, "residual"))
NEEDED += ((rt.gated, "gate"), (rt.qk, "q"), (rt.rotary, "cos"), (rt.rotary, "sin"))
PAIRS = [(function, operand) for function, names in FUNCTIONS.items() for operand in names]
WITH_GRADIENTS = (rt.rms_norm, rt.fused_add_rms_norm, rt.gated, rt.rotary, rt.qk, norms)


def tensors_of(function, device):
    def make(operand):
        dtype = torch.int8 if operand in INT8 and function != rt.qk else torch.float32
        return torch.ones(SHAPES[operand], device=device).to(dtype)

    return {operand: make(operand) for operand in FUNCTIONS[function]}


#: How messages name an operand that the library knows by another name.
NAMES = {"q_weight": "calls[0].weight", "k_weight": "calls[1].weight", "k": "calls[1].", "out": "y"}


@pytest.mark.parametrize("function, operand", PAIRS)
@pytest.mark.parametrize("device, other", [("cpu", "meta"), ("meta", "cpu")])
@pytest.mark.parametrize("grad", [False, True])
def test_operands_on_two_devices_are_refused_by_name(function, operand, device, other, grad):
    tensors = tensors_of(function, device)
    tensors[operand] = tensors_of(function, other)[operand]
    before = {name: t.clone() for name, t in tensors.items() if t.device.type == "cpu"}
    if grad and function in WITH_GRADIENTS and operand != "out":
        tensors = {name: t.requires_grad_() for name, t in tensors.items() if name != "out"}
    with pytest.raises(RuntimeError, match=r"^[\w\[\].]+: (it is|the tensor must be) on") as error:
        function(**tensors)
    if tensors[operand] is not next(iter(tensors.values())):  # or else the others seem elsewhere
        prefix = "calls[0]." if function in (norms, rt.qk) else ""
        assert str(error.value).startswith(NAMES.get(operand, prefix + operand))
    for name, value in before.items():
        assert torch.equal(tensors.get(name, value), value)


@pytest.mark.parametrize("function, operand", PAIRS)
def test_given_that_are_no_tensors_are_refused_by_name(function, operand):
    tensors = tensors_of(function, "cpu")
    prefix = r"calls\[0\]." if function is norms else ""
    values = [np.ones(SHAPES[operand], "float32"), [1.0] * 8, 3, "x"]
    is_needed = operand in ("x", "k") or (function, operand) in NEEDED
    for wrong in values + [None] * is_needed:
        kind = "builtins.NoneType" if wrong is None else ".*; it must be a torch.Tensor"
        with pytest.raises(TypeError, match=f"^{prefix}{operand} is of type {kind}"):
            function(**tensors | {operand: wrong})


@pytest.mark.parametrize("name", CALLS)
def test_results_on_meta(name):
    """They have the shapes, types and strides of the results on the CPU."""
    call, tensors = CALLS[name], [t.bfloat16() for t in operands(rows=(6, 4))]
    tensors[:2] = [t.transpose(0, 1) for t in tensors[:2]]
    results = call(*(t.to("meta") for t in tensors))
    for one, two in zip(results, call(*tensors), strict=True):
        assert one.is_meta
        assert (one.dtype, one.shape, one.stride()) == (two.dtype, two.shape, two.stride())


X, W, SMALL = torch.randn(4, 64), torch.randn(64), torch.ones(3, 8)
META, LEARNS = torch.ones(3, 8, device="meta"), torch.ones(4, 64, requires_grad=True)
NINE = torch.randn(*[2] * 8, 64).permute(*range(7, -1, -1), 8)
NESTED = torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged)
LEARNING = torch.nested.nested_tensor([X, X[:2]], layout=torch.jagged, requires_grad=True)
PACKED = _options.packed("forward", 1e-6, {})
BACKWARD = (SMALL, SMALL, W[:8], W[:8], W[:3], SMALL)


def backward(**others):
    given = {"dy": X, "x": X, "weight": W, "bias": None, "rstd": None, "dsum": None} | others
    return OPS.backward(*given.values(), True, True, False, PACKED)


def compiled(*given):
    return torch.compile(rt.rms_norm, backend="eager", fullgraph=True)(*given)


def program(x):
    y = rt.rms_norm(x, None, 1e-6)
    return y


MODULES = rt.RMSNorm(64), rt.RMSNorm(64, elementwise_affine=False), rt.RMSNorm((4, 64))

#: Wrong calls: the message, and the function with its arguments.
REFUSED = [
    ("^x: the type must be float32, float16 or bfloat16$", rt.rms_norm, X.double()),
    ("^weight: the type must be ", rt.rms_norm, X, W.int()),
    ("^x: the type must", lambda: NORM(X.double(), (64,), rounding="before_weight")),
    *(("^(input|weight): the shape", NORM, X, *o) for o in (((3,),), ((),), ((64,), W[None]))),
    ("^weight: 3 dimensions, but x has 2$", rt.rms_norm, X, W[None, None]),
    ("^weight: 3 dimensions, b", torch.vmap(rt.rms_norm, (0, None)), X[None], W[None, None]),
    ("^x: 0 dimensions; it must have some$", torch.vmap(rt.rms_norm), W),
    ("^weight: its shape differs from that of x$", rt.rms_norm, NINE, torch.ones(2, 64)),
    ("^weight: 63 elements in its last dimension for rows of 64$", rt.rms_norm, X, W[:63]),
    ("^weight: its rows have elements", rt.rms_norm, X[:, :0], W),
    ("^PyTorch could not allocate a result$", rt.rms_norm, X[:1].expand(2**50, 64)),
    ("^x: 0 dimensions", rt.rms_norm, torch.tensor(1.0)),
    ("^x: its rows have no elements, and so no scale$", rt.quantized, X[:, :0]),
    ("^weight: 7 ", torch.vmap(lambda w: rt.quantized(SMALL, w)[0]), torch.ones(4, 7)),
    ("SparseCPU", rt.rms_norm, X.to_sparse()),
    ("^options: eps is -1; it must be finite and not negative$", rt.rms_norm, X, None, -1),
    ("^gate: its shape differs from that of x$", rt.gated, NINE, NINE.repeat(2, *[1] * 8)),
    ("^gate: 9 dimensions, but x has 2$", rt.gated, X, NINE),
    ("^cos: 0 dimensions, but x has 2$", rt.rotary, X, X[0, 0], W),
    ("^cos: each leading dimension must be that of x or 1$", rt.rotary, NINE, X, X),
    ("^sin: 16 elements in its last dimension, but cos has 32$", rt.rotary, X, W[:32], W[:16]),
    ("^x: stride 4 in the last dimension", rt.fused_add_rms_norm_, torch.randn(64, 4).t(), X),
    ("^x: 9 dimensions; with more than 8 it must be", rt.fused_add_rms_norm_, NINE, NINE),
    ("^residual_out: overlaps x", lambda: rt.fused_add_rms_norm_(X[:3], X[1:])),
    ("^rstd: 3 in dimension 0, but x has 4", lambda: backward(rstd=torch.ones(3))),
    ("^dx: 1 dimensions, but x has 2", lambda: backward(dsum=W)),
    ("^dw: there is no operand with this gradient$", lambda: backward(weight=None)),
    ("^options: they are not those of this version of rmsnorm$", OPS.norm, X, "00" * 99),
    ("^options: they are not those of this version of rmsnorm$", OPS.norm, X, "-1"),
    ("^weight: it is on meta, and x is on cpu", rt.RMSNorm(8, device="meta"), SMALL),
    ("^weight: it is on cpu, and x is on meta", rt.RMSNorm(8), META),
    ("^weight: 9 elements in its last dimension", compiled, SMALL, torch.ones(9)),
    ("weight: it is on meta", compiled, SMALL, torch.ones(8, device="meta")),
    *(
        (r"fused_add_rms_norm_\(\) have no gradients: call ", rt.fused_add_rms_norm_, *tensors)
        for tensors in ((LEARNS, X), (X, LEARNS), (X, X, LEARNS[0]))
    ),
    *(
        ("^gate: ", rt.gated, torch.ones(2, 3, 96), torch.ones(shape))
        for shape in ((3, 1, 96), (2, 1, 1), (1, 1, 1, 96), (96, 2), ())
    ),
    *(
        ("64", module, torch.ones(shape))
        for module in MODULES
        for shape in ((4, 63), (64, 4), (2, 5, 65))
    ),
    *(
        ("^rmsnorm takes no nested tensors; call it on x.values", call, *operands)
        for x in (NESTED, LEARNING)
        for call, *operands in (
            (rt.rms_norm, x, W),
            (rt.fused_add_rms_norm, x, x),
            (rt.RMSNorm(64), x),
        )
    ),
    *(
        (
            r"^torch.jit.script does not take rmsnorm.torch.*\(\): use torch.export or "
            "torch.jit.trace, or the module rmsnorm.torch.RMSNorm",
            *(torch.jit.script, function),
        )
        for function in (*TENSOR_FUNCTIONS, program)
    ),
    *(
        ("is on", OPS.backward, *BACKWARD[:i], given.to("meta"), *BACKWARD[i + 1 :], *flags)
        for i, given in enumerate(BACKWARD)
        for flags in [(True, True, True, PACKED)]
    ),
    *(
        (rf"^calls\[1\].{message}", rt.norms, [X, call])
        for message, call in (
            ("weight: 63 elements", {"x": X, "weight": W[:63]}),
            ("gate: 3 in dimension 0", {"x": X, "gate": X[:3]}),
            ("residual: it is on meta", {"x": X, "residual": X.to("meta")}),
            ("x: 0 dimensions", {"x": torch.tensor(1.0)}),
            ("cos: there is no sin", {"x": X, "cos": W[:32]}),
            ("*eps is -1", {"x": X, "eps": -1}),
            ("y: the type must be", {"x": X, "dtype": torch.float64}),
        )
    ),
]
# test_numpy.py has the refused values of each option.
REFUSED_VALUES = [
    ("^factor: 0.*; .*number other than 0", lambda: rt.fused_add_rms_norm(X, X, factor=0)),
    ("^group: 0; it must be a power of two", lambda: rt.quantized(X, group=0)),
    ("^eps_placement: 'In'; possible are ins", lambda: rt.gated(X, X, eps_placement="In")),
    ("^rounding: 'late'", lambda: rt.RMSNorm(64, rounding="late")),
    (r"^calls\[1\].factor: 0.*; .*number other than 0", rt.norms, [X, {"x": X, "factor": 0}]),
    ("^dtype is torch.float16, and out has", lambda: rt.rms_norm(X, out=X, dtype=torch.float16)),
    ("^weights has 1 elements, and xs has 2$", rt.norms, [X, X], [W]),
]
REFUSED_TYPES = [
    *(
        ("^eps: ", call, wrong)
        for wrong in ("1e-6", torch.ones(3), True, np.True_)
        for call in (lambda eps: rt.rms_norm(X, eps=eps), lambda eps: rt.RMSNorm(4, eps=eps))
    ),
    ("^group: 8.0", lambda: [rt.quantized(X, group=group) for group in (8, 8.0)]),
    ("^rounding: None", lambda: rt.rms_norm(X, rounding=None)),
    ("^dtype is 'bf16'; it must be a torch.dtype", lambda: rt.rms_norm(X, dtype="bf16")),
    ("^dtype is 'bf16'; it must be a torch.dtype", lambda: rt.RMSNorm(4, dtype="bf16")),
    # The order of PyTorch's function.
    ("^weight is of type builtins.tuple", rt.rms_norm, SMALL, (8,), W[:8]),
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
    *(("^normalized_shape is ", NORM, X, shape) for shape in (64, (64.0,), None)),
    ("^eps: '1'; ", NORM, X, (64,), None, "1"),
]


@pytest.mark.parametrize(
    "error, row",
    [
        *((RuntimeError, row) for row in REFUSED),
        *((ValueError, row) for row in REFUSED_VALUES),
        *((torch.jit.Error, ("64", torch.jit.script(m), torch.ones(4, 63))) for m in MODULES),
        *((TypeError, row) for row in REFUSED_TYPES),
    ],
)
def test_refusals_name_the_argument_and_write_nothing(error, row):
    message, call, *arguments = row
    before = X.clone()
    with pytest.raises(error, match=message):
        call(*arguments)
    if error is RuntimeError:  # forward mode has a formula, does not write, and is not compiled
        message += "|no gradients|fake tensor"
        with forward_ad.dual_level(), pytest.raises(error, match=message):
            call(*arguments)
    assert torch.equal(X, before)

# SPDX-License-Identifier: Apache-2.0
"""Ways out of eager PyTorch: torch.export, torch.jit, torch.fx; and copies, processes, autocast."""

import copy
import functools
import pickle
import struct
import sys

import pytest
import torch
from programs import run
from torch_models import MODELS, Model, assert_bits, stored

import rmsnorm.torch

rt = rmsnorm.torch


def gradients_of_weights(model, x):
    loss = model(x).sin().sum()
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)


@pytest.mark.parametrize("name", ["module", "module of two dimensions", "rounding"])
def test_models(name):
    model, x = MODELS[name](), torch.randn(2, 3, 16)
    expected, copied = model(x), copy.deepcopy(model)
    traced, scripted = torch.jit.trace(model, x), torch.jit.script(model)
    for other in (
        copied,
        copy.copy(model),
        pickle.loads(pickle.dumps(model)),
        stored(torch.save, functools.partial(torch.load, weights_only=False), model),
        torch.export.export(model, (x,)).module(),
        torch.compile(model, backend="aot_eager", fullgraph=True),
        torch.fx.symbolic_trace(model),
        traced,
        scripted,
        stored(torch.jit.save, torch.jit.load, scripted),
    ):
        assert torch.equal(other(x), expected)
    for recorded in (traced, scripted):
        assert_bits(gradients_of_weights(recorded, x), gradients_of_weights(model, x))
    torch.nn.init.zeros_(model.norm.weight)
    assert torch.equal(copied(x), expected)
    bare = torch.jit.script(rt.RMSNorm(16, elementwise_affine=False))
    assert torch.equal(bare(x), rt.rms_norm(x))


def test_autocast_gives_the_types_of_pytorchs_norm():
    model, x = Model(), torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.linear(x)
        assert hidden.dtype == torch.bfloat16
        y = model.norm(hidden)
        expected = torch.nn.functional.rms_norm(hidden, (16,), model.norm.weight, 1e-6)
        assert y.dtype == expected.dtype == torch.bfloat16
        loss = model(x).float().square().sum()
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            row, weight = x.to(dtype), torch.ones(16, dtype=dtype)
            expected = torch.nn.functional.rms_norm(row, (16,), weight)
            assert rt.rms_norm(row, weight).dtype == expected.dtype
    torch.autograd.backward(loss)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_python_threads():
    from concurrent.futures import ThreadPoolExecutor

    model, xs = Model(), [torch.randn(64, 16) for _ in range(64)]
    with ThreadPoolExecutor(8) as pool, torch.no_grad():
        results = list(pool.map(model, xs))
        assert all(torch.equal(y, model(x)) for x, y in zip(xs, results, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="it forks")
def test_after_fork_as_pytorch():
    program = """
import os, signal, time, torch, rmsnorm.torch
x = torch.ones(512, 4096)
torch.set_num_threads(2)
children, ended = [], set()
for call in (rmsnorm.torch.rms_norm, torch.nn.functional.silu):
    call(x)
    children.append(os.fork())
    if children[-1] == 0:
        call(x)
        os._exit(0)
for _ in range(50):
    time.sleep(0.1)
    ended |= {c for c in children if c not in ended and os.waitpid(c, os.WNOHANG)[0] == c}
for child in children:
    print("returns" if child in ended else "hangs")
    if child not in ended:
        os.kill(child, signal.SIGKILL)
"""
    ours, theirs = run(program).split()
    assert ours == theirs


def test_functional_is_pytorchs():
    functional, pytorchs = rt.functional.rms_norm, torch.nn.functional.rms_norm
    x, weight = torch.randn(4, 3, 16), torch.randn(3, 16)
    for shape, columns in (((16,), weight[0]), ((3, 16), weight), ((16,), None)):
        for eps in (None, 1e-3):
            y = functional(x, shape, columns, eps)
            assert torch.allclose(y, pytorchs(x, shape, columns, eps), rtol=1e-6, atol=1e-6)
    # What the library does not compute, without options.
    for one, eps in ((x.double(), 1e-3), (x.to(torch.complex64), 1e-3), (x, -0.5)):
        assert torch.equal(functional(one, (16,), None, eps), pytorchs(one, (16,), None, eps))
    assert functional(x.to("meta"), (16,)).device.type == "meta"
    # Rows for which the default of eps counts.
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        small = torch.full((1, 16), 2.0**-14, dtype=dtype)
        for norm in (lambda x: functional(x, (16,)), rt.rms_norm, rt.RMSNorm(16)):
            assert torch.equal(norm(small), pytorchs(small, (16,)))


def operators_of_graphs(call, *tensors):
    """Returns this package's operators in AOTAutograd's graphs of a call and of its gradients."""
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def compiler(graph, _):
        found.extend(n.target for n in graph.graph.nodes if str(n.target).startswith("rmsnorm."))
        return graph

    torch._dynamo.reset()
    outputs = torch.compile(call, backend=aot_autograd(fw_compiler=compiler))(*tensors)
    if outputs is not None and outputs[0].requires_grad:
        torch.autograd.backward(outputs[0].sum())
    return [str(target) for target in found]


def test_compiled_code_calls_operators_without_gradients():
    x, weight = torch.randn(3, 16), torch.randn(16)
    learning = weight.clone().requires_grad_()
    norm = lambda x, w: rt.rms_norm(x, w, 1e-6)
    add = lambda x, w: rt.fused_add_rms_norm(x, x, w, 1e-6)
    for mode, call, w, names in (
        (torch.enable_grad, norm, weight, ["rms_norm"]),
        (torch.enable_grad, add, weight, ["norm_no_grad"]),
        (torch.no_grad, norm, learning, ["rms_norm"]),
        (torch.inference_mode, norm, learning, ["rms_norm"]),
        (torch.enable_grad, norm, learning, ["rms_norm", "backward_no_grad"]),
        (torch.enable_grad, add, learning, ["norm_no_grad", "backward_no_grad"]),
    ):
        with mode():
            assert operators_of_graphs(call, x, w) == [f"rmsnorm.{n}.default" for n in names]


@pytest.mark.parametrize("size", [8, 200])
def test_programs_of_other_versions(size):
    """A struct of options without all but eps, and one with options that this version lacks."""
    x, weight = torch.randn(3, 16), torch.randn(16)
    options = struct.pack("=If", size, 1e-6).hex()
    y, *_ = torch.ops.rmsnorm.norm(x, options, None, weight)
    assert torch.equal(y, rt.rms_norm(x, weight, 1e-6))


def test_import_leaves_the_compiler_out():
    program = """
import sys, torch
before = set(sys.modules)
import rmsnorm.torch
print(*sorted({"torch._dynamo", "torch._inductor", "sympy"} & (set(sys.modules) - before)))
"""
    assert run(program).split() == []

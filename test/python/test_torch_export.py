# SPDX-License-Identifier: Apache-2.0
"""Ways out of eager PyTorch: torch.export, torch.jit, torch.fx; and copies, processes, autocast."""

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch_models import MODELS, Model

import rmsnorm.torch

rt: Any = rmsnorm.torch  # options come from dictionaries, which mypy cannot follow


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    torch.manual_seed(1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("strict", [True, False])
def test_export(name: str, strict: bool) -> None:
    model, x = MODELS[name](), torch.randn(2, 3, 16)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: batch},), strict=strict)
    for rows in (x, torch.randn(5, 3, 16)):
        assert torch.equal(program.module()(rows), model(rows))
    stored = io.BytesIO()
    torch.export.save(program, stored)
    stored.seek(0)
    assert torch.equal(torch.export.load(stored).module()(x), model(x))


@pytest.mark.parametrize("name", MODELS)
def test_jit_trace(name: str) -> None:
    model, x = MODELS[name](), torch.randn(2, 3, 16)
    traced: Any = torch.jit.trace(model, x)  # type: ignore[no-untyped-call]
    for rows in (x, torch.randn(2, 3, 16)):
        assert torch.equal(traced(rows), model(rows))
    gradients = []
    for one in (traced, model):
        loss = one(x).sin().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
    for own, expected in zip(*gradients, strict=True):
        # The sums of several gradients of one tensor are in another order.
        assert torch.allclose(own, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["module", "module of two dimensions", "rounding"])
def test_jit_script(name: str) -> None:
    model, x = MODELS[name](), torch.randn(2, 3, 16)
    scripted: Any = torch.jit.script(model)
    assert torch.equal(scripted(x), model(x))
    stored = io.BytesIO()
    torch.jit.save(scripted, stored)
    stored.seek(0)
    assert torch.equal(torch.jit.load(stored)(x), model(x))  # type: ignore[no-untyped-call]
    loss = scripted(x).sin().sum()
    own = torch.autograd.grad(loss, list(scripted.parameters()))
    expected = torch.autograd.grad(model(x).sin().sum(), list(model.parameters()))
    assert all(torch.equal(one, two) for one, two in zip(own, expected, strict=True))
    bare: Any = torch.jit.script(rt.RMSNorm(16, elementwise_affine=False))
    assert torch.equal(bare(x), rt.rms_norm(x))


def test_jit_script_refuses_functions() -> None:
    def program(x: Tensor) -> Tensor:
        y: Tensor = rt.rms_norm(x, None, 1e-6)
        return y

    functions: list[Any] = [getattr(rt, name) for name in rt.__all__ if name.islower()]
    functions[functions.index(rt.functional)] = rt.functional.rms_norm
    advice = "use torch.export or torch.jit.trace, or the module rmsnorm.torch.RMSNorm"
    for scripted in (*functions, program, MODELS["functions"]()):
        with pytest.raises(
            RuntimeError, match=rf"^torch.jit.script does not take rmsnorm.torch.*\(\): {advice}"
        ):
            torch.jit.script(scripted)
    traced: Any = torch.jit.trace(program, torch.ones(2, 16))  # type: ignore[no-untyped-call]
    assert torch.equal(traced(torch.ones(2, 16)), program(torch.ones(2, 16)))


@pytest.mark.parametrize("name", MODELS)
def test_fx(name: str) -> None:
    model, x = MODELS[name](), torch.randn(2, 3, 16)
    graph = torch.fx.symbolic_trace(model)
    assert torch.equal(graph(x), model(x))
    targets = {node.target for node in graph.graph.nodes}
    leaf = rt.functional.rms_norm if name != "functions" else rt.rms_norm
    assert leaf in targets


def test_tensor_subclasses_with_overrides() -> None:
    seen = []

    class Counted(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.randn(3, 16).as_subclass(Counted)
    weight = torch.randn(16)
    y = rt.rms_norm(x, weight)
    assert type(y) is Counted and rt.rms_norm in seen
    assert torch.equal(y.as_subclass(Tensor), rt.rms_norm(x.as_subclass(Tensor), weight))
    for function in (rt.gated, rt.fused_add_rms_norm):
        function(x, x, weight)
        assert function in seen


def test_copies() -> None:
    model, x = Model(rounding="before_weight", weight_offset=1.0), torch.randn(3, 16)
    expected = model(x)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    for other in (
        copy.copy(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(stored, weights_only=False),
    ):
        assert torch.equal(other(x), expected)
    copied = copy.deepcopy(model)
    torch.nn.init.zeros_(model.norm.weight)
    assert torch.equal(copied(x), expected)


def test_autocast() -> None:
    model, x = Model(), torch.randn(3, 16)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.linear(x)
        assert hidden.dtype == torch.bfloat16
        y = model.norm(hidden)
        expected = torch.nn.functional.rms_norm(hidden, (16,), model.norm.weight, 1e-6)
        assert y.dtype == expected.dtype == torch.bfloat16
        loss = model(x).float().square().sum()
    torch.autograd.backward(loss)
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def test_nested_tensors_are_refused() -> None:
    rows = [torch.randn(2, 16), torch.randn(3, 16)]
    nested = torch.nested.nested_tensor(rows, layout=torch.jagged)
    for x in (nested, nested.requires_grad_()):
        with pytest.raises(
            RuntimeError, match=r"^rmsnorm takes no nested tensors; call it on x.values"
        ):
            rt.rms_norm(x, torch.ones(16))
        with pytest.raises(RuntimeError, match="^rmsnorm takes no nested tensors"):
            rt.fused_add_rms_norm(x, x)
        with pytest.raises(RuntimeError, match="^rmsnorm takes no nested tensors"):
            rt.RMSNorm(16)(x)


def test_python_threads() -> None:
    from concurrent.futures import ThreadPoolExecutor

    model, xs = Model(), [torch.randn(64, 16) for _ in range(64)]
    with ThreadPoolExecutor(8) as pool, torch.no_grad():
        results = list(pool.map(model, xs))
        assert all(torch.equal(y, model(x)) for x, y in zip(xs, results, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="it forks")
def test_after_fork_as_pytorch() -> None:
    program = """
import os, signal, sys, time, torch, rmsnorm.torch
x = torch.ones(512, 4096)
call = {"ours": rmsnorm.torch.rms_norm, "theirs": torch.nn.functional.silu}[sys.argv[1]]
torch.set_num_threads(2)
call(x)
child = os.fork()
if child == 0:
    call(x)
    os._exit(0)
for _ in range(50):
    time.sleep(0.1)
    if os.waitpid(child, os.WNOHANG)[0] == child:
        print("returns")
        break
else:
    os.kill(child, signal.SIGKILL)
    print("hangs")
"""
    ours, theirs = (
        subprocess.run(
            [sys.executable, "-c", program, who], check=True, capture_output=True, text=True
        ).stdout
        for who in ("ours", "theirs")
    )
    assert ours == theirs


def test_functional_is_pytorchs() -> None:
    functional: Any = rt.functional.rms_norm
    x, weight = torch.randn(4, 3, 16), torch.randn(3, 16)
    for shape, columns in (((16,), weight[0]), ((3, 16), weight), ((16,), None)):
        for eps in (None, 1e-3):
            y = functional(x, shape, columns, eps)
            expected = torch.nn.functional.rms_norm(x, shape, columns, eps)
            assert torch.allclose(y, expected, rtol=1e-6, atol=1e-6)
    for arguments in ((x, (3,), None), (x, (), None), (x, (16,), weight)):
        with pytest.raises(RuntimeError, match="^(input|weight): the shape"):
            functional(*arguments)
    small = torch.full((1, 16), 2.0**-14)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        one = functional(small.to(dtype), (16,))
        assert torch.equal(one, torch.nn.functional.rms_norm(small.to(dtype), (16,)))
        assert torch.equal(rt.rms_norm(small.to(dtype)), one)
        assert torch.equal(rt.RMSNorm(16)(small.to(dtype)), one)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_operators_in_compiled_code(backend: str) -> None:
    """Writing into given memory, int8 and several norms, without a graph break."""

    def step(x: Tensor, residual: Tensor, weight: Tensor, out: Tensor) -> tuple[Any, ...]:
        rt.rms_norm(x * 2, weight, 1e-6, out=out)
        quantized = rt.quantized(x, weight, 1e-6, residual=residual, asymmetric=True)
        q, k = rt.qk(x, residual, weight, None, 1e-6)
        rt.fused_add_rms_norm_(x, residual, weight, 1e-6)
        rstd = torch.empty(3)
        rt.forward(x=q, y=k, rstd=rstd, eps=0.5)
        return *quantized, q, k, rstd

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    tensors = [torch.randn(3, 16), torch.randn(3, 16), torch.randn(16), torch.empty(3, 16)]
    copies = [t.clone() for t in tensors]
    with torch.no_grad():
        results = zip(compiled(*tensors), step(*copies), strict=True)
    assert all(torch.equal(one, two) for one, two in results)
    assert all(torch.equal(one, two) for one, two in zip(tensors, copies, strict=True))


def test_quantized() -> None:
    x, residual, weight = torch.randn(5, 64), torch.randn(5, 64), torch.randn(64)
    y, total = rt.fused_add_rms_norm(x, residual, weight, 1e-6)
    for asymmetric in (False, True):
        q, scale, zero, residual_out = rt.quantized(
            x, weight, 1e-6, residual=residual, asymmetric=asymmetric
        )
        assert q.dtype == torch.int8 and torch.equal(residual_out, total)
        values = q.float() if zero is None else q.float() - zero[:, None].float()
        assert (zero is not None) == asymmetric
        error = (values * scale[:, None] - y).abs()
        assert (error <= scale[:, None] * 0.51).all()
    assert rt.quantized(x).residual_out is None

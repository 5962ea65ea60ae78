# SPDX-License-Identifier: Apache-2.0
"""These tests compare rmsnorm.vllm with vLLM's own implementation of each operation.

They then run vLLM's engine with both. Each model is a small random one.
"""

import contextlib
import gzip
import json
import math
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
import vllm.ir
from torch import Tensor
from torch._inductor.utils import run_and_get_code
from vllm.compilation.passes.ir.lowering_pass import VllmIRLoweringPass
from vllm.ir import ops

import rmsnorm.vllm

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
TYPES = [F32, F16, BF16]
OPERATIONS = ["rms_norm", "fused_add_rms_norm"]


@pytest.fixture(autouse=True)
def ours_first() -> Iterator[None]:
    rmsnorm.vllm.register()
    with contextlib.ExitStack() as stack:
        for name in OPERATIONS:
            stack.enter_context(getattr(ops, name).set_priority(["rmsnorm", "native"]))
        yield


def call(name: str, *arguments: Any) -> tuple[Tensor, ...]:
    """Calls an operation of vLLM that must choose our provider. The arguments must not change."""
    before = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
    assert getattr(ops, name).dispatch(*arguments).provider == "rmsnorm"
    results = getattr(ops, name)(*arguments)
    for a, b in zip(arguments, before, strict=True):
        assert torch.equal(a, b) if isinstance(a, Tensor) else a == b
    return results if isinstance(results, tuple) else (results,)


def native(name: str, *arguments: Any) -> tuple[Tensor, ...]:
    results = getattr(ops, name).impls["native"].impl_fn(*arguments)
    return results if isinstance(results, tuple) else (results,)


def same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and torch.equal(x, y) for x, y in zip(a, b, strict=True)
    )


def formula(h: Tensor, weight: Tensor, x_dtype: torch.dtype, rounding: str) -> Tensor:
    n = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
    if rounding == "before_weight":
        n = n.to(x_dtype).float()
    return (n * weight.float()).to(x_dtype)


def share_of_differences(a: Tensor, b: Tensor) -> float:
    return (a != b).float().mean().item()


def ulp(a: Tensor, b: Tensor) -> int:
    integers = torch.int32 if a.dtype == F32 else torch.int16
    return int((a.view(integers).long() - b.view(integers).long()).abs().max())


def random_arguments(
    name: str, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> tuple[Any, ...]:
    generator = torch.Generator().manual_seed(1)
    x, residual = torch.randn(2, 64, 1000, generator=generator).to(dtype)
    weight = 1 + torch.randn(1000, generator=generator) / 4
    rows = (x,) if name == "rms_norm" else (x, residual)
    return *rows, None if weight_dtype is None else weight.to(weight_dtype), 1e-6


# ----------------------------------------------------------------------------------------- values


def exact_rows(rows: int, most: int, mean: int) -> Tensor:
    """Returns rows of 64 integers, at most `most`, with mean(row^2) = mean, a power of 4.

    Each sum, the root and n are then exact in float32, whatever the order of the sums.
    """
    draw = random.Random(1)
    result: list[list[int]] = []
    while len(result) < rows:
        row = [draw.randint(-most, most) for _ in range(62)]
        rest = 64 * mean - sum(v * v for v in row)
        for v in range(most if rest >= 0 else -1):
            w = math.isqrt(max(rest - v * v, 0))
            if v * v + w * w == rest and w <= most:
                row += [v, w]
                draw.shuffle(row)
                result.append(row)
                break
    return torch.tensor(result, dtype=F32)


def exact_arguments(
    name: str, dtype: torch.dtype, weight_dtype: torch.dtype | None
) -> tuple[Any, ...]:
    if name == "rms_norm":
        rows = [exact_rows(12, 120, 4**6)]
    else:  # the sum has 10 bits, which bfloat16 does not hold
        h = exact_rows(12, 900, 4**9)
        rows = [h.remainder(4), h - h.remainder(4)]
    weight = 1 + torch.randn(64, generator=torch.Generator().manual_seed(1)) / 4
    tensors = [row.to(dtype) for row in rows]
    assert all(torch.equal(tensor.float(), row) for tensor, row in zip(tensors, rows, strict=True))
    return *tensors, None if weight_dtype is None else weight.to(weight_dtype), 0.0


@pytest.mark.parametrize("weight_dtype", [None, F32, "of x"], ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
class TestValues:
    def test_bits_where_sums_are_exact(
        self, name: str, dtype: torch.dtype, weight_dtype: Any
    ) -> None:
        weight_dtype = dtype if weight_dtype == "of x" else weight_dtype
        arguments = exact_arguments(name, dtype, weight_dtype)
        assert same(call(name, *arguments), native(name, *arguments))

    def test_ulp(self, name: str, dtype: torch.dtype, weight_dtype: Any) -> None:
        weight_dtype = dtype if weight_dtype == "of x" else weight_dtype
        arguments = random_arguments(name, dtype, weight_dtype)
        y, *residual_out = call(name, *arguments)
        expected, *expected_residual = native(name, *arguments)
        assert same(tuple(residual_out), tuple(expected_residual))
        assert y.dtype == expected.dtype
        assert ulp(y, expected) <= (5 if dtype == F32 else 2)
        if dtype == F32:
            return
        assert share_of_differences(y, expected) < 0.001
        # Each other rounding order must be far away.
        *rows, weight, _ = arguments
        h = sum(row.float() for row in rows)
        order = "before_weight" if weight_dtype == dtype else "after_weight"
        if weight is not None:
            other = "after_weight" if order == "before_weight" else "before_weight"
            assert share_of_differences(y, formula(h, weight, dtype, other)) > 0.1
        if residual_out:
            rounded = residual_out[0].float()
            weight = torch.ones(1000) if weight is None else weight
            assert share_of_differences(y, formula(rounded, weight, dtype, order)) > 0.1


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_shapes_and_strides(name: str, dtype: torch.dtype) -> None:
    *rows, weight, epsilon = exact_arguments(name, dtype, dtype)

    def buffer(row: Tensor) -> Tensor:
        wide = torch.full((3, 8, 100), 7.0, dtype=dtype)
        wide[:, ::2, 5:69] = row.view(3, 4, 64)
        return wide[:, ::2, 5:69]

    layouts = {
        "rank 1": [row[0] for row in rows],
        "rank 3": [row.view(3, 4, 64) for row in rows],
        "slices of a buffer": [buffer(row) for row in rows],
        "columns": [row.t().contiguous().t() for row in rows],
        "transposed tokens": [row.view(3, 4, 64).transpose(0, 1) for row in rows],
        "one row repeated": [row[:1].expand(5, 64) for row in rows],
        "no rows": [row[:0] for row in rows],
    }
    for layout, operands in layouts.items():
        arguments = (*operands, weight, epsilon)
        assert same(call(name, *arguments), native(name, *arguments)), layout


def test_maybe_inplace() -> None:
    arguments = exact_arguments("fused_add_rms_norm", BF16, BF16)
    expected = native("fused_add_rms_norm", *arguments)
    assert same(ops.fused_add_rms_norm.maybe_inplace(*arguments), expected)


# -------------------------------------------------------------------------------------- dispatch

X, WEIGHT = torch.ones(4, 64, dtype=BF16), torch.ones(64, dtype=BF16)
REFUSED: dict[str, tuple[Any, ...]] = {
    "a variance_size": (X, WEIGHT, 1e-6, 32),
    "float16 weight, bfloat16 x": (X, WEIGHT.half(), 1e-6),
    "bfloat16 weight, float32 x": (X.float(), WEIGHT, 1e-6),
    "float64": (X.double(), WEIGHT.double(), 1e-6),
    "a weight of another shape": (X, WEIGHT.view(1, 64), 1e-6),
    "a weight of one element": (X, WEIGHT[:1], 1e-6),
    "another device": (X.to("meta"), WEIGHT.to("meta"), 1e-6),
    "d = 0": (X[:, :0], None, 1e-6),
    "rank 0": (X[0, 0], None, 1e-6),
}
REFUSED_RESIDUALS = {
    "float32 residual": X.float(),
    "a residual of another shape": X[:1],
    "a residual on another device": X.to("meta"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_vllm_keeps_what_the_library_cannot_reproduce(case: str) -> None:
    x, *others = REFUSED[case]
    assert ops.rms_norm.dispatch(x, *others).provider == "native"
    assert ops.fused_add_rms_norm.dispatch(x, x, *others).provider == "native"
    if x.device.type == "cpu":
        assert same((ops.rms_norm(x, *others),), native("rms_norm", x, *others))


@pytest.mark.parametrize("case", REFUSED_RESIDUALS)
def test_vllm_keeps_residuals_that_differ_from_x(case: str) -> None:
    residual = REFUSED_RESIDUALS[case]
    assert ops.fused_add_rms_norm.dispatch(X, residual, WEIGHT, 1e-6).provider == "native"


# --------------------------------------------------------------------------------------- compile


def block(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    y, residual_out = ops.fused_add_rms_norm(x, residual, weight, 1e-6)
    return ops.rms_norm(y * 2, weight, 1e-6), residual_out


@pytest.mark.parametrize("way", ["operator", "traced", "lowered"])
def test_inductor(way: str) -> None:
    """vLLM compiles its operations as operators, by tracing through them, or by its own pass."""
    x, residual, weight, _ = random_arguments("fused_add_rms_norm", BF16, BF16)
    passes: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        if way == "traced":
            stack.enter_context(vllm.ir.enable_torch_wrap(False))
        if way == "lowered":
            compilation = SimpleNamespace(
                splitting_ops=None, use_inductor_graph_partition=False, pass_config=None
            )
            config: Any = SimpleNamespace(
                compilation_config=compilation, model_config=None, device_config=None
            )
            passes = {"post_grad_custom_post_pass": VllmIRLoweringPass(config)}
        stack.enter_context(torch.no_grad())
        torch._dynamo.reset()
        compiled = torch.compile(block, fullgraph=True, options=passes)
        results, code = run_and_get_code(compiled, x, residual, weight)
        assert same(results, block(x, residual, weight))
    namespace = "vllm_ir" if way == "operator" else "rmsnorm"
    calls = re.findall(r"torch\.ops\.(vllm_ir|rmsnorm)\.\w+\.\w+\(", "".join(code))
    assert calls == [namespace] * 2


@pytest.mark.parametrize("known", ["the last", "none"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_compile_with_unknown_sizes(name: str, known: str) -> None:
    """vLLM's own norm compiles where no size is known, as with its dynamic shapes "unbacked"."""
    *rows, weight, epsilon = random_arguments(name, BF16, BF16)
    for tensor in rows:
        torch._dynamo.decorators.mark_unbacked(tensor, 0)
        if known == "none":
            torch._dynamo.decorators.mark_unbacked(tensor, 1)
    if known == "none":
        torch._dynamo.decorators.mark_unbacked(weight, 0)
    torch._dynamo.reset()
    operation = getattr(ops, name)
    with vllm.ir.enable_torch_wrap(False), torch.no_grad():
        compiled = torch.compile(lambda *a: operation(*a), fullgraph=True, backend="eager")
        results = compiled(*rows, weight, epsilon)
    results = results if isinstance(results, tuple) else (results,)
    possible = [call(name, *rows, weight, epsilon), native(name, *rows, weight, epsilon)]
    assert any(same(results, expected) for expected in possible)


# -------------------------------------------------------------------------------------- register


def test_register_twice() -> None:
    before = [dict(getattr(ops, name).impls) for name in OPERATIONS]
    rmsnorm.vllm.register()
    assert [dict(getattr(ops, name).impls) for name in OPERATIONS] == before


def test_vllm_finds_the_plugin() -> None:
    program = """
from vllm.config.kernel import IrOpPriorityConfig
from vllm.ir import ops
from vllm.plugins import load_general_plugins
load_general_plugins()
priority = IrOpPriorityConfig.with_default(
    ["native"], rms_norm=["rmsnorm", "native"], fused_add_rms_norm=["rmsnorm", "native"]
)
priority.set_default()
print(ops.rms_norm.get_priority(), ops.fused_add_rms_norm.get_priority())
"""
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"VLLM_PLUGINS": "rmsnorm"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert result.stdout.splitlines()[-1] == "['rmsnorm', 'native'] ['rmsnorm', 'native']"


# ---------------------------------------------------------------------------------------- engine

PROGRAM = """
import json
import sys
from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
prompts = [{"prompt_token_ids": ids} for ids in ([1, 2, 3, 4, 5], [7, 8], [60] * 20)]
sampling = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
tokens = []
for options in json.loads(sys.argv[1]):
    llm = LLM.from_engine_args(EngineArgs.from_cli_args(parser.parse_args(options)))
    llm.start_profile()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    llm.stop_profile()
    llm.llm_engine.engine_core.shutdown()
    tokens.append([output.outputs[0].token_ids for output in outputs])
print(json.dumps(tokens))
"""
STEPS = 8  # The first step takes all prompts, and every step makes a token for each.
OURS = ["--ir-op-priority.rms_norm", "rmsnorm", "--ir-op-priority.fused_add_rms_norm", "rmsnorm"]

# For each architecture: its configuration, a seed for which the best two tokens are never closer
# than 3%, and the norms in a step of two layers.
ARCHITECTURES: dict[str, tuple[type[transformers.PretrainedConfig], int, int]] = {
    # 5 rms_norm, 4 fused_add_rms_norm: norms of q and k too; a weight of bfloat16
    "Qwen3": (transformers.Qwen3Config, 18, 9),
    # 9 rms_norm, 4 fused_add_rms_norm: norms of the layers' outputs, too; a weight of float32
    "Gemma3": (transformers.Gemma3TextConfig, 6, 13),
}


def save_model(architecture: str, folder: Path) -> None:
    make_config, seed, _ = ARCHITECTURES[architecture]
    config = make_config(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=128,
        initializer_range=0.2,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=BF16)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)


def run_engines(
    architecture: str, folder: Path, engines: list[list[str]], **environment: str
) -> tuple[list[list[list[int]]], list[int]]:
    """Runs one engine after another, and returns tokens and the calls of our operators for each."""
    save_model(architecture, folder / "model")
    traces = [folder / f"trace{i}" for i in range(len(engines))]
    options = [
        [
            *("--model", str(folder / "model"), "--skip-tokenizer-init"),
            *("--max-model-len", "64", "--max-num-seqs", "4"),
            *("--profiler-config.profiler", "torch"),
            *("--profiler-config.torch_profiler_dir", str(trace)),
            *engine,
        ]
        for engine, trace in zip(engines, traces, strict=True)
    ]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(options)],
        env=os.environ
        | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(folder / "vllm"),
        }
        | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    calls = []
    for trace in traces:
        (file,) = trace.glob("*.json.gz")
        with gzip.open(file) as opened:
            events = json.load(opened)["traceEvents"]
        calls.append(sum(event.get("name", "").startswith("rmsnorm::") for event in events))
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("[[[")]
    return json.loads(line), calls


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_engine(architecture: str, tmp_path: Path) -> None:
    engines = [[*mode, *provider] for mode in (["--enforce-eager"], []) for provider in ([], OURS)]
    tokens, calls = run_engines(
        architecture, tmp_path, engines, VLLM_ENABLE_V1_MULTIPROCESSING="0"
    )
    eager, eager_ours, compiled, compiled_ours = tokens
    assert eager_ours == eager
    assert compiled_ours == compiled
    ours = STEPS * ARCHITECTURES[architecture][2]
    assert calls == [0, ours, 0, ours]
    graphs = [path.read_text() for path in (tmp_path / "vllm").rglob("*.py")]
    assert any("torch.ops.rmsnorm." in graph for graph in graphs)


def test_engine_in_another_process(tmp_path: Path) -> None:
    """By default vLLM starts processes for its engine and workers. They load the plug-in, too."""
    _, (calls,) = run_engines("Qwen3", tmp_path, [["--enforce-eager", *OURS]])
    # Prompts arrive while the engine runs, so that it may take more steps.
    assert calls >= STEPS * ARCHITECTURES["Qwen3"][2]
    assert calls % ARCHITECTURES["Qwen3"][2] == 0

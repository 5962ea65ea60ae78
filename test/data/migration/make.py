#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the RMSNorm of the systems in doc/migration.md on the random rows of vectors.safetensors.

Writes the results to vectors.safetensors again, and versions.json beside it. The tables' rows give
the names, types and options of the cases. x.D.X are inputs of D elements and type X, r.D.X
residuals, w.D.W weights, p.D.W post-norm weights, and z.D.X gates. The elements of a row are around
1e-6, 3e-4, 1e-3, 3e-3, 1 or 30: about the square root of each eps, and far above. A system has its
default eps, if it has one.

vLLM, sglang, Hugging Face's kernel, CTranslate2 and candle do not run here: no package of theirs
offers these functions to Python on a CPU. "Transcriptions" below repeats their arithmetic, except
the order of the sums, and versions.json names the source files.

Needs this package, and: pip install torch transformers diffusers onnx onnxruntime ml_dtypes ncnn
ggml-python. Needs no network and no GPU.
"""

import collections
import importlib.metadata
import json
import os
import pathlib
import platform
import sys

import ggml
import ml_dtypes
import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from rmsnorm._texts import systems

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]
sys.path += [str(ROOT / each) for each in ("tools/vectors", "python/engines", "test/data")]
os.environ["OMP_NUM_THREADS"] = "1"
# pylint: disable=wrong-import-position
import check_vectors
import in_ggml
import in_ncnn
import in_onnxruntime
from models import STEPS, TANH, Gives, of_transformers, same, seen_by, to_array, with_weight

GGML_EPS = CANDLE_EPS = 1e-5  # these have no default


# --------------------------------------------------------------------------- PyTorch, transformers


def torch_rms_norm(x, weight=None):
    d = x.shape[-1]
    module = torch.nn.RMSNorm(d, elementwise_affine=weight is not None)
    module = module if weight is None else with_weight(module, weight)
    return same([torch.nn.functional.rms_norm(x, (d,), weight), module(x)])


def norms(*paths):
    def compute(x, weight=None, gate=None):
        inputs = (x,) if gate is None else (x, gate)
        classes = map(of_transformers, paths)
        if weight is None:
            return same(each()(*inputs) for each in classes)
        return same(with_weight(each(x.shape[-1]), weight)(*inputs) for each in classes)

    return compute


def gated_groups(*paths):
    """Makes two rows the groups of one row: the results are the norms of the rows of x."""

    def compute(x, weight, gate):
        d = x.shape[-1]
        pair = torch.cat((weight, weight))
        modules = (with_weight(of_transformers(p)(2 * d, group_size=d), pair) for p in paths)
        return same(module(x.view(-1, 2 * d), gate.view(-1, 2 * d)) for module in modules)

    return compute


def qwen3_heads(x, weight):
    config = of_transformers("qwen3.Qwen3Config")(
        hidden_size=64, head_dim=x.shape[-1], num_attention_heads=2, num_key_value_heads=1
    )
    attention = of_transformers("qwen3.Qwen3Attention")(config, layer_idx=0)
    heads = x.view(-1, 2, x.shape[-1])
    return same(with_weight(m, weight)(heads) for m in (attention.q_norm, attention.k_norm))


def llama_residual(x, residual, weight):
    """Computes the step between the two halves of a decoder layer."""
    total = residual + x
    return norms("llama.LlamaRMSNorm")(total, weight), total


def of_batches(step):
    """Makes each row a batch of one token for a step of ../models.py."""
    return lambda **given: step(
        **{n: t if n.endswith("weight") else t.unsqueeze(1) for n, t in given.items()}
    )


def boundary(post_norm, norm, *layers, **settings):
    """Computes the input of the feed-forward part of decoder layers, and the stream, for a residual
    and the attention's output x. `post_norm` names the norm of x, if any, and `norm` that of the
    stream. A layer is a class and its configuration."""
    sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8}

    def compute(x, residual, weight, post_norm_weight=None):
        found = []
        for layer_class, config in layers:
            config = of_transformers(config)(hidden_size=x.shape[-1], **sizes, **settings)
            layer = of_transformers(layer_class)(config, layer_idx=0)
            layer.self_attn, layer.mlp = Gives((x, None)), torch.nn.Identity()
            if post_norm:
                with_weight(getattr(layer, post_norm), post_norm_weight)
            found.append(seen_by(getattr(layer, norm), weight, lambda: layer(residual)))
        return tuple(map(same, zip(*found)))

    return compute


# ---------------------------------------------------------------------------------- other engines


def to_tensor(array):
    """bf16 may be bits or numbers."""
    is_bf16 = array.dtype in (np.uint16, ml_dtypes.bfloat16)
    tensor = torch.from_numpy(array.view(np.uint16 if is_bf16 else array.dtype).copy())
    return tensor.view(torch.bfloat16) if is_bf16 else tensor


def of_arrays(function):
    """Makes a function of NumPy's arrays one of tensors."""

    def compute(**tensors):
        arrays = {name: to_array(tensor) for name, tensor in tensors.items()}
        for name, array in arrays.items():
            arrays[name] = array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array
        results = function(**arrays)
        return tuple(map(to_tensor, results if isinstance(results, tuple) else (results,)))

    return compute


def onnx_definition(x, weight):
    """Evaluates ONNX's definition of RMSNormalization-23 node by node."""
    helper = onnx.helper
    node = helper.make_node("RMSNormalization", ["X", "scale"], ["Y"])
    types = [
        helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for each in (x, weight)
    ]
    function = onnx.FunctionProto()
    function.ParseFromString(
        onnx.defs.get_schema(
            "RMSNormalization", 23
        ).get_context_dependent_function_with_opset_version(
            23, node.SerializeToString(), [each.SerializeToString() for each in types]
        )
    )
    attributes = {"axis": -1, "stash_type": 1, "epsilon": 1e-5}
    inputs = {"X": x, "scale": weight}
    return ReferenceEvaluator(function).run(None, inputs, attributes=attributes)[0]


# --------------------------------------------------------------------------------- Transcriptions

# The source files, each at a release or a commit.
TRANSCRIBED = {
    "candle": "huggingface/candle 0.11.0-19-g2a13b0f3f, candle-nn/src/ops.rs",
    "ctranslate2": "OpenNMT/CTranslate2 v4.8.1, src/cpu/kernels.cc",
    "hf_cpu": "huggingface/kernels-community 40d4194f, rmsnorm/rmsnorm_cpu/rmsnorm_avx2.cpp",
    "sglang_cpu": "sgl-project/sglang 00b0408e, sgl-kernel/csrc/cpu/norm.cpp",
    "vllm_cpu": "vllm-project/vllm 19de59f2, csrc/cpu/layernorm.cpp",
    "vllm_native": "vllm-project/vllm 00cba797, vllm/model_executor/layers/layernorm.py",
}


def rms(values, eps):
    return torch.sqrt(values.square().sum(-1, keepdim=True) / values.shape[-1] + eps)


def scaled_then_cast(x, weight, offset=0.0):
    """The kernels of vLLM, sglang and Hugging Face for CPUs, and of CTranslate2."""
    wide = x.float()
    return (wide * (1 / rms(wide, 1e-6)) * (offset + weight.float())).to(x.dtype)


def vllm_cpu_residual(x, residual, weight):
    """Takes the RMS of the unrounded sum, and scales the rounded sum."""
    total = x.float() + residual.float()
    stored = total.to(x.dtype)
    return (stored.float() * (1 / rms(total, 1e-6)) * weight.float()).to(x.dtype), stored


def vllm_native_residual(x, residual, weight):
    total = x.float() + residual.float()
    return (total * (1 / rms(total, 1e-6))).to(x.dtype) * weight, total.to(x.dtype)


def sglang_cpu_residual(x, residual, weight):
    total = x.float() + residual.float()
    return (total * (1 / rms(total, 1e-6)) * weight.float()).to(x.dtype), total.to(x.dtype)


# ---------------------------------------------------------------------------------------- the rows

OF_GEMMA = "post_attention_layernorm", "pre_feedforward_layernorm"
OF_GLM4 = "post_self_attn_layernorm", "post_attention_layernorm"

# Each takes the operands that its row has, and returns y, or a tuple of y and residual_out. A system
# also computes the row with "_weight_f32" after its name, where there is one.
SYSTEMS = {
    "torch": torch_rms_norm,
    "torch_no_weight": torch_rms_norm,
    "llama": norms("llama.LlamaRMSNorm", "qwen3.Qwen3RMSNorm", "deepseek_v3.DeepseekV3RMSNorm"),
    "llama_residual": llama_residual,
    "qwen3_heads": qwen3_heads,
    "gemma": norms("gemma.GemmaRMSNorm", "gemma2.Gemma2RMSNorm", "gemma3.Gemma3RMSNorm"),
    "gemma3n": norms("gemma3n.Gemma3nRMSNorm", "gemma4.Gemma4RMSNorm"),
    "qwen3_next": norms("qwen3_next.Qwen3NextRMSNorm", "qwen3_5.Qwen3_5RMSNorm"),
    "olmo2": norms(
        "olmo2.Olmo2RMSNorm",
        "olmo3.Olmo3RMSNorm",
        "gpt_oss.GptOssRMSNorm",
        "deepseek_v4.DeepseekV4RMSNorm",
    ),
    "deepseek_v4_no_weight": norms("deepseek_v4.DeepseekV4UnweightedRMSNorm"),
    "llama4": norms("llama4.Llama4TextRMSNorm"),
    "llama4_l2": norms("llama4.Llama4TextL2Norm"),
    "t5": norms("t5.T5LayerNorm"),
    "onnx": of_arrays(onnx_definition),
    "onnxruntime_rms": of_arrays(in_onnxruntime.norm("RMSNormalization")),
    "simplified": of_arrays(in_onnxruntime.norm("SimplifiedLayerNormalization")),
    "skip_simplified": of_arrays(in_onnxruntime.skip_norm),
    "ggml": of_arrays(lambda x, weight: in_ggml.run(x, weight, eps=GGML_EPS)[0]),
    "ncnn": of_arrays(lambda x, weight: in_ncnn.norm(x, weight, options="")),
    "candle": lambda x, weight: x / rms(x, CANDLE_EPS) * weight,
    "cpu_kernels": scaled_then_cast,
    "ctranslate2": lambda x, weight: scaled_then_cast(x, weight, offset=1.0),
    "sglang_cpu_residual": sglang_cpu_residual,
    "vllm_native_residual": vllm_native_residual,
    "vllm_cpu_residual": vllm_cpu_residual,
    "gemma_post_norm": boundary(
        *OF_GEMMA,
        ("gemma2.Gemma2DecoderLayer", "gemma2.Gemma2Config"),
        ("gemma3.Gemma3DecoderLayer", "gemma3.Gemma3TextConfig"),
    ),
    "gemma4_post_norm": boundary(
        *OF_GEMMA,
        ("gemma4.Gemma4TextDecoderLayer", "gemma4.Gemma4TextConfig"),
        hidden_size_per_layer_input=0,
    ),
    "glm4_post_norm": boundary(*OF_GLM4, ("glm4.Glm4DecoderLayer", "glm4.Glm4Config")),
    "granite_residual": boundary(
        None,
        "post_attention_layernorm",
        ("granite.GraniteDecoderLayer", "granite.GraniteConfig"),
        residual_multiplier=0.22,  # the value of Granite 3; the default is 1
    ),
    "qwen3_next_gated": norms("qwen3_next.Qwen3NextRMSNormGated", "qwen3_5.Qwen3_5RMSNormGated"),
    "kimi_linear_gated": norms(
        "kimi_linear.KimiLinearRMSNormGated", "bailing_hybrid.BailingHybridRMSNormGated"
    ),
    "mamba2_gated": gated_groups("mamba2.MambaRMSNormGated", "nemotron_h.NemotronHRMSNormGated"),
    **{name: of_batches(step) for name, step in STEPS.items()},
}

SIZES = ("64", "100")
OPTIONS = ("eps", "eps_placement", "rounding", "weight_offset", "residual_rounding", "factor")
OPTIONS += ("residual_factor", "activation", "gate_placement", "gate_rounding")


def main():
    _, recorded = check_vectors.read(FOLDER / "vectors.safetensors")
    index, arrays, numbers = {}, {}, collections.Counter()
    rows = {row["name"]: row for row in systems()}
    cases = []  # in the order of the file
    for name, row in rows.items():
        for x_type in row.get("x", "f32, f16, bf16").split(", "):
            y_type = "f32" if row.get("y") == "f32" else x_type
            cases += [(("f32", "bf16", "f16").index(y_type), name, d, x_type) for d in SIZES]
    for _, name, d, x_type in sorted(cases):
        row, number = rows[name], numbers[name, d]
        numbers[name, d] += 1
        case = f"{name}.{d}.{number}"
        operands = {"x": f"x.{d}.{x_type}"}
        if row["residual_rounding"]:
            operands |= {"residual": f"r.{d}.{x_type}", "residual_out": f"{case}.residual_out"}
        if row.get("weight") != "none":
            operands["weight"] = f"w.{d}.{'f32' if row.get('weight') == 'f32' else x_type}"
        if row.get("post_norm") == "yes":
            operands["post_norm_weight"] = f"p.{d}.{x_type}"
        if row.get("activation"):
            operands["gate"] = f"z.{d}.{x_type}"
        operands["y"] = f"{case}.y"
        # No words say that two calls compute a row: the test knows it.
        words = {"op": "forward"} | {name: row[name] for name in OPTIONS if row.get(name)}
        words = {name: word.replace("two phases", "unrounded") for name, word in words.items()}
        arrays |= {key: recorded.get(key) for key in operands.values()}
        results = ("y", "residual_out")
        inputs = {each: to_tensor(arrays[operands[each]]) for each in operands.keys() - results}
        if name in TANH:  # the system has the gate before its tanh
            operands["gate"] = f"t.{d}.{x_type}"
            arrays[operands["gate"]] = to_array(inputs["gate"].tanh())
        index[case] = " ".join(f"{name}={word}" for name, word in (words | operands).items())
        with torch.no_grad():
            computed = SYSTEMS[name.removesuffix("_weight_f32")](**inputs)
        computed = computed if isinstance(computed, tuple) else (computed,)
        for result, tensor in zip(results, computed):
            # Each head of Qwen3 is a row of x.
            arrays[operands[result]] = to_array(tensor.reshape(inputs["x"].shape).contiguous())
    check_vectors.write(FOLDER / "vectors.safetensors", arrays, index)

    packages = "torch transformers diffusers onnx onnxruntime ml_dtypes ncnn ggml-python".split()
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    versions |= {package: importlib.metadata.version(package) for package in packages}
    build = f"{ggml.ggml_version().decode()} ({ggml.ggml_commit().decode()})"
    versions |= {"ggml": build, "transcribed": TRANSCRIBED}
    text = json.dumps(versions, indent=2) + "\n"
    (FOLDER / "versions.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the RMSNorm of the systems in doc/migration.md on some random rows: make.py ORIGINAL

Writes ORIGINAL, from which `../convert.py migration ORIGINAL vectors.safetensors` makes the file
here, and versions.json beside itself. x.D.X are inputs of D elements and type
X, r.D.X residuals, w.D.W weights, p.D.W post-norm weights, and z.D.X gates. y.NAME.D.X is the
result of the system in the table's row NAME, with the system's default eps if it has one.
sum.NAME.D.X is the residual stream, if a row has one.

vLLM, sglang, Hugging Face's kernel, CTranslate2 and candle do not run here: no package of theirs
offers these functions to Python on a CPU. "Transcriptions" below repeats their arithmetic, except
the order of the sums, and versions.json names the source files.

Needs: pip install torch transformers onnx onnxruntime ml_dtypes safetensors ncnn pywhispercpp
(whose wheel contains ggml's own libraries). Needs no network and no GPU.
"""

import ctypes
import importlib.metadata
import json
import pathlib
import platform
import sys
import tempfile

import ml_dtypes
import ncnn
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from safetensors.torch import save_file
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridRMSNormGated
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4RMSNorm,
    DeepseekV4UnweightedRMSNorm,
)
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma2.configuration_gemma2 import Gemma2Config
from transformers.models.gemma2.modeling_gemma2 import Gemma2DecoderLayer, Gemma2RMSNorm
from transformers.models.gemma3.configuration_gemma3 import Gemma3TextConfig
from transformers.models.gemma3.modeling_gemma3 import Gemma3DecoderLayer, Gemma3RMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.gemma4.configuration_gemma4 import Gemma4TextConfig
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm, Gemma4TextDecoderLayer
from transformers.models.glm4.configuration_glm4 import Glm4Config
from transformers.models.glm4.modeling_glm4 import Glm4DecoderLayer
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.granite.configuration_granite import GraniteConfig
from transformers.models.granite.modeling_granite import GraniteDecoderLayer
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearRMSNormGated
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.llama4.modeling_llama4 import Llama4TextL2Norm, Llama4TextRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
from transformers.models.nemotron_h.modeling_nemotron_h import NemotronHRMSNormGated
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm
from transformers.models.olmo3.modeling_olmo3 import Olmo3RMSNorm
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5RMSNorm, Qwen3_5RMSNormGated
from transformers.models.qwen3_next.modeling_qwen3_next import (
    Qwen3NextRMSNorm,
    Qwen3NextRMSNormGated,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm

FOLDER = pathlib.Path(__file__).parent
SIZES = (64, 100)
# Scales of the rows' elements: around the square root of each eps in use, and far above.
SCALES = (1e-6, 3e-4, 1e-3, 3e-3, 1, 30)
GGML_EPS = CANDLE_EPS = 1e-5  # these have no default
GRANITE_MULTIPLIER = 0.22  # the value of Granite 3; the default is 1

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NUMPY = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
ONNX = {"f32": TensorProto.FLOAT, "f16": TensorProto.FLOAT16, "bf16": TensorProto.BFLOAT16}


def tag_of(tensor):
    return next(tag for tag, dtype in TYPES.items() if dtype == tensor.dtype)


def to_numpy(tensor):
    return tensor.float().numpy().astype(NUMPY[tag_of(tensor)])


def from_numpy(array):
    tag = next(tag for tag, dtype in NUMPY.items() if dtype == array.dtype)
    return torch.from_numpy(array.astype(np.float32)).to(TYPES[tag])


# ----------------------------------------------------------------------------- PyTorch, transformers


def with_weight(module, w):
    module.weight = torch.nn.Parameter(w, requires_grad=False)
    return module


def same(results):
    """Returns the common result of several modules, which share a row of the table."""
    results = list(results)
    for other in results[1:]:
        if other.dtype != results[0].dtype or not torch.equal(other, results[0]):
            raise SystemExit("modules of one row of the table differ")
    return results[0]


def torch_rms_norm(x, w):
    d = x.shape[-1]
    by_function = torch.nn.functional.rms_norm(x, (d,), w)
    if w is None:
        return same([by_function, torch.nn.RMSNorm(d, elementwise_affine=False)(x)])
    return same([by_function, with_weight(torch.nn.RMSNorm(d), w)(x)])


def modules(*classes):
    return lambda x, w: same(with_weight(c(x.shape[-1]), w)(x) for c in classes)


llama = modules(LlamaRMSNorm, Qwen3RMSNorm, DeepseekV3RMSNorm)
olmo2 = modules(Olmo2RMSNorm, Olmo3RMSNorm, GptOssRMSNorm, DeepseekV4RMSNorm)


def qwen3_heads(x, w):
    config = Qwen3Config(
        hidden_size=64, head_dim=x.shape[-1], num_attention_heads=2, num_key_value_heads=1
    )
    attention = Qwen3Attention(config, layer_idx=0)
    heads = x.view(-1, 2, x.shape[-1])
    return same(with_weight(m, w)(heads) for m in (attention.q_norm, attention.k_norm))


def gated(*classes):
    return lambda x, w, z: same(with_weight(c(x.shape[-1]), w)(x, z) for c in classes)


def gated_groups(*classes):
    """Makes two rows the groups of one row: the results are the norms of the rows of x."""

    def compute(x, w, z):
        d = x.shape[-1]
        norms = (with_weight(c(2 * d, group_size=d), torch.cat((w, w))) for c in classes)
        return same(n(x.view(-1, 2 * d), z.view(-1, 2 * d)).view(-1, d) for n in norms)

    return compute


class Gives(torch.nn.Module):
    """Stands in for a layer's attention."""

    def __init__(self, x):
        super().__init__()
        self.x = x

    def forward(self, *_, **__):
        return self.x, None


def boundary(layer, x, r, w, p=None, names=(None, "post_attention_layernorm")):
    """Returns the input of the feed-forward part of a decoder layer, and the stream, for a stream r
    and the attention's output x. `names` are the norm of x, if any, and the norm of the stream."""
    seen = {}
    layer.self_attn, layer.mlp = Gives(x), torch.nn.Identity()
    if p is not None:
        with_weight(getattr(layer, names[0]), p)
    norm = with_weight(getattr(layer, names[1]), w)
    norm.register_forward_hook(lambda module, inputs, y: seen.update(y=y, stream=inputs[0]))
    layer(r)
    return seen["y"], seen["stream"]


SMALL = {"num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 8}


def gemma_post_norm(x, r, w, p):
    names = ("post_attention_layernorm", "pre_feedforward_layernorm")
    results = [
        boundary(layer(config(hidden_size=x.shape[-1], **SMALL), layer_idx=0), x, r, w, p, names)
        for layer, config in (
            (Gemma2DecoderLayer, Gemma2Config),
            (Gemma3DecoderLayer, Gemma3TextConfig),
        )
    ]
    return tuple(same(kind) for kind in zip(*results))


def gemma4_post_norm(x, r, w, p):
    names = ("post_attention_layernorm", "pre_feedforward_layernorm")
    config = Gemma4TextConfig(hidden_size=x.shape[-1], hidden_size_per_layer_input=0, **SMALL)
    return boundary(Gemma4TextDecoderLayer(config, layer_idx=0), x, r, w, p, names)


def glm4_post_norm(x, r, w, p):
    names = ("post_self_attn_layernorm", "post_attention_layernorm")
    config = Glm4Config(hidden_size=x.shape[-1], **SMALL)
    return boundary(Glm4DecoderLayer(config, layer_idx=0), x, r, w, p, names)


def granite_residual(x, r, w):
    config = GraniteConfig(hidden_size=x.shape[-1], residual_multiplier=GRANITE_MULTIPLIER, **SMALL)
    return boundary(GraniteDecoderLayer(config, layer_idx=0), x, r, w)


# ------------------------------------------------------------------------------ ONNX, ONNX Runtime


def onnx_definition(x, w):
    """Evaluates ONNX's definition of RMSNormalization-23 node by node."""
    node = helper.make_node("RMSNormalization", ["X", "scale"], ["Y"])
    types = [helper.make_tensor_type_proto(ONNX[tag_of(t)], t.shape) for t in (x, w)]
    function = onnx.FunctionProto()
    function.ParseFromString(
        onnx.defs.get_schema("RMSNormalization", 23)
        .get_context_dependent_function_with_opset_version(
            23, node.SerializeToString(), [t.SerializeToString() for t in types]
        )
    )
    evaluator = ReferenceEvaluator(function)
    attributes = {"axis": -1, "stash_type": 1, "epsilon": 1e-5}
    (y,) = evaluator.run(None, {"X": to_numpy(x), "scale": to_numpy(w)}, attributes=attributes)
    return from_numpy(y)


def run_onnxruntime(op, domain, opset, inputs, output_type, outputs):
    """Returns the named outputs of one node; an empty name skips an output."""
    types = {name: ONNX[tag_of(tensor)] for name, tensor in inputs.items()}
    rows = next(iter(inputs.values())).shape
    node = helper.make_node(op, list(inputs), outputs, domain=domain)
    named = [name for name in outputs if name]
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info(n, types[n], t.shape) for n, t in inputs.items()],
        [helper.make_tensor_value_info(n, output_type, rows) for n in named],
    )
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    # OrtValue carries bfloat16, which plain numpy arrays do not.
    values = {
        name: onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            to_numpy(tensor).view(np.uint16) if types[name] == TensorProto.BFLOAT16
            else to_numpy(tensor),
            types[name],
        )
        for name, tensor in inputs.items()
    }
    results = session.run_with_ort_values(named, values)
    numpy_type = NUMPY[next(tag for tag, code in ONNX.items() if code == output_type)]
    return [from_numpy(bits_of(result).view(numpy_type)) for result in results]


def bits_of(ort_value):
    """Returns the elements of an OrtValue of any type, as bytes in memory."""
    size = {"tensor(float)": 4}.get(ort_value.data_type(), 2)
    count = int(np.prod(ort_value.shape()))
    memory = ctypes.string_at(ort_value.data_ptr(), count * size)
    return np.frombuffer(memory, np.uint32 if size == 4 else np.uint16).reshape(ort_value.shape())


def onnxruntime_rms(x, w):
    (y,) = run_onnxruntime("RMSNormalization", "", 23, {"x": x, "w": w}, ONNX[tag_of(x)], ["y"])
    return y


def simplified(x, w):
    (y,) = run_onnxruntime(
        "SimplifiedLayerNormalization", "", 17, {"x": x, "w": w}, ONNX[tag_of(w)], ["y"]
    )
    return y


def skip_simplified(x, r, w):
    y, total = run_onnxruntime(
        "SkipSimplifiedLayerNormalization",
        "com.microsoft",
        17,
        {"x": x, "r": r, "w": w},
        ONNX[tag_of(x)],
        ["y", "", "", "sum"],
    )
    return y, total


# ------------------------------------------------------------------------------------------- ggml


class GgmlInit(ctypes.Structure):
    _fields_ = [
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    ]


class Ggml:
    def __init__(self):
        # The names are in the order of their dependencies.
        names = ("libgomp-", "libggml-base-", "libggml-cpu-")
        files = importlib.metadata.files("pywhispercpp")
        paths = [next(f.locate() for f in files if f.name.startswith(name)) for name in names]
        _, self._base, self._cpu = [ctypes.CDLL(str(p), mode=ctypes.RTLD_GLOBAL) for p in paths]

    def _call(self, name, result, *arguments, library=None):
        function = getattr(library or self._base, name)
        function.restype = result
        return function(*arguments)

    def version(self):
        text = [self._call(name, ctypes.c_char_p) for name in ("ggml_version", "ggml_commit")]
        return f"{text[0].decode()} ({text[1].decode()})"

    def rms_norm_mul(self, x, w):
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        rows, d = x.shape
        context = pointer(self._call("ggml_init", pointer, GgmlInit(1 << 22, None, False)))

        def tensor(values, name, *shape):
            made = pointer(self._call(name, pointer, context, 0, *map(integer, shape)))
            data = self._call("ggml_get_data", pointer, made)
            ctypes.memmove(data, values.contiguous().data_ptr(), values.numel() * 4)
            return made

        x_tensor = tensor(x, "ggml_new_tensor_2d", d, rows)
        w_tensor = tensor(w, "ggml_new_tensor_1d", d)
        norm = pointer(
            self._call("ggml_rms_norm", pointer, context, x_tensor, ctypes.c_float(GGML_EPS))
        )
        product = pointer(self._call("ggml_mul", pointer, context, norm, w_tensor))
        graph = pointer(self._call("ggml_new_graph", pointer, context))
        self._call("ggml_build_forward_expand", None, graph, product)
        compute = "ggml_graph_compute_with_ctx"
        if self._call(compute, ctypes.c_int, context, graph, 1, library=self._cpu) != 0:
            raise SystemExit("ggml failed")
        y = torch.empty_like(x)
        ctypes.memmove(y.data_ptr(), self._call("ggml_get_data", pointer, product), y.numel() * 4)
        self._call("ggml_free", None, context)
        return y


# ------------------------------------------------------------------------------------------- ncnn


def ncnn_rms_norm(x, w):
    """A net of one layer, with the layer's default eps."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        layers = f"Input x 0 1 x\nRMSNorm y 1 1 x y 0={x.shape[-1]}\n"
        (folder / "net.param").write_text("7767517\n2 2\n" + layers)
        (folder / "net.bin").write_bytes(w.numpy().tobytes())
        net = ncnn.Net()
        net.opt.num_threads = 1
        net.opt.use_bf16_storage = net.opt.use_fp16_storage = False
        if net.load_param(str(folder / "net.param")) or net.load_model(str(folder / "net.bin")):
            raise SystemExit("ncnn takes no such net")
        extractor = net.create_extractor()
        extractor.input("x", ncnn.Mat(x.numpy()).clone())
        status, y = extractor.extract("y")
        if status:
            raise SystemExit("ncnn failed")
        y = torch.from_numpy(np.array(y))
        del extractor  # the extractor must go before its net
    return y


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


def scaled_then_cast(x, w, eps=1e-6, offset=0.0):
    """The kernels of vLLM, sglang and Hugging Face for CPUs, and of CTranslate2."""
    wide = x.float()
    return (wide * (1 / rms(wide, eps)) * (offset + w.float())).to(x.dtype)


def candle(x, w):
    return x / rms(x, CANDLE_EPS) * w


def vllm_cpu_residual(x, r, w):
    """Takes the RMS of the unrounded sum, and scales the rounded sum."""
    total = x.float() + r.float()
    stored = total.to(x.dtype)
    return (stored.float() * (1 / rms(total, 1e-6)) * w.float()).to(x.dtype), stored


def vllm_native_residual(x, r, w):
    total = x.float() + r.float()
    return (total * (1 / rms(total, 1e-6))).to(x.dtype) * w, total.to(x.dtype)


def sglang_cpu_residual(x, r, w):
    total = x.float() + r.float()
    return (total * (1 / rms(total, 1e-6)) * w.float()).to(x.dtype), total.to(x.dtype)


# ---------------------------------------------------------------------------------------- the rows


def llama_residual(x, r, w):
    """Computes the step between the two halves of a decoder layer."""
    total = r + x
    return llama(total, w), total


def main():
    torch.manual_seed(20261121)
    ggml = Ggml()
    tensors = {}
    wide, narrow = ("f32", "f16", "bf16"), ("f16", "bf16")
    # Name: function, types of x, the weight's type (None: the type of x).
    rows = {
        "torch": (torch_rms_norm, wide, None),
        "torch_weight_f32": (torch_rms_norm, narrow, "f32"),
        "torch_no_weight": (lambda x, w: torch_rms_norm(x, None), wide, None),
        "llama": (llama, wide, None),
        "llama_weight_f32": (llama, narrow, "f32"),
        "qwen3_heads": (qwen3_heads, wide, None),
        "gemma": (modules(GemmaRMSNorm, Gemma2RMSNorm, Gemma3RMSNorm), wide, None),
        "gemma3n": (modules(Gemma3nRMSNorm, Gemma4RMSNorm), wide, None),
        "t5": (modules(T5LayerNorm), wide, None),
        "t5_weight_f32": (modules(T5LayerNorm), narrow, "f32"),
        "onnx": (onnx_definition, wide, None),
        "onnxruntime_rms": (onnxruntime_rms, ("f32", "f16"), None),
        "simplified": (simplified, wide, None),
        "simplified_weight_f32": (simplified, ("f16",), "f32"),
        "ggml": (ggml.rms_norm_mul, ("f32",), None),
        "olmo2": (olmo2, wide, None),
        "olmo2_weight_f32": (olmo2, narrow, "f32"),
        "deepseek_v4_no_weight": (lambda x, w: DeepseekV4UnweightedRMSNorm()(x), wide, None),
        "qwen3_next": (modules(Qwen3NextRMSNorm, Qwen3_5RMSNorm), wide, None),
        "llama4": (modules(Llama4TextRMSNorm), wide, None),
        "llama4_l2": (lambda x, w: Llama4TextL2Norm()(x), wide, None),
        "ncnn": (ncnn_rms_norm, ("f32",), None),
        "cpu_kernels": (scaled_then_cast, wide, None),
        "ctranslate2": (lambda x, w: scaled_then_cast(x, w, offset=1.0), ("f32",), None),
        "candle": (candle, ("f32",), None),
    }
    gated_rows = {
        "qwen3_next_gated": gated(Qwen3NextRMSNormGated, Qwen3_5RMSNormGated),
        "kimi_linear_gated": gated(KimiLinearRMSNormGated, BailingHybridRMSNormGated),
        "mamba2_gated": gated_groups(MambaRMSNormGated, NemotronHRMSNormGated),
    }
    residual_rows = {
        "gemma_post_norm": (gemma_post_norm, wide),
        "gemma4_post_norm": (gemma4_post_norm, wide),
        "glm4_post_norm": (glm4_post_norm, wide),
        "granite_residual": (granite_residual, wide),
        "llama_residual": (llama_residual, wide),
        "skip_simplified": (skip_simplified, wide),
        "vllm_native_residual": (vllm_native_residual, wide),
        "vllm_cpu_residual": (vllm_cpu_residual, wide),
        "sglang_cpu_residual": (sglang_cpu_residual, narrow),
    }
    # Later inputs use a separate generator, so that earlier inputs keep their numbers.
    generator = torch.Generator().manual_seed(20261122)
    with torch.no_grad():
        for d in SIZES:
            scale = torch.tensor(SCALES)[:, None]
            x32 = torch.randn(len(SCALES), d) * scale
            r32 = torch.randn(len(SCALES), d) * scale
            w32 = 1 + 0.3 * torch.randn(d)
            p32 = 1 + 0.3 * torch.randn(d, generator=generator)
            z32 = 2 * torch.randn(len(SCALES), d, generator=generator)
            for tag, dtype in TYPES.items():
                tensors[f"x.{d}.{tag}"] = x32.to(dtype)
                tensors[f"r.{d}.{tag}"] = r32.to(dtype)
                tensors[f"w.{d}.{tag}"] = w32.to(dtype)
                tensors[f"p.{d}.{tag}"] = p32.to(dtype)
                tensors[f"z.{d}.{tag}"] = z32.to(dtype)
            for name, (function, tags, weight) in rows.items():
                for tag in tags:
                    x, w = tensors[f"x.{d}.{tag}"], tensors[f"w.{d}.{weight or tag}"]
                    tensors[f"y.{name}.{d}.{tag}"] = function(x, w)
            for name, function in gated_rows.items():
                for tag in wide:
                    inputs = (tensors[f"{kind}.{d}.{tag}"] for kind in "xwz")
                    tensors[f"y.{name}.{d}.{tag}"] = function(*inputs)
            for name, (function, tags) in residual_rows.items():
                kinds = "xrwp" if name.endswith("post_norm") else "xrw"
                for tag in tags:
                    # Layers draw random weights; this must not shift the random inputs for the next
                    # d.
                    with torch.random.fork_rng(devices=[]):
                        y, total = function(*(tensors[f"{kind}.{d}.{tag}"] for kind in kinds))
                    tensors[f"y.{name}.{d}.{tag}"] = y
                    tensors[f"sum.{name}.{d}.{tag}"] = total

    save_file({n: t.contiguous() for n, t in tensors.items()}, sys.argv[1])
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    packages = ("torch", "transformers", "onnx", "onnxruntime", "ml_dtypes", "ncnn", "pywhispercpp")
    for package in packages:
        versions[package] = importlib.metadata.version(package)
    versions["ggml"] = ggml.version()
    versions["transcribed"] = TRANSCRIBED
    text = json.dumps(versions, indent=2) + "\n"
    (FOLDER / "versions.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()

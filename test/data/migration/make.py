#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the systems that doc/migration.md names for their RMSNorm of some random rows: make.py

Writes vectors.safetensors and versions.json beside itself. x.D.X are inputs of D elements and type
X, r.D.X residuals, w.D.W weights, and y.NAME.D.X what the system of the table's row NAME gives,
with its own eps wherever it has a default. sum.NAME.D.X is the residual stream a row also gives.

Needs: pip install torch transformers onnx onnxruntime ml_dtypes safetensors pywhispercpp (whose
wheel brings ggml's own libraries). Needs no network and no GPU.
"""

import ctypes
import importlib.metadata
import json
import pathlib
import platform

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from safetensors.torch import save_file
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3RMSNorm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.gemma3n.modeling_gemma3n import Gemma3nRMSNorm
from transformers.models.gemma4.modeling_gemma4 import Gemma4RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

FOLDER = pathlib.Path(__file__).parent
SIZES = (64, 100)
# Of the rows' elements: around the square root of each eps in use, and far above.
SCALES = (1e-6, 3e-4, 1e-3, 3e-3, 1, 30)
GGML_EPS = 1e-5  # ggml has no default

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
    """What all of several modules give: one row of the table speaks for them."""
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


def qwen3_heads(x, w):
    config = Qwen3Config(
        hidden_size=64, head_dim=x.shape[-1], num_attention_heads=2, num_key_value_heads=1
    )
    attention = Qwen3Attention(config, layer_idx=0)
    heads = x.view(-1, 2, x.shape[-1])
    return same(with_weight(m, w)(heads) for m in (attention.q_norm, attention.k_norm))


# ------------------------------------------------------------------------------ ONNX, ONNX Runtime


def onnx_definition(x, w):
    """RMSNormalization-23 as ONNX defines it: the operator's function, evaluated node by node."""
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
    """The named outputs of one node; a name is empty for an output not asked for."""
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
    """The elements of an OrtValue as they lie in memory, whatever their type."""
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
        # In the order in which they need one another.
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


def main():
    torch.manual_seed(20261121)
    ggml = Ggml()
    tensors = {}
    wide, narrow = ("f32", "f16", "bf16"), ("f16", "bf16")
    # Name: function, types of x, the weight's type (None: that of x).
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
    }
    with torch.no_grad():
        for d in SIZES:
            scale = torch.tensor(SCALES)[:, None]
            x32 = torch.randn(len(SCALES), d) * scale
            r32 = torch.randn(len(SCALES), d) * scale
            w32 = 1 + 0.3 * torch.randn(d)
            for tag, dtype in TYPES.items():
                tensors[f"x.{d}.{tag}"] = x32.to(dtype)
                tensors[f"r.{d}.{tag}"] = r32.to(dtype)
                tensors[f"w.{d}.{tag}"] = w32.to(dtype)
            for name, (function, tags, weight) in rows.items():
                for tag in tags:
                    x, w = tensors[f"x.{d}.{tag}"], tensors[f"w.{d}.{weight or tag}"]
                    tensors[f"y.{name}.{d}.{tag}"] = function(x, w)
            for tag in wide:
                x, r, w = (tensors[f"{kind}.{d}.{tag}"] for kind in "xrw")
                # What a decoder layer does between its two halves.
                total = r + x
                tensors[f"sum.llama_residual.{d}.{tag}"] = total
                tensors[f"y.llama_residual.{d}.{tag}"] = llama(total, w)
                y, total = skip_simplified(x, r, w)
                tensors[f"sum.skip_simplified.{d}.{tag}"] = total
                tensors[f"y.skip_simplified.{d}.{tag}"] = y

    save_file({n: t.contiguous() for n, t in tensors.items()}, FOLDER / "vectors.safetensors")
    versions = {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("torch", "transformers", "onnx", "onnxruntime", "ml_dtypes", "pywhispercpp"):
        versions[package] = importlib.metadata.version(package)
    versions["ggml"] = ggml.version()
    text = json.dumps(versions, indent=2) + "\n"
    (FOLDER / "versions.json").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()

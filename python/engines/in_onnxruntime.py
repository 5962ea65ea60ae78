# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime: its three operators, and what the third does with a bias."""

import functools
import os

import ml_dtypes  # NumPy knows "bfloat16" by it
import numpy as np
import onnxruntime
from onnx import helper

SKIP = "SkipSimplifiedLayerNormalization"


@functools.cache
def session(operator, dtype, weight_dtype, names, outputs):
    def values(each):
        types = {name: weight_dtype if name in ("weight", "y") else dtype for name in each if name}
        code = lambda name: helper.np_dtype_to_tensor_dtype(np.dtype(types[name]))
        return [helper.make_tensor_value_info(name, code(name), None) for name in types]

    domain = "com.microsoft" if operator == SKIP else ""
    node = helper.make_node(operator, names, outputs, domain=domain)
    graph = helper.make_graph([node], "norm", values(names), values(outputs))
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ["OMP_NUM_THREADS"])
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def run(operator, **arrays):
    """Returns y and, of the operator with a residual, the sum."""
    x = arrays["x"]
    outputs = ("y", "", "", "residual_out") if operator == SKIP else ("y",)
    y_dtype = arrays["weight"].dtype
    made = session(operator, x.dtype.name, y_dtype.name, tuple(arrays), outputs)
    binding, results = made.io_binding(), {name: np.empty_like(x) for name in outputs if name}
    results["y"] = np.empty(x.shape, y_dtype)
    for name, array in (arrays | results).items():
        bind = binding.bind_output if name in results else binding.bind_input
        code = helper.np_dtype_to_tensor_dtype(array.dtype)
        bind(name, "cpu", 0, code, list(array.shape), array.ctypes.data)
    made.run_with_iobinding(binding)
    return tuple(results.values())


def norm(operator):
    return lambda x, weight: run(operator, x=x, weight=weight)[0]


def skip_norm(x, residual, weight):
    return run(SKIP, x=x, residual=residual, weight=weight)


def skip_norm_with_bias(dtype):
    """Says which sum of x, residual and bias the operator computes."""
    draws = np.random.RandomState(3)
    of = lambda *shape: draws.standard_normal(shape).astype(np.float32).astype(dtype)
    x, residual, weight, bias = of(40, 1536), of(40, 1536), of(1536), of(1536)
    wide = [each.astype(np.float32) for each in (x, residual, bias)]
    sums = {
        "the bias is not used": wide[0] + wide[1],
        "the bias is added to the sum in f32": wide[0] + wide[1] + wide[2],
        "the sum is rounded, then the bias is added": (x + residual).astype(np.float32) + wide[2],
        "x + bias is rounded, then the residual is added": (x + bias).astype(np.float32) + wide[1],
        "the bias is added to x in f32, then the residual": wide[0] + wide[2] + wide[1],
    }
    y, residual_out = run(SKIP, x=x, residual=residual, weight=weight, bias=bias)
    fits = " or ".join(text for text, h in sums.items() if (h.astype(dtype) == residual_out).all())
    errors = {}
    for text, h in sums.items():
        rms = np.sqrt(np.square(h, dtype=np.float64).mean(-1, keepdims=True))
        errors[text] = np.abs(h / rms * weight.astype(float) - y.astype(float)).max()
    near = " or ".join(t for t, error in errors.items() if error <= 1.01 * min(errors.values()))
    if fits == near:
        return f"in y and residual_out, {fits}"
    return f"residual_out: {fits or 'another sum'}; y: {near}"


ENGINES = {
    "ONNX Runtime": {
        "`RMSNormalization` of opset 23": norm("RMSNormalization"),
        "`SimplifiedLayerNormalization`": norm("SimplifiedLayerNormalization"),
        f"`{SKIP}`": skip_norm,
        "the same with a bias": skip_norm_with_bias,
    }
}

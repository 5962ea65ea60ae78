# SPDX-License-Identifier: Apache-2.0
"""OpenVINO: a model of the formula. In f32 no lower precision is allowed."""

import functools
import os

import numpy as np
import openvino
from openvino import opset16 as ops


@functools.cache
def compiled(d, dtype):
    kind = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    x = ops.parameter([-1, d], getattr(openvino.Type, kind), name="x")
    weight = ops.parameter([d], getattr(openvino.Type, kind), name="weight")
    x32 = ops.convert(x, "f32")
    squares = ops.power(x32, np.float32(2))
    mean = ops.reduce_mean(squares, np.array([-1]), keep_dims=True)
    root = ops.sqrt(ops.add(mean, np.float32(1e-6)))
    y = ops.multiply(x32, ops.divide(np.float32(1), root))
    model = openvino.Model([ops.multiply(ops.convert(y, kind), weight)], [x, weight])
    settings = {"INFERENCE_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
    if kind == "f32":
        settings["INFERENCE_PRECISION_HINT"] = "f32"
    return openvino.Core().compile_model(model, "CPU", settings)


def tensor(array):
    if array.dtype.name != "bfloat16":
        return openvino.Tensor(np.ascontiguousarray(array))
    made = openvino.Tensor(openvino.Type.bf16, array.shape)
    made.data[:] = array.view(made.data.dtype)
    return made


def norm(x, weight):
    request = compiled(weight.size, x.dtype.name).create_infer_request()
    request.infer([tensor(x), tensor(weight)])
    return np.array(request.get_output_tensor().data).view(x.dtype)


ENGINES = {"OpenVINO": {"the formula": norm}}

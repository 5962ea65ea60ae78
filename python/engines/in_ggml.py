# SPDX-License-Identifier: Apache-2.0
"""ggml on the CPU, by ggml-python: ggml_mul(ggml_rms_norm(x), weight)."""

import ctypes
import os

import ggml
import numpy as np

TYPES = {"float32": ggml.GGML_TYPE_F32, "float16": ggml.GGML_TYPE_F16}
TYPES["bfloat16"] = ggml.GGML_TYPE_BF16


def run(x, weight, residual=None, eps=1e-6):
    """Returns y and, given a residual, the sum."""
    context = ggml.ggml_init(ggml.ggml_init_params(mem_size=8 * 4 * x.size + 2**24))

    def tensor(array):
        shape = array.shape[::-1]
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        made = ggml.ggml_new_tensor(context, TYPES[array.dtype.name], len(shape), sizes)
        ctypes.memmove(ggml.ggml_get_data(made), array.ctypes.data, array.nbytes)
        return made

    h = tensor(x)
    if residual is not None:
        h = ggml.ggml_add(context, h, tensor(residual))
    y = ggml.ggml_mul(context, ggml.ggml_rms_norm(context, h, eps), tensor(weight))
    graph = ggml.ggml_new_graph(context)
    ggml.ggml_build_forward_expand(graph, y)
    threads = int(os.environ["OMP_NUM_THREADS"])
    assert ggml.ggml_graph_compute_with_ctx(context, graph, threads) == 0
    bits = [ctypes.string_at(ggml.ggml_get_data(each), x.nbytes) for each in (y, h)]
    ggml.ggml_free(context)
    return tuple(np.frombuffer(each, x.dtype).reshape(x.shape) for each in bits)


ENGINES = {
    "ggml": {
        "`ggml_rms_norm` and `ggml_mul`": lambda x, weight: run(x, weight)[0],
        "the same after `ggml_add`": lambda x, residual, weight: run(x, weight, residual),
    }
}

# SPDX-License-Identifier: Apache-2.0
"""ggml of llama-cpp-python: ggml_mul(ggml_rms_norm(x), weight) on the CPU."""

import ctypes
import os
from ctypes import POINTER, c_bool, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import llama_cpp
import numpy as np

FOLDER = Path(llama_cpp.__file__).parent / "lib"
BASE, CPU = (
    ctypes.CDLL(str(FOLDER / f"libggml-{name}.so"), ctypes.RTLD_GLOBAL) for name in ("base", "cpu")
)
TYPES = {"float32": 0, "float16": 1, "bfloat16": 30}


class InitParams(ctypes.Structure):
    """ggml_init_params"""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


def ggml(name, result, *types, library=BASE):
    function = getattr(library, f"ggml_{name}")
    function.restype, function.argtypes = result, types
    return function


init = ggml("init", c_void_p, InitParams)
free = ggml("free", None, c_void_p)
new_tensor = ggml("new_tensor", c_void_p, c_void_p, c_int, c_int, POINTER(c_int64))
get_data = ggml("get_data", c_void_p, c_void_p)
rms_norm = ggml("rms_norm", c_void_p, c_void_p, c_void_p, c_float)
mul = ggml("mul", c_void_p, c_void_p, c_void_p, c_void_p)
add = ggml("add", c_void_p, c_void_p, c_void_p, c_void_p)
new_graph = ggml("new_graph", c_void_p, c_void_p)
expand = ggml("build_forward_expand", None, c_void_p, c_void_p)
compute = ggml("graph_compute_with_ctx", c_int, c_void_p, c_void_p, c_int, library=CPU)


def run(x, weight, residual=None, eps=1e-6):
    """Returns y and, given a residual, the sum."""
    context = init(InitParams(8 * 4 * x.size + 2**24, None, False))

    def tensor(array):
        shape = array.shape[::-1]
        made = new_tensor(
            context, TYPES[array.dtype.name], len(shape), (c_int64 * len(shape))(*shape)
        )
        ctypes.memmove(get_data(made), np.ascontiguousarray(array).ctypes.data, array.nbytes)
        return made

    h = tensor(x)
    if residual is not None:
        h = add(context, h, tensor(residual))
    y = mul(context, rms_norm(context, h, eps), tensor(weight))
    graph = new_graph(context)
    expand(graph, y)
    assert compute(context, graph, int(os.environ["OMP_NUM_THREADS"])) == 0
    results = [
        np.frombuffer(ctypes.string_at(get_data(each), x.nbytes), x.dtype) for each in (y, h)
    ]
    free(context)
    return tuple(each.reshape(x.shape) for each in results[: 1 if residual is None else 2])


def norm(x, weight):
    return run(x, weight)[0]


def norm_of_sum(x, residual, weight):
    return run(x, weight, residual)


NORMS = {"`ggml_rms_norm` and `ggml_mul`": norm, "the same after `ggml_add`": norm_of_sum}

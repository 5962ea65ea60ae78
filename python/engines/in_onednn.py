# SPDX-License-Identifier: Apache-2.0
"""oneDNN: layer normalization with the flag rms_norm, through its C interface."""

import ctypes
import os
import sys
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import numpy as np

FOLDER = Path(sys.prefix, "lib")
# SYCL, which pip's oneDNN runs on, finds no CPU without it.
os.environ.setdefault("OCL_ICD_FILENAMES", str(FOLDER / "libintelocl.so"))
for name in ("libimf.so", "libintlc.so.5", "libsvml.so", "libtbb.so.12", "libsycl.so.9"):
    ctypes.CDLL(str(FOLDER / name), ctypes.RTLD_GLOBAL)
DNNL = ctypes.CDLL(str(FOLDER / "libdnnl.so.3"))

# Constants of the C interface.
DATA_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
CPU, DEFAULT_STREAM, FORWARD_INFERENCE = 1, 1, 96
USE_SCALE, RMS_NORM = 0x2, 0x20
SOURCE, DESTINATION, SCALE = 1, 17, 51


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t"""

    _fields_ = [("arg", c_int), ("memory", c_void_p)]


def call(function, *arguments):
    status = getattr(DNNL, f"dnnl_{function}")(*arguments)
    if status:
        raise RuntimeError(f"dnnl_{function} returns {status}")


def made(function, *arguments):
    """Returns the object that a function makes in its first argument."""
    result = c_void_p()
    call(function, byref(result), *arguments)
    return result


ENGINE = made("engine_create", CPU, c_size_t(0))
STREAM = made("stream_create", ENGINE, DEFAULT_STREAM)


def norm(x, weight):
    arrays = {SOURCE: x, DESTINATION: np.empty_like(x), SCALE: weight}
    descriptions, memories = {}, {}
    for name, array in arrays.items():
        numbers = c_int64 * array.ndim
        strides = numbers(*(each // array.itemsize for each in array.strides))
        layout = array.ndim, numbers(*array.shape), DATA_TYPES[array.dtype.name], strides
        descriptions[name] = made("memory_desc_create_with_strides", *layout)
        data = c_void_p(array.ctypes.data)
        memories[name] = made("memory_create", descriptions[name], ENGINE, data)
    operation = made(
        "layer_normalization_forward_primitive_desc_create_v2",
        *(ENGINE, FORWARD_INFERENCE, descriptions[SOURCE], descriptions[DESTINATION], None),
        *(DATA_TYPES[weight.dtype.name], c_float(1e-6), RMS_NORM | USE_SCALE, None),
    )
    arguments = (Argument * len(memories))(*memories.items())
    primitive = made("primitive_create", operation)
    call("primitive_execute", primitive, STREAM, len(arguments), arguments)
    call("stream_wait", STREAM)
    return arrays[DESTINATION]


ENGINES = {"oneDNN": {"`layer_normalization`, `rms_norm`": norm}}

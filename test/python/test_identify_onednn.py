# SPDX-License-Identifier: Apache-2.0
"""identify() of oneDNN's layer normalization with the flag rms_norm, through oneDNN's C interface.

Run as a program it writes its table in doc/identify.md.
"""

import ctypes
import os
import sys
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path

import identify_page
import ml_dtypes
import numpy as np
import pytest
from identify_page import Norm, Norms

F32, F16, BF16 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)

# Constants of the C interface.
DATA_TYPES = {F16: 1, BF16: 2, F32: 3}
CPU, DEFAULT_STREAM, FORWARD_INFERENCE, UNIMPLEMENTED = 1, 1, 96, 3
USE_SCALE, RMS_NORM = 0x2, 0x20
SOURCE, DESTINATION, SCALE = 1, 17, 51  # arguments of a primitive


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t"""

    _fields_ = [("arg", c_int), ("memory", c_void_p)]


def load_onednn():
    """Loads pip's oneDNN, whose libraries are in a folder where the loader does not look."""
    folder = Path(sys.prefix, "lib")
    # SYCL, which pip's oneDNN runs on, finds no CPU without it.
    os.environ.setdefault("OCL_ICD_FILENAMES", str(folder / "libintelocl.so"))
    for name in ("libimf.so", "libintlc.so.5", "libsvml.so", "libtbb.so.12", "libsycl.so.9"):
        ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(folder / "libdnnl.so.3"))


DNNL = load_onednn()


def call(function, *arguments):
    status = getattr(DNNL, f"dnnl_{function}")(*arguments)
    if status == UNIMPLEMENTED:  # such as f16 where the CPU has no arithmetic in f16
        pytest.skip("oneDNN has no norm of this type on this CPU")
    assert status == 0, f"dnnl_{function}() returns {status}"


def made(function, *arguments):
    """Returns the object that a function makes in its first argument."""
    result = c_void_p()
    call(function, byref(result), *arguments)
    return result


ENGINE = made("engine_create", CPU, c_size_t(0))
STREAM = made("stream_create", ENGINE, DEFAULT_STREAM)


def described(array):
    """A description of a dense array."""
    shape, strides = array.shape, [each // array.itemsize for each in array.strides]
    numbers = c_int64 * array.ndim
    return made(
        "memory_desc_create_with_strides",
        array.ndim,
        numbers(*shape),
        DATA_TYPES[array.dtype],
        numbers(*strides),
    )


def norm(x, weight=None):
    """The norm; its objects in oneDNN live until the process ends."""
    y = np.empty_like(x)
    description = described(x)
    flags = RMS_NORM if weight is None else RMS_NORM | USE_SCALE
    primitive_description = made(
        "layer_normalization_forward_primitive_desc_create_v2",
        ENGINE,
        FORWARD_INFERENCE,
        description,
        description,
        None,
        DATA_TYPES[F32 if weight is None else weight.dtype],
        c_float(1e-6),
        flags,
        None,
    )
    primitive = made("primitive_create", primitive_description)
    arrays = {SOURCE: x, DESTINATION: y} | ({} if weight is None else {SCALE: weight})
    memories = {
        argument: made("memory_create", described(array), ENGINE, c_void_p(array.ctypes.data))
        for argument, array in arrays.items()
    }
    arguments = (Argument * len(memories))(*memories.items())
    call("primitive_execute", primitive, STREAM, len(memories), arguments)
    call("stream_wait", STREAM)
    return y


def of_type(dtype, **more):
    return {"dtype": dtype, **more}


# With the full stop, so nothing else is said.
EPS = "eps 1e-06 inside the root."
ONCE = "eps 1e-06 inside the root, rounded once, after the weight."

SYSTEMS = Norms(
    "oneDNN",
    {
        "`layer_normalization`": Norm(norm, EPS, of_type("float32")),
        "`layer_normalization` without a scale": Norm(
            norm, f"without a weight: {EPS}", of_type("float32", weight=False)
        ),
        "`layer_normalization` in bf16": Norm(norm, ONCE, of_type("bfloat16")),
        "`layer_normalization` in bf16, scale in f32": Norm(
            norm, ONCE, of_type("bfloat16", weight_dtype="float32")
        ),
        "`layer_normalization` in f16": Norm(norm, ONCE, of_type("float16")),
        "`layer_normalization` in f16, scale in f32": Norm(
            norm, ONCE, of_type("float16", weight_dtype="float32")
        ),
    },
)

test_what_is_known_of_onednn, test_page_has_onednn = SYSTEMS.tests()


if __name__ == "__main__":
    SYSTEMS.write()

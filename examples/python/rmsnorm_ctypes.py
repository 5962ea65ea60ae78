# SPDX-License-Identifier: Apache-2.0
"""The C interface from Python, through ctypes: on NumPy arrays and PyTorch tensors, without a copy.

    library = Library("librmsnorm.so.0")
    library.forward(x, weight, y, eps=1e-6)

NumPy has no bfloat16 of its own; its bits as uint16 stand for it here. A call that fails raises
ValueError with the library's message.
"""

import ctypes
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_float,
    c_int32,
    c_size_t,
    c_ssize_t,
    c_uint32,
    c_void_p,
)

F32, F16, BF16 = 1, 2, 3
DTYPES = {"float32": F32, "float16": F16, "uint16": BF16, "bfloat16": BF16}
MAX_DIMS = 5


class View(ctypes.Structure):
    """rmsnorm_view"""

    _fields_ = [
        ("size", c_uint32),
        ("dtype", c_int32),
        ("data", c_void_p),
        ("ndim", c_int32),
        ("shape", c_size_t * MAX_DIMS),
        ("stride", c_ssize_t * MAX_DIMS),
    ]


class Options(ctypes.Structure):
    """rmsnorm_options; an instance has its defaults."""

    _fields_ = [
        ("size", c_uint32),
        ("eps", c_float),
        ("eps_placement", c_int32),
        ("rounding", c_int32),
        ("residual_rounding", c_int32),
        ("weight_offset", c_float),
        ("divisor", c_float),
        ("threads", c_int32),
        ("parallel_for", c_void_p),
        ("parallel_context", c_void_p),
        ("target", c_char_p),
    ]

    def __init__(self, **values):
        super().__init__(**{"size": ctypes.sizeof(Options), "eps": 1e-5, **values})


def view(tensor, written=False):
    """Where a NumPy array or a PyTorch tensor lies in memory. The tensor must outlive the view."""
    dtype = DTYPES.get(str(tensor.dtype).replace("torch.", ""))
    if dtype is None:
        raise ValueError(f"no rmsnorm dtype for {tensor.dtype}")
    if hasattr(tensor, "data_ptr"):  # PyTorch, which counts strides in elements
        if tensor.device.type != "cpu":
            raise ValueError(f"a tensor on {tensor.device}, not in memory of the host")
        data, stride = tensor.data_ptr(), tensor.stride()
    else:  # NumPy, which counts them in bytes
        if written and not tensor.flags.writeable:
            raise ValueError("an output that is read-only")
        if any(step % tensor.itemsize for step in tensor.strides):
            raise ValueError("strides that are no multiples of an element")
        data, stride = tensor.ctypes.data, [step // tensor.itemsize for step in tensor.strides]
    if tensor.ndim > MAX_DIMS:
        raise ValueError(f"{tensor.ndim} dimensions; {MAX_DIMS} are possible")
    return View(
        size=ctypes.sizeof(View),
        dtype=dtype,
        data=data,
        ndim=tensor.ndim,
        shape=tuple(tensor.shape),
        stride=tuple(stride),
    )


class Library:
    """The functions of the shared library, by the path of its file."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.rmsnorm_error_message.restype = c_char_p
        self.c.rmsnorm_version.restype = c_char_p
        views = [POINTER(View)] * 5
        self.c.rmsnorm_forward.argtypes = [*views[:3], c_void_p, POINTER(Options)]
        self.c.rmsnorm_add_forward.argtypes = [*views, c_void_p, POINTER(Options)]

    def version(self):
        return self.c.rmsnorm_version().decode()

    def forward(self, x, weight, y, **options):
        """y = RMSNorm(x) * weight; weight may be None, and y may be x."""
        self._call(self.c.rmsnorm_forward, [x, weight], [y], options)

    def add_forward(self, x, residual, weight, residual_out, y, **options):
        """residual_out = residual + x, y = RMSNorm(residual_out) * weight."""
        self._call(self.c.rmsnorm_add_forward, [x, residual, weight], [residual_out, y], options)

    def _call(self, function, inputs, outputs, options):
        views = [None if tensor is None else byref(view(tensor)) for tensor in inputs]
        views += [byref(view(tensor, written=True)) for tensor in outputs]
        if function(*views, None, byref(Options(**options))) != 0:
            raise ValueError(self.c.rmsnorm_error_message().decode())

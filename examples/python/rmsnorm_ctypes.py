# SPDX-License-Identifier: Apache-2.0
"""The C interface from Python, through ctypes: on NumPy arrays and PyTorch tensors, without a copy.

    library = Library("librmsnorm.so.0")
    library.forward(x=x, weight=weight, y=y, eps=1e-6)

Operands, options and fields of the context have the same names as in rmsnorm.h. NumPy has no
bfloat16; arrays of uint16 hold its bits here. A call that fails raises ValueError with the
library's message.
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
    pointer,
    sizeof,
)

F32, F16, BF16, F64, I8 = 1, 2, 3, 4, 5
DTYPES = {"float32": F32, "float16": F16, "uint16": BF16, "bfloat16": BF16, "float64": F64, "int8": I8}
MAX_DIMS = 8


class View(ctypes.Structure):
    """rmsnorm_view"""

    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("ndim", c_int32),
        ("shape", c_size_t * MAX_DIMS),
        ("stride", c_ssize_t * MAX_DIMS),
    ]


class Operands(ctypes.Structure):
    """rmsnorm_operands"""

    TENSORS = ("x", "residual", "dy", "gate", "weight", "bias", "post_norm_weight", "sums")
    TENSORS += ("residual_out", "y", "q", "rstd", "sums_out", "scale", "zero", "dx", "dw", "db")
    _fields_ = [
        ("size", c_uint32),
        ("add_to", c_uint32),
        *((name, POINTER(View)) for name in TENSORS),
    ]


class Options(ctypes.Structure):
    """rmsnorm_options; an instance has its defaults."""

    __slots__ = ()  # makes an unknown name an AttributeError
    _fields_ = [
        ("size", c_uint32),
        ("eps", c_float),
        ("eps_placement", c_int32),
        ("rounding", c_int32),
        ("residual_rounding", c_int32),
        ("weight_offset", c_float),
        ("divisor", c_float),
        ("factor", c_float),
        ("activation", c_int32),
        ("gate_placement", c_int32),
        ("gate_rounding", c_int32),
    ]

    def __init__(self, **values):
        super().__init__(**{"size": sizeof(Options), "eps": 1e-5, **values})


class Context(ctypes.Structure):
    """rmsnorm_context; an instance has its defaults."""

    _fields_ = [
        ("size", c_uint32),
        ("threads", c_int32),
        ("parallel_for", c_void_p),
        ("parallel_context", c_void_p),
        ("target", c_char_p),
    ]

    def __init__(self, **values):
        super().__init__(**{"size": sizeof(Context), **values})


def view(tensor, written=False):
    """Returns the view of a NumPy array or a PyTorch tensor. The tensor must outlive the view."""
    dtype = DTYPES.get(str(tensor.dtype).replace("torch.", ""))
    if dtype is None:
        raise ValueError(f"no rmsnorm dtype for {tensor.dtype}")
    if hasattr(tensor, "data_ptr"):  # PyTorch counts strides in elements
        if tensor.device.type != "cpu":
            raise ValueError(f"a tensor on {tensor.device}, not in memory of the host")
        data, stride = tensor.data_ptr(), tensor.stride()
    else:  # NumPy counts them in bytes
        if written and not tensor.flags.writeable:
            raise ValueError("an output that is read-only")
        if any(step % tensor.itemsize for step in tensor.strides):
            raise ValueError("strides that are no multiples of an element")
        data, stride = tensor.ctypes.data, [step // tensor.itemsize for step in tensor.strides]
    if tensor.ndim > MAX_DIMS:
        raise ValueError(f"{tensor.ndim} dimensions; {MAX_DIMS} are possible")
    return View(data, dtype, tensor.ndim, tuple(tensor.shape), tuple(stride))


class Library:
    """The functions of a shared library, loaded from a path."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.rmsnorm_error_message.restype = c_char_p
        self.c.rmsnorm_version.restype = c_char_p
        structs = [POINTER(Operands), POINTER(Options), POINTER(Context)]
        self.c.rmsnorm_forward.argtypes = structs
        self.c.rmsnorm_backward.argtypes = structs

    def version(self):
        return self.c.rmsnorm_version().decode()

    def forward(self, **values):
        """rmsnorm_forward(): a tensor that is None is absent, and y may be x."""
        outputs = ("y", "residual_out", "rstd", "sums_out", "q", "scale", "zero")
        self._call(self.c.rmsnorm_forward, outputs, values)

    def backward(self, **values):
        """rmsnorm_backward(); dx may be dy."""
        self._call(self.c.rmsnorm_backward, ("dx", "dw", "db"), values)

    def _call(self, function, outputs, values):
        operands = Operands(size=sizeof(Operands), add_to=values.pop("add_to", 0))
        # Views hold only addresses: the tensors must live until the call returns.
        tensors = {name: values.pop(name, None) for name in Operands.TENSORS}
        for name, tensor in tensors.items():
            if tensor is not None:
                setattr(operands, name, pointer(view(tensor, written=name in outputs)))
        names = [name for name, _ in Context._fields_]
        context = Context(**{name: values.pop(name) for name in names if name in values})
        if function(byref(operands), byref(Options(**values)), byref(context)) != 0:
            raise ValueError(self.c.rmsnorm_error_message().decode())

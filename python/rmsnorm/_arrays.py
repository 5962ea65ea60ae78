# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, and of other libraries through DLPack, as views of the C interface."""

import ctypes
import math
from collections.abc import Iterable
from ctypes import c_char, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64
from ctypes import c_void_p
from functools import lru_cache
from reprlib import repr as shown
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from numpy import ndarray

from . import _library
from ._library import BF16, F16, F32, F64, I8, View


class SupportsDLPack(Protocol):
    """An array of another library, such as a tensor of PyTorch or an array of JAX."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Array = npt.NDArray[Any] | SupportsDLPack

DTYPES = {"float32": F32, "float16": F16, "bfloat16": BF16, "float64": F64, "int8": I8}
_FLOATS = ("float32", "float16", "bfloat16")

# The names of DLPack's type codes. A name and the number of bits make the name of a type.
_DLPACK_KINDS = {0: "int", 1: "uint", 2: "float", 3: "opaque", 4: "bfloat", 5: "complex", 6: "bool"}
# Memory of the host: kDLCPU, and kDLCUDAHost and kDLROCMHost, which is pinned.
_DLPACK_HOST = (1, 3, 11)
_DLPACK_READ_ONLY, _DLPACK_COPIED = 1, 2


class _NumpyArray(ctypes.Structure):
    """The beginning of PyArrayObject_fields. NumPy's headers compile the place of its data into every
    extension, so it cannot move. Reading the address here takes a tenth of the time of
    array.ctypes.data, which would take most of the time of a call."""

    _fields_ = [("head", c_char * object.__basicsize__), ("data", c_void_p)]


_numpy_array_at = _NumpyArray.from_address
_probe = np.empty(1)
if _numpy_array_at(id(_probe)).data != _probe.ctypes.data:
    raise ImportError("rmsnorm takes CPython: elsewhere it cannot find the data of NumPy's arrays")


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("type_code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", ctypes.POINTER(c_int64)),
        ("strides", ctypes.POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_context", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


_is_capsule = ctypes.pythonapi.PyCapsule_IsValid
_is_capsule.restype = c_int
_is_capsule.argtypes = [ctypes.py_object, c_char_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = c_void_p
_pointer_of.argtypes = [ctypes.py_object, c_char_p]


def _layout(dtype: int, shape: Iterable[int], stride: Iterable[int]) -> bytes:
    """Returns the bytes of a view that follow its address."""
    shape, stride = tuple(shape), list(stride)
    if shape and (shape[-1] == 1 or 0 in shape):
        stride[-1] = 1  # a stride that leads to no other element is arbitrary
    if len(shape) > _library.MAX_DIMS:
        raise ValueError(f"{len(shape)} dimensions; at most {_library.MAX_DIMS} are possible")
    return bytes(View(None, dtype, len(shape), shape, tuple(stride)))[View.dtype.offset :]


@lru_cache(maxsize=1024)
def _numpy_layout(dtype: np.dtype[Any], shape: tuple[int, ...], strides: tuple[int, ...]) -> bytes:
    code = DTYPES.get(dtype.name)
    if code is None or not dtype.isnative:
        name = dtype.name if dtype.isnative else dtype.str
        raise ValueError(f"elements of type {name}; possible are {', '.join(DTYPES)}")
    if any(step % dtype.itemsize for step in strides):
        raise ValueError(f"strides of {strides} bytes, which are no multiples of an element")
    return _layout(code, shape, (step // dtype.itemsize for step in strides))


def _export(array: SupportsDLPack) -> Any:
    """Returns a DLPack capsule, or raises a ValueError where the array cannot export one."""
    try:
        device, _ = array.__dlpack_device__()
        if device not in _DLPACK_HOST:
            raise ValueError(f"memory of another device ({device!r} of DLPack), not of the CPU")
        try:
            return array.__dlpack__(max_version=(1, 0))
        except TypeError:  # from a library older than DLPack 1.0
            return array.__dlpack__()
    except (AttributeError, BufferError, RuntimeError, TypeError) as error:
        # A tensor that learns, for example: PyTorch's message asks for tensor.detach().
        raise ValueError(f"{type(array).__name__} does not export its memory: {error}") from error


def _describe_dlpack(array: SupportsDLPack, written: bool) -> tuple[int, bytes, Any]:
    capsule = _export(array)
    if _is_capsule(capsule, b"dltensor_versioned"):
        address = _pointer_of(capsule, b"dltensor_versioned")
        managed = _DLManagedTensorVersioned.from_address(address)
        if managed.major != 1:
            raise ValueError(f"version {managed.major} of DLPack; version 1 is possible")
        if written and managed.flags & _DLPACK_READ_ONLY:
            raise ValueError("an output, and the array is read-only")
        if written and managed.flags & _DLPACK_COPIED:
            raise ValueError("an output, and its __dlpack__() exports a copy")
        tensor = managed.tensor
    elif _is_capsule(capsule, b"dltensor"):
        if written:
            raise ValueError(
                f"an output, and {type(array).__name__} has a DLPack before 1.0, which does not "
                "say whether it may be written; pass an array of NumPy, or of a library with "
                "DLPack 1.0"
            )
        tensor = _DLTensor.from_address(_pointer_of(capsule, b"dltensor"))
    else:
        raise TypeError(f"__dlpack__() of {type(array).__name__} returns no unused DLPack capsule")

    if tensor.device_type not in _DLPACK_HOST:
        raise ValueError(f"memory of another device ({tensor.device_type} of DLPack), not the CPU")
    kind = _DLPACK_KINDS.get(tensor.type_code, f"(DLPack's code {tensor.type_code}) ")
    name = f"{kind}{tensor.bits}" + (f" in {tensor.lanes} lanes" if tensor.lanes != 1 else "")
    code = DTYPES.get(name)
    if code is None:
        raise ValueError(f"elements of type {name}; possible are {', '.join(DTYPES)}")
    ndim = tensor.ndim
    if not 0 <= ndim <= _library.MAX_DIMS:
        raise ValueError(f"{ndim} dimensions; at most {_library.MAX_DIMS} are possible")
    if ndim and not tensor.shape:
        raise ValueError(f"a DLPack capsule of {ndim} dimensions without a shape")
    shape = tensor.shape[:ndim] if ndim else []
    if min(shape, default=0) < 0:
        raise ValueError(f"a DLPack capsule of shape {tuple(shape)}")
    dense = [math.prod(shape[i + 1 :]) for i in range(ndim)]  # where there are no strides
    stride = tensor.strides[:ndim] if tensor.strides else dense
    data = tensor.data + tensor.byte_offset if tensor.data else 0
    if max(stride, default=0) >= 2**63 or data >= 2**64:
        raise ValueError(f"a DLPack capsule of shape {tuple(shape)} at the address {data}")
    if not data and 0 not in shape:
        raise ValueError(f"a DLPack capsule of shape {tuple(shape)} without memory")
    return data, _layout(code, shape, stride), capsule


def describe(array: Any, written: bool) -> tuple[int, bytes, Any]:
    """Returns an array's address, the bytes that follow the address in a view of it, and what must
    live as long as the view."""
    if type(array) is ndarray:
        if written and not array.flags.writeable:
            raise ValueError("an output, and the array is read-only")
        layout = _numpy_layout(array.dtype, array.shape, array.strides)
        return _numpy_array_at(id(array)).data or 0, layout, array
    if issubclass(type(array), ndarray):  # isinstance() would believe array.__class__
        if issubclass(type(array), np.ma.MaskedArray):
            raise TypeError("a masked array, and a mask has no effect; pass numpy.ma.getdata(...)")
        # A subclass may define attributes that differ from the memory.
        return describe(ndarray.view(array, ndarray), written)
    if hasattr(array, "__dlpack__"):
        return _describe_dlpack(array, written)
    raise TypeError(
        f"{type(array).__name__} is neither an array of NumPy nor offers its memory by __dlpack__"
    )


def named(name: str, error: TypeError | ValueError) -> Exception:
    """Returns the error with the name of an argument before its message."""
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}")


def describe_as(name: str, array: Any, written: bool) -> tuple[int, bytes, Any]:
    """Does what describe() does, for the argument of this name."""
    try:
        return describe(array, written)
    except (TypeError, ValueError) as error:
        raise named(name, error) from error.__cause__


def name_of(dtype: int) -> str:
    """Returns the name of a type of the C interface."""
    return next(name for name, code in DTYPES.items() if code == dtype)


def float_name(argument: str, dtype: Any) -> str:
    """Returns the name of a type, which is given as its name or as anything numpy.dtype() takes."""
    try:
        # NumPy knows bfloat16 only where ml_dtypes is imported.
        name = dtype if isinstance(dtype, str) and dtype in _FLOATS else np.dtype(dtype).name
    except TypeError:
        name = None
    if name not in _FLOATS:
        raise ValueError(f"{argument}: {shown(dtype)}; possible are {', '.join(_FLOATS)}")
    return str(name)


def empty(shape: tuple[int, ...], dtype: int) -> npt.NDArray[Any]:
    """Makes an array of a type of the C interface."""
    if dtype != BF16:
        return np.empty(shape, name_of(dtype))
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError("bfloat16 takes the package ml_dtypes: pip install ml_dtypes") from None
    return np.empty(shape, ml_dtypes.bfloat16)


def new_like(name: str, array: Any) -> npt.NDArray[Any]:
    """Makes an array of NumPy with the shape and the type of another array, the operand `name`."""
    if type(array) is ndarray:
        return np.empty(array.shape, array.dtype)
    view = View.from_buffer_copy(bytes(View.dtype.offset) + describe_as(name, array, False)[1])
    try:
        return empty(tuple(view.shape[: view.ndim]), view.dtype)
    except ValueError as error:
        raise named(name, error) from None

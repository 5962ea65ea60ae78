# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy, and of other libraries through DLPack, as views of the C interface."""

import ctypes
from collections.abc import Iterable
from ctypes import c_char, c_char_p, c_int32, c_int64, c_uint8, c_uint16, c_uint32, c_uint64
from ctypes import c_void_p
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import _library
from ._library import View


class SupportsDLPack(Protocol):
    """An array of another library, such as a tensor of PyTorch or an array of JAX."""

    def __dlpack__(self, *, max_version: tuple[int, int] | None = ...) -> Any: ...

    def __dlpack_device__(self) -> tuple[Any, Any]: ...


Array = npt.NDArray[Any] | SupportsDLPack

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "float64": 4, "int8": 5}

# The same by DLPack's type code and bits: 0 is an integer, 2 a float, 4 a bfloat.
_DLPACK_DTYPES = {(2, 32): 1, (2, 16): 2, (4, 16): 3, (2, 64): 4, (0, 8): 5}
_DLPACK_CPU = 1
_DLPACK_READ_ONLY = 1


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


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = c_void_p
_pointer_of.argtypes = [ctypes.py_object, c_char_p]
_name_of = ctypes.pythonapi.PyCapsule_GetName
_name_of.restype = c_char_p
_name_of.argtypes = [ctypes.py_object]


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
        raise ValueError(f"elements of type {dtype.str}; possible are {', '.join(DTYPES)}")
    if any(step % dtype.itemsize for step in strides):
        raise ValueError(f"strides of {strides} bytes, which are no multiples of an element")
    return _layout(code, shape, (step // dtype.itemsize for step in strides))


def _describe_dlpack(array: SupportsDLPack, written: bool) -> tuple[int, bytes, Any]:
    device, _ = array.__dlpack_device__()
    if device != _DLPACK_CPU:
        raise ValueError(f"memory of another device ({device!r} of DLPack), not of the CPU")
    try:
        capsule = array.__dlpack__(max_version=(1, 0))
    except TypeError:  # from a library older than DLPack 1.0
        capsule = array.__dlpack__()
    name = _name_of(capsule)
    address = _pointer_of(capsule, name)
    if name == b"dltensor_versioned":
        managed = _DLManagedTensorVersioned.from_address(address)
        if managed.major != 1:
            raise ValueError(f"version {managed.major} of DLPack; version 1 is possible")
        if written and managed.flags & _DLPACK_READ_ONLY:
            raise ValueError("an output, and the array is read-only")
        tensor = managed.tensor
    else:
        tensor = _DLTensor.from_address(address)
    code = _DLPACK_DTYPES.get((tensor.type_code, tensor.bits))
    if code is None or tensor.lanes != 1:
        raise ValueError(
            f"elements of DLPack's type {tensor.type_code} with {tensor.bits} bits; possible are "
            + ", ".join(DTYPES)
        )
    ndim = tensor.ndim
    shape = tensor.shape[:ndim] if ndim else []
    if tensor.strides:
        stride = tensor.strides[:ndim]
    else:  # dense, in C order
        stride = [int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(ndim)]
    return (tensor.data or 0) + tensor.byte_offset, _layout(code, shape, stride), capsule


def describe(array: Any, written: bool) -> tuple[int, bytes, Any]:
    """Returns an array's address, the bytes that follow the address in a view of it, and what must
    live as long as the view."""
    if isinstance(array, np.ndarray):
        if written and not array.flags.writeable:
            raise ValueError("an output, and the array is read-only")
        layout = _numpy_layout(array.dtype, array.shape, array.strides)
        return _numpy_array_at(id(array)).data or 0, layout, array
    if hasattr(array, "__dlpack__"):
        return _describe_dlpack(array, written)
    raise TypeError(
        f"{type(array).__name__} is neither an array of NumPy nor offers its memory by __dlpack__"
    )


def name_of(dtype: int) -> str:
    """Returns the name of a type of the C interface."""
    return next(name for name, code in DTYPES.items() if code == dtype)


def empty(shape: tuple[int, ...], dtype: int) -> npt.NDArray[Any]:
    """Makes an array of a type of the C interface."""
    if dtype != _library.BF16:
        return np.empty(shape, name_of(dtype))
    try:
        import ml_dtypes
    except ImportError:
        raise ValueError("an array of bfloat16 takes the package ml_dtypes, or an `out`") from None
    return np.empty(shape, ml_dtypes.bfloat16)


def shape_and_dtype(array: Array) -> tuple[tuple[int, ...], int]:
    """Returns an array's shape, and its type as in the C interface."""
    view = View.from_buffer_copy(bytes(View.dtype.offset) + describe(array, False)[1])
    return tuple(view.shape[: view.ndim]), view.dtype

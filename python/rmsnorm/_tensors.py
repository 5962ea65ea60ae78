# SPDX-License-Identifier: Apache-2.0
"""Tensors as bits, from arrays of NumPy, PyTorch and JAX, and from files.

NumPy has bfloat16 only with ml_dtypes. Its bits need no package.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from reprlib import repr as shown
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from ._arrays import DTYPES, empty, name_of
from ._library import BF16, F16, F32, View

__all__ = ["Framework", "Tensor", "changed_rows", "framework_of", "read_tensor", "rounded"]
__all__ += ["write_safetensors"]

_BITS: dict[int, np.dtype[Any]] = {
    F32: np.dtype(np.uint32),
    F16: np.dtype(np.uint16),
    BF16: np.dtype(np.uint16),
}
_INFINITY = {F32: 0x7F800000, F16: 0x7C00, BF16: 0x7F80}

Result = TypeVar("Result")


class Tensor(NamedTuple):
    """Contiguous elements as unsigned integers, and their type in the C interface."""

    bits: npt.NDArray[Any]
    dtype: int

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: int) -> "Tensor":
        """Returns a tensor whose elements are not set."""
        return Tensor(np.empty(shape, _BITS[dtype]), dtype)

    def values(self) -> npt.NDArray[np.float32]:
        """Returns the elements as float32, which holds each of them, with one kind of NaN."""
        if self.dtype == BF16:
            values = (self.bits.astype(np.uint32) << 16).view(np.float32)
        else:
            values = self.bits.view(name_of(self.dtype)).astype(np.float32)
        return np.where(np.isnan(values), np.float32(np.nan), values)

    def rows(self, index: Any) -> "Tensor":
        return Tensor(self.bits[index].copy(), self.dtype)

    def view(self) -> View:
        """Returns a view of the C interface, which is valid as long as the tensor lives."""
        stride = tuple(step // self.bits.itemsize for step in self.bits.strides)
        return View(self.bits.ctypes.data, self.dtype, self.bits.ndim, self.bits.shape, stride)


def rounded(values: npt.NDArray[np.float32], dtype: int) -> Tensor:
    """Returns numbers, which the type holds exactly, in this type."""
    if dtype == BF16:
        return Tensor((values.view(np.uint32) >> 16).astype(np.uint16), dtype)
    return Tensor(values.astype(name_of(dtype)).view(_BITS[dtype]), dtype)


def changed_rows(a: Tensor, b: Tensor) -> npt.NDArray[np.bool_]:
    """Returns which rows of two tensors of one type differ in a bit. All NaNs are equal."""
    changed: npt.NDArray[np.bool_] = ((a.bits != b.bits) & ~(_is_nan(a) & _is_nan(b))).any(axis=1)
    return changed


def _is_nan(tensor: Tensor) -> npt.NDArray[np.bool_]:
    magnitude = tensor.bits & (np.iinfo(tensor.bits.dtype).max >> 1)
    is_nan: npt.NDArray[np.bool_] = magnitude > _INFINITY[tensor.dtype]
    return is_nan


# ------------------------------------------------------------------------------------ frameworks


class Framework:
    """The arrays of NumPy, and what the other frameworks do otherwise."""

    can_shift = True  # whether an array may begin at any element of its memory
    can_write = True  # whether a function may write to its arguments

    def array(self, tensor: Tensor, shift: int = 0) -> Any:
        """Returns a new array, which begins `shift` elements behind an aligned address."""
        array = empty((tensor.bits.size + shift,), tensor.dtype)[shift:]
        array.view(tensor.bits.dtype)[:] = tensor.bits.ravel()
        return array.reshape(tensor.bits.shape)

    def tensor(self, array: Any) -> Tensor:
        """Returns the elements of an array. Raises TypeError if it is none, or of another type."""
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{type(array).__name__}, which is no array of NumPy")
        return _from_numpy(array)

    def with_threads(self, call: Callable[[], Result]) -> list[Result]:
        """Returns the results of a call on other numbers of threads than the usual one."""
        return []


class _Torch(Framework):
    def __init__(self, device: Any) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cpu" if device is None else device)

    def array(self, tensor: Tensor, shift: int = 0) -> Any:
        torch = self._torch
        signed = tensor.bits.view(np.int32 if tensor.dtype == F32 else np.int16)
        values = torch.from_numpy(signed).view(getattr(torch, name_of(tensor.dtype)))
        memory = torch.empty(values.numel() + shift, dtype=values.dtype, device=self._device)
        return memory[shift:].view(values.shape).copy_(values)

    def tensor(self, array: Any) -> Tensor:
        torch = self._torch
        if not isinstance(array, torch.Tensor):
            raise TypeError(f"{type(array).__name__}, which is no tensor of PyTorch")
        code = _code(str(array.dtype).removeprefix("torch."))
        values = array.detach().cpu().contiguous()
        signed = values.view(torch.int32 if code == F32 else torch.int16).numpy()
        return Tensor(signed.view(_BITS[code]).copy(), code)

    def with_threads(self, call: Callable[[], Result]) -> list[Result]:
        if self._device.type != "cpu":
            return []
        usual = self._torch.get_num_threads()
        results = []
        try:
            for count in {1, 2} - {usual}:
                self._torch.set_num_threads(count)
                results.append(call())
        finally:
            self._torch.set_num_threads(usual)
        return results


class _Jax(Framework):
    can_shift = False
    can_write = False  # reading one that was donated raises

    def __init__(self, device: Any) -> None:
        import jax

        self._jax: Any = jax
        self._device = device

    def array(self, tensor: Tensor, shift: int = 0) -> Any:
        return self._jax.device_put(super().array(tensor), self._device)

    def tensor(self, array: Any) -> Tensor:
        if not isinstance(array, self._jax.Array):
            raise TypeError(f"{type(array).__name__}, which is no array of JAX")
        return _from_numpy(np.asarray(array))


def framework_of(name: str, device: Any) -> Framework:
    if name == "torch":
        return _Torch(device)
    if name == "jax":
        return _Jax(device)
    if name != "numpy":
        raise ValueError(f"framework: {shown(name)}; possible are numpy, torch, jax")
    if device is not None:
        raise ValueError(f"device: {shown(device)}; arrays of NumPy have none")
    return Framework()


def _code(name: str) -> int:
    code = DTYPES.get(name)
    if code not in _BITS:
        raise TypeError(f"elements of type {name}")
    return code


def _from_numpy(array: npt.NDArray[Any]) -> Tensor:
    code = _code(array.dtype.name)
    native = array.astype(array.dtype.newbyteorder("="), order="C")
    return Tensor(native.view(_BITS[code]), code)


# ----------------------------------------------------------------------------------------- files

_SAFETENSORS = {"F32": F32, "F16": F16, "BF16": BF16}


def read_tensor(location: str | os.PathLike[str]) -> Tensor:
    """Reads FILE.npy, FILE.safetensors:NAME, or FILE.safetensors that holds one tensor."""
    text = os.fspath(location)
    if text.endswith(".npy"):
        with open(text, "rb") as file:
            try:
                return _from_numpy(np.lib.format.read_array(file, allow_pickle=False))
            except Exception as error:  # of many types, where the header is wrong
                reason = str(error).partition("\n")[0]
                raise ValueError(f"{text}: {reason}") from None
    match = re.fullmatch(r"(.*\.safetensors)(?::(.+))?", text)
    if match is None:
        raise ValueError(f"{text}: neither FILE.npy nor FILE.safetensors:NAME")
    return _read_safetensors(match[1], match[2])


def _read_safetensors(path: str, name: str | None) -> Tensor:
    broken = ValueError(f"{path}: a file of another format than safetensors, or a part of one")
    try:
        with open(path, "rb") as file:
            length = os.fstat(file.fileno()).st_size - 8
            size = int.from_bytes(file.read(8), "little")
            header = dict(json.loads(file.read(size) if size <= length else b""))
            header.pop("__metadata__", None)
            if name is None and len(header) == 1:
                (name,) = header
            entry = header.get(name)
            if entry is not None:
                keys = ("dtype", "shape", "data_offsets")
                type_name, shape, (begin, end) = (entry[key] for key in keys)
                code = _SAFETENSORS.get(type_name)
                if not 0 <= begin <= end <= length - size or min(shape, default=0) < 0:
                    raise broken
                if code is not None:
                    file.seek(8 + size + begin)
                    bits = np.frombuffer(file.read(end - begin), _BITS[code].newbyteorder("<"))
                    return Tensor(bits.reshape(shape).astype(_BITS[code]), code)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise broken from None
    if entry is not None:
        raise ValueError(f"{path}:{name}: elements of type {type_name}")
    held = ", ".join(header) or "no tensor"
    raise ValueError(f"{path}: it holds {held}" + f"; write {path}:NAME" * bool(header))


def write_safetensors(path: str, tensors: Mapping[str, Tensor]) -> None:
    """Makes or replaces a file in the format safetensors, or leaves it as it was."""
    codes = {code: name for name, code in _SAFETENSORS.items()}
    header, data = {}, b""
    for name, (bits, dtype) in tensors.items():
        added = bits.astype(bits.dtype.newbyteorder("<")).tobytes()
        offsets = [len(data), len(data) + len(added)]
        header[name] = {"dtype": codes[dtype], "shape": bits.shape, "data_offsets": offsets}
        data += added
    text = json.dumps(header)
    text += " " * (-len(text) % 8)
    target = os.path.realpath(path)  # a symbolic link stays
    part = f"{target}.part"
    try:
        with open(part, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text.encode() + data)
        os.replace(part, target)
    except OSError as error:
        error.filename = path
        raise
    finally:
        with suppress(OSError):
            os.remove(part)

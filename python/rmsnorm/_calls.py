# SPDX-License-Identifier: Apache-2.0
"""Calls of the library on arrays."""

import ctypes
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import byref, sizeof
from functools import lru_cache
from typing import Any, Literal, TypedDict, Unpack, cast

import numpy as np
import numpy.typing as npt

from . import _arrays, _library
from ._arrays import Array, describe
from ._library import WORDS, View, c, raise_error


class OtherOptions(TypedDict, total=False):
    """The options but eps. rmsnorm.h describes each under its name, and has the defaults."""

    eps_placement: Literal["inside", "outside", "floor"]
    rounding: Literal["after_weight", "before_weight", "inverse"]
    residual_rounding: Literal["rounded", "unrounded"]
    weight_offset: float
    divisor: float
    factor: float
    activation: Literal["silu", "sigmoid"]
    gate_placement: Literal["after", "before"]
    gate_rounding: Literal["unrounded", "rounded"]


class Options(OtherOptions, total=False):
    """How to normalise."""

    eps: float


class Context(TypedDict, total=False):
    """Where a call runs. Nothing here changes a bit of a result.

    threads: 1, or how many threads may share the work where the library has OpenMP.
    target: the instructions, such as "AVX2" or "reference"; by default the best of this CPU.
    """

    threads: int
    target: str | None


class OtherOperands(TypedDict, total=False):
    """The operands of forward() beside x, weight and y. None is an absent operand."""

    residual: Array | None
    gate: Array | None
    bias: Array | None
    post_norm_weight: Array | None
    sums: Array | None
    residual_out: Array | None
    q: Array | None
    rstd: Array | None
    sums_out: Array | None
    scale: Array | None
    zero: Array | None


class ModuleOperands(OtherOperands, total=False):
    """The operands of forward() for a norm that has a weight."""

    x: Array
    y: Array | None


class ForwardOperands(ModuleOperands, total=False):
    """The operands of forward()."""

    weight: Array | None


class ModuleBackwardOperands(TypedDict, total=False):
    """The operands of backward() for a norm that has a weight. None is an absent operand.

    add_to: those of "dx", "dw" and "db" that are added to the values in their memory.
    """

    x: Array
    dy: Array | None
    rstd: Array | None
    dx: Array | None
    dw: Array | None
    db: Array | None
    add_to: Sequence[Literal["dx", "dw", "db"]]


class BackwardOperands(ModuleBackwardOperands, total=False):
    """The operands of backward()."""

    weight: Array | None


class CallArguments(ForwardOperands, Options, total=False):
    """One call of forward_all()."""


class ForwardArguments(ForwardOperands, Options, Context, total=False):
    """The arguments of forward()."""


class BackwardArguments(BackwardOperands, Options, Context, total=False):
    """The arguments of backward()."""


class NormArguments(OtherOperands, OtherOptions, Context, total=False):
    """The arguments of rms_norm() that it does not name."""


class GradientArguments(OtherOptions, Context, total=False):
    """The arguments of rms_norm_backward() that it does not name."""


_NUMBERS = ("eps", "weight_offset", "divisor", "factor")
_OPTIONS = frozenset(WORDS).union(_NUMBERS)
_CONTEXT = frozenset(("threads", "target"))

# Where the view of an operand has its address, in units of an address; where the rest of the view
# is; and whether the operand is an output.
_SIZE, _DATA = sizeof(View), View.dtype.offset
_SLOTS = {
    name: (
        index * _SIZE // _DATA,
        slice(index * _SIZE + _DATA, (index + 1) * _SIZE),
        name in _library.OUTPUTS,
    )
    for index, name in enumerate(_library.OPERANDS)
}
_ADD_TO = {"dx": 1, "dw": 2, "db": 4}


@lru_cache(maxsize=256)
def c_options(eps: float = 1e-5, **values: Any) -> _library.Options:
    """Returns the struct of the options. Callers share it and do not change it."""
    options = _library.Options(size=sizeof(_library.Options), eps=float(eps))
    for name, value in values.items():
        if name in _NUMBERS:
            setattr(options, name, float(value))
            continue
        if value not in WORDS[name]:
            raise ValueError(f"{name}: {value!r}; possible are {', '.join(WORDS[name])}")
        setattr(options, name, WORDS[name][value])
    return options


@lru_cache(maxsize=256)
def c_context(threads: int = 0, target: str | None = None) -> _library.Context:
    """Returns the struct of the context. Callers share it and do not change it."""
    if not 0 <= threads < 2**31:
        raise ValueError(f"threads: {threads}; possible are 0 and more, below 2^31")
    name = None if target is None else target.encode()
    return _library.Context(size=sizeof(_library.Context), threads=threads, target=name)


class Frame:
    """The structs of one call. A thread can use them again once the call has returned."""

    def __init__(self) -> None:
        self._views = (View * len(_library.OPERANDS))()
        self._bytes = memoryview(self._views).cast("B")
        self._addresses = self._bytes.cast("P")
        self._known: dict[tuple[str, ...], _library.Operands] = {}

    def fill(
        self, arrays: Mapping[str, Any], add_to: Sequence[str] = ()
    ) -> tuple[_library.Operands, list[Any]]:
        """Returns the struct of the operands, and what must live as long as the call."""
        owners = []
        names = []
        for name, array in arrays.items():
            if array is None:
                continue
            index, rest, is_output = _SLOTS[name]
            try:
                self._addresses[index], self._bytes[rest], owner = describe(array, is_output)
            except TypeError as error:
                raise TypeError(f"{name}: {error}") from None
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
            names.append(name)
            owners.append(owner)
        if add_to:
            return self._operands(names, add_to), owners
        key = tuple(names)
        operands = self._known.get(key)
        if operands is None:
            operands = self._known[key] = self._operands(names, ())
        return operands, owners

    def _operands(self, names: list[str], add_to: Iterable[str]) -> _library.Operands:
        operands = _library.Operands(size=sizeof(_library.Operands))
        for name in add_to:
            if name not in _ADD_TO:
                raise ValueError(f"add_to: {name!r}; possible are {', '.join(_ADD_TO)}")
            operands.add_to |= _ADD_TO[name]
        for name in names:
            view = self._views[_library.OPERANDS.index(name)]
            setattr(operands, name, ctypes.addressof(view))
        return operands


class _Local(threading.local):
    def __init__(self) -> None:
        self.free: list[Frame] = []


_local = _Local()


def call_library(
    function: Callable[..., int],
    arrays: Mapping[str, Any],
    *structs: ctypes.Structure | None,
    add_to: Sequence[str] = (),
) -> None:
    """Calls a function of the library that takes operands, and then these structs."""
    # A frame in use is not in the list, since a signal's handler may make a call during a call.
    free = _local.free
    frame = free.pop() if free else Frame()
    operands, owners = frame.fill(arrays, add_to)
    status = function(operands, *structs)
    del owners
    free.append(frame)
    if status:
        raise_error(status)


def split(arguments: Mapping[str, Any], *kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Sorts arguments by the kinds that have their names."""
    parts: list[dict[str, Any]] = [{} for _ in kinds]
    for name, value in arguments.items():
        for kind, part in zip(kinds, parts, strict=True):
            if name in kind:
                part[name] = value
                break
        else:
            raise TypeError(f"unknown argument {name!r}")
    return parts


OTHERS = OtherOperands.__optional_keys__
FORWARD = ForwardOperands.__optional_keys__
BACKWARD = BackwardOperands.__optional_keys__ - {"add_to"}


def forward(**arguments: Unpack[ForwardArguments]) -> None:
    """Computes y = RMSNorm(x) * (weight_offset + weight) + bias for each row of x, and every other
    output that is given: forward(x=x, weight=weight, y=y, rstd=rstd, eps=1e-6).

    Operands are arrays of NumPy, or of any library that offers its memory on the CPU by DLPack, with
    any strides as long as the elements of a row are neighbours. Outputs are written where they are;
    nothing is allocated or copied. The table of rmsnorm_operands in rmsnorm.h has the shape of each
    operand and says which go together; the comment on rmsnorm_forward() has the formulas and their
    sources. float32, float16 and bfloat16 (of ml_dtypes) mix freely, except that rstd and scale are
    float32, q and zero int8, sums and sums_out float64, and residual_out has the type of residual.

    y may be x, and residual_out may be residual. Other outputs share no memory with an operand.

    Several threads may call at once. The call releases the interpreter's lock.

    A refused call raises ValueError with the library's message, and has written nothing. An argument
    that is no array, or has an unknown name, raises TypeError.
    """
    operands, options, context = split(arguments, FORWARD, _OPTIONS, _CONTEXT)
    call_library(c.rmsnorm_forward, operands, c_options(**options), c_context(**context))


def backward(**arguments: Unpack[BackwardArguments]) -> None:
    """Computes the gradients of a loss by x, by the weight and by the bias from dy, the gradient by
    y: backward(dy=dy, x=x, weight=weight, dx=dx, dw=dw, eps=1e-6).

    dx has the shape of x, dw and db have that of the weight and of the bias; all may have any of
    the three float types. dx may be dy. The options are those of the forward call. rstd is its
    output of that name, and saves time. The comment on rmsnorm_backward() in rmsnorm.h has the
    formulas. Errors and threads are as in forward().
    """
    operands, options, context, rest = split(arguments, BACKWARD, _OPTIONS, _CONTEXT, ("add_to",))
    structs = c_options(**options), c_context(**context)
    call_library(c.rmsnorm_backward, operands, *structs, add_to=rest.get("add_to", ()))


def forward_all(calls: Sequence[CallArguments], **context: Unpack[Context]) -> None:
    """Makes several calls of forward() in one, such as the norms of q and k:
    forward_all([{"x": q, "weight": q_weight, "y": q}, {"x": k, "weight": k_weight, "y": k}]).

    Each call is a dictionary of operands and options. An output of one call shares no memory with
    an operand of another. Messages name an operand of the second call as "calls[1].y".
    """
    structs = (_library.Call * len(calls))()
    kept = []  # the frames hold the views
    for index, (call, struct) in enumerate(zip(calls, structs, strict=True)):
        try:
            operands, options = split(call, FORWARD, _OPTIONS)
            frame = Frame()
            filled, owners = frame.fill(operands)
            chosen = c_options(**options)
        except TypeError as error:
            raise TypeError(f"calls[{index}]: {error}") from None
        except ValueError as error:
            raise ValueError(f"calls[{index}]: {error}") from None
        struct.operands = ctypes.pointer(filled)
        struct.options = ctypes.pointer(chosen)
        kept.append((frame, owners))
    (context_only,) = split(context, _CONTEXT)
    status = c.rmsnorm_forward_all(structs, len(calls), c_context(**context_only))
    del kept
    if status:
        raise_error(status)


def rms_norm(
    x: Array,
    weight: Array | None = None,
    *,
    eps: float = 1e-5,
    out: Array | None = None,
    **arguments: Unpack[NormArguments],
) -> Any:
    """Returns y = x / sqrt(mean(x^2) + eps) * weight, for each row of x.

    x has any shape [..., d]; the weight has d elements. The formula is equation 4 of Zhang and
    Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467. y is `out` where that
    is given, which may be x; otherwise it is a new NumPy array with the shape and the type of x.
    Every operand, option and error of forward() is possible here, too:

        rms_norm(x, weight, residual=residual, residual_out=residual)  # add_norm
        rms_norm(x, weight, weight_offset=1)                           # Gemma
        rms_norm(x, weight, rounding="before_weight")                  # Llama, in bfloat16
    """
    if out is None:
        out = new_like(x)
    operands = {"x": x, "weight": weight, "y": out}
    if arguments:
        others, options, context = split(arguments, OTHERS, _OPTIONS, _CONTEXT)
        structs = c_options(eps, **options), c_context(**context)
        call_library(c.rmsnorm_forward, {**operands, **others}, *structs)
    else:
        call_library(c.rmsnorm_forward, operands, c_options(eps), c_context())
    return out


def rms_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    *,
    eps: float = 1e-5,
    rstd: Array | None = None,
    **arguments: Unpack[GradientArguments],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Returns dx and dw, the gradients of a loss by x and by the weight, from dy, the gradient by y.

    dx is a new NumPy array with the shape and the type of x, and dw one with those of the weight,
    or None without a weight. The options are those of rms_norm(). See backward().
    """
    dx = new_like(x)
    dw = None if weight is None else new_like(weight)
    backward(dy=dy, x=x, weight=weight, rstd=rstd, dx=dx, dw=dw, eps=eps, **arguments)
    return dx, dw


def new_like(array: Array) -> npt.NDArray[Any]:
    """Makes an array of NumPy with the shape and the type of another array."""
    if isinstance(array, np.ndarray):
        return np.empty(array.shape, array.dtype)
    try:
        return _arrays.empty(*_arrays.shape_and_dtype(array))
    except TypeError as error:
        raise TypeError(f"x: {error}") from None


def version() -> str:
    """The version of the library."""
    return cast(bytes, c.rmsnorm_version()).decode()


def targets() -> list[str]:
    """The targets (sets of instructions) that this CPU runs, best first, "reference" last."""
    names: list[bytes] = []
    while name := c.rmsnorm_target_name(len(names)):
        names.append(name)
    exact = ctypes.c_char_p()
    return [n.decode() for n in names if c.rmsnorm_find_target(n, byref(exact)) == 0]

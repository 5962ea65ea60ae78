# SPDX-License-Identifier: Apache-2.0
"""Calls of the library on arrays."""

import ctypes
import inspect
import math
import operator
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from ctypes import byref, sizeof
from functools import lru_cache, partial
from numbers import Real
from reprlib import repr as shown
from typing import Annotated, Any, Literal, NoReturn, TypedDict, TypeVar, Unpack, cast
from typing import get_args, overload

import numpy as np
import numpy.typing as npt

from . import _library, _options
from ._arrays import Array, SupportsDLPack, describe, named, new_like
from ._library import View, c, raise_error
from ._options import NONE_IS_DEFAULT, OPTIONS, WORDS, AllOptions, OtherOptions


class Context(TypedDict, total=False):
    """Where a call runs. Nothing here changes a bit of a result."""

    threads: Annotated[
        int | None,
        "the most threads that share the work. Without OpenMP, as in the wheel, only 1 is "
        "possible. None uses as many as OpenMP has.",
    ]
    target: Annotated[
        str | None,
        'the instructions: one of targets(), such as "reference". None is the best.',
    ]


_Given = Array | None


class RotaryOperands(TypedDict, total=False):
    """The tables of rotary positions, which a call and its gradients take."""

    cos: Annotated[
        _Given,
        "[R / 2], with R at most d, and d at most 4096: cosines by which pairs of the norm are "
        "rotated; needs sin and y.",
    ]
    sin: Annotated[_Given, "in the shape of cos, but for its leading dimensions: the sines."]


class OtherOperands(RotaryOperands, total=False):
    """The operands of forward() beside x, weight and y. None is an absent operand."""

    bias: Annotated[_Given, "[d]; added after the weight."]
    post_norm_weight: Annotated[_Given, "[d]; x is first normalised, with this weight."]
    residual: Annotated[_Given, "[..., d]; x is added to it, and the sum is normalised."]
    gate: Annotated[
        _Given, "[..., d]; its activation multiplies the norm, or x (see gate_placement)."
    ]
    sums: Annotated[_Given, "[...], float64: sums of squares that replace the sums of x."]
    residual_out: Annotated[
        _Given,
        "output [..., d], in the type of residual: the sum, times residual_factor; may be residual.",
    ]
    q: Annotated[_Given, "output [..., d], int8: the norm, quantised; needs scale."]
    scale: Annotated[
        _Given,
        "output [...], with a group [..., d / group], float32: the step from one integer of q to the "
        "next.",
    ]
    zero: Annotated[
        _Given,
        "output in the shape of scale, int8: the integer of q that stands for 0; absent, it is 0.",
    ]
    rstd: Annotated[
        _Given, "[...], float32: 1 / RMS, an output of forward() and an input of backward()."
    ]
    sums_out: Annotated[_Given, "output [...], float64: the sums of squares."]


class ModuleOperands(OtherOperands, total=False):
    """The operands of forward() for a norm that has a weight."""

    x: Annotated[Array, "[..., d]: the rows."]
    y: Annotated[_Given, "output [..., d]: the norm; may be x."]


class ForwardOperands(ModuleOperands, total=False):
    """The operands of forward()."""

    weight: Annotated[_Given, "[d]; absent, it counts as ones."]


class ModuleBackwardOperands(RotaryOperands, total=False):
    """The operands of backward() for a norm that has a weight. None is an absent operand."""

    x: Array
    dy: Annotated[_Given, "[..., d]: the gradient by y."]
    rstd: _Given
    dx: Annotated[_Given, "output [..., d]: the gradient by x; may be dy."]
    dw: Annotated[_Given, "output in the shape of the weight: its gradient."]
    db: Annotated[_Given, "output in the shape of the bias: its gradient."]
    add_to: Annotated[
        Sequence[Literal["dx", "dw", "db"]] | None,
        'a list of those of "dx", "dw" and "db" that are added to what their memory holds.',
    ]


class BackwardOperands(ModuleBackwardOperands, total=False):
    """The operands of backward()."""

    weight: _Given


class CallArguments(ForwardOperands, AllOptions, total=False):
    """One call of forward_all()."""


class ForwardArguments(ForwardOperands, AllOptions, Context, total=False):
    """The arguments of forward()."""


class BackwardArguments(BackwardOperands, AllOptions, Context, total=False):
    """The arguments of backward()."""


class NormArguments(OtherOperands, OtherOptions, Context, total=False):
    """The arguments of rms_norm() that it does not name."""


class OtherArguments(OtherOptions, Context, total=False):
    """The arguments of RMSNorm() that it does not name."""


class GradientArguments(RotaryOperands, OtherArguments, total=False):
    """The arguments of rms_norm_backward() that it does not name."""


CONTEXT = Context.__optional_keys__
OTHERS = OtherOperands.__optional_keys__
FORWARD = ForwardOperands.__optional_keys__
BACKWARD = BackwardOperands.__optional_keys__ - {"add_to"}

# What an absent argument means. Operands are absent by default.
DEFAULTS: dict[str, Any] = {**_options.DEFAULTS, "add_to": ()}

# The help on each argument. x has the shape [..., d].
HELP = {
    "d": "the number of elements of a row.",
    "calls": "a list with a dictionary for each call.",
    "out": "[..., d]: the array for the result, which may be x; None makes a new one.",
    "dtype": 'the type of the weight: "float32", "float16" or "bfloat16", or NumPy\'s type for it.',
    "asymmetric": "True adds a zero point to each scale.",
    **{
        name: get_args(annotation)[1]
        for kind in (ForwardArguments, ModuleBackwardOperands)
        for name, annotation in kind.__annotations__.items()
        if hasattr(annotation, "__metadata__")
    },
}

_Documented = TypeVar("_Documented", bound=Callable[..., Any])


def documented(
    *kinds: Any, keys: Any = None, help: Mapping[str, str] = HELP
) -> Callable[[_Documented], _Documented]:
    """Makes a decorator for a function, or a class, that takes the arguments of these TypedDicts as
    **arguments. It puts them, with their defaults, into the signature, which notebooks show, and the
    help on each argument into the docstring. `keys` is the TypedDict of dictionaries in an
    argument."""
    names = [name for kind in kinds for name in kind.__annotations__]
    names.sort(key=lambda name: name not in ("x", "dy", "y", "weight", "eps"))
    defaults = DEFAULTS | dict.fromkeys(("x", "dy"), inspect.Parameter.empty)
    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [inspect.Parameter(name, keyword, default=defaults.get(name)) for name in names]

    def decorate(target: _Documented) -> _Documented:
        function: Any = vars(target)["__init__"] if isinstance(target, type) else target
        # Without types, because the type of one array is a whole line.
        parameters = [
            p.replace(annotation=p.empty)
            for p in inspect.signature(function).parameters.values()
            if p.kind is not p.VAR_KEYWORD
        ] + added
        function.__signature__ = inspect.Signature(parameters)
        texts = {p.name: str(p) for p in parameters}
        texts |= {name: name for name in (keys.__annotations__ if keys else ())}
        lines = [inspect.cleandoc(target.__doc__ or ""), ""]
        for name, text in texts.items():
            if name in help:
                lines += textwrap.wrap(f"{text}: {help[name]}", 92, subsequent_indent="    ")
        target.__doc__ = "\n".join(lines)
        return target

    return decorate


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


def checked_integer(name: str, value: Any, limit: int, possible: str | None = None) -> int:
    """Returns the value of an argument that is an integer from 1 to below a limit. `possible` is
    what messages say of it."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: {shown(value)}; {possible or 'an integer is possible'}") from None
    if not 1 <= number < limit:
        raise ValueError(f"{name}: {shown(number)}; {possible or f'possible are 1 to {limit - 1}'}")
    return number


def _possible(name: str) -> str:
    return f"it must be {OPTIONS[name].help.removesuffix('.')}"


def _checked_option(name: str, value: Any) -> Any:
    """Returns the value of an option as a float, an integer or a word, or None where that is its
    default."""
    if name in WORDS:
        if isinstance(value, str) and value in WORDS[name]:
            return str(value)
        error = ValueError if isinstance(value, str) else TypeError
        raise error(f"{name}: {shown(value)}; possible are {', '.join(WORDS[name])}")
    if value is None and name in NONE_IS_DEFAULT:
        return None
    if OPTIONS[name].stored is ctypes.c_int32:
        return checked_integer(name, value, 2**31, _possible(name))
    if type(value) is float:
        return value
    if not isinstance(value, Real) or isinstance(value, bool):
        raise TypeError(f"{name}: {shown(value)}; {_possible(name)}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}: {shown(value)}; in float32 {_possible(name)}") from None


def checked_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options without those that are None, other numbers than integers as floats."""
    checked = {name: _checked_option(name, value) for name, value in values.items()}
    return {name: value for name, value in checked.items() if value is not None}


def make_options(eps: float, *key: str, **values: Any) -> _options.Options:
    """Makes the struct of the options. `key` only tells entries of the cache apart."""
    options = _options.Options(size=sizeof(_options.Options))
    for name, value in checked_options({"eps": eps, **values}).items():
        if name in WORDS:
            setattr(options, name, WORDS[name].index(value))
            continue
        setattr(options, name, value)
        stored = getattr(options, name)
        becomes_infinite = math.isinf(stored) and not math.isinf(value)
        # To the library 0 is the default.
        if becomes_infinite or (not stored and name in NONE_IS_DEFAULT):
            raise ValueError(f"{name}: {value}; in float32 {_possible(name)}")
    return options


_known_options = lru_cache(maxsize=256, typed=True)(make_options)
_CACHED = {float, int, str}


def c_options(eps: float = 1e-5, **values: Any) -> _options.Options:
    """Returns the struct of the options. Callers share it and do not change it."""
    # The cache holds types whose equal values mean the same. Only 0.0 and -0.0 do not: with a zero,
    # the text of the options is part of the key. 8 is a group, and 8.0 is none: types count.
    if type(eps) not in _CACHED or (values and not _CACHED.issuperset(map(type, values.values()))):
        return make_options(eps, **values)
    if eps == 0 or 0 in values.values():
        return _known_options(eps, f"{eps} {values}", **values)
    return _known_options(eps, **values)


_ONE_THREAD = (
    "this library has no OpenMP, and 1 is possible. To use more, give each thread of a "
    "concurrent.futures.ThreadPoolExecutor a call on some of the rows"
)


@lru_cache(maxsize=256)
def _context(threads: int, target: str | None) -> _library.Context:
    name = None if target is None else target.encode()
    return _library.Context(size=sizeof(_library.Context), threads=threads, target=name)


def c_context(threads: int | None = None, target: str | None = None) -> _library.Context | None:
    """Returns the struct of the context. Callers share it and do not change it."""
    if threads is None and target is None:
        return None
    limits = (2**31,) if c.rmsnorm_has_openmp() else (2, _ONE_THREAD)
    number = 0 if threads is None else checked_integer("threads", threads, *limits)
    if target is not None and not isinstance(target, str):
        raise TypeError(f"target: {shown(target)}; possible are {', '.join(targets())}")
    if target is not None and ("\0" in target or not target.isascii()):
        raise ValueError(f"target: {shown(target)}; possible are {', '.join(targets())}")
    return _context(number, target)


class Frame:
    """The structs of one call. A thread can use them again once the call has returned."""

    def __init__(self) -> None:
        self._views = (View * len(_library.OPERANDS))()
        self._bytes = memoryview(self._views).cast("B")
        self._addresses = self._bytes.cast("P")
        self._known: dict[tuple[str, ...], _library.Operands] = {}

    def fill(
        self, arrays: Mapping[str, Any], add_to: Sequence[str] | None = None
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
            except (TypeError, ValueError) as error:
                raise named(name, error) from error.__cause__
            names.append(name)
            owners.append(owner)
        if add_to is not None:
            return self._operands(names, _add_to_bits(add_to)), owners
        key = tuple(names)
        operands = self._known.get(key)
        if operands is None:
            operands = self._known[key] = self._operands(names)
        return operands, owners

    def _operands(self, names: list[str], add_to: int = 0) -> _library.Operands:
        operands = _library.Operands(size=sizeof(_library.Operands), add_to=add_to)
        for name in names:
            view = self._views[_library.OPERANDS.index(name)]
            setattr(operands, name, ctypes.addressof(view))
        return operands


def _add_to_bits(add_to: Any) -> int:
    names = list(add_to) if isinstance(add_to, list | tuple | set | frozenset) else [add_to]
    for name in names:
        if not isinstance(name, str) or name not in _ADD_TO or isinstance(add_to, str):
            raise ValueError(f"add_to: {shown(add_to)}; a list of {', '.join(_ADD_TO)} is possible")
    return sum(_ADD_TO[name] for name in set(names))


class _Local(threading.local):
    def __init__(self) -> None:
        self.free: list[Frame] = []


_local = _Local()


def call_library(
    function: Callable[..., int],
    arrays: Mapping[str, Any],
    *structs: ctypes.Structure | None,
    add_to: Sequence[str] | None = None,
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


@documented(ForwardOperands, AllOptions, Context)
def forward(**arguments: Unpack[ForwardArguments]) -> None:
    """Computes y = RMSNorm(x) * (weight_offset + weight) + bias for each row of x, and every other
    output that is given: forward(x=x, weight=weight, y=y, rstd=rstd, eps=1e-6).

    Operands are arrays of NumPy, or of any library that offers its memory on the CPU by DLPack.
    They may have any strides as long as the elements of a row are neighbours. Outputs are written
    where they are; nothing is allocated or copied. An output is an array of NumPy, or of a library
    with DLPack 1.0: older versions do not say whether memory may be written. The comment on
    rmsnorm_forward() in rmsnorm.h has the formulas and their sources.

    x has any shape [..., d]. Operands of shape [d] or [R / 2] may have leading dimensions, which are
    aligned with x from the right and are each equal to the dimension of x or 1. Operands of shape [...]
    have one element where x has one dimension. float32, float16 and bfloat16 (of ml_dtypes) mix
    freely where the list below has no type.

    y may be x, and residual_out may be residual. Other outputs share no memory with an operand.

    Several threads may call at once. The call releases the interpreter's lock.

    A refused call raises ValueError or TypeError with the name of the argument, and has written
    nothing.
    """
    operands, options, context = split(arguments, FORWARD, OPTIONS, CONTEXT)
    call_library(c.rmsnorm_forward, operands, c_options(**options), c_context(**context))


@documented(BackwardOperands, AllOptions, Context)
def backward(**arguments: Unpack[BackwardArguments]) -> None:
    """Computes the gradients of a loss by x, by the weight and by the bias from dy, the gradient by
    y: backward(dy=dy, x=x, weight=weight, dx=dx, dw=dw, eps=1e-6).

    At least one of dx, dw and db is given. All may have any of the three float types. The options
    and the tables cos and sin are those of the forward call, without a gate or a factor. rstd is
    its output of that name, and saves time. After a call with a residual, x is its residual_out.
    The comment on rmsnorm_backward() in rmsnorm.h has the formulas. Shapes, errors and threads are
    as in forward().
    """
    operands, options, context, rest = split(arguments, BACKWARD, OPTIONS, CONTEXT, ("add_to",))
    structs = c_options(**options), c_context(**context)
    call_library(c.rmsnorm_backward, operands, *structs, **rest)


@documented(Context, keys=CallArguments)
def forward_all(calls: Sequence[CallArguments], **context: Unpack[Context]) -> None:
    """Makes several calls of forward() in one, such as the norms of q and k:
    forward_all([{"x": q, "weight": q_weight, "y": q}, {"x": k, "weight": k_weight, "y": k}]).

    Each call is a dictionary of operands and options. An output of one call shares no memory with
    an operand of another. Messages name an operand of the second call as "calls[1].y". Shapes,
    types, errors and threads are as in forward().
    """
    structs, kept = _call_structs(calls)
    (context_only,) = split(context, CONTEXT)
    status = c.rmsnorm_forward_all(structs, len(calls), c_context(**context_only))
    del kept
    if status:
        raise_error(status)


def call_struct(
    operands: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
    add_to: Any = None,
    module: int | None = None,
) -> tuple[_library.Call, Any]:
    """Returns the struct of a call, and what must live as long as it: the frame holds the views."""
    frame = Frame()
    filled, owners = frame.fill(operands, add_to)
    chosen = None if options is None else ctypes.pointer(c_options(**options))
    struct = _library.Call(module, ctypes.pointer(filled), chosen)
    return struct, (struct, frame, owners)


def _call_structs(calls: Sequence[CallArguments]) -> tuple[Any, Any]:
    """Does what call_struct() does, for an array of structs."""
    if not isinstance(calls, Sequence) or not all(isinstance(call, Mapping) for call in calls):
        raise TypeError(f"calls: {shown(calls)}; a list of dictionaries is possible")
    made = []
    for index, call in enumerate(calls):
        try:
            operands, options = split(call, FORWARD, OPTIONS)
            made.append(call_struct(operands, options))
        except (TypeError, ValueError) as error:
            raise named(f"calls[{index}]", error) from error.__cause__
    return (_library.Call * len(made))(*(struct for struct, _ in made)), made


class BoundCall(partial[None]):
    """A call on fixed arrays, which the functions named bind make. partial() makes it fast."""

    kept: Any  # what must live as long as the call

    def __reduce__(self) -> NoReturn:
        raise TypeError("BoundCall: it belongs to its arrays; bind the copies instead")


def prepared(prepare: Callable[..., int], *arguments: Any, kept: Any) -> BoundCall:
    """Returns the call that a function of the library prepares from these arguments."""
    handle = ctypes.c_void_p()
    status = prepare(byref(handle), *arguments)
    if status:
        raise_error(status)
    call = BoundCall(c.rmsnorm_run, handle)
    call.kept = kept
    weakref.finalize(call, c.rmsnorm_prepared_destroy, handle).atexit = False
    return call


@documented(ForwardOperands, AllOptions, Context)
def bind_forward(**arguments: Unpack[ForwardArguments]) -> BoundCall:
    """Returns a function without arguments that makes this call of forward() on these arrays, as
    often as it is called: for a loop that decodes token by token in fixed memory.

        step = rmsnorm.bind_forward(x=x, weight=weight, y=y)
        step()  # reads x as it is now, and writes y

    It reads the arrays as they are when it is called, and keeps them alive. One thread at a time
    may call it. It cannot be copied or pickled.
    """
    operands, options, context = split(arguments, FORWARD, OPTIONS, CONTEXT)
    struct, kept = call_struct(operands, options)
    return prepared(c.rmsnorm_prepare, byref(struct), 1, c_context(**context), kept=kept)


@documented(BackwardOperands, AllOptions, Context)
def bind_backward(**arguments: Unpack[BackwardArguments]) -> BoundCall:
    """Returns a function without arguments that makes this call of backward() on these arrays; see
    bind_forward()."""
    operands, options, context, rest = split(arguments, BACKWARD, OPTIONS, CONTEXT, ("add_to",))
    struct, kept = call_struct(operands, options, **rest)
    return prepared(c.rmsnorm_prepare_backward, byref(struct), c_context(**context), kept=kept)


@documented(Context, keys=CallArguments)
def bind_forward_all(calls: Sequence[CallArguments], **context: Unpack[Context]) -> BoundCall:
    """Returns a function without arguments that makes these calls of forward_all() on these arrays;
    see bind_forward()."""
    structs, kept = _call_structs(calls)
    (context_only,) = split(context, CONTEXT)
    return prepared(c.rmsnorm_prepare, structs, len(calls), c_context(**context_only), kept=kept)


Out = TypeVar("Out", bound=npt.NDArray[Any] | SupportsDLPack)


@overload
def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    *,
    out: None = None,
    **arguments: Unpack[NormArguments],
) -> npt.NDArray[Any]: ...


@overload
def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    *,
    out: Out,
    **arguments: Unpack[NormArguments],
) -> Out: ...


@documented(OtherOperands, OtherOptions, Context)
def rms_norm(
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    *,
    out: Array | None = None,
    **arguments: Unpack[NormArguments],
) -> Array:
    """Returns y = x / sqrt(mean(x^2) + eps) * weight, for each row of x.

    x has any shape [..., d]; the weight has d elements. The formula is equation 4 of Zhang and
    Sennrich, "Root Mean Square Layer Normalization", 2019, arXiv:1910.07467. y is `out` where that
    is given, which may be x; otherwise it is a new NumPy array with the shape and the type of x.
    Every operand and option of forward() is possible here, too:

        rms_norm(x, weight, residual=residual, residual_out=residual)  # add_norm
        rms_norm(x, weight, weight_offset=1)                           # Gemma
        rms_norm(x, weight, rounding="before_weight")                  # Llama, in bfloat16
        rms_norm(q, weight, cos=cos, sin=sin)                          # and rotary positions

    Shapes, types, errors and threads are as in forward(). Messages call `out` y.
    """
    if out is None:
        out = new_like("x", x)
    operands = {"x": x, "weight": weight, "y": out}
    if arguments:
        others, chosen, context = split(arguments, OTHERS, OPTIONS, CONTEXT)
        structs = c_options(eps, **chosen), c_context(**context)
        call_library(c.rmsnorm_forward, {**operands, **others}, *structs)
    else:
        # This is c_options() without the time of a call.
        usual = type(eps) is float and eps != 0
        options = _known_options(eps) if usual else c_options(eps)
        call_library(c.rmsnorm_forward, operands, options, None)
    return out


@documented(RotaryOperands, OtherOptions, Context)
def rms_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None = None,
    eps: float = 1e-5,
    *,
    rstd: Array | None = None,
    **arguments: Unpack[GradientArguments],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any] | None]:
    """Returns dx and dw, the gradients of a loss by x and by the weight, from dy, the gradient by
    y.

    dx is a new NumPy array with the shape and the type of x, and dw one with those of the weight,
    or None without a weight. The options and the tables are those of rms_norm(). See backward().
    """
    dx = new_like("x", x)
    dw = None if weight is None else new_like("weight", weight)
    backward(dy=dy, x=x, weight=weight, rstd=rstd, dx=dx, dw=dw, eps=eps, **arguments)
    return dx, dw


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

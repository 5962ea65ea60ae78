# SPDX-License-Identifier: Apache-2.0
"""The options as the operators take them: the bytes of rmsnorm_options, in hexadecimal.

PyTorch passes a short text faster than any other argument that holds them all, and torch.export
writes it into files.
"""

import functools
import inspect
import textwrap
from collections.abc import Callable
from ctypes import sizeof
from numbers import Real
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from .._options import DEFAULTS, NONE_IS_DEFAULT, OPTIONS, WORDS, Options

__all__ = ["checked_option", "constant_result", "kept", "packed", "takes", "unpacked"]

# torch.nn.functional.rms_norm computes types of 16 bits in float32, too, and takes its epsilon.
_DEFAULT_EPS = torch.finfo(torch.float32).eps

# The names of the options that each function takes, beside eps.
_TAKEN: dict[str, frozenset[str]] = {}

_Function = TypeVar("_Function", bound=Callable[..., Any])
is_compiling = torch.compiler.is_compiling


def constant_result(function: _Function) -> _Function:
    """Lets torch.compile call a function instead of tracing it.

    It does what torch.compiler.assume_constant_result() does, which imports the compiler: a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def takes(kind: Any) -> Callable[[_Function], _Function]:
    """Makes a decorator for a function that takes the options of a TypedDict as **options. It puts
    them into the signature, and their help into the docstring."""
    names = [name for name in OPTIONS if name in kind.__annotations__]

    def decorate(function: Any) -> Any:
        _TAKEN[function.__name__] = frozenset(names)
        signature = inspect.signature(function)
        *own, _ = signature.parameters.values()
        added = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=DEFAULTS[name],
                annotation=kind.__annotations__[name],
            )
            for name in names
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])
        lines = [inspect.cleandoc(function.__doc__ or ""), ""]
        for name in names:
            text = f"{name}: {OPTIONS[name].help}"
            lines += textwrap.wrap(text, 92, subsequent_indent="    ")
        function.__doc__ = "\n".join(lines)
        return function

    return decorate


def checked_option(name: str, value: Any) -> Any:
    """Returns the number of a word, or a number as a float."""
    if name in WORDS:
        if isinstance(value, str) and value in WORDS[name]:
            return WORDS[name].index(value)
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(WORDS[name])}")
    if value is None and name in NONE_IS_DEFAULT:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, Real | torch.SymInt | torch.SymFloat):
        raise TypeError(f"{name} is {value!r}; it must be a number")
    number = float(value)
    if name in NONE_IS_DEFAULT and abs(number) <= 2.0**-150:  # to the library 0 is the default
        raise ValueError(f"{name} is {value}; it must not be 0 in float32")
    return number


@constant_result
def _pack(function: str, eps: Any, *key: str, **options: Any) -> str:
    """`key` only tells entries of the cache apart."""
    struct = Options(size=sizeof(Options))
    struct.eps = _DEFAULT_EPS if eps is None else checked_option("eps", eps)
    for name, value in options.items():
        if name not in _TAKEN[function]:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
        setattr(struct, name, checked_option(name, value))
    return bytes(struct).hex()


_known = functools.lru_cache(maxsize=256)(_pack)
_CACHED = frozenset((float, int, str, type(None)))


def _constant(value: Any) -> Any:
    """Returns a number that torch.compile may have as a symbol."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # imports SymPy

    return guard_scalar(value) if isinstance(value, int | float) else value


def packed(function: str, eps: Any, options: Any) -> str:
    """Returns the argument `options` of the operators for those of a function.

    eps is by default the epsilon of float32.
    """
    if is_compiling():
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # imports SymPy

        if options:
            options = {name: _constant(value) for name, value in options.items()}
        return _pack(function, None if eps is None else guard_scalar(eps), **options)
    if type(eps) is float and eps != 0:
        for value in options.values():
            if type(value) is not str:
                break
        else:
            return _known(function, eps, **options)
    # The cache holds types whose equal values mean the same. Only 0.0 and -0.0 do not: with a zero,
    # the text of the options is part of the key.
    if type(eps) not in _CACHED or not _CACHED.issuperset(map(type, options.values())):
        return _pack(function, eps, **options)
    if eps == 0 or 0 in options.values():
        return _known(function, eps, f"{eps} {options}", **options)
    return _known(function, eps, **options)


@functools.lru_cache(maxsize=256)
def _unpack(options: str) -> SimpleNamespace:
    bytes_of_struct = bytes.fromhex(options).ljust(sizeof(Options), b"\0")
    struct = Options.from_buffer_copy(bytes_of_struct)
    values = {name: getattr(struct, name) for name in OPTIONS}
    return SimpleNamespace(
        **{name: WORDS[name][v] if name in WORDS else v for name, v in values.items()}
    )


@constant_result
def unpacked(options: str) -> SimpleNamespace:
    """Returns the options, which are attributes, from the argument of an operator."""
    return _unpack(options)


@functools.lru_cache(maxsize=256)
def kept(options: str, *names: str) -> str:
    """Returns the options of these names, and the defaults of the others."""
    struct = Options.from_buffer_copy(bytes.fromhex(options).ljust(sizeof(Options), b"\0"))
    fields = {name: getattr(struct, name) for name in names}
    return bytes(Options(size=sizeof(Options), **fields)).hex()

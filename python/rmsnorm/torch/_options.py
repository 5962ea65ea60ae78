# SPDX-License-Identifier: Apache-2.0
"""The options as the operators take them: the bytes of rmsnorm_options, in hexadecimal, without
zeros at the end.

PyTorch passes a short text faster than any other argument that holds them all, and torch.export
writes it into files.
"""

import functools
from collections.abc import Callable
from ctypes import sizeof
from types import SimpleNamespace
from typing import Any, TypeVar

import torch

from .. import _calls
from .._options import OPTIONS, WORDS, Options

# torch.nn.functional.rms_norm computes types of 16 bits in float32, too, and takes its epsilon.
DEFAULT_EPS = torch.finfo(torch.float32).eps

# The names of the options that each function takes, beside eps.
_TAKEN: dict[str, frozenset[str]] = {}

_HELP = {
    **_calls.HELP,
    "eps": f"{OPTIONS['eps'].help} None is the epsilon of float32, 1.19e-7, which "
    "torch.nn.functional.rms_norm takes for types of 16 bits, too.",
    "out": "[..., d]: the tensor for the result, which may be x; the call then has no gradients.",
    "dtype": "the type of y: float32, float16 or bfloat16; None is that of x.",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])
is_compiling = torch.compiler.is_compiling


def constant_result(function: _Function) -> _Function:
    """Lets torch.compile call a function instead of tracing it.

    It does what torch.compiler.assume_constant_result() does, which imports the compiler: a second.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def takes(kind: Any, **help: str) -> Callable[[_Function], _Function]:
    """Makes a decorator for a function that takes the options of a TypedDict as **options. `help`
    is that on arguments of its own."""

    def decorate(function: _Function) -> _Function:
        _TAKEN[function.__name__] = kind.__optional_keys__
        return _calls.documented(kind, help=_HELP | help)(function)

    return decorate


@constant_result
def _pack(function: str, eps: Any, **options: Any) -> str:
    for name in options:
        if name not in _TAKEN[function]:
            raise TypeError(f"{function}() got an unexpected keyword argument {name!r}")
    return _text(_calls.c_options(DEFAULT_EPS if eps is None else eps, **options))


_known = functools.lru_cache(maxsize=256, typed=True)(_pack)
_CACHED = frozenset((float, int, str, type(None)))
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def _constant(value: Any) -> Any:
    """Returns a number that torch.compile or torch.export may have as a symbol."""
    from torch.fx.experimental.symbolic_shapes import guard_scalar  # imports SymPy

    return guard_scalar(value) if isinstance(value, _NUMBERS) else value


def packed(function: str, eps: Any, options: Any) -> str:
    """Returns the argument `options` of the operators for those of a function.

    eps is by default the epsilon of float32.
    """
    if is_compiling():
        if options:
            options = {name: _constant(value) for name, value in options.items()}
        return _pack(function, _constant(eps), **options)
    # Equal values of these types mean the same, except zeros: 0.0 is not -0.0.
    if type(eps) in _CACHED and eps != 0:
        for value in options.values():
            if type(value) not in _CACHED or value == 0:
                break
        else:
            return _known(function, eps, **options)
    return _pack(function, eps, **options)


def _text(options: Options) -> str:
    return bytes(options).rstrip(b"\0").hex()


def _struct(options: str) -> Options:
    return Options.from_buffer_copy(bytes.fromhex(options).ljust(sizeof(Options), b"\0"))


@functools.lru_cache(maxsize=256)
def _unpack(options: str) -> SimpleNamespace:
    struct = _struct(options)
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
    struct = _struct(options)
    fields = {name: getattr(struct, name) for name in names}
    return _text(Options(size=sizeof(Options), **fields))

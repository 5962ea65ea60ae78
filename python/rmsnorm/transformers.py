# SPDX-License-Identifier: Apache-2.0
"""The norms of models of Hugging Face's transformers, computed by this library.

    import rmsnorm.transformers
    report = rmsnorm.transformers.use(model)
    print(report)

transformers has more than 200 classes of RMSNorm, and PyTorch's and other libraries' models have
others. They differ in what they round: Llama rounds the normalised value to the type of x before it
multiplies by the weight, OLMo 2 rounds the product, and DeepSeek-V4 rounds the inverse RMS. use()
keeps the rounding order of each class. It does not look at the name of a class: it reads the source
of forward() as one formula, and replaces the modules whose formula is in the table in _norms.py. It
leaves all others alone.
"""

import functools
import math
import sys
import weakref
from collections import Counter
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.utils import parametrize

from ._formulas import Formula, Reader, Source, UnknownFormula
from ._norms import TYPES, Known, Norm, known
from .torch import RMSNorm

__all__ = ["LeftAlone", "Replaced", "Report", "UnknownFormula", "formula", "norm_of", "use"]

#: Tensors without operations that only their own class has. The last two stand for tensors while
#: torch.compile and torch.export follow a program.
_PLAIN = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
#: The eps of torch.nn.functional.rms_norm() where it is None: all types here compute in f32.
_DEFAULT_EPS = torch.finfo(torch.float32).eps


# ----------------------------------------------------------------------------------- reading


class _Reading(NamedTuple):
    """What forward() of a class computes, by its methods as they were when they were read.

    If `known` is None, the library cannot compute it, and `reason` says why.
    """

    sources: tuple[Source, ...]
    formula: Formula | None
    known: Known | None
    reason: str


_READINGS: weakref.WeakKeyDictionary[type, _Reading] = weakref.WeakKeyDictionary()


def _is_current(source: Source, norm_class: type) -> bool:
    """Whether the class still has a method that was read, and the method its code."""
    present: Any = getattr(norm_class, source.name, None)
    return present is source.function and source.function.__code__ is source.code


def _read(norm_class: type) -> _Reading:
    """What the class computes now."""
    reading = _READINGS.get(norm_class)
    if reading and all(_is_current(source, norm_class) for source in reading.sources):
        return reading
    reader = Reader(norm_class)
    found, how, reason = None, None, ""
    try:
        found = reader.formula()
        how = known(found)
    except UnknownFormula as unknown:
        reason = str(unknown)
    reading = _Reading(tuple(reader.sources), found, how, reason)
    _READINGS[norm_class] = reading
    return reading


def formula(norm_class: type) -> Formula:
    """The formula of a class of modules.

    Raises UnknownFormula if forward() is not one expression of x, a gate and attributes.
    """
    reading = _read(_original(norm_class))
    if reading.formula is None:
        raise UnknownFormula(reading.reason)
    return reading.formula


def norm_of(norm_class: type) -> Norm:
    """The norm that a class of modules computes. UnknownFormula if the table has none for it."""
    reading = _read(_original(norm_class))
    if reading.known is None:
        raise UnknownFormula(reading.reason)
    return reading.known.norm


# --------------------------------------------------------------------------------- computing


def _is_taken(tensor: Any, only_f32: bool) -> bool:
    """Whether the library takes an operand, where it lies."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.dtype in TYPES
        and (tensor.dtype == torch.float32 or not only_f32)
        and tensor.layout == torch.strided
        and not tensor.is_nested
    )


def _eps(module: Any, found: Formula) -> Any:
    """The eps of a module, which may be anything if it is an attribute."""
    eps = getattr(module, found.eps, "missing") if isinstance(found.eps, str) else found.eps
    return _DEFAULT_EPS if eps is None and found.default_eps else eps


def _is_eps(eps: Any) -> bool:
    return isinstance(eps, (int, float)) and 0 <= eps < math.inf


def _shape(module: Any, shape: str) -> tuple[int, ...]:
    """The sizes of the dimensions that a module normalises, from the text in its formula."""
    value = getattr(module, shape.strip("[]"))
    return (value,) if shape.startswith("[") else tuple(value)


def _compute(module: Any, found: Formula, how: Known, x: Any, gate: Any = None) -> Tensor | None:
    """What the module computes, by the library, or None if the library cannot."""
    weight = getattr(module, how.weight, None) if how.weight else None
    eps = _eps(module, found)
    if not (_is_eps(eps) and _is_taken(x, how.only_f32) and x.ndim > 0):
        return None
    if gate is not None and not (_is_taken(gate, how.only_f32) and gate.shape == x.shape):
        return None
    if weight is None:
        if how.weight and how.norm.needs_weight:
            return None
    elif not _is_taken(weight, how.only_f32):
        return None
    shape = _shape(module, found.shape) if found.shape else x.shape[-1:]
    if x.shape[-len(shape) :] != shape or weight is not None and weight.shape != shape:
        return None
    if len(shape) == 1:
        inputs = (x,) if gate is None else (x, gate)
        return how.norm.compute(module, weight, eps, *inputs)
    weight = None if weight is None else weight.flatten()
    y = how.norm.compute(module, weight, eps, x.flatten(-len(shape)))
    return None if y is None else y.view(x.shape)


# ------------------------------------------------------------------------- replacing classes
#
# use() gives a module another class, derived from its own, as PyTorch's parametrize and
# fully_shard do. Everything that copies a module copies its class, and passes the copy as self. A
# forward() in the module's __dict__ would be copied with the module that it is bound to.


@functools.cache
def _replacement(norm_class: Any, reading: _Reading) -> Any:
    """A class derived from `norm_class`, whose forward() calls the library where it can.

    It calls the forward() of the class for what the library does not take, such as f64, tensors on
    another device, arguments by name, and methods that were changed after use().
    """
    sources, found, how, _ = reading
    assert found is not None and how is not None
    counts = range(1, 1 + len(found.arguments))

    (_, read_forward, code), *helpers = sources

    def is_unchanged(self: Any) -> bool:
        if norm_class.forward is not read_forward or read_forward.__code__ is not code:
            return False
        for helper in helpers:
            if helper.name in self.__dict__ or not _is_current(helper, type(self)):
                return False
        return True

    @functools.wraps(norm_class.forward)
    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        # A program that torch.jit.trace records has PyTorch's own operations.
        if not named and len(inputs) in counts and is_unchanged(self):
            if not torch._C._get_tracing_state():
                y = _compute(self, found, how, *inputs)
                if y is not None:
                    return y
        return norm_class.forward(self, *inputs, **named)

    def reduce(self: Any, protocol: int) -> Any:
        # pickle would look for this class by its name, and find the class that it is derived from.
        if type(self) is replacement:
            return _new, (norm_class,), self.__getstate__()
        return norm_class.__reduce_ex__(self, protocol)

    def prepare_scriptable(self: Any) -> Any:
        # torch.jit.script reads the forward() of the class.
        _put_back(self)
        return self

    members = {
        "forward": forward,
        "__reduce_ex__": reduce,
        "__prepare_scriptable__": prepare_scriptable,
        "__module__": norm_class.__module__,
        "__qualname__": norm_class.__qualname__,
        "__doc__": norm_class.__doc__,
        "_is_of_rmsnorm": True,
    }
    replacement = type(norm_class)(norm_class.__name__, (norm_class,), members)
    return replacement


def _new(norm_class: Any) -> Any:
    """An empty module of the replacement of a class, for pickle and copy."""
    reading = _read(norm_class)
    made = norm_class if reading.known is None else _replacement(norm_class, reading)
    return made.__new__(made)


@functools.cache
def _original(module_class: Any) -> Any:
    """The class without replacements, which others may have derived classes from."""
    if "_is_of_rmsnorm" in module_class.__dict__:
        return module_class.__bases__[0]
    bases = tuple(map(_original, module_class.__bases__))
    methods = (each for each in vars(module_class).values() if isinstance(each, FunctionType))
    # super() works in no other class than its own.
    is_bound = any("__class__" in method.__code__.co_freevars for method in methods)
    if bases == module_class.__bases__ or is_bound:
        return module_class
    members = {k: v for k, v in vars(module_class).items() if k not in ("__dict__", "__weakref__")}
    return type(module_class)(module_class.__name__, bases, members)


def _put_back(module: Any) -> None:
    original = _original(module.__class__)
    if original is not type(module):
        module.__class__ = original


def _is_fully_sharded(module: torch.nn.Module) -> bool:
    """Whether fully_shard() manages a module, and what it holds."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _reason_to_leave(module: Any, reading: _Reading, sharded: bool) -> str:
    """Why a module keeps its class, or "" if the library computes it.

    sharded: the parameters are shards now, which fully_shard() makes whole in each call.
    """
    if "forward" in module.__dict__:
        return "its forward() has been replaced already"
    if isinstance(module, RMSNorm):
        return "it computes with this library already"
    if reading.formula is None or reading.known is None:
        return reading.reason
    for source in reading.sources:
        if source.name in module.__dict__:
            return f"its {source.name}() has been replaced"
    if parametrize.is_parametrized(module):
        return "it is parametrized"
    eps = _eps(module, reading.formula)
    if not _is_eps(eps):
        kind = type(eps).__name__ if isinstance(eps, Tensor) else repr(eps)
        return f"its {reading.formula.eps} is {kind}, not a number from 0 on"
    norm, name, only_f32 = reading.known
    weight = getattr(module, name, None) if name else None
    if weight is None:
        return f"its {name} is None" if name and norm.needs_weight else ""
    if sharded and hasattr(weight, "to_local"):
        weight = weight.to_local()
    if not _is_taken(weight, only_f32):
        if not isinstance(weight, Tensor):
            return f"its {name} is a {type(weight).__name__}"
        types = "float32" if only_f32 else "float32, float16 or bfloat16"
        kind = f"{type(weight).__name__} of {str(weight.dtype).removeprefix('torch.')}"
        return f"its {name} is a {kind} on {weight.device}, not a plain tensor of {types} on cpu"
    return ""


# --------------------------------------------------------------------------------------- use


class Replaced(NamedTuple):
    """A module whose forward() is this library's."""

    name: str
    module: torch.nn.Module
    options: str


class LeftAlone(NamedTuple):
    """A module that looks like a norm and keeps its forward(), and the reason."""

    name: str
    module: torch.nn.Module
    reason: str


class Report:
    """What use() did to a model. Printed, or at the end of a notebook's cell, it is a text.

    replaced: the modules that compute with this library.
    left_alone: the other modules that have Norm in the names of their classes, or that compute a
    norm which the library could compute if they were not as they are.
    """

    def __init__(self, replaced: list[Replaced], left_alone: list[LeftAlone]) -> None:
        self.replaced = replaced
        self.left_alone = left_alone

    def undo(self) -> None:
        """Gives the modules in `replaced` the forward() of their classes again."""
        for _, module, _ in self.replaced:
            _put_back(module)

    def __repr__(self) -> str:
        classes = Counter((type(module).__name__, options) for _, module, options in self.replaced)
        lines = [f"replaced: {len(self.replaced)}"]
        lines += [f"  {count} x {name}: {text}" for (name, text), count in classes.items()]
        lines += [f"left alone: {len(self.left_alone)}"]
        for name, module, reason in self.left_alone:
            lines.append(f"  {name or 'the model'} ({type(module).__name__}): {reason}")
        return "\n".join(lines)


def use(model: torch.nn.Module) -> Report:
    """Computes the norms of a model with this library, each with its class's rounding order.

    It gives each module whose forward() computes a formula that this package knows a class derived
    from its own, with another forward(). isinstance(), the class's name, weights, state_dict and
    hooks stay. So do gradients of first order and torch.compile. Copies, and files that torch.save
    writes of the whole model, compute with this library, too: to read such a file without it, call
    undo() before torch.save. A second call changes nothing, unless the model has changed.

    Left alone are modules of other classes, modules whose forward() somebody has replaced, and
    those that the library does not compute, such as norms in f64 or on another device. Call use()
    again after moving them. The report lists them if their classes have Norm in their names, or if
    their formulas are known.

    A call that the library cannot compute goes to the class: tensors of other types, on other
    devices or of subclasses of Tensor, arguments by name, and forward() or a method that it calls
    changed after use(). torch.jit.trace, torch.jit.script and torch.fx record the operations of the
    class; torch.jit.script also undoes use() in the modules that it reads.

    The results have the bits of transformers, with two exceptions. Sums of squares, roots and
    activations of gates have other roundings in their last bits of f32. And where the squares of a
    row leave the range of f32, the results are right here, and 0, infinity or NaN there.
    """
    replaced, left_alone = [], []
    sharded: set[torch.nn.Module] = set()
    for name, module in model.named_modules():
        if _is_fully_sharded(module):
            sharded.update(module.modules())
        _put_back(module)
        norm_class: Any = type(module)
        reading = _read(norm_class)
        reason = _reason_to_leave(module, reading, module in sharded)
        if reading.known is not None and not reason:
            module.__class__ = _replacement(norm_class, reading)
            replaced.append(Replaced(name, module, reading.known.norm.options))
        elif reading.known is not None or "Norm" in norm_class.__name__:
            left_alone.append(LeftAlone(name, module, reason))
    return Report(replaced, left_alone)

# SPDX-License-Identifier: Apache-2.0
"""use(): the norms of a model, computed by this library.

Hugging Face's transformers has more than 200 classes of RMSNorm, and diffusers, PyTorch and other
models have others. They differ in what they round: Llama rounds the normalised value to the type of
x before it multiplies by the weight, OLMo 2 rounds the product, and DeepSeek-V4 rounds the inverse
RMS. use() keeps the rounding order of each class. It does not look at the name of a class: it reads
the source of forward() as one formula, and replaces the modules whose formula is in the table in
_norms.py. It leaves all others alone.
"""

import abc
import dataclasses
import functools
import re
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.nn.utils import parametrize

from ._formulas import Formula, Reader, Source, UnknownFormula
from ._module import RMSNorm
from ._norms import Known, known
from ._options import DEFAULT_EPS

#: Tensors without operations that only their own class has. The last two stand for tensors while
#: torch.compile and torch.export follow a program.
_PLAIN = (Tensor, torch.nn.Parameter, FakeTensor, FunctionalTensor)
_LARGEST_EPS = torch.finfo(torch.float32).max
#: How many layouts of tensors _order() keeps.
_MOST_ORDERS = 256


# ----------------------------------------------------------------------------------- reading


@dataclasses.dataclass(frozen=True, eq=False)
class _Reading:
    """What forward() of a class computes, by its methods as they were when they were read.

    It holds for modules with these flags. If `known` is None, the library cannot compute it, and
    `reason` says why.
    """

    sources: tuple[Source, ...]
    checks: tuple[Callable[[Any, Any], bool], ...]
    flags: dict[str, Any]
    formula: Formula | None
    known: Known | None
    reason: str


_READINGS: weakref.WeakKeyDictionary[type, list[_Reading]] = weakref.WeakKeyDictionary()


def _check_of(source: Source, lookups: dict[tuple[Any, str], Any]) -> Any:
    """A function (norm_class, module_class) that tells whether a source computes what was read.

    It looks up names as the source does: as code in the source's globals. That is faster than a
    loop over the names, and torch.compile follows it.
    """
    values: list[Any] = []

    def value(each: Any) -> str:
        values.append(each)
        return f"rmsnorm_{len(values) - 1}"

    function = value(source.function)
    owner = "norm_class" if source.name == "forward" else "module_class"
    terms = [f"{owner}.{source.name} is {function}"] if source.name else []
    terms += [
        f"{function}.__code__ is {value(source.code)}",
        f"{function}.__defaults__ is {value(source.function.__defaults__)}",
    ]
    cells = dict(zip(source.code.co_freevars, source.function.__closure__ or (), strict=True))
    for name, bound in source.names.items():
        now = f"{value(cells[name])}.cell_contents" if name in cells else name
        terms.append(f"{now} is {value(bound)}")
    terms += [f"{value(each)}.{name} is {value(v)}" for (each, name), v in lookups.items()]
    names = ["norm_class", "module_class", *(f"rmsnorm_{i}" for i in range(len(values)))]
    text = f"lambda {', '.join(names)}: {' and '.join(terms)}"
    check = eval(compile(text, "<rmsnorm>", "eval"), source.function.__globals__)
    check.__defaults__ = tuple(values)
    return check


def _is_current(reading: _Reading, norm_class: Any) -> bool:
    """Whether the methods of a class, and all that they look up, are what they were."""
    try:
        return all(check(norm_class, norm_class) for check in reading.checks)
    except (AttributeError, NameError):
        return False


def _flag(module: Any, name: str) -> Any:
    """The value of an attribute, or ... if it is no flag."""
    value = getattr(module, name, ...)
    return value if value is None or type(value) in (bool, int) else ...


def _is_same(one: Any, other: Any) -> bool:
    """Compares flags. Equal integers may be two objects, and True is not 1."""
    return type(one) is type(other) and bool(one == other)


def read(norm_class: type, flag: Callable[[str], Any]) -> _Reading:
    """What a class computes now, in a module whose flags the function gives."""
    readings = _READINGS.setdefault(norm_class, [])
    readings[:] = [reading for reading in readings if _is_current(reading, norm_class)]
    for reading in readings:
        if all(_is_same(flag(name), value) for name, value in reading.flags.items()):
            return reading
    reader = Reader(norm_class, flag)
    found, how, reason = None, None, ""
    try:
        found = reader.formula()
        how = known(found)
    except UnknownFormula as unknown:
        reason = str(unknown)
    # Names of PyTorch are the same for all methods.
    lookups = [reader.lookups, *[{}] * len(reader.sources)]
    checks = map(_check_of, reader.sources, lookups)
    readings.append(
        _Reading(tuple(reader.sources), tuple(checks), reader.flags, found, how, reason)
    )
    return readings[-1]


def reading_of(module: Any) -> _Reading:
    """What a module computes, by its own class."""
    module_class: Any = type(module)
    return read(_original(module_class), functools.partial(_flag, module))


# --------------------------------------------------------------------------------- computing


def _is_taken(tensor: Any, types: tuple[torch.dtype, ...]) -> bool:
    """Whether the library takes an operand of one of these types, where it lies."""
    return (
        type(tensor) in _PLAIN
        and tensor.is_cpu
        and tensor.dtype in types
        and tensor.layout == torch.strided
        and not tensor.is_nested
    )


def _eps(module: Any, found: Formula) -> Any:
    """The eps of a module, which may be anything if it is an attribute."""
    eps = getattr(module, found.eps) if isinstance(found.eps, str) else found.eps
    return DEFAULT_EPS if eps is None and found.is_functional else eps


def _is_eps(eps: Any) -> bool:
    """Whether the library takes an eps. Types derived from float have sums of their own."""
    return type(eps) in (float, int) and 0 <= eps <= _LARGEST_EPS


def _shape(module: Any, shape: str) -> tuple[int, ...]:
    """The sizes of the dimensions that a module normalises, from the text in its formula."""
    value = getattr(module, shape.strip("[]"))
    return (value,) if shape.startswith("[") else tuple(value)


def _compute(call: Any, parameter: str, module: Any, reading: _Reading, *inputs: Any) -> Any:
    """What the module computes, by the library, or None if the library cannot.

    call: forward() of the class.
    parameter: the name of the weight, or "" if it may be another attribute.
    """
    found, how = reading.formula, reading.known
    assert found is not None and how is not None
    eps, weight = _eps(module, found), None
    x, gate = inputs[0], inputs[-1]
    if not (_is_eps(eps) and _is_taken(x, how.types) and x.ndim > 0):
        return None
    if gate is None:
        gate, inputs = x, inputs[:1]
    elif gate is not x and not (_is_taken(gate, how.types) and gate.shape == x.shape):
        return None
    if how.weight:
        weight = module._parameters.get(parameter)
        if weight is None:
            weight = getattr(module, how.weight)
        if not _is_taken(weight, how.types):
            return None
    y = None
    if found.shape:
        shape = _shape(module, found.shape)
        if x.shape[-len(shape) :] != shape or weight is not None and weight.shape != shape:
            return None
        if len(shape) > 1:
            weight = None if weight is None else weight.flatten()
            y = how.compute(module, weight, eps, x.flatten(-len(shape)))
            y = None if y is None else y.view(x.shape)
    elif weight is not None and not (weight.dim() == 1 and weight.size(0) == x.size(-1)):
        return None
    elif found.ndim and found.ndim != x.ndim:
        return None
    if y is None and x.is_contiguous() and (gate is x or gate.is_contiguous()):
        y = how.compute(module, weight, eps, *inputs)
        if y is None:
            return None
    # A contiguous tensor may have any stride where it has one element.
    if y is not None and y.stride() == x.stride() and (gate is x or y.stride() == gate.stride()):
        return y
    if x.numel() == 0:
        return None
    order, inverse = _order(call, module, reading, weight, inputs)
    if y is None and order[-1] == x.ndim - 1:
        y = how.compute(module, weight, eps, *(each.permute(order) for each in inputs))
    else:
        y = how.compute(module, weight, eps, *inputs) if y is None else y
        if y is not None:
            y = y.permute(order).reshape(-1).view([x.size(dim) for dim in order])
    return None if y is None else y.permute(inverse)


_ORDERS: dict[Any, tuple[list[int], list[int]]] = {}


def _order(
    call: Any, module: Any, reading: Any, weight: Tensor | None, inputs: tuple[Tensor, ...]
) -> tuple[list[int], list[int]]:
    """The dimensions of the class's result in memory, the outermost first, and their places.

    The results of PyTorch's elementwise operations have the order of their operands, and which one
    counts depends on how the class writes a product. So the class itself computes a result. The
    order is kept for tensors of this layout; where torch.compile follows the call, nothing uses the
    numbers of the result, and they are not computed.
    """
    is_traced = torch.compiler.is_compiling() or type(inputs[0]) in (FakeTensor, FunctionalTensor)
    key: Any = None
    if not is_traced:
        names = {*reading.formula.attributes} - {reading.known.weight, reading.formula.eps}
        others = [getattr(module, name, None) for name in sorted(names)]
        key = (
            call,
            weight is not None and weight.dtype,
            *((each.shape, each.stride(), each.dtype) for each in inputs),
            *(None if isinstance(other, Tensor) else repr(other) for other in others),
        )
        if kept := _ORDERS.get(key):
            return kept
    with torch.no_grad():
        like = call(module, *inputs)
    strides, sizes = like.stride(), like.shape
    order: list[int] = []
    for dim in range(like.ndim):  # torch.compile has no sorted() of sizes that vary
        place = len(order)
        while place > 0:
            other = order[place - 1]
            if strides[dim] < strides[other]:
                break
            if strides[dim] == strides[other] and sizes[dim] <= sizes[other]:
                break
            place -= 1
        order.insert(place, dim)
    result = order, [order.index(dim) for dim in range(like.ndim)]
    if not is_traced:
        if len(_ORDERS) == _MOST_ORDERS:
            _ORDERS.clear()
        _ORDERS[key] = result
    return result


# ------------------------------------------------------------------------- replacing classes
#
# use() gives a module another class, derived from its own, as PyTorch's parametrize and
# fully_shard do. Everything that copies a module copies its class, and passes the copy as self. A
# forward() in the module's __dict__ would be copied with the module that it is bound to.


class _Replacement:
    """A base of the classes that use() makes."""

    _rmsnorm_flags: dict[str, Any]

    def __init_subclass__(cls, **named: Any) -> None:
        # A class may keep a list of those derived from it, or refuse some. A replacement is for it
        # no other class.
        if _Replacement not in cls.__bases__:
            super().__init_subclass__(**named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        # pickle would look for this class by its name, and find the class that it is derived from.
        if _Replacement in type(self).__bases__:
            return _new, (type(self).__bases__[1], type(self)._rmsnorm_flags), self.__getstate__()
        return super().__reduce_ex__(protocol)

    def __prepare_scriptable__(self) -> Any:
        # torch.jit.script reads the forward() of the class.
        _put_back(self)
        return self


@functools.cache
def _replacement(norm_class: Any, reading: _Reading) -> Any:
    """A class derived from `norm_class`, whose forward() calls the library where it can.

    It calls the forward() of the class for what the library does not take, such as f64, tensors on
    another device, arguments by name, and methods that were changed after use().
    """
    found, how = reading.formula, reading.known
    assert found is not None and how is not None
    counts = range(2 if found.needs_gate else 1, 1 + len(found.arguments))
    helpers = [source.name for source in reading.sources[1:]]
    # PyTorch's way to a parameter takes longer than all else that Python does in a call. Python looks
    # for attributes of the class first.
    is_found_last = norm_class.__getattr__ is torch.nn.Module.__getattr__
    is_parameter = is_found_last and not hasattr(norm_class, how.weight)
    parameter = how.weight if is_parameter else ""
    # A weight that is None is not taken.
    flags = [(name, value) for name, value in reading.flags.items() if name != how.weight]

    def is_unchanged(self: Any) -> bool:
        for name in helpers:
            if name in self.__dict__:
                return False
        for name, value in flags:
            if not _is_same(_flag(self, name), value):
                return False
        for check in reading.checks:
            if not check(norm_class, type(self)):
                return False
        return True

    @functools.wraps(norm_class.forward)
    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        # A program that torch.jit.trace records has PyTorch's own operations.
        if not named and len(inputs) in counts and is_unchanged(self):
            if not torch._C._get_tracing_state():
                y = _compute(norm_class.forward, parameter, self, reading, *inputs)
                if y is not None:
                    return y
        return norm_class.forward(self, *inputs, **named)

    members = {
        "forward": forward,
        "__module__": norm_class.__module__,
        "__qualname__": norm_class.__qualname__,
        "__doc__": norm_class.__doc__,
        "_rmsnorm_flags": reading.flags,
    }
    return type(norm_class)(norm_class.__name__, (_Replacement, norm_class), members)


def _new(norm_class: Any, flags: dict[str, Any]) -> Any:
    """An empty module of the replacement of a class, for pickle and copy."""
    reading = read(norm_class, lambda name: flags.get(name, ...))
    made = norm_class if reading.known is None else _replacement(norm_class, reading)
    return made.__new__(made)


@functools.cache
def _original(module_class: Any) -> Any:
    """The class without replacements, which others may have derived classes from."""
    if _Replacement in module_class.__bases__:
        return module_class.__bases__[1]
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
        # The class may have a __setattr__() that refuses.
        object.__setattr__(module, "__class__", original)


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
        return f"{reading.reason}; rmsnorm.identify() can tell which norm it computes"
    for source in reading.sources:
        if source.name in module.__dict__:
            return f"its {source.name}() has been replaced"
    if parametrize.is_parametrized(module):
        return "it is parametrized"
    if type(type(module)) not in (type, abc.ABCMeta):
        return f"its class has the metaclass {type(type(module)).__name__}"
    for each in reading.formula.attributes:
        if not hasattr(module, each):
            return f"it has no attribute {each}"
    eps = _eps(module, reading.formula)
    if not _is_eps(eps):
        kind = type(eps).__name__ if isinstance(eps, Tensor) else repr(eps)
        return f"its {reading.formula.eps} is {kind}, not a number from 0 on"
    name, types = reading.known.weight, reading.known.types
    weight = getattr(module, name) if name else None
    if weight is None:
        return f"its {name} is None" if name else ""
    if sharded and hasattr(weight, "to_local"):
        weight = weight.to_local()
    if not _is_taken(weight, types):
        if not isinstance(weight, Tensor):
            return f"its {name} is a {type(weight).__name__}"
        words = "float32" if len(types) == 1 else "float32, float16 or bfloat16"
        kind = f"{type(weight).__name__} of {str(weight.dtype).removeprefix('torch.')}"
        return f"its {name} is a {kind} on {weight.device}, not a plain tensor of {words} on cpu"
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
    left_alone: the other modules that look like norms: by their names or the names of their
    classes, by an attribute eps, or because their forward() calls rsqrt() or rms_norm().
    """

    def __init__(self, replaced: list[Replaced], left_alone: list[LeftAlone]) -> None:
        self.replaced = replaced
        self.left_alone = left_alone

    def undo(self) -> None:
        """Gives the modules in `replaced` the forward() of their classes again."""
        errors = []
        for _, module, _ in self.replaced:
            try:
                _put_back(module)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

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
    again after moving them. The report lists them if they look like norms.

    A call that the library cannot compute goes to the class: tensors of other types, on other
    devices or of subclasses of Tensor, arguments by name, and forward() or a method that it calls
    changed after use(), or a name of PyTorch that they look up, or a flag of the module that they
    read. torch.jit.trace, torch.jit.script and torch.fx record the operations of the class;
    torch.jit.script also undoes use() in the modules that it reads.

    The results have the bits of transformers, with two exceptions. Sums of squares, roots and
    activations of gates have other roundings in their last bits of f32. And where the squares of a
    row leave the range of f32, the results are right here, and 0, infinity or NaN there.
    """
    if not isinstance(model, torch.nn.Module):
        kind = f"{type(model).__module__}.{type(model).__qualname__}"
        raise TypeError(f"model is of type {kind}; it must be a torch.nn.Module")
    replaced, left_alone = [], []
    sharded: set[torch.nn.Module] = set()
    for name, module in [*model.named_modules()]:
        if _is_fully_sharded(module):
            sharded.update(module.modules())
        options, reason = "", ""
        try:
            options, reason = _use(module, module in sharded)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if not reason:
            replaced.append(Replaced(name, module, options))
        elif options or _looks_like_a_norm(name, module):
            left_alone.append(LeftAlone(name, module, reason))
    return Report(replaced, left_alone)


def _use(module: Any, sharded: bool) -> tuple[str, str]:
    """Replaces a norm. Returns the options of its class, and why it keeps its class, or ""."""
    _put_back(module)
    reading = reading_of(module)
    options = reading.known.options if reading.known else ""
    reason = _reason_to_leave(module, reading, sharded)
    if not reason:
        norm_class: Any = type(module)
        object.__setattr__(module, "__class__", _replacement(norm_class, reading))
    return options, reason


def _looks_like_a_norm(name: str, module: torch.nn.Module) -> bool:
    """Whether names say so, those that forward() looks up among them: there may be no source."""
    names = [type(module).__name__]
    if not [*module.children()]:
        names += [name.rpartition(".")[2], *(each for each in vars(module) if "eps" in each)]
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    names += {"rms_norm", "rsqrt"}.intersection(code.co_names if code else ())
    return any(re.search("[Nn]orm|RMS|Rms|eps|rsqrt", each) for each in names)

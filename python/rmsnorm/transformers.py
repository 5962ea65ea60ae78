# SPDX-License-Identifier: Apache-2.0
"""The norms of models of Hugging Face's transformers, computed by this library.

    import rmsnorm.transformers
    report = rmsnorm.transformers.use(model)
    print(report)

transformers has more than 200 classes of RMSNorm. They differ in what they round: Llama rounds
the normalised value to the type of x before it multiplies by the weight, OLMo 2 rounds the product,
and DeepSeek-V4 rounds the inverse RMS. use() keeps the rounding order of each class. It does not
look at the name of a class: it reads the source of forward() as one formula, and replaces the
classes whose formula is in the table below. It leaves all others alone.
"""

import ast
import functools
import inspect
import pathlib
import re
import textwrap
from collections import Counter
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .torch import gated, rms_norm

_TYPES = (torch.float32, torch.float16, torch.bfloat16)


# ---------------------------------------------------------------------------------- formulas


class UnknownFormula(Exception):
    """No formula of this module computes what a class computes. The text says why."""


def _text(node: ast.AST, names: dict[str, str], methods: type) -> str:
    """The expression `node` with all its local names replaced by what they stand for.

    Different spellings of one operation get one text: f32(a) for a.float() and a.to(torch.float32),
    as_x(a) for a.type_as(x) and a.to(x.dtype), as_weight(a), mean_square(a), rsqrt(a), silu(a) and
    activation(a). The factors of a product are in alphabetical order.
    """

    def text(node: ast.AST) -> str:
        return _text(node, names, methods)

    match node:
        case ast.Constant():
            return repr(node.value)
        case ast.Name():
            return names.get(node.id, node.id)
        case ast.Attribute():
            return f"{text(node.value)}.{node.attr}"
        case ast.Starred():
            return f"*{text(node.value)}"
        case ast.Subscript():
            return f"{text(node.value)}[{text(node.slice)}]"
        case ast.Slice(lower=lower, upper=ast.expr() as upper, step=None):
            return f"{text(lower) if lower else 0}:{text(upper)}"
        case ast.List() | ast.Tuple():
            return f"[{', '.join(map(text, node.elts))}]"
        case ast.IfExp():
            return f"({text(node.body)} if {text(node.test)} else {text(node.orelse)})"
        case ast.UnaryOp(op=ast.USub()):
            return f"-{text(node.operand)}"
        case ast.UnaryOp(op=ast.Not()):
            return f"(not {text(node.operand)})"
        case ast.BoolOp(op=ast.And()):
            return f"({' and '.join(map(text, node.values))})"
        case ast.BinOp(op=ast.Mult()):
            return f"({' * '.join(sorted((text(node.left), text(node.right))))})"
        case ast.BinOp(op=ast.Add()):
            return f"({text(node.left)} + {text(node.right)})"
        case ast.BinOp(op=ast.FloorDiv()):
            return f"({text(node.left)} // {text(node.right)})"
        case ast.Compare(ops=[ast.In() | ast.Is() | ast.IsNot() | ast.Eq() as op]):
            word = {ast.In: "in", ast.Is: "is", ast.IsNot: "is not", ast.Eq: "=="}[type(op)]
            return f"({text(node.left)} {word} {text(node.comparators[0])})"
        case ast.Call():
            keywords = [f"{keyword.arg}={text(keyword.value)}" for keyword in node.keywords]
            arguments = [*map(text, node.args), *keywords]
            match node.func:
                case ast.Attribute(value=ast.Name(id="self"), attr=name):
                    return _method_text(methods, name, *arguments)
                case ast.Attribute(value=value, attr=name):
                    return _call_text(text(value), name, arguments)
                case _:
                    return f"{text(node.func)}({', '.join(arguments)})"
    raise UnknownFormula(f"it has an expression of the kind {type(node).__name__}")


def _call_text(value: str, name: str, arguments: list[str]) -> str:
    """The text of value.name(arguments)."""
    match value, name, arguments:
        case _, "float", []:
            return f"f32({value})"
        case _, "to", ["torch.float32" | "dtype=torch.float32"]:
            return f"f32({value})"
        case _, "to", ["x.dtype"]:
            return f"as_x({value})"
        case _, "type_as", ["x"]:
            return f"as_x({value})"
        case _, "to", ["self.weight.dtype"]:
            return f"as_weight({value})"
        case _, "square", []:
            return f"square({value})"
        case _, "pow", ["2"]:
            return f"square({value})"
        case _, "mean" | "sum", ["-1" | "dim=-1", "keepdim=True"] if value.startswith("square("):
            return f"{name}_{value}"
        case "torch", "rsqrt", [a]:
            return f"rsqrt({a})"
        case "torch", "pow", [a, "-0.5"]:
            return f"rsqrt({a})"
        case "F" | "nn.functional", "silu", [a]:
            return f"silu({a})"
    return f"{value}.{name}({', '.join(arguments)})"


def _assign(target: ast.AST, value: str, names: dict[str, str]) -> None:
    """Lets the names in `target` stand for the parts of `value`."""
    match target:
        case ast.Name():
            names[target.id] = value
        case ast.Tuple():
            star = len(target.elts)
            for i, element in enumerate(target.elts):
                if isinstance(element, ast.Starred):
                    star = i
                    _assign(element.value, f"{value}[{i}:{i + 1 - len(target.elts)}]", names)
                else:
                    index = i if i < star else i - len(target.elts)
                    _assign(element, f"{value}[{index}]", names)
        case _:
            raise UnknownFormula(f"it assigns to {ast.unparse(target)}")


def _run(body: list[ast.stmt], names: dict[str, str], methods: type) -> str:
    """Follows the statements of a function, updates `names`, and gives the text of its result."""
    for statement in body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                pass  # a docstring
            case ast.Return(value=ast.expr() as value):
                return _text(value, names, methods)
            case ast.Assign(targets=[target], value=value):
                _assign(target, _text(value, names, methods), names)
            case ast.If(test=test):
                condition = _text(test, names, methods)
                others = dict(names)
                if _run(statement.body, names, methods) or _run(statement.orelse, others, methods):
                    raise UnknownFormula("it returns from inside an if statement")
                for name in names.keys() | others.keys():
                    a, b = names.get(name, "unset"), others.get(name, "unset")
                    names[name] = a if a == b else f"({a} if {condition} else {b})"
            case _:
                raise UnknownFormula(f"it has a statement of the kind {type(statement).__name__}")
    return ""


def _function(methods: type, name: str) -> ast.FunctionDef:
    """The source of a method."""
    function = getattr(methods, name, None)
    # inspect reads the source of what a decorator wraps, not of the function that runs.
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        raise UnknownFormula(f"self.{name}() is not a plain method of the class")
    try:
        parsed = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError):
        raise UnknownFormula(f"the source of self.{name}() cannot be read") from None
    if not isinstance(parsed, ast.FunctionDef) or parsed.decorator_list:
        raise UnknownFormula(f"self.{name}() is not a plain method of the class")
    return parsed


def _method_text(methods: type, name: str, *arguments: str) -> str:
    """The text of self.name(arguments)."""
    function = _function(methods, name)
    parameters = [parameter.arg for parameter in function.args.args]
    if len(parameters) != 1 + len(arguments) or function.args.vararg or function.args.kwonlyargs:
        raise UnknownFormula(f"self.{name}() has other parameters than its call has arguments")
    return _run(function.body, dict(zip(parameters, ("self", *arguments))), methods)


def _shorten(text: str) -> str:
    """Writes r for the inverse RMS of x, and n for the normalised x, and sorts factors again."""
    text = text.replace("rsqrt((mean_square(f32(x)) + eps))", "r")
    # A product of x and an f32 number is an f32 product, so that f32(x) changes nothing.
    text = text.replace("(f32(x) * r)", "n").replace("(r * x)", "n")
    return _text(ast.parse(text, mode="eval").body, {}, object)


class Formula(NamedTuple):
    """What the forward() of a class computes.

    text: the formula. x and gate are the arguments, eps is the attribute that is added to the mean
    square, r the inverse RMS of x, and n = f32(x) * r.
    eps: the name of that attribute.
    arguments: the names of x and gate.
    """

    text: str
    eps: str
    arguments: tuple[str, ...]


@functools.cache
def formula(norm_class: type) -> Formula:
    """The formula of a class of modules.

    Raises UnknownFormula if forward() is not one expression of x, a gate and attributes.
    """
    function = _function(norm_class, "forward")
    parameters = [parameter.arg for parameter in function.args.args]
    others = function.args.vararg or function.args.kwarg or function.args.kwonlyargs
    if others or len(parameters) < 2 or parameters[2:] not in ([], ["gate"]):
        raise UnknownFormula("it has other parameters than x, or x and gate")
    text = _run(function.body, dict(zip(parameters, ("self", "x", "gate"))), norm_class)
    eps = set(re.findall(r"\(\w+_square\(.*?\) \+ self\.(\w+)\)", text))
    if len(eps) != 1:
        raise UnknownFormula("it adds no attribute to a mean square")
    [name] = eps
    return Formula(_shorten(text.replace(f" + self.{name})", " + eps)")), name, (*parameters[1:],))


# ------------------------------------------------------------------------------------- norms
#
# Each function below computes the formulas in its decorator with the library. Where the library
# has no option for a step, PyTorch computes it as transformers does: a product of rounded numbers
# has the same bits in both. A function returns None where it cannot compute what the class does.

Compute = Callable[..., Tensor | None]


class Norm(NamedTuple):
    """A kind of norm: its options in the words of the library, and the function for it."""

    options: str
    compute: Compute


_NORMS: dict[str, Norm] = {}


def _computes(options: str, *formulas: str) -> Callable[[Compute], Compute]:
    """Enters a function into the table under its formulas, in any order of factors."""

    def enter(compute: Compute) -> Compute:
        for text in formulas:
            _NORMS[_shorten(_text(ast.parse(text, mode="eval").body, {}, object))] = Norm(
                options, compute
            )
        return compute

    return enter


@_computes("before_weight", "self.weight * as_x(n)")
def _before_weight(module: Any, eps: float, x: Tensor) -> Tensor:
    # PyTorch's product has the wider type of its factors, so a weight in f32 makes y f32.
    dtype = torch.promote_types(x.dtype, module.weight.dtype)
    return rms_norm(x, module.weight, eps, rounding="before_weight", dtype=dtype)


@_computes("after_weight", "as_x(self.weight * n)", "as_x(f32(self.weight) * n)")
def _after_weight(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, module.weight, eps)


@_computes("after_weight, weight_offset 1", "as_x(n * (1.0 + f32(self.weight)))")
def _offset(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, module.weight, eps, weight_offset=1.0)


@_computes("after_weight, 1 + weight rounded", "as_x(n * f32(1.0 + self.weight))")
def _rounded_offset(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, 1.0 + module.weight, eps)


@_computes("no weight", "as_x(n)")
def _no_weight(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, None, eps)


@_computes("after_weight, or no weight", "as_x(n * f32(self.weight) if self.with_scale else n)")
def _optional_weight(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, module.weight if module.with_scale else None, eps)


@_computes("no weight, divisor 1", "as_x(f32(x) * rsqrt(sum_square(f32(x)) + eps))")
def _sum(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, None, eps, divisor=1.0)


@_computes("inverse, no weight", "x * as_x(r)")
def _inverse(module: Any, eps: float, x: Tensor) -> Tensor:
    return rms_norm(x, None, eps, rounding="inverse")


@_computes(
    "before_weight in the type of the weight",
    "self.weight * (as_weight(n) if self.weight.dtype in [torch.float16, torch.bfloat16] else n)",
)
def _type_of_weight(module: Any, eps: float, x: Tensor) -> Tensor:
    weight = module.weight
    if weight.dtype == x.dtype:
        return rms_norm(x, weight, eps, rounding="before_weight")
    product: Tensor = weight * rms_norm(x, None, eps, dtype=weight.dtype)
    return product


@_computes(
    "before_weight, gate after, rounded",
    "as_x(self.weight * as_x(n) * ACT2FN[self.activation](f32(gate)))",
)
def _rounded_gate(module: Any, eps: float, x: Tensor, gate: Tensor | None = None) -> Tensor | None:
    if gate is None or module.activation not in ("silu", "sigmoid"):
        return None
    # The product with the weight is rounded to its own type, and f32 rounds nothing.
    product = torch.promote_types(x.dtype, module.weight.dtype)
    return gated(
        x,
        gate,
        module.weight,
        eps,
        activation=module.activation,
        gate_rounding="rounded" if product == x.dtype else "unrounded",
        rounding="before_weight",
    )


@_computes(
    "after_weight, gate after",
    "as_x(f32(self.weight) * n * ACT2FN[self.activation](f32(gate)))",
)
def _unrounded_gate(
    module: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor | None:
    if gate is None or module.activation not in ("silu", "sigmoid"):
        return None
    return gated(x, gate, module.weight, eps, activation=module.activation)


def _groups(x: Tensor, size: int) -> Tensor:
    return x.reshape(*x.shape[:-1], -1, size)


# Mamba-2 and its heirs: a gate before the norm of groups.
_GATED = "(f32(x) * silu(f32(gate)) if gate is not None else f32(x))"
_COUNT = f"{_GATED}.shape[-1] // self.group_size"
_GROUPS = f"{_GATED}.view(*{_GATED}.shape[:-1], {_COUNT}, self.group_size)"
_NORMED = f"({_GROUPS} * rsqrt(mean_square({_GROUPS}) + eps))"


@_computes(
    "before_weight, gate before, groups",
    f"self.weight * as_x({_NORMED}.view(*{_GATED}.shape[:-1], {_COUNT} * self.group_size))",
)
def _gated_groups(module: Any, eps: float, x: Tensor, gate: Tensor | None = None) -> Tensor:
    rows = _groups(x, module.group_size)
    if gate is None:
        n = rms_norm(rows, None, eps)
    else:
        n = gated(rows, _groups(gate, module.group_size), None, eps, gate_placement="before")
    product: Tensor = module.weight * n.reshape(x.shape)
    return product


# Qwen 4: Gemma's norm, of rows or of groups.
_ROWS = (
    "(f32(x).reshape(*f32(x).shape[:-1], -1, self.group_size)"
    " if self.group_size is not None else f32(x))"
)
_ROWS_NORMED = f"({_ROWS} * rsqrt(mean_square({_ROWS}) + eps))"


@_computes(
    "after_weight, weight_offset 1, groups",
    f"as_x(({_ROWS_NORMED}.flatten(-2) if self.group_size is not None else {_ROWS_NORMED})"
    " * (1.0 + f32(self.weight)))",
)
def _offset_groups(module: Any, eps: float, x: Tensor) -> Tensor:
    if module.group_size is None:
        return rms_norm(x, module.weight, eps, weight_offset=1.0)
    n = rms_norm(_groups(x, module.group_size), None, eps, dtype=torch.float32)
    product: Tensor = n.reshape(x.shape) * (1.0 + module.weight.float())
    return product.to(x.dtype)


# Falcon H1: the gate is before or after the norm of groups, and x has two or three dimensions.
_FIRST = "(x * silu(f32(gate)) if not self.norm_before_gate and gate is not None else x)"
_THREE = f"len({_FIRST}.shape) == 3"
_BATCH = f"{_FIRST}.shape[0]"
_LENGTH = f"({_FIRST}.shape[1] if {_THREE} else 1)"
_WIDTH = f"({_FIRST}.shape[2] if {_THREE} else {_FIRST}.shape[1])"
_SHAPE = f"self.n_groups, int({_WIDTH} // self.n_groups)"
_PARTS = f"f32({_FIRST}).view({_BATCH}, {_LENGTH}, {_SHAPE})"
_SCALED = f"({_PARTS} * rsqrt(mean_square({_PARTS}) + eps) * self.weight.view({_SHAPE}))"
_WHOLE = f"{_SCALED}.view({_BATCH}, {_LENGTH}, {_WIDTH})"
_SQUEEZED = f"({_WHOLE}.squeeze(1) if x.ndim == 2 else {_WHOLE})"


@_computes(
    "after_weight, gate before or after, groups",
    f"as_x({_SQUEEZED} * silu(f32(gate)) if self.norm_before_gate and gate is not None"
    f" else {_SQUEEZED})",
)
def _gated_groups_unrounded(
    module: Any, eps: float, x: Tensor, gate: Tensor | None = None
) -> Tensor:
    size = x.shape[-1] // module.n_groups
    rows = _groups(x, size)
    if gate is None or module.norm_before_gate:
        n = rms_norm(rows, None, eps, dtype=torch.float32)
    else:
        gate_rows = _groups(gate, size)
        n = gated(rows, gate_rows, None, eps, gate_placement="before", dtype=torch.float32)
    product: Tensor = n.reshape(x.shape) * module.weight
    if gate is not None and module.norm_before_gate:
        product = product * torch.nn.functional.silu(gate.float())
    return product.to(x.dtype)


_SCALED_X = "as_x(f32(x) * f32(1.0 + self.weight))"


@_computes(
    "no weight, x times 1 + weight rounded",
    f"as_x(f32({_SCALED_X}) * rsqrt(mean_square(f32({_SCALED_X})) + eps))",
)
def _scaled_input(module: Any, eps: float, x: Tensor) -> Tensor:
    scaled = x.float() * (1.0 + module.weight).float()
    return rms_norm(scaled.to(x.dtype), None, eps)


# xLSTM, where it has its default flags.
_WIDE = "(f32(x) if self.force_float32_reductions else x)"
_WIDE_N = f"as_x({_WIDE} * rsqrt(mean_square({_WIDE}) + eps))"
_WEIGHTED = f"({_WIDE_N} * self.weight if self.weight is not None else {_WIDE_N})"


@_computes(
    "before_weight, or no weight, without a bias",
    f"{_WEIGHTED} + self.bias if self.bias is not None else {_WEIGHTED}",
)
def _without_bias(module: Any, eps: float, x: Tensor) -> Tensor | None:
    if module.bias is not None or not module.force_float32_reductions:
        return None
    return rms_norm(x, None, eps) if module.weight is None else _before_weight(module, eps, x)


# --------------------------------------------------------------------------------------- use


@functools.cache
def norm_of(norm_class: type) -> Norm:
    """The norm that a class of modules computes. UnknownFormula if the table has none for it."""
    text = formula(norm_class).text
    if text not in _NORMS:
        short = text if len(text) < 200 else "what it computes"
        raise UnknownFormula(f"the library has no options for {short}")
    return _NORMS[text]


def _is_taken(tensor: Tensor) -> bool:
    """Whether the library takes a tensor of this type, where it lies."""
    return tensor.is_cpu and tensor.dtype in _TYPES


def _is_computable(module: Any, x: Tensor, gate: Tensor | None = None) -> bool:
    """Whether the library takes the tensors of a call."""
    weight = getattr(module, "weight", None)
    return (
        _is_taken(x)
        and x.ndim > 0
        and (weight is None or _is_taken(weight) and weight.shape == x.shape[-1:])
        and (gate is None or _is_taken(gate) and gate.shape == x.shape)
    )


@functools.cache
def forward_of(norm_class: Any) -> Callable[..., Tensor]:
    """A forward() for a class of modules, with the library. UnknownFormula if there is none.

    It calls the forward() of the class for tensors that the library does not take, such as f64 or
    tensors on another device, and for arguments by name.
    """
    found = formula(norm_class)
    compute = norm_of(norm_class).compute
    counts = range(1, 1 + len(found.arguments))

    def forward(self: Any, *inputs: Any, **named: Any) -> Tensor:
        if not named and len(inputs) in counts and _is_computable(self, *inputs):
            y = compute(self, getattr(self, found.eps), *inputs)
            if y is not None:
                return y
        result: Tensor = norm_class.forward(self, *inputs, **named)
        return result

    return forward


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
    """What use() did to a model. str() of it is a text for people.

    replaced: the modules that compute with this library.
    left_alone: the other modules of classes with Norm in their names.
    """

    def __init__(self, replaced: list[Replaced], left_alone: list[LeftAlone]) -> None:
        self.replaced = replaced
        self.left_alone = left_alone

    def undo(self) -> None:
        """Gives the modules in `replaced` the forward() of their classes again."""
        for _, module, _ in self.replaced:
            if _is_ours(module):
                del module.__dict__["forward"]

    def __str__(self) -> str:
        classes = Counter((type(module).__name__, options) for _, module, options in self.replaced)
        lines = [f"replaced: {len(self.replaced)}"]
        lines += [f"  {count} x {name}: {text}" for (name, text), count in classes.items()]
        lines += [f"left alone: {len(self.left_alone)}"]
        for name, module, reason in self.left_alone:
            lines.append(f"  {name} ({type(module).__name__}): {reason}")
        return "\n".join(lines)


def _is_ours(module: torch.nn.Module) -> bool:
    """Whether use() has given the module its forward()."""
    present = module.__dict__.get("forward")
    norm_class: Any = type(module)
    return getattr(present, "__func__", None) is forward_of(norm_class)


def use(model: torch.nn.Module) -> Report:
    """Computes the norms of a model with this library, each with its class's rounding order.

    It replaces forward() of each module whose class computes a formula that this module knows, and
    nothing else: weights, state_dict, hooks and the modules themselves stay. Gradients of first
    order and torch.compile work as before. A second call changes nothing.

    Left alone are modules of other classes, and modules whose own forward() somebody has replaced.
    The report lists those that have Norm in the names of their classes.

    The results have the bits of transformers, with two exceptions. Sums of squares and activations
    of gates have other roundings in their last bits of f32. And where the squares of a row leave
    the range of f32, the results are right here, and 0, infinity or NaN there.
    """
    replaced, left_alone = [], []
    for name, module in model.named_modules():
        norm_class: Any = type(module)
        try:
            forward = forward_of(norm_class)
        except UnknownFormula as reason:
            if "Norm" in norm_class.__name__:
                left_alone.append(LeftAlone(name, module, str(reason)))
            continue
        if "forward" not in module.__dict__:
            module.forward = MethodType(forward, module)
        if _is_ours(module):
            replaced.append(Replaced(name, module, norm_of(norm_class).options))
        else:
            left_alone.append(LeftAlone(name, module, "its forward() has been replaced already"))
    return Report(replaced, left_alone)


# ----------------------------------------------------------------------------------- kernels

#: The folder of layers for Hugging Face's kernels, for a mapping such as
#: {"RMSNorm": {"cpu": kernels.LocalLayerRepository(KERNELS, layer_name="RMSNorm")}}.
KERNELS = pathlib.Path(__file__).parent / "kernels"


def norm(module: torch.nn.Module, *inputs: Tensor | None) -> Tensor:
    """What forward() of the module's class computes, by this library if it knows the formula.

    The layers in KERNELS call it.
    """
    norm_class: Any = type(module)
    try:
        forward = forward_of(norm_class)
    except UnknownFormula:
        forward = norm_class.forward
    return forward(module, *inputs)

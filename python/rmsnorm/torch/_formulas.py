# SPDX-License-Identifier: Apache-2.0
"""Reads the source of a module's forward(), and of what it calls, as one formula."""

import ast
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
)
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class UnknownFormula(Exception):
    """No formula that use() knows computes what a module computes. The text says why."""


class Formula(NamedTuple):
    """What the forward() of a class computes.

    text: the formula. x and gate are the arguments, eps is what is added to the mean square, r the
    inverse RMS of x, and n = f32(x) * r.
    eps: the name of the attribute that holds eps, or its value.
    is_functional: whether it calls torch.nn.functional.rms_norm(), which has a default for an eps
        of None.
    shape: the attribute with the sizes of the dimensions that are normalised, in brackets where it
        is one size, or "" for the last dimension.
    arguments: the names of x and gate.
    needs_gate: whether a call without a gate is an error.
    attributes: the names of all attributes of the module in the formula.
    ndim: how many dimensions x must have, or 0.
    """

    text: str
    eps: str | float | None
    is_functional: bool
    shape: str
    arguments: tuple[str, ...]
    needs_gate: bool
    attributes: tuple[str, ...]
    ndim: int


class Source(NamedTuple):
    """A function that was read: if it is another one later, the formula is not that of the class.

    name: the name of a method, or "" for a function that the source before it looks up.
    names: the global names and those of enclosing functions that it looks up, with what they were
    bound to.
    """

    name: str
    function: Any
    code: CodeType
    names: dict[str, Any]


_OWNERS = {"torch": torch, "nn": torch.nn, "F": F}
_PYTORCH = os.path.dirname(torch.__file__)


def _is_pytorchs(value: Any, name: str) -> bool:
    """Whether an attribute of PyTorch is what PyTorch has under this name."""
    if isinstance(value, FunctionType):
        return value.__code__.co_filename.startswith(_PYTORCH)
    if isinstance(value, (BuiltinFunctionType, MethodDescriptorType, GetSetDescriptorType)):
        return value.__name__.strip("_") == name.strip("_")
    return isinstance(value, (torch.dtype, ModuleType))


#: Functions of torch that are methods of their first argument, too.
_METHODS = ("add", "clamp", "mean", "mul", "norm", "pow", "rsqrt", "sqrt", "square", "sum")
_FUNCTIONS = {
    function: (text, name)
    for text, names in (
        ("torch", ("rms_norm", *_METHODS)),
        ("F", ("normalize", "rms_norm", "silu")),
    )
    for name in names
    if (function := getattr(_OWNERS[text], name)).__name__ == name and _is_pytorchs(function, name)
}
#: The operation that an operator is, and the methods of tensors that Python calls for it.
_OPERATORS: dict[Any, tuple[str, ...]] = {
    ast.Add: ("add", "__add__", "__radd__"),
    ast.Mult: ("mul", "__mul__", "__rmul__"),
    ast.Div: ("/", "__truediv__", "__rtruediv__"),
    ast.Pow: ("pow", "__pow__"),
}


def _product(a: str, b: str) -> str:
    return f"square({a})" if a == b else f"({' * '.join(sorted((a, b)))})"


def _quotient(a: str, b: str) -> str:
    if re.fullmatch(r"sum_square\((f32\(x\)|x)\)", a) and b in ("x.shape[-1]", "f32(x).shape[-1]"):
        return a.replace("sum", "mean", 1)
    # A quotient by a root and a product with its inverse differ in the last bit of f32.
    match = re.fullmatch(r"sqrt\((\(eps \+ mean_square\([\w()]+\)\))\)", b)
    if match:
        return f"rsqrt({match[1]})" if a == "1.0" else _product(a, f"rsqrt({match[1]})")
    return f"({a} / {b})"


def _power(a: str, exponent: str) -> str:
    names = {"2": "square", "2.0": "square", "0.5": "sqrt", "-0.5": "rsqrt"}
    return f"{names[exponent]}({a})" if exponent in names else f"{a}.pow({exponent})"


def _real(text: str) -> str:
    """A number as Python writes a float."""
    return f"{text}.0" if text.isdecimal() else text


def _bind(names: tuple[str, ...], arguments: list[str], keywords: dict[str, str]) -> dict[str, str]:
    """The arguments by their names."""
    if len(arguments) > len(names):
        raise UnknownFormula("it calls a function of PyTorch with too many arguments")
    return dict(zip(names, arguments)) | keywords


class Reader:
    """Reads the methods of a class and the functions they call, and remembers them in `sources`.

    `lookups` has what they take from PyTorch, by owner and name. A flag of a module is an attribute
    that a condition reads: it has its value before the formula is written down, and the formula
    holds for the flags in `flags` alone. `flag` gives their values, or ... for what is no flag.

    Different spellings of one operation get one text: f32(a) for a.float() and a.to(torch.float32),
    as_x(a) for a.type_as(x) and a.to(x.dtype), as_weight(a), mean_square(a), rsqrt(a), silu(a). The
    terms of a sum and the factors of a product are in alphabetical order.

    Without a class it reads texts of this kind again, to put them in order.
    """

    def __init__(
        self, norm_class: type | None = None, flag: Callable[[str], Any] = lambda name: ...
    ) -> None:
        self.norm_class = norm_class
        self.flags: dict[str, Any] = {}
        self.sources: list[Source] = []
        self.lookups: dict[tuple[Any, str], Any] = {}
        self.eps: set[str] = set()
        self.is_functional = False
        self.shapes: set[str] = set()
        self.attributes: set[str] = set()
        self.ndim = 0
        self._flag = flag
        self._globals: dict[str, Any] = {}
        self._source = Source("", None, Reader.__init__.__code__, {})

    def formula(self) -> Formula:
        """The formula of forward(). Raises UnknownFormula if it is not one expression."""
        parameters, function = self._parse("forward", self._method("forward"))
        defaults = self.sources[0].function.__defaults__ or ()
        if any(default is not None for default in defaults):
            raise UnknownFormula("a parameter has a default that is not None")
        text = self._run(function.body, dict(zip(parameters, ("self", "x", "gate"))))
        if len(parameters) == 3 and not re.search(r"(?<!\.)\bgate\b", text):
            raise UnknownFormula(f"it does not use {parameters[2]}")
        if len(self.eps) != 1:
            raise UnknownFormula("it adds no eps to a mean square")
        if len(self.shapes) > 1:
            raise UnknownFormula("it normalises different dimensions")
        for source in self.sources:
            if not _has_code_of_source(source.function):
                name = f"self.{source.name}" if source.name else source.code.co_name
                raise UnknownFormula(f"{name}() runs other code than its source has")
        [eps] = self.eps
        value = eps.removeprefix("self.") if eps.startswith("self.") else ast.literal_eval(eps)
        shape = "".join(self.shapes)
        return Formula(
            shorten(text),
            value,
            self.is_functional,
            shape,
            (*parameters[1:],),
            not defaults and len(parameters) == 3,
            (*sorted(self.attributes),),
            self.ndim,
        )

    def text(self, node: ast.AST, names: dict[str, str]) -> str:
        """The expression `node` with all its local names replaced by what they stand for."""

        def text(node: ast.AST) -> str:
            return self.text(node, names)

        match node:
            case ast.Constant():
                return repr(node.value)
            case ast.Name():
                return names.get(node.id) or self._global_name(node.id)
            case ast.Attribute():
                return self._attribute(text(node.value), self._mangled(node.attr))
            case ast.Starred():
                return f"*{text(node.value)}"
            case ast.Subscript():
                return f"{text(node.value)}[{text(node.slice)}]"
            case ast.Slice(lower=lower, upper=ast.expr() as upper, step=None):
                return f"{text(lower) if lower else 0}:{text(upper)}"
            case ast.Slice(lower=ast.expr() as lower, upper=None, step=None):
                return f"{text(lower)}:"
            case ast.List() | ast.Tuple():
                return f"[{', '.join(map(text, node.elts))}]"
            case ast.IfExp():
                condition = self._condition(node.test, names)
                if condition in ("True", "False"):
                    return text(node.body if condition == "True" else node.orelse)
                return f"({text(node.body)} if {condition} else {text(node.orelse)})"
            case ast.UnaryOp(op=ast.USub()):
                self._look_up(Tensor, "__neg__")
                return f"-{text(node.operand)}"
            case ast.UnaryOp(op=ast.Not()) | ast.BoolOp(op=ast.And()):
                return self._condition(node, names)
            case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
                name, *methods = _OPERATORS[type(operator)]
                for method in methods:
                    self._look_up(Tensor, method)
                return self._operation(text(node.left), name, [text(node.right)], {})
            case ast.BinOp(op=ast.FloorDiv()):
                return f"({text(node.left)} // {text(node.right)})"
            case ast.Compare(ops=[ast.In() | ast.Is() | ast.IsNot() | ast.Eq() as op]):
                word = {ast.In: "in", ast.Is: "is", ast.IsNot: "is not", ast.Eq: "=="}[type(op)]
                return f"({text(node.left)} {word} {text(node.comparators[0])})"
            case ast.Call():
                return self._call(node, names)
        raise UnknownFormula(f"it has an expression of the kind {type(node).__name__}")

    def _condition(self, node: ast.expr, names: dict[str, str]) -> str:
        """The text of a condition: "True" or "False" where flags decide it."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                condition = self._condition(operand, names)
                known = {"True": "False", "False": "True"}
                return known.get(condition, f"(not {condition})")
            case ast.BoolOp(op=ast.And(), values=values):
                terms = [self._condition(value, names) for value in values]
                if "False" in terms:
                    return "False"
                unknown = [term for term in terms if term != "True"] or ["True"]
                return f"({' and '.join(unknown)})" if len(unknown) > 1 else unknown[0]
        text = self.text(node, names)
        asked = re.fullmatch(r"self\.(\w+)|\(self\.(\w+) is (not )?None\)", text)
        if asked is None or asked[1] == "training":
            return text
        value = self._flag_value(asked[1] or asked[2])
        if asked[2]:
            return str((value is None) != bool(asked[3]))
        return text if value is ... else str(bool(value))

    def _flag_value(self, name: str) -> Any:
        value = self.flags[name] = self._flag(name)
        return value

    def _global_name(self, name: str) -> str:
        """The text of a name that is not local: that of the object, not of the name."""
        if self.norm_class is None:
            return name
        value = self._source.names[name] = self._globals.get(name)
        activations = sys.modules.get("transformers.activations")
        known = (float, int, len, getattr(activations, "ACT2FN", len))
        text = name if any(value is one for one in known) else _name_of(value)
        if type(value) in (bool, int, float):
            return repr(value)
        if not text:
            raise UnknownFormula(f"it uses {name}, which is not PyTorch's")
        return text

    def _attribute(self, owner: str, name: str) -> str:
        """The text of an attribute of the module, of PyTorch or of a tensor."""
        full = f"{owner}.{name}"
        if owner == "self":
            self.attributes.add(name)
        elif owner in _OWNERS:
            return _name_of(self._look_up(_OWNERS[owner], name)) or full
        elif hasattr(Tensor, name):
            self._look_up(Tensor, name)
        return full

    def _look_up(self, owner: Any, name: str) -> Any:
        """An attribute of PyTorch. Raises UnknownFormula if somebody has replaced it."""
        if self.norm_class is None:
            return None
        value = getattr(owner, name, None)
        self.lookups[owner, name] = value
        if not _is_pytorchs(value, name):
            raise UnknownFormula(f"it uses {owner.__name__}.{name}, which is not PyTorch's own")
        return value

    def _mangled(self, name: str) -> str:
        """The name by which Python knows `name` in the class whose text has the method."""
        if self.norm_class is None or not name.startswith("__") or name.endswith("__"):
            return name
        outer = self._source.code.co_qualname.rpartition(".")[0]
        while outer.endswith("<locals>"):
            outer = outer.removesuffix(".<locals>").rpartition(".")[0]
        owner = outer.rpartition(".")[2].lstrip("_")
        return f"_{owner}{name}" if owner else name

    def _call(self, node: ast.Call, names: dict[str, str]) -> str:
        arguments = [self.text(argument, names) for argument in node.args]
        keywords = {str(each.arg): self.text(each.value, names) for each in node.keywords}
        function: Any = None
        if {"out", "inplace"} & keywords.keys():
            raise UnknownFormula("it calls a function that may write to a tensor")
        match node.func:
            case ast.Attribute(value=value, attr=name):
                owner = self.text(value, names)
                if owner == "self" and not keywords:
                    name = self._mangled(name)
                    return self._result(name, self._method(name), ["self", *arguments])
                # The result of mean() has no other name, which would still stand for its old numbers.
                is_mean = isinstance(value, ast.Call) and getattr(value.func, "attr", "") == "mean"
                if re.search("[^_]_$", name) and not (is_mean and name == "add_"):
                    raise UnknownFormula(f"it calls {name}(), which writes to a tensor")
                if owner not in _OWNERS:
                    if hasattr(Tensor, name):
                        self._look_up(Tensor, name)
                    return self._operation(owner, name, arguments, keywords)
                function = self._look_up(_OWNERS[owner], name)
            case ast.Name(id=name) if name not in names:
                function = self._globals.get(name)
                if isinstance(function, (BuiltinFunctionType, FunctionType)):
                    self._source.names[name] = function
        if isinstance(function, (BuiltinFunctionType, FunctionType)) and function in _FUNCTIONS:
            return self._operation(*_FUNCTIONS[function], arguments, keywords)
        if isinstance(function, FunctionType) and isinstance(node.func, ast.Name) and not keywords:
            return self._result("", function, arguments)
        full = [*arguments, *(f"{key}={value}" for key, value in keywords.items())]
        return f"{self.text(node.func, names)}({', '.join(full)})"

    def _method(self, name: str) -> Any:
        return getattr(self.norm_class, name, None)

    def _result(self, name: str, function: Any, arguments: list[str]) -> str:
        """The text of the result of a method, or of a function without a name."""
        outside = self._globals, self._source
        parameters, parsed = self._parse(name, function)
        if len(parameters) != len(arguments) or parsed.args.vararg:
            raise UnknownFormula(f"{parsed.name}() has other parameters than its call has arguments")
        text = self._run(parsed.body, dict(zip(parameters, arguments)))
        self._globals, self._source = outside
        return text

    def _operation(
        self, value: str, name: str, arguments: list[str], keywords: dict[str, str]
    ) -> str:
        """The text of value.name(arguments), where value is a tensor or a module of PyTorch."""
        if value == "torch" and name in _METHODS and arguments:
            value, *arguments = arguments
        match name, arguments, [*keywords.items()]:
            case "rms_norm", _, _ if value in ("F", "torch"):
                return self._rms_norm(arguments, keywords)
            case "normalize", [a, *arguments], _ if value == "F":
                bound = _bind(("p", "dim", "eps"), arguments, keywords)
                self.eps.add(bound.pop("eps", "1e-12"))
                if bound in ({"dim": "-1"}, {"p": "2", "dim": "-1"}, {"p": "2.0", "dim": "-1"}):
                    return f"normalize({a})"
            case "silu", [a], [] if value == "F":
                return f"silu({a})"
            case "norm", _, _:
                bound = _bind(("p", "dim", "keepdim"), arguments, keywords)
                if bound.pop("p", "2") == "2" and bound == {"dim": "-1", "keepdim": "True"}:
                    return f"norm({value})"
            case "mean" | "sum", _, _ if value.startswith("square("):
                bound = _bind(("dim", "keepdim"), arguments, keywords)
                match bound:
                    case {"dim": dim, "keepdim": "True"} if len(bound) == 2:
                        last = self._is_last(dim)
                        return f"{name}_{value}" if last else f"{name}_along({value}, {dim})"
            case ("clamp", [], [("min", least)]) | ("clamp_min", [least], []):
                return self._maximum(value, least)
            case ("to" | "type", [dtype], []) | ("to", [], [("dtype", dtype)]):
                return self._cast(value, dtype)
            case "float", [], []:
                return f"f32({value})"
            case "type_as", ["x"], []:
                return f"as_x({value})"
            case "rsqrt" | "sqrt" | "square", [], []:
                return f"{name}({value})"
            case "reciprocal", [], []:
                return _quotient("1.0", value)
            case "/", [divisor], []:
                return _quotient(_real(value), divisor)
            case "pow", [exponent], []:
                return _power(value, exponent)
            case "mul", [factor], []:
                return _product(value, factor)
            case "add", [other], []:
                return self._sum(value, other)
            case "add_", [other], [] if value.startswith("mean_square("):
                return self._sum(value, other)
            case "size", [dim], []:
                return f"{value}.shape[{dim}]"
        full = [*arguments, *(f"{key}={each}" for key, each in keywords.items())]
        return f"{value}.{name}({', '.join(full)})"

    def _is_last(self, dim: str) -> bool:
        """Whether a dimension is the last one, which an attribute may name by its place."""
        if dim.startswith("self."):
            place = self._flag_value(dim.removeprefix("self."))
            if type(place) is int and place >= 0:
                self.ndim = place + 1
            return type(place) is int and place >= -1
        return dim in ("-1", "[-1]")

    def _cast(self, value: str, dtype: str) -> str:
        if (value, dtype) == ("x", "x.dtype"):
            return value
        names = {"torch.float32": "f32", "x.dtype": "as_x", "self.weight.dtype": "as_weight"}
        return f"{names[dtype]}({value})" if dtype in names else f"{value}.to({dtype})"

    def _sum(self, *terms: str) -> str:
        a, b = sorted(map(_real, terms))
        for eps, other in ((a, b), (b, a)):
            square = re.match(r"(sqrt\()?(mean|sum)_(square|along)\(", other)
            if square and re.fullmatch(r"self\.\w+|[\d.e+-]+", eps):
                self.eps.add(eps)
                return f"(eps + {other})"
        return f"({a} + {b})"

    def _maximum(self, value: str, least: str) -> str:
        if re.fullmatch(r"self\.\w+|[\d.e+-]+", least):
            self.eps.add(least)
            return f"max({value}, eps)"
        return f"max({value}, {least})"

    def _rms_norm(self, arguments: list[str], keywords: dict[str, str]) -> str:
        """The text of torch.nn.functional.rms_norm(), which rounds once, to the type of x."""
        names = ("input", "normalized_shape", "weight", "eps")
        bound = _bind(names, arguments, keywords)
        x, shape = bound.get("input", ""), bound.get("normalized_shape", "")
        eps, weight = bound.get("eps", "None"), bound.get("weight", "None")
        if x not in ("x", "f32(x)") or set(bound) - set(names):
            raise UnknownFormula("it calls rms_norm() for something else than x")
        if re.fullmatch(r"self\.\w+|\[self\.\w+\]", shape):
            self.shapes.add(shape.replace("self.", ""))
        elif shape not in (f"[{x}.shape[-1]]", f"{x}.shape[-1:]", "[x.shape[-1]]", "x.shape[-1:]"):
            raise UnknownFormula(f"it calls rms_norm() with the shape {shape}")
        self.eps.add(eps)
        self.is_functional = True
        self._look_up(torch, "rms_norm")
        if weight.startswith("self.") and self._flag_value(weight.removeprefix("self.")) is None:
            weight = "None"
        n = "(f32(x) * rsqrt((eps + mean_square(f32(x)))))"
        y = n if weight == "None" else _product(n, weight)
        return f"as_x({y})" if x == "x" else y

    def _run(self, body: list[ast.stmt], names: dict[str, str]) -> str:
        """Follows the statements of a function, updates `names`, and gives the text of its result.

        The text is empty if the statements do not return.
        """
        for i, statement in enumerate(body):
            match statement:
                case ast.Expr(value=ast.Constant()):
                    pass  # a docstring
                case ast.Return(value=ast.expr() as value):
                    return self.text(value, names)
                case ast.Assign(targets=[target], value=value):
                    _assign(target, self.text(value, names), names)
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    _assign(target, self.text(value, names), names)
                case ast.If(test=test):
                    condition = self._condition(test, names)
                    if condition in ("True", "False"):
                        chosen = statement.body if condition == "True" else statement.orelse
                        return self._run([*chosen, *body[i + 1 :]], names)
                    others = dict(names)
                    result = self._run(statement.body, names)
                    if result:
                        other = self._run([*statement.orelse, *body[i + 1 :]], others)
                        return f"({result} if {condition} else {other})"
                    if self._run(statement.orelse, others):
                        raise UnknownFormula("it returns from inside an else")
                    for name in names.keys() | others.keys():
                        a, b = names.get(name, "unset"), others.get(name, "unset")
                        names[name] = a if a == b else f"({a} if {condition} else {b})"
                case _:
                    kind = type(statement).__name__
                    raise UnknownFormula(f"it has a statement of the kind {kind}")
        return ""

    def _parse(self, name: str, function: Any) -> tuple[list[str], ast.FunctionDef]:
        """The parameters of a function, and its source, whose globals are used from now on."""
        full = f"self.{name}()" if name else f"{function.__name__}()"
        if not isinstance(function, FunctionType):
            raise UnknownFormula(f"{full} is not a plain method of the class")
        self._source = Source(name, function, function.__code__, {})
        self.sources.append(self._source)
        # Most modules of a model are no norms, and their sources are not read.
        if name == "forward" and not _takes_x(function.__code__):
            raise UnknownFormula("it has other parameters than x, or x and gate")
        parsed = _source_of(function)
        if parsed is None:
            raise UnknownFormula(f"the source of {full} cannot be read")
        if parsed.decorator_list:
            raise UnknownFormula(f"{full} has a decorator")
        scope = inspect.getclosurevars(function)
        self._globals = {**scope.builtins, **scope.globals, **scope.nonlocals}
        if parsed.args.kwonlyargs or parsed.args.kwarg or parsed.args.posonlyargs:
            raise UnknownFormula(f"{full} has parameters that only have a name")
        return [parameter.arg for parameter in parsed.args.args], parsed


def _takes_x(code: CodeType) -> bool:
    """Whether a method takes x, or x and gate, and nothing else."""
    others = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS) or code.co_kwonlyargcount
    parameters = code.co_varnames[: code.co_argcount]
    return not others and len(parameters) > 1 and parameters[2:] in ((), ("gate",))


def _name_of(value: Any) -> str:
    """The text of a module or a type of PyTorch, or ""."""
    if isinstance(value, torch.dtype):
        return str(value)
    return next((text for text, owner in _OWNERS.items() if value is owner), "")


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


@functools.lru_cache(maxsize=8)
def _compiled(text: str) -> CodeType:
    return compile(text, "", "exec", dont_inherit=True)


def _source_of(function: FunctionType) -> ast.FunctionDef | None:
    """The source of a function, or None."""
    code = function.__code__
    try:
        text = inspect.getsource(code)
        is_method = text[0].isspace()
        node: ast.AST = ast.parse(f"if True:\n{text}" if is_method else text).body[0]
    except (OSError, SyntaxError):
        return None
    node = node.body[0] if isinstance(node, ast.If) else node
    return node if isinstance(node, ast.FunctionDef) and node.name == code.co_name else None


def _has_code_of_source(function: FunctionType) -> bool:
    """Whether a function has the code of its source.

    It has not where its code was replaced, or where the file has changed since it was imported.
    """
    wanted, parts = function.__code__, attrgetter("co_code", "co_names", "co_varnames", "co_consts")
    codes = [_compiled("".join(inspect.findsource(function)[0]))]
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, CodeType)]
        if (code.co_qualname, code.co_firstlineno) == (wanted.co_qualname, wanted.co_firstlineno):
            return bool(parts(code) == parts(wanted))
    return False


def read(text: str) -> str:
    """A formula in the words of Reader, with its terms and factors in order.

    Raises UnknownFormula if it is not one expression.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:  # a part of a tensor, or a path without a result
        raise UnknownFormula("what it computes is not one expression") from None
    return Reader().text(node, {})


def shorten(text: str) -> str:
    """Writes r for the inverse RMS of x, and n for the normalised x, and puts factors in order."""
    text = read(text).replace("rsqrt((eps + mean_square(f32(x))))", "r")
    # A product of x and an f32 number is an f32 product, so that f32(x) changes nothing.
    return read(text.replace("(f32(x) * r)", "n").replace("(r * x)", "n"))


def in_f32(text: str) -> str:
    """What a formula is where all tensors are f32: no cast changes a number."""
    text = read(re.sub(r"\b(f32|as_x|as_weight)\(", "(", text))
    text = text.replace("rsqrt((eps + mean_square(x)))", "r").replace("(r * x)", "n")
    return read(text)

# SPDX-License-Identifier: Apache-2.0
"""Tests of rmsnorm.transformers against transformers' own modules.

Run as a program it writes the table in doc/transformers_classes.md.
"""

import copy
import functools
import importlib
import inspect
import itertools
import pathlib
import pickle
import re
import subprocess
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed
import torch.nn.functional as F
import torch.nn.utils.parametrize
import transformers
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

import rmsnorm._norms
import rmsnorm.torch
import rmsnorm.transformers
from rmsnorm.torch import gated, rms_norm

PAGE = pathlib.Path(__file__).parents[2] / "doc" / "transformers_classes.md"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
#: The types of x and of the weight.
TYPES = [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F16, F32), (F32, BF16)]


# ----------------------------------------------------------------------------------- classes


@functools.cache
def all_classes() -> list[type]:
    """Every class of modules in transformers' models whose file has a norm."""
    folder = pathlib.Path(transformers.__file__).parent / "models"
    classes = []
    for path in sorted(folder.glob("*/modeling_*.py")):
        if not re.search(r"^ *class \w*Norm", path.read_text(), re.MULTILINE):
            continue
        module = importlib.import_module(f"transformers.models.{path.parent.name}.{path.stem}")
        classes += [
            member
            for member in vars(module).values()
            if inspect.isclass(member)
            and issubclass(member, torch.nn.Module)
            and member.__module__ == module.__name__
        ]
    return classes


def options_of(norm: type) -> str:
    """The options of a class, or why there are none."""
    try:
        return rmsnorm.transformers.norm_of(norm).options
    except rmsnorm.transformers.UnknownFormula as reason:
        return f"left alone: {reason}"


@functools.cache
def known_classes() -> list[type]:
    """The classes that the library computes in every type."""
    known = [norm for norm in all_classes() if not options_of(norm).startswith("left alone")]
    return [norm for norm in known if not is_for_f32(norm)]


def is_for_f32(norm: type) -> bool:
    return rmsnorm._norms.known(rmsnorm.transformers.formula(norm)).only_f32


def unknown_classes() -> list[type]:
    """The classes that are left alone although their names say RMSNorm or L2Norm."""
    unknown = set(all_classes()) - set(known_classes())
    return [norm for norm in all_classes() if norm in unknown and has_name_of_norm(norm)]


def has_name_of_norm(norm: type) -> bool:
    return re.search("RMSNorm|L2Norm", norm.__name__) is not None


def make_all(norm: type, d: int, weight_dtype: torch.dtype) -> Iterator[Any]:
    """Modules of a class for rows of d elements, with random weights: one for each flag it has."""
    flags = {
        "group_size": (d // 4, d),
        "n_groups": (4, 1),
        "norm_before_gate": (True, False),
        "with_scale": (True, False),
        "use_weight": (True, False),
        "hidden_size": (d,),
        "num_features": (d,),
        "dim": (d,),
    }
    names = [name for name in inspect.signature(norm).parameters if name in flags]
    for values in itertools.product(*(flags[name] for name in names)):
        module = norm(**dict(zip(names, values, strict=True)))
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            tensor.data = (torch.randn(tensor.shape) * 0.5).to(weight_dtype)
        yield module


def has_gate(norm: type) -> bool:
    return "gate" in rmsnorm.transformers.formula(norm).arguments


def inputs_of(norm: type, x: Tensor) -> list[tuple[Tensor, ...]]:
    """The arguments to test: x, and x with a gate."""
    if not has_gate(norm):
        return [(x,)]
    gate = (torch.randn(x.shape) * 2).to(x.dtype)
    optional = not has_word(norm, "gate after")
    return [(x, gate), (x,)] if optional else [(x, gate)]


def has_word(norm: type, words: str) -> bool:
    return words in options_of(norm)


class Operators(TorchDispatchMode):
    """Collects the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.add(operator.name())
        return operator(*args, **kwargs or {})


def is_computed_by_library(module: Any, *inputs: Tensor) -> bool:
    with Operators() as operators:
        module(*inputs)
    return any(name.startswith("rmsnorm::") for name in operators.names)


def ours(module: Any, *inputs: Tensor) -> Tensor:
    """What the module gives after use(), which must come from the library."""
    copied = copy.deepcopy(module)
    report = rmsnorm.transformers.use(copied)
    assert len(report.replaced) == 1, str(report)
    assert is_computed_by_library(copied, *inputs)
    y: Tensor = copied(*inputs)
    return y


# ---------------------------------------------------------------------------------- measures


def ulps(a: Tensor, b: Tensor) -> Tensor:
    """How many numbers of their type lie between a and b, for each element."""
    assert a.dtype == b.dtype
    integers = torch.int32 if a.dtype == F32 else torch.int16

    def rank(t: Tensor) -> Tensor:
        bits = t.contiguous().view(integers).long()
        return torch.where(bits < 0, -(bits & (2**31 - 1 if t.dtype == F32 else 2**15 - 1)), bits)

    return (rank(a) - rank(b)).abs()


def bound(d: int) -> float:
    """A bound for the difference of two f32 results of one norm, in units of 2^-24 of them.

    A sum of positive numbers has a relative error of at most one unit for each rounding on the
    longest way from an element to the result, and the root halves it. doc/definition.md, section
    15, has the bound of this library. PyTorch adds in at least 32 lanes (four vectors of eight
    numbers), and then adds the lanes, by at most 16 roundings more. Then each has at most four
    roundings (n, offset, weight, y), and a gate of at most four units.
    """
    k, b = -(-min(d, 4096) // 128), -(-d // 4096) - 1
    here = (k + 7 + b) / 2 + 4
    there = (d / 32 + 16) / 2 + 4
    return here + there + 2 * (4 + 4)


def share_bound(dtype: torch.dtype, d: int) -> float:
    """How large a share of elements may round differently.

    Two f32 numbers that differ by `bound` round to different neighbours if the middle of these
    neighbours lies between them. Relative to the spacing of the neighbours the interval has the
    length below, and with four roundings (of n, of the product, of the gate's product, of y) at
    most four times that share of elements has such an interval.
    """
    digits = {F32: 24, F16: 11, BF16: 8}[dtype]
    return 4 * bound(d) * 2.0 ** (digits - 24)


def is_near(y: Tensor, expected: Tensor, rounded: torch.dtype, d: int) -> bool:
    """Whether y is the expected result but for roundings. `rounded` is the coarsest type in it.

    Where nothing is rounded to f16 or bf16, each element is within the bound. Otherwise that holds
    for all elements but a share of them.
    """
    if y.dtype != expected.dtype or y.shape != expected.shape:
        return False
    scale = expected.float().abs().clamp_min(2.0**-100)
    error = (y.float() - expected.float()).abs() / scale * 2.0**24
    outside = (error > bound(d)).float().mean().item()
    return outside == 0 if rounded == F32 else outside <= share_bound(rounded, d)


def coarsest(*dtypes: torch.dtype) -> torch.dtype:
    return max(dtypes, key=[F32, F16, BF16].index)


# ------------------------------------------------------------------------------------- tests


def test_every_rmsnorm_is_known_or_listed() -> None:
    """A class that is left alone is left alone for a reason that somebody has looked at."""
    assert {norm.__name__ for norm in unknown_classes()} <= {
        "AXK2GatedRMSNorm",  # it holds a norm, which is replaced
        "HYV4UnweightedRMSNorm",  # it gives the inverse RMS itself
        "HYV4VLUnweightedRMSNorm",
    }
    assert len(known_classes()) > 200


@pytest.mark.parametrize("norm", known_classes(), ids=lambda norm: norm.__name__)
def test_same_bits_where_sums_are_exact(norm: type) -> None:
    """With small integers and d a power of two each order of the sum gives the same sum."""
    torch.manual_seed(0)
    for d, (x_dtype, weight_dtype) in itertools.product((64, 1024), TYPES):
        x = torch.randint(-8, 9, (2, 16, d)).to(x_dtype)
        for module in make_all(norm, d, weight_dtype):
            if has_word(norm, "gate after") or has_word(norm, "x times"):
                continue  # gates have roundings of their own, and x times a weight is no integer
            expected, y = module(x), ours(module, x)
            assert y.dtype == expected.dtype
            assert torch.equal(y, expected)


@pytest.mark.parametrize("norm", known_classes(), ids=lambda norm: norm.__name__)
def test_near_on_random_rows(norm: type) -> None:
    torch.manual_seed(1)
    for d, (x_dtype, weight_dtype) in itertools.product((64, 1000), TYPES):
        x = torch.randn(3, 17, d).to(x_dtype)
        for module, inputs in itertools.product(
            make_all(norm, d, weight_dtype), inputs_of(norm, x)
        ):
            expected, y = module(*inputs), ours(module, *inputs)
            rounded = coarsest(x_dtype, weight_dtype)
            assert is_near(y, expected, rounded, d), (d, x_dtype, weight_dtype)


def candidates(norm: type, module: Any, inputs: tuple[Tensor, ...]) -> Iterator[Callable[..., Any]]:
    """The library's norm with each combination of its options and operands."""
    weights = [None] if has_word(norm, "no weight") else []
    weights += [module.weight] if getattr(module, "weight", None) is not None else []
    for weight, offset in itertools.product(weights, (0.0, 1.0)):
        if weight is None and offset:
            continue
        if len(inputs) == 1:
            roundings = ("after_weight", "before_weight", "inverse")
            for rounding, divisor in itertools.product(roundings, (None, 1.0)):
                yield functools.partial(
                    rms_norm,
                    inputs[0],
                    weight,
                    rounding=rounding,
                    weight_offset=offset,
                    divisor=divisor,
                )
        else:
            gates = ("unrounded", "after"), ("rounded", "after"), ("unrounded", "before")
            for rounding, activation, (gate_rounding, gate_placement) in itertools.product(
                ("after_weight", "before_weight"), ("silu", "sigmoid"), gates
            ):
                yield functools.partial(
                    gated,
                    inputs[0],
                    inputs[1],
                    weight,
                    rounding=rounding,
                    weight_offset=offset,
                    activation=activation,
                    gate_rounding=gate_rounding,
                    gate_placement=gate_placement,
                )


def is_more_than_options(module: Any, d: int) -> bool:
    """Whether a module does more than one call of the library: PyTorch does the rest."""
    groups = getattr(module, "group_size", d) != d or getattr(module, "n_groups", 1) != 1
    rounded = has_word(type(module), "1 + weight rounded") and module.weight.dtype == BF16
    scaled = has_word(type(module), "x times 1 + weight")
    return groups or rounded or scaled


@pytest.mark.parametrize("norm", known_classes(), ids=lambda norm: norm.__name__)
def test_no_other_options_fit(norm: type) -> None:
    """Any options of the library give our bits, or do not fit what transformers computes."""
    torch.manual_seed(2)
    d = 256
    x = torch.randn(64, d).to(BF16)
    for weight_dtype in (BF16, F32):
        for module, inputs in itertools.product(
            make_all(norm, d, weight_dtype), inputs_of(norm, x)
        ):
            if is_more_than_options(module, d):
                continue
            eps = getattr(module, str(rmsnorm.transformers.formula(norm).eps))
            expected, y = module(*inputs), ours(module, *inputs)
            results = [f(eps=eps, dtype=y.dtype) for f in candidates(norm, module, inputs)]
            same = [torch.equal(result, y) for result in results]
            near = [is_near(result, expected, BF16, d) for result in results]
            assert same == near
            assert any(same) and not all(same)


def one_of_each_kind() -> list[type]:
    """The first class of each formula."""
    kinds: dict[str, type] = {}
    for norm in known_classes():
        kinds.setdefault(rmsnorm.transformers.formula(norm).text, norm)
    return list(kinds.values())


@pytest.mark.parametrize("norm", one_of_each_kind(), ids=lambda norm: norm.__name__)
def test_gradients(norm: type) -> None:
    """Gradients in f32, where both sides are the derivatives of one function."""
    torch.manual_seed(3)
    d = 64
    for module, inputs in itertools.product(
        make_all(norm, d, F32), inputs_of(norm, torch.randn(5, 3, d))
    ):
        copied = copy.deepcopy(module)
        assert rmsnorm.transformers.use(copied).replaced
        assert is_computed_by_library(copied, *inputs)
        gradients = []
        dy = torch.randn(5, 3, d)
        for one in (module, copied):
            leaves = [t.detach().requires_grad_() for t in inputs]
            wanted = [*leaves, *one.parameters()]
            gradients.append(torch.autograd.grad(one(*leaves), wanted, dy))
        for a, b in zip(*gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", one_of_each_kind(), ids=lambda norm: norm.__name__)
def test_compile_without_a_graph_break(norm: type) -> None:
    torch.manual_seed(5)
    x = torch.randn(5, 64).to(BF16)
    for module, inputs in itertools.product(make_all(norm, 64, BF16), inputs_of(norm, x)):
        rmsnorm.transformers.use(module)
        compiled: Any = torch.compile(module, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(*inputs), module(*inputs))
        torch.compiler.reset()


# ---------------------------------------------------------------------- what is recognised


class OtherSpelling(torch.nn.Module):
    """Llama's norm in other words."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.ones(64))
        self.weight = torch.nn.Parameter(torch.rand(64))
        self.tiny = 1e-5

    def forward(self, h: Tensor) -> Tensor:
        """Its names are its own."""
        wide = h.to(dtype=torch.float32)
        inverse = torch.pow(wide.square().mean(dim=-1, keepdim=True) + self.tiny, -0.5)
        return (inverse * wide).type_as(h) * self.weight


class OtherWeight(OtherSpelling):
    def forward(self, h: Tensor) -> Tensor:
        wide = h.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.tiny)
        return self.gain * wide.to(h.dtype)


class OtherMean(OtherSpelling):
    def forward(self, h: Tensor) -> Tensor:
        wide = h.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(0, keepdim=True) + self.tiny)
        return self.weight * wide.to(h.dtype)


class OtherRounding(OtherSpelling):
    def forward(self, h: Tensor) -> Tensor:
        wide = h.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.tiny)
        return self.weight * wide.to(torch.bfloat16)


class OtherInputs(OtherSpelling):
    def forward(self, h: Tensor, other: Tensor | None = None) -> Tensor:
        wide = h.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.tiny)
        return self.weight * wide.to(h.dtype)


class Statement(OtherSpelling):
    def forward(self, h: Tensor) -> Tensor:
        wide = h.float()
        wide *= torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.tiny)
        return self.weight * wide.to(h.dtype)


class Condition(OtherSpelling):
    def forward(self, h: Tensor) -> Tensor:
        wide = h.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.tiny)
        if self.training:
            wide = wide.to(h.dtype)
        return (self.weight * wide).to(h.dtype)


class Heir(OtherSpelling):
    pass


class OtherMethod(GemmaRMSNorm):
    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + self.eps)


def test_other_spellings_are_recognised() -> None:
    torch.manual_seed(6)
    for norm in (OtherSpelling, Heir, OtherWeight):
        module = norm()
        assert options_of(norm) == "before_weight"
        x = torch.randn(7, 64)
        assert is_near(ours(module, x), module(x), F32, 64)
        assert not is_near(rms_norm(x, module.weight, 1e-3), module(x), F32, 64)  # its own eps


@pytest.mark.parametrize(
    "norm",
    [OtherMean, OtherRounding, OtherInputs, Statement, Condition, OtherMethod],
    ids=lambda norm: norm.__name__,
)
def test_other_arithmetic_is_left_alone(norm: type) -> None:
    assert options_of(norm).startswith("left alone")


def test_a_class_whose_forward_was_replaced_is_left_alone() -> None:
    """Others change classes, too. What counts is the function that runs."""

    class LambdaRMSNorm(LlamaRMSNorm):
        pass

    class WrappedRMSNorm(LlamaRMSNorm):
        pass

    wrap = functools.wraps(LlamaRMSNorm.forward)
    setattr(LambdaRMSNorm, "forward", lambda self, x: x)
    setattr(WrappedRMSNorm, "forward", wrap(lambda self, x: x))
    report = rmsnorm.transformers.use(torch.nn.Sequential(LambdaRMSNorm(64), WrappedRMSNorm(64)))
    assert [entry.name for entry in report.left_alone] == ["0", "1"]
    assert not report.replaced


# ------------------------------------------------------------------------------------- use()


def test_report_undo_and_a_second_call() -> None:
    torch.manual_seed(7)
    model = torch.nn.Sequential(LlamaRMSNorm(64), torch.nn.LayerNorm(64), GemmaRMSNorm(64))
    model[2].forward = lambda x: x + 1
    keys = list(model.state_dict())
    report = rmsnorm.transformers.use(model)
    text = str(report)
    assert text == repr(report) == str(rmsnorm.transformers.use(model))
    assert text.startswith("replaced: 1\n  1 x LlamaRMSNorm: before_weight\nleft alone: 2")
    assert [(entry.name, entry.options) for entry in report.replaced] == [("0", "before_weight")]
    assert [entry.name for entry in report.left_alone] == ["1", "2"]
    assert "2 (GemmaRMSNorm): its forward() has been replaced already" in text
    assert list(model.state_dict()) == keys
    report.undo()
    assert type(model[0]) is LlamaRMSNorm
    assert "forward" in vars(model[2])


def test_hooks_run() -> None:
    module = LlamaRMSNorm(64)
    seen = []
    module.register_forward_hook(lambda module, inputs, y: seen.append(y))
    rmsnorm.transformers.use(module)
    y = module(torch.ones(2, 64))
    assert len(seen) == 1 and seen[0] is y


def test_the_class_computes_what_the_library_does_not_take() -> None:
    torch.manual_seed(8)
    x = torch.randn(4, 64)
    for inputs, change in (
        ((x.double(),), lambda module: module.double()),
        ((x.to("meta"),), lambda module: module.to("meta")),
        ((x,), lambda module: setattr(module, "weight", torch.nn.Parameter(torch.rand(1)))),
    ):
        module = LlamaRMSNorm(64)
        change(module)
        expected = module(*inputs)
        rmsnorm.transformers.use(module)
        y = module(*inputs)
        assert (y.dtype, y.shape, y.device) == (expected.dtype, expected.shape, expected.device)
        assert y.device.type == "meta" or torch.equal(y, expected)
    module = LlamaRMSNorm(64)
    rmsnorm.transformers.use(module)
    assert module(hidden_states=x).shape == x.shape
    with pytest.raises(TypeError):
        module(x, x)
    with pytest.raises(TypeError):
        module()


# ------------------------------------------------------------------------- usual classes


class FunctionalNorm(torch.nn.Module):
    """A module around PyTorch's function."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(d))
        self.dim, self.eps = d, 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)


class FunctionalKeywords(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.rms_norm(x, [self.dim], eps=self.eps, weight=self.weight)


class FunctionalOfTorch(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, x.shape[-1:], self.weight)


class FunctionalBeforeWeight(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.dim,), eps=self.eps) * self.weight


class FunctionalOffset(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (self.dim,), 1 + self.weight.float(), self.eps).type_as(x)


class TorchtuneNorm(FunctionalNorm):
    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.normalized_shape = (d,)
        self.scale = self.weight
        del self.weight

    def forward(self, x: Tensor) -> Tensor:
        x_fp32 = x.float()
        x_normed = F.rms_norm(
            x_fp32, normalized_shape=self.normalized_shape, weight=self.scale, eps=self.eps
        )
        return x_normed.to(x.dtype)


class CourseNorm(FunctionalNorm):
    """As Stanford's CS336 asks for it."""

    def forward(self, x: Tensor) -> Tensor:
        in_dtype = x.dtype
        x = x.to(torch.float32)
        rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)
        result = x / rms * self.weight
        return result.to(in_dtype)


class MetaNorm(FunctionalNorm):
    """Llama's, as Meta wrote it."""

    def _norm(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float()).type_as(x)
        return output * self.weight


class GoogleNorm(MetaNorm):
    """Gemma's, as Google wrote it."""

    def __init__(self, d: int, add_unit_offset: bool) -> None:
        super().__init__(d)
        self.add_unit_offset = add_unit_offset

    def forward(self, x: Tensor) -> Tensor:
        output = self._norm(x.float())
        if self.add_unit_offset:
            output = output * (1 + self.weight.float())
        else:
            output = output * self.weight.float()
        return output.type_as(x)


class LitGPTNorm(FunctionalNorm):
    def __init__(self, d: int, add_unit_offset: bool) -> None:
        super().__init__(d)
        self.dim, self.add_unit_offset = -1, add_unit_offset

    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        norm_x = torch.mean(x * x, dim=self.dim, keepdim=True)
        x_normed = x * torch.rsqrt(norm_x + self.eps)
        weight = (1 + self.weight) if self.add_unit_offset else self.weight
        return (x_normed * weight.float()).to(dtype=dtype)


class OlderLitGPTNorm(LitGPTNorm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.float()
        norm_x = torch.mean(x * x, dim=self.dim, keepdim=True)
        x_normed = x * torch.rsqrt(norm_x + self.eps)
        x_normed = x_normed.to(dtype=dtype)
        if self.add_unit_offset:
            return x_normed * (1 + self.weight)
        return x_normed * self.weight


class OptionalWeight(FunctionalNorm):
    def __init__(self, d: int, elementwise_affine: bool) -> None:
        super().__init__(d)
        self.elementwise_affine = elementwise_affine
        if not elementwise_affine:
            self.register_parameter("weight", None)

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).square().mean((-1,), keepdim=True)
        y = (x.float() * (variance + self.eps).rsqrt()).to(x.dtype)
        if self.weight is not None:
            y = y * self.weight
        return y


class ConstantEps(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        f: Tensor = x.float()
        mean = f.pow(2).sum(-1, keepdim=True) / x.shape[-1]
        return (f / (mean + 1e-6).sqrt() * self.weight).type_as(x)


class OutsideNorm(FunctionalNorm):
    """x / (RMS + eps)"""

    def forward(self, x: Tensor) -> Tensor:
        rms = x.float().pow(2).mean(-1, keepdim=True).sqrt()
        return (x.float() / (rms + self.eps) * self.weight).to(x.dtype)


class OutsideBeforeWeight(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        rms = torch.sqrt(torch.mean(wide**2, dim=-1, keepdim=True))
        return (wide / (rms + self.eps)).to(x.dtype) * self.weight


#: How to make each, and whether the library computes f16 and bf16, too.
USUAL: dict[str, tuple[Callable[[int], Any], bool]] = {
    "nn.RMSNorm": (torch.nn.RMSNorm, True),
    "nn.RMSNorm without weight": (lambda d: torch.nn.RMSNorm(d, 1e-3, False), True),
    "LitGPT with offset": (lambda d: LitGPTNorm(d, True), True),
    "LitGPT": (lambda d: LitGPTNorm(d, False), True),
    "older LitGPT with offset": (lambda d: OlderLitGPTNorm(d, True), True),
    "older LitGPT": (lambda d: OlderLitGPTNorm(d, False), True),
    "Google with offset": (lambda d: GoogleNorm(d, True), True),
    "Google": (lambda d: GoogleNorm(d, False), True),
    "optional weight": (lambda d: OptionalWeight(d, True), True),
    "no optional weight": (lambda d: OptionalWeight(d, False), True),
} | {
    norm.__name__: (norm, True)
    for norm in (
        FunctionalNorm,
        FunctionalKeywords,
        FunctionalOfTorch,
        FunctionalBeforeWeight,
        FunctionalOffset,
        TorchtuneNorm,
        CourseNorm,
        MetaNorm,
        ConstantEps,
        OutsideNorm,
        OutsideBeforeWeight,
    )
}


class TextbookNorm(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x / torch.sqrt(x.pow(2).mean(-1, True) + self.eps) * self.weight


class TextbookProduct(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + self.eps))


class ChainedNorm(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        inverse = x.pow(2).mean(dim=-1, keepdim=True).add_(self.eps).rsqrt()
        return x.mul(inverse).mul(self.weight)


class ProductFirst(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.eps)


class UnitNorm(torch.nn.Module):
    """As x-transformers has it."""

    def __init__(self, d: int, unit_offset: bool = True) -> None:
        super().__init__()
        self.unit_offset, self.scale = unit_offset, d**0.5
        self.g = torch.nn.Parameter(torch.randn(d))

    def forward(self, x: Tensor) -> Tensor:
        gamma = self.g + float(self.unit_offset)
        return F.normalize(x, dim=-1) * self.scale * gamma


class OlderUnitNorm(UnitNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1) * self.scale * (self.g + 1)


class LeastNorm(UnitNorm):
    """As other models of lucidrains have it."""

    def __init__(self, d: int) -> None:
        super().__init__(d)
        self.scale, self.eps = d**-0.5, 1e-8

    def forward(self, x: Tensor) -> Tensor:
        norm = torch.norm(x, dim=-1, keepdim=True) * self.scale
        return x / norm.clamp(min=self.eps) * self.g


for norm in (
    TextbookNorm,
    TextbookProduct,
    ChainedNorm,
    ProductFirst,
    UnitNorm,
    OlderUnitNorm,
    LeastNorm,
):
    USUAL[norm.__name__] = (norm, False)


@pytest.mark.parametrize("name", list(USUAL))
def test_usual_classes(name: str) -> None:
    torch.manual_seed(11)
    make, takes_16_bits = USUAL[name]
    for d, dtype in itertools.product((64, 1000), (F32, F16, BF16)):
        # Rows so small that their eps matters, too.
        x = (torch.randn(40, d) * torch.logspace(-4, 2, 40)[:, None]).to(dtype)
        module = make(d).to(dtype)
        expected = module(x)
        copied = copy.deepcopy(module)
        report = rmsnorm.transformers.use(copied)
        if dtype == F32 or takes_16_bits:
            assert is_near(ours(module, x), expected, dtype, d)
        elif list(module.parameters()):
            [entry] = report.left_alone
            assert "not a plain tensor of float32" in entry.reason
        assert is_near(copied(x), expected, dtype, d)


@pytest.mark.parametrize("name", [name for name, (_, has_16_bits) in USUAL.items() if has_16_bits])
def test_usual_classes_round_as_they_do(name: str) -> None:
    """With small integers and d a power of two, only roundings to 16 bits are left."""
    torch.manual_seed(12)
    make, _ = USUAL[name]
    x = torch.randint(-8, 9, (50, 64))
    for dtype in (F16, BF16):
        module = make(64).to(dtype)
        # x / RMS and x * (1 / RMS) differ by an ulp of f32.
        same = ours(module, x.to(dtype)) == module(x.to(dtype))
        assert same.float().mean() > 0.999


@pytest.mark.parametrize("name", list(USUAL))
def test_gradients_of_usual_classes(name: str) -> None:
    torch.manual_seed(13)
    module = USUAL[name][0](64)
    copied = copy.deepcopy(module)
    assert rmsnorm.transformers.use(copied).replaced
    gradients = []
    x, dy = torch.randn(5, 64), torch.randn(5, 64)
    for one in (module, copied):
        wanted = [x.clone().requires_grad_(), *one.parameters()]
        gradients.append(torch.autograd.grad(one(wanted[0]), wanted, dy))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_several_normalised_dimensions() -> None:
    torch.manual_seed(14)
    module = torch.nn.RMSNorm((3, 20))
    torch.nn.init.normal_(module.weight)
    x = torch.randn(7, 3, 20)
    assert is_near(ours(module, x), module(x), F32, 60)
    rmsnorm.transformers.use(module)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        module(torch.randn(7, 20, 3))


class InPlaceNorm(FunctionalNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps))


class OtherLibrary:
    @staticmethod
    def rsqrt(x: Tensor) -> Tensor:
        return x


def make_norm_of_other_library() -> Any:
    torch = OtherLibrary

    class Norm(FunctionalNorm):
        def forward(self, x: Tensor) -> Tensor:
            return self.weight * (
                x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
            ).type_as(x)

    return Norm(64)


def test_names_are_what_they_are_where_the_class_is() -> None:
    module = make_norm_of_other_library()
    x = torch.randn(3, 64)
    expected = module(x)
    assert not rmsnorm.transformers.use(module).replaced
    assert torch.equal(module(x), expected)
    assert not rmsnorm.transformers.use(InPlaceNorm(64)).replaced


def test_code_that_is_not_in_the_source() -> None:
    def forward(self: Any, x: Tensor) -> Tensor:
        return x + 1

    class Norm(FunctionalNorm):
        def forward(self, x: Tensor) -> Tensor:
            return F.rms_norm(x, (self.dim,), self.weight, self.eps)

    x = torch.randn(3, 64)
    module: Any = Norm(64)
    assert rmsnorm.transformers.use(module).replaced
    method: Any = Norm.forward
    method.__code__ = forward.__code__
    assert torch.equal(module(x), x + 1)
    assert not rmsnorm.transformers.use(module).replaced
    assert torch.equal(module(x), x + 1)


# ------------------------------------------------------------------------- changed objects


def other_norm(self: Any, x: Tensor) -> Tensor:
    return x + 9


class Wrapped(torch.nn.Module):
    """A model whose norm has the name norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Any:
        return self.norm(x)


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("on_class", [True, False])
@pytest.mark.parametrize("name", ["_norm", "forward"])
@pytest.mark.parametrize("compiled", [True, False])
def test_methods_that_were_replaced(
    before: bool, on_class: bool, name: str, compiled: bool
) -> None:
    class Norm(GoogleNorm):
        pass

    model = Wrapped(Norm(64, True))
    x = torch.randn(3, 64)
    if not before:
        assert len(rmsnorm.transformers.use(model).replaced) == 1
    if on_class:
        setattr(Norm, name, other_norm)
    else:
        setattr(model.norm, name, types.MethodType(other_norm, model.norm))
    plain = Norm(64, True)
    plain.load_state_dict(model.norm.state_dict())
    if not on_class:
        setattr(plain, name, types.MethodType(other_norm, plain))
    expected = plain(x)
    if before:
        assert not rmsnorm.transformers.use(model).replaced
    call: Any = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    torch.testing.assert_close(call(x), expected, rtol=0, atol=1e-5)
    # Another call of use() finds out, and what is put back can be replaced again.
    assert len(rmsnorm.transformers.use(model).left_alone) == 1
    assert type(model.norm) is Norm
    if on_class:
        delattr(Norm, name)
    else:
        delattr(model.norm, name)
    assert len(rmsnorm.transformers.use(model).replaced) == 1
    torch.compiler.reset()


def copies(model: Any, folder: pathlib.Path) -> dict[str, Any]:
    """What becomes of a model on its usual ways."""
    torch.save(model, folder / "model.pt")
    # As torch.nn.parallel.replicate() makes them.
    replica = model.norm._replicate_for_data_parallel()
    replica.weight = model.norm.weight.detach().clone()
    return {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "oldest pickle": pickle.loads(pickle.dumps(model, protocol=0)),
        "torch.save": torch.load(folder / "model.pt", weights_only=False),
        "copy of the norm": Wrapped(copy.copy(model.norm)),
        "replica": Wrapped(replica),
        "to": copy.deepcopy(model).to(torch.float64).to(torch.float32),
    }


@pytest.mark.parametrize(
    "make", [lambda: LlamaRMSNorm(64), lambda: torch.nn.RMSNorm(64), lambda: LitGPTNorm(64, True)]
)
def test_every_copy_computes_with_its_weight(make: Any, tmp_path: pathlib.Path) -> None:
    model = Wrapped(make())
    x = torch.randn(3, 64)
    rmsnorm.transformers.use(model)
    before = model(x)
    for way, copied in copies(model, tmp_path).items():
        assert isinstance(copied.norm, type(make())), way
        assert is_computed_by_library(copied, x), way
        assert torch.equal(copied(x), before), way
        if way == "replica":
            copied.norm.weight = torch.rand(64)
        else:
            copied.norm._parameters = {"weight": torch.nn.Parameter(torch.rand(64))}
        plain = make()
        plain.weight = torch.nn.Parameter(copied.norm.weight)
        assert is_near(copied(x), plain(x), F32, 64), way
        assert torch.equal(model(x), before), way
        # use() finds what it did, and undo() puts it back.
        report = rmsnorm.transformers.use(copied)
        assert len(report.replaced) == 1 and not report.left_alone, way
        report.undo()
        assert type(copied.norm) is type(make()), way
        assert torch.equal(copied(x), plain(x)), way
        assert len(rmsnorm.transformers.use(copied).replaced) == 1, way


def test_another_process_reads_the_model(tmp_path: pathlib.Path) -> None:
    """A program that has not called use() reads the file, and computes with the library."""
    module = LlamaRMSNorm(64)
    rmsnorm.transformers.use(module)
    torch.save(module, tmp_path / "norm.pt")
    program = f"""
import torch
norm = torch.load({str(tmp_path / "norm.pt")!r}, weights_only=False)
torch.save(norm(torch.arange(64.0)), {str(tmp_path / "y.pt")!r})
import rmsnorm.transformers
assert len(rmsnorm.transformers.use(norm).replaced) == 1
rmsnorm.transformers.use(norm).undo()
assert type(norm).__reduce_ex__ is object.__reduce_ex__
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert torch.equal(torch.load(tmp_path / "y.pt"), module(torch.arange(64.0)))


def test_a_class_derived_from_a_replaced_one() -> None:
    module: Any = LlamaRMSNorm(64)
    x = torch.randn(3, 64)
    expected = module(x) + 1
    rmsnorm.transformers.use(module)

    class Derived(type(module)):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Any:
            return super().forward(x) + 1

    module.__class__ = Derived
    assert not rmsnorm.transformers.use(module).replaced
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-5)


def test_a_norm_of_the_library_is_left_alone() -> None:
    [entry] = rmsnorm.transformers.use(rmsnorm.torch.RMSNorm(4)).left_alone
    assert entry.reason == "it computes with this library already"


def test_state_dict_and_names_stay() -> None:
    module = LlamaRMSNorm(64)
    text, keys = repr(module), list(module.state_dict())
    rmsnorm.transformers.use(module)
    assert (repr(module), list(module.state_dict())) == (text, keys)
    assert type(module).__name__ == "LlamaRMSNorm" and isinstance(module, LlamaRMSNorm)
    module.load_state_dict({"weight": torch.full((64,), 2.0)})
    assert inspect.signature(module.forward) == inspect.signature(LlamaRMSNorm(64).forward)


def test_parametrized_weights() -> None:
    class Double(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    x = torch.randn(3, 64)
    module = LlamaRMSNorm(64)
    expected = 2 * module(x)
    rmsnorm.transformers.use(module)
    torch.nn.utils.parametrize.register_parametrization(module, "weight", Double())
    assert torch.allclose(module(x), expected) and is_computed_by_library(module, x)
    [entry] = rmsnorm.transformers.use(module).left_alone
    assert entry.reason == "it is parametrized"
    assert torch.allclose(module(x), expected)
    torch.nn.utils.parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    assert type(module) is LlamaRMSNorm
    assert rmsnorm.transformers.use(module).replaced


def test_an_eps_that_learns_keeps_its_gradient() -> None:
    model: Any = MetaNorm(64)
    del model.eps
    model.eps = torch.nn.Parameter(torch.tensor(1e-5))
    [entry] = rmsnorm.transformers.use(model).left_alone
    assert entry.reason == "its eps is Parameter, not a number from 0 on"
    model(torch.randn(3, 64)).sum().backward()
    assert model.eps.grad is not None
    for eps in ("1e-5", -1.0, float("nan"), torch.tensor(1e-5)):
        module: Any = MetaNorm(64)
        rmsnorm.transformers.use(module)
        module.eps = eps
        if isinstance(eps, str):
            with pytest.raises(TypeError):
                module(torch.randn(3, 64))
        else:
            module(torch.randn(3, 64))
        assert rmsnorm.transformers.use(module).left_alone
    whole: Any = MetaNorm(64)
    whole.eps = 1
    x = torch.randn(3, 64)
    assert is_near(ours(whole, x), whole(x), F32, 64)


def test_the_model_itself_may_be_a_norm_and_may_hold_one_twice() -> None:
    norm = LlamaRMSNorm(64)
    assert "1 x LlamaRMSNorm" in repr(rmsnorm.transformers.use(norm))
    report = rmsnorm.transformers.use(torch.nn.Sequential(norm, norm))
    assert [entry.name for entry in report.replaced] == ["0"]
    assert "the model (LayerNorm)" in repr(rmsnorm.transformers.use(torch.nn.LayerNorm(4)))


@pytest.mark.parametrize("compile_first", [True, False])
def test_use_on_a_compiled_model(compile_first: bool) -> None:
    """use() and undo() after torch.compile lead to another graph."""
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        def run(*inputs: Any) -> Any:
            seen.append(graph.code)
            return graph(*inputs)

        return run

    model = Wrapped(LlamaRMSNorm(64))
    x = torch.randn(3, 64)
    compiled: Any = torch.compile(model, backend=backend, fullgraph=True)
    if compile_first:
        compiled(x)
        assert "rmsnorm" not in seen[-1]
    report = rmsnorm.transformers.use(compiled)
    assert len(report.replaced) == 1
    compiled(x)
    assert "rmsnorm" in seen[-1]
    report.undo()
    compiled(x)
    assert "rmsnorm" not in seen[-1]
    torch.compiler.reset()


# ------------------------------------------------------------------------- other tensors


def test_jagged_tensors() -> None:
    torch.manual_seed(15)
    parts = [torch.randn(3, 64), torch.randn(5, 64)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for module in (torch.nn.RMSNorm(64), LlamaRMSNorm(64)):
        expected = module(x)
        rmsnorm.transformers.use(module)
        for a, b in zip(module(x).unbind(), expected.unbind(), strict=True):
            assert torch.equal(a, b)
        assert is_computed_by_library(module, parts[0])


class Scaled(Tensor):
    """A subclass of Tensor with an operation of its own."""

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function in (Tensor.float, Tensor.to):
            return args[0].as_subclass(Tensor).float() * 2
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("compiled", [True, False])
def test_subclasses_of_tensor(compiled: bool) -> None:
    torch.manual_seed(16)
    x = torch.randn(3, 64).as_subclass(Scaled)
    module = MetaNorm(64)
    expected = module(x)
    rmsnorm.transformers.use(module)
    call: Any = torch.compile(module, backend="eager") if compiled else module
    assert torch.equal(call(x), expected) and type(call(x)) is type(expected)
    weight = torch.nn.Parameter(module.weight.detach().as_subclass(Scaled))
    module.weight = weight
    [entry] = rmsnorm.transformers.use(module).left_alone
    assert "its weight is a Scaled of float32 on cpu" in entry.reason
    torch.compiler.reset()


def test_tensors_that_are_not_dense() -> None:
    module = MetaNorm(4)
    rows = [torch.randn(2, 4), torch.randn(2, 4)]
    nested = torch.nested.nested_tensor(rows)
    sparse = torch.randn(2, 4).to_sparse()
    for x in (nested, sparse):
        with pytest.raises((RuntimeError, NotImplementedError)) as expected:
            module(x)
        rmsnorm.transformers.use(module)
        with pytest.raises(type(expected.value)) as error:
            module(x)
        assert str(error.value) == str(expected.value)


def test_tracing_and_transforms() -> None:
    """Where tensors stand for others, the operators of the library are traced or transformed."""
    torch.manual_seed(17)
    x = torch.randn(3, 64)
    for make in (lambda: LlamaRMSNorm(64), lambda: torch.nn.RMSNorm(64), lambda: CourseNorm(64)):
        module: Any = make()
        plain = copy.deepcopy(module)
        rmsnorm.transformers.use(module)
        exported = torch.export.export(module, (x,))
        assert "rmsnorm" in exported.graph_module.code
        assert torch.equal(exported.module()(x), module(x))
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert module(mode.from_tensor(x)).shape == (3, 64)
        assert torch.equal(torch.func.vmap(module)(x), module(x))
        gradient = torch.func.grad(lambda x: module(x).sum())
        expected = torch.func.grad(lambda x: plain(x).sum())
        torch.testing.assert_close(gradient(x), expected(x), rtol=0, atol=1e-5)
        # torch.jit and torch.fx keep the operations of the class.
        assert torch.equal(torch.jit.trace(module, (x,))(x), plain(x))
        for recorded in (module, Wrapped(module)):
            assert is_near(torch.fx.symbolic_trace(recorded)(x), plain(x), F32, 64)
        assert torch.equal(torch.jit.script(module)(x), plain(x))


def test_autocast() -> None:
    torch.manual_seed(18)
    for make in (lambda: LlamaRMSNorm(64), lambda: torch.nn.RMSNorm(64), lambda: UnitNorm(64)):
        module: Any = make()
        for x in (torch.randn(3, 64), torch.randn(3, 64).bfloat16()):
            with torch.autocast("cpu"):
                expected, y = module(x), copy.deepcopy(module)
                rmsnorm.transformers.use(y)
                assert is_near(y(x), expected, BF16, 64)


def test_only_what_the_library_computes_is_replaced() -> None:
    reasons = {
        "meta": "its weight is a Parameter of float32 on meta,",
        "float64": "its weight is a Parameter of float64 on cpu,",
        "none": "its weight is None",
        "number": "its weight is a float",
    }
    modules: dict[str, Any] = {name: LlamaRMSNorm(64) for name in reasons}
    modules["meta"].to("meta")
    modules["float64"].double()
    modules["none"].weight = None
    del modules["number"].weight
    modules["number"].weight = 2.0
    model = torch.nn.ModuleDict(modules)
    report = rmsnorm.transformers.use(model)
    assert not report.replaced
    for entry in report.left_alone:
        assert entry.reason.startswith(reasons[entry.name])
    model["float64"].float()
    model["meta"].to_empty(device="cpu")
    report = rmsnorm.transformers.use(model)
    assert [entry.name for entry in report.replaced] == ["meta", "float64"]
    # A norm that the library does not compute any more is put back.
    model["float64"].double()
    assert [entry.name for entry in rmsnorm.transformers.use(model).replaced] == ["meta"]
    assert type(model["float64"]) is LlamaRMSNorm


def test_a_buffer_as_weight() -> None:
    module: Any = LlamaRMSNorm(64)
    del module.weight
    module.register_buffer("weight", torch.rand(64))
    x = torch.randn(3, 64)
    assert is_near(ours(module, x), module(x), F32, 64)


# ------------------------------------------------------------------------- distributed


@pytest.fixture
def gloo(tmp_path: pathlib.Path) -> Iterator[None]:
    """A group of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("use_first", [True, False])
def test_fully_shard(use_first: bool, gloo: None) -> None:
    torch.manual_seed(19)
    model: Any = torch.nn.Sequential(torch.nn.Linear(64, 64), LlamaRMSNorm(64), MetaNorm(64))
    plain = copy.deepcopy(model)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    if use_first:
        rmsnorm.transformers.use(model)
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    x = torch.randn(3, 64)
    if not use_first:
        # The weights are sharded between calls, and whole within them.
        report = rmsnorm.transformers.use(model)
        assert len(report.replaced) == 2
    assert is_computed_by_library(model, x)
    y, expected = model(x), plain(x)
    assert is_near(y, expected, F32, 64)
    y.sum().backward()
    expected.sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad.full_tensor(), b.grad, rtol=1e-4, atol=1e-5)
    report = rmsnorm.transformers.use(model)
    assert len(report.replaced) == 2
    report.undo()
    assert "rmsnorm" not in " ".join(
        str(base.__dict__) for module in model for base in type(module).__mro__
    )
    assert torch.equal(model(x), expected)


def test_data_parallel(gloo: None) -> None:
    torch.manual_seed(20)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), LlamaRMSNorm(64))
    plain = copy.deepcopy(model)
    rmsnorm.transformers.use(model)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    x = torch.randn(3, 64)
    parallel(x).sum().backward()
    plain(x).sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-4, atol=1e-5)


# ------------------------------------------------------------------------------------ models


SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
DENSE = SIZES | {"intermediate_size": 96, "num_key_value_heads": 2}


def make_models() -> dict[str, tuple[Any, int]]:
    """Configurations of tiny models, and how many norms each has."""
    return {
        "Llama": (transformers.LlamaConfig(**DENSE), 5),
        "Gemma3": (transformers.Gemma3TextConfig(**DENSE, head_dim=16), 13),
        "Olmo2": (transformers.Olmo2Config(**DENSE), 9),
        "Qwen3Next": (
            transformers.Qwen3NextConfig(
                **DENSE,
                head_dim=16,
                linear_num_key_heads=2,
                linear_num_value_heads=4,
                linear_key_head_dim=16,
                linear_value_head_dim=16,
                num_experts=4,
                num_experts_per_tok=2,
                moe_intermediate_size=32,
                shared_expert_intermediate_size=32,
                layer_types=["linear_attention", "full_attention"],
            ),
            8,
        ),
        "Mamba2": (
            transformers.Mamba2Config(
                vocab_size=128,
                hidden_size=64,
                num_hidden_layers=2,
                num_heads=8,
                head_dim=16,
                state_size=16,
                n_groups=2,
                chunk_size=8,
                bos_token_id=0,
                eos_token_id=1,
            ),
            5,
        ),
        "DeepseekV4": (
            transformers.DeepseekV4Config(
                **SIZES,
                moe_intermediate_size=32,
                head_dim=32,
                partial_rotary_factor=0.5,
                q_lora_rank=32,
                o_lora_rank=16,
                o_groups=2,
                n_routed_experts=4,
                num_experts_per_tok=2,
                index_n_heads=2,
                index_head_dim=16,
                index_topk=8,
            ),
            18,
        ),
        "T5": (
            transformers.T5Config(
                vocab_size=128, d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4
            ),
            12,
        ),
    }


def make_model(name: str, dtype: torch.dtype) -> Any:
    """A model with random weights, and weights of norms that are not all ones."""
    torch.manual_seed(9)
    config, _ = make_models()[name]
    if name == "T5":
        make: Any = transformers.T5ForConditionalGeneration
    else:
        make = transformers.AutoModelForCausalLM.from_config
    model = make(config)
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                parameter.data += torch.randn(parameter.shape) * 0.3
    return model.eval().to(dtype)


def logits_of(model: Any) -> Tensor:
    ids = torch.arange(48).reshape(2, 24) % 128
    more = {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        logits: Tensor = model(ids, **more).logits
    return logits


@pytest.mark.parametrize("name", list(make_models()))
def test_logits_in_f32(name: str) -> None:
    model = make_model(name, F32)
    before = logits_of(model)
    report = rmsnorm.transformers.use(model)
    assert len(report.replaced) == make_models()[name][1], str(report)
    assert not [entry for entry in report.left_alone if "RMSNorm" in type(entry.module).__name__]
    after = logits_of(model)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * before.abs().max().item())
    report.undo()
    assert torch.equal(logits_of(model), before)


OTHER_ORDER = {"before_weight": "after_weight", "after_weight": "before_weight"}


@pytest.mark.parametrize("name", list(make_models()))
def test_logits_in_bf16(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nearly no element of a norm is rounded differently; with another order, many are.

    Independent roundings add up like a random walk, so a tenth of the difference means that a
    hundredth of the elements differs. On most CPUs no logit differs.
    """

    def other(*inputs: Any, rounding: str = "after_weight", **options: Any) -> Tensor:
        return rms_norm(*inputs, rounding=OTHER_ORDER.get(rounding, "after_weight"), **options)

    model = make_model(name, BF16)
    before = logits_of(model)
    rmsnorm.transformers.use(model)
    after = logits_of(model)
    monkeypatch.setattr(rmsnorm._norms, "rms_norm", other)
    wrong = logits_of(model)
    assert after.dtype == before.dtype
    difference = (after - before).float().square().mean().sqrt()
    assert difference < (wrong - before).float().square().mean().sqrt() / 10


def test_a_compiled_model() -> None:
    model = make_model("Llama", F32)
    before = logits_of(model)
    rmsnorm.transformers.use(model)
    after = logits_of(torch.compile(model, fullgraph=True))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


def test_training_a_model() -> None:
    """Gradients of all weights, beside those of transformers."""
    gradients = []
    for replace in (False, True):
        model = make_model("Gemma3", F32).train()
        if replace:
            rmsnorm.transformers.use(model)
        ids = torch.arange(48).reshape(2, 24) % 128
        model(ids, labels=ids).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


# --------------------------------------------------------------------------------------- page


def worst_of(norm: type) -> tuple[float, float]:
    """The worst difference in ulp in f32, and the share of bf16 elements that differ."""
    torch.manual_seed(10)
    worst, share = 0.0, 0.0
    for d, dtype in itertools.product((64, 1000), (F32, BF16)):
        x = torch.randn(64, d).to(dtype)
        for module, inputs in itertools.product(make_all(norm, d, dtype), inputs_of(norm, x)):
            difference = ulps(ours(module, *inputs), module(*inputs))
            if dtype == F32:
                worst = max(worst, difference.max().item())
            else:
                share = max(share, (difference > 0).float().mean().item())
    return worst, share


def kinds() -> dict[str, list[type]]:
    """The known classes by their options, the most common options first."""
    by_options: dict[str, list[type]] = {}
    for norm in known_classes():
        by_options.setdefault(options_of(norm), []).append(norm)
    return dict(sorted(by_options.items(), key=lambda item: -len(item[1])))


def names_of(norms: list[type]) -> str:
    return textwrap.fill(", ".join(sorted({norm.__name__ for norm in norms})), 128)


def models_of(norms: list[type]) -> int:
    return len({norm.__module__ for norm in norms})


def page() -> str:
    """The page with the table, measured here."""
    rows, lists = [], []
    for options, norms in kinds().items():
        worst = [worst_of(norm) for norm in norms]
        ulp, share = max(w for w, _ in worst), max(s for _, s in worst)
        counts = f"{len(norms)} | {models_of(norms)}"
        rows.append(f"| {options} | {counts} | {ulp:.0f} | {share * 1e6:.0f} |")
        lists.append(f"**{options}**\n\n{names_of(norms)}\n")
    left_alone = [
        f"- `{norm.__name__}`: {options_of(norm).removeprefix('left alone: ')}"
        for norm in unknown_classes()
    ]
    return PAGE_TEXT.format(
        transformers=transformers.__version__,
        torch=torch.__version__.split("+")[0],
        rows="\n".join(rows),
        lists="\n".join(lists),
        left_alone="\n".join(left_alone),
    )


PAGE_TEXT = """<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Written by test/python/test_transformers.py, which also checks it. -->
# Norms of transformers

`rmsnorm.transformers.use(model)` replaces the norms below in a model of Hugging Face's
transformers, each with the rounding order of its class. This page is for transformers
{transformers}.

The words in the first column are options of [Forward](forward.md#the-names-of-options). Gates and
groups work as on the page [gated norm](gated_norm.md). "In the type of the weight" means that the
normalised value is rounded to the type of the weight, as T5 does.

The next two columns count the classes, and the model files with them. The last two compare random
rows of 64 and 1000 elements with transformers' own modules. They give the worst difference in f32,
in ulp, and the number of elements in a million that differ in bf16. x and the weight have the same
type. They were measured with PyTorch {torch} and depend on the CPU, because PyTorch adds
squares in an order that depends on it.

| options | classes | models | f32: worst ulp | bf16: differ, per million |
|---|---|---|---|---|
{rows}

A class is recognised by the formula that its `forward()` computes, so a class of your own that
computes the same is replaced, too. A class with other arithmetic is left alone.

## Classes

{lists}
## Left alone

Classes of transformers with `RMSNorm` or `L2Norm` in their names that `use()` leaves alone, and
why. `r` is the inverse RMS of x, and `as_x` rounds to the type of x:

{left_alone}
"""


def test_page_is_current() -> None:
    """The page has this version's classes, and no figure beyond the bounds."""
    text = PAGE.read_text()
    if f"\n{transformers.__version__}.\n" not in text:
        pytest.skip(f"the page is not for transformers {transformers.__version__}")
    for options, norms in kinds().items():
        row = re.escape(f"| {options} | {len(norms)} | {models_of(norms)} |")
        match = re.search(rf"^{row} (\d+) \| (\d+) \|$", text, re.MULTILINE)
        assert match, options
        assert int(match[1]) <= bound(1000)
        assert int(match[2]) <= 1e6 * share_bound(BF16, 1000)
        assert f"**{options}**\n\n{names_of(norms)}\n" in text
    for norm in unknown_classes():
        assert f"- `{norm.__name__}`: {options_of(norm).removeprefix('left alone: ')}" in text


if __name__ == "__main__":
    PAGE.write_text(page())

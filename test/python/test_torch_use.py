# SPDX-License-Identifier: Apache-2.0
"""Tests of rmsnorm.torch.use() against the models' own modules.

Run as a program it writes the tables in doc/known_norms.md.
"""

import abc
import copy
import functools
import importlib
import inspect
import itertools
import json
import linecache
import pathlib
import pickle
import re
import textwrap
import types

import diffusers
import numpy as np
import pytest
import torch
import torch.distributed
import torch.nn.functional as F
import torch.nn.utils.parametrize
import transformers
from diffusers.models.transformers.transformer_stable_audio3 import StableAudio3RMSNorm
from programs import run
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

import rmsnorm.torch
from rmsnorm.torch import rms_norm, use
from rmsnorm.torch._use import UnknownFormula, formula, norm_of

PAGE = pathlib.Path(__file__).parents[2] / "doc" / "known_norms.md"
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
#: The types of x and of the weight.
TYPES = [(F32, F32), (BF16, BF16), (BF16, F32), (F16, F16), (F16, F32), (F32, BF16)]
#: The files of each library that may have norms.
LIBRARIES = {transformers: "models/*/modeling_*.py", diffusers: "models/**/*.py"}


# ----------------------------------------------------------------------------------- classes


@functools.cache
def all_classes():
    """Every class of modules of the libraries whose file has a norm."""
    classes = []
    for library, pattern in LIBRARIES.items():
        folder = pathlib.Path(library.__file__).parent
        for path in sorted(folder.glob(pattern)):
            if re.search(r"^ *class \w*(Norm|RMS)", path.read_text(), re.MULTILINE):
                parts = path.relative_to(folder.parent).with_suffix("").parts
                module = importlib.import_module(".".join(parts))
                own = (m for m in vars(module).values() if inspect.isclass(m))
                own = (m for m in own if m.__module__ == module.__name__)
                classes += [m for m in own if issubclass(m, torch.nn.Module)]
    return classes


def label(norm):
    """The name of a class, with its library unless that is transformers."""
    library = norm.__module__.partition(".")[0]
    return norm.__name__ if library == "transformers" else f"{library}.{norm.__name__}"


def options_of(norm):
    """The options of a class, or why there are none."""
    try:
        return norm_of(norm).options
    except UnknownFormula as reason:
        return f"left alone: {reason}"


@functools.cache
def known_classes(library="transformers"):
    """The classes of a library that this one computes in every type."""
    own = [norm for norm in all_classes() if norm.__module__.startswith(f"{library}.")]
    known = [norm for norm in own if not options_of(norm).startswith("left alone")]
    return [norm for norm in known if F16 in rmsnorm.torch._norms.known(formula(norm)).types]


KNOWN = known_classes("transformers") + known_classes("diffusers")


def unknown_classes():
    """The classes that are left alone although their names say RMSNorm or L2Norm."""
    named = [norm for norm in all_classes() if re.search("RMS_?[Nn]orm|L2Norm", norm.__name__)]
    return [norm for norm in named if norm not in KNOWN]


def make_all(norm, d, weight_dtype):
    """Modules of a class for rows of d elements, with random weights: one for each flag it has."""
    flags = {
        "group_size": (d // 4, d),
        "n_groups": (4, 1),
        **dict.fromkeys(("norm_before_gate", "with_scale", "use_weight"), (True, False)),
        **dict.fromkeys(("elementwise_affine", "bias"), (True, False)),
        **dict.fromkeys(("hidden_size", "num_features", "dim"), (d,)),
    }
    parameters = inspect.signature(norm).parameters
    if "eps" in parameters and parameters["eps"].default is inspect.Parameter.empty:
        flags["eps"] = (1e-6,)
    names = [name for name in parameters if name in flags]
    for values in itertools.product(*(flags[name] for name in names)):
        module = norm(**dict(zip(names, values, strict=True)))
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            tensor.data = (torch.randn(tensor.shape) * 0.5).to(weight_dtype)
        yield module


def inputs_of(norm, x):
    """The arguments to test: x, and x with a gate."""
    if "gate" not in formula(norm).arguments:
        return [(x,)]
    gate = (torch.randn(x.shape) * 2).to(x.dtype)
    return [(x, gate)] if "gate after" in options_of(norm) else [(x, gate), (x,)]


def calls_of(norm, x, weight_dtype):
    """Each module of a class with each of its arguments."""
    return itertools.product(make_all(norm, x.shape[-1], weight_dtype), inputs_of(norm, x))


class Operators(TorchDispatchMode):
    """Collects the names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.names.add(operator.name())
        return operator(*args, **kwargs or {})


def is_computed_by_library(module, *inputs):
    with Operators() as operators:
        module(*inputs)
    return any(name.startswith("rmsnorm::") for name in operators.names)


def replaced(module, *inputs):
    """A copy of a module after use(), which must compute these inputs by the library."""
    copied = copy.deepcopy(module)
    report = use(copied)
    assert len(report.replaced) == 1, str(report)
    assert is_computed_by_library(copied, *inputs)
    return copied


def ours(module, *inputs):
    """What the module gives after use(), which must come from the library."""
    return replaced(module, *inputs)(*inputs)


# ---------------------------------------------------------------------------------- measures


def bound(d):
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


def share_bound(dtype, d):
    """How large a share of elements may round differently.

    Two f32 numbers that differ by `bound` round to different neighbours if the middle of these
    neighbours lies between them. Relative to the spacing of the neighbours the interval has the
    length below, and with four roundings (of n, of the product, of the gate's product, of y) at
    most four times that share of elements has such an interval.
    """
    digits = {F32: 24, F16: 11, BF16: 8}[dtype]
    return 4 * bound(d) * 2.0 ** (digits - 24)


def is_near(y, expected, rounded=F32, bias=None):
    """Whether y is the expected result but for roundings. `rounded` is the coarsest type in it.

    Where nothing is rounded to f16 or bf16, each element is within the bound. Otherwise that holds
    for all elements but a share of them.
    """
    if y.dtype != expected.dtype or y.shape != expected.shape:
        return False
    d = y.shape[-1]
    scale = expected.float().abs().clamp_min(2.0**-100)
    if bias is not None:
        scale += bias.float().abs()  # the sum may cancel
    error = (y.float() - expected.float()).abs() / scale * 2.0**24
    outside = (error > bound(d)).float().mean().item()
    return outside == 0 if rounded == F32 else outside <= share_bound(rounded, d)


def coarsest(*dtypes):
    return max(dtypes, key=[F32, F16, BF16].index)


def assert_same_gradients(one, two, *inputs, rtol):
    """The gradients of two modules by their inputs and their parameters."""
    dy, gradients = torch.randn(inputs[0].shape), []
    for module in (one, two):
        leaves = [t.clone().requires_grad_() for t in inputs]
        wanted = [*leaves, *module.parameters()]
        gradients.append(torch.autograd.grad(module(*leaves), wanted, dy, allow_unused=True))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=1e-5)


# ------------------------------------------------------------------------- norms of people


class Wrapped(torch.nn.Module):
    """A model whose norm has the name norm."""

    def __init__(self, norm):
        super().__init__()
        self.norm = norm

    def forward(self, x):
        return self.norm(x)


class Weighted(torch.nn.Module):
    """What the formulas below take from a module."""

    def __init__(self, d, **changed):
        super().__init__()
        self.weight, self.gain = (torch.nn.Parameter(torch.randn(d)) for _ in range(2))
        self.d, self.shape, self.dim, self.scale = d, (d,), -1, d**0.5
        self.eps, self.least, self.unit_offset, self.add_unit_offset = 1e-5, 1e-8, True, True
        for name, value in changed.items():
            setattr(self, name, value)

    def _norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def norm_class(name, forward, inputs="x", base=Weighted):
    """A class with a forward() of this text, whose source is found as if it stood in a file."""
    file = f"<{name}>"
    text = f"def forward(self, {inputs}):\n" + textwrap.indent(forward.strip(), "    ") + "\n"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    members = {}
    exec(compile(text, file, "exec"), globals(), members)
    return type(name, (base,), members)


LLAMA = """
wide = x.float()
wide = wide * (torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps))
return self.weight * wide.to(x.dtype)"""

#: Norms as people write them.
FORMULAS = {
    "Functional": "return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)",
    "FunctionalKeywords": """
return torch.nn.functional.rms_norm(x, [self.d], eps=self.eps, weight=self.weight)""",
    "FunctionalOfTorch": "return torch.rms_norm(x, x.shape[-1:], self.weight)",
    "FunctionalBeforeWeight": "return F.rms_norm(x, (self.d,), eps=self.eps) * self.weight",
    "FunctionalOffset": """
return F.rms_norm(x.float(), (self.d,), 1 + self.weight.float(), self.eps).type_as(x)""",
    "Torchtune": """
x_fp32 = x.float()
x_normed = F.rms_norm(x_fp32, normalized_shape=self.shape, weight=self.gain, eps=self.eps)
return x_normed.to(x.dtype)""",
    # As Stanford's CS336 asks for it.
    "Course": """
in_dtype = x.dtype
x = x.to(torch.float32)
rms = torch.sqrt(torch.mean(x**2, dim=-1, keepdim=True) + self.eps)
result = x / rms * self.weight
return result.to(in_dtype)""",
    # Llama's, as Meta wrote it.
    "Meta": """
output = self._norm(x.float()).type_as(x)
return output * self.weight""",
    # Gemma's, as Google wrote it.
    "Google": """
output = self._norm(x.float())
if self.add_unit_offset:
    output = output * (1 + self.weight.float())
else:
    output = output * self.weight.float()
return output.type_as(x)""",
    "LitGPT": """
dtype = x.dtype
x = x.float()
norm_x = torch.mean(x * x, dim=self.dim, keepdim=True)
x_normed = x * torch.rsqrt(norm_x + self.eps)
weight = (1 + self.weight) if self.add_unit_offset else self.weight
return (x_normed * weight.float()).to(dtype=dtype)""",
    "OlderLitGPT": """
dtype = x.dtype
x = x.float()
norm_x = torch.mean(x * x, dim=self.dim, keepdim=True)
x_normed = x * torch.rsqrt(norm_x + self.eps)
x_normed = x_normed.to(dtype=dtype)
if self.add_unit_offset:
    return x_normed * (1 + self.weight)
return x_normed * self.weight""",
    "OptionalWeight": """
variance = x.to(torch.float32).square().mean((-1,), keepdim=True)
y = (x.float() * (variance + self.eps).rsqrt()).to(x.dtype)
if self.weight is not None:
    y = y * self.weight
return y""",
    "ConstantEps": """
f: Tensor = x.float()
mean = f.pow(2).sum(-1, keepdim=True) / x.shape[-1]
return (f / (mean + 1e-6).sqrt() * self.weight).type_as(x)""",
    # x / (RMS + eps)
    "Outside": """
rms = x.float().pow(2).mean(-1, keepdim=True).sqrt()
return (x.float() / (rms + self.eps) * self.weight).to(x.dtype)""",
    "OutsideBeforeWeight": """
wide = x.float()
rms = torch.sqrt(torch.mean(wide**2, dim=-1, keepdim=True))
return (wide / (rms + self.eps)).to(x.dtype) * self.weight""",
    "Power": '''
"""Its names are its own."""
wide = x.to(dtype=torch.float32)
inverse = torch.pow(wide.square().mean(dim=-1, keepdim=True) + self.eps, -0.5)
return (inverse * wide).type_as(x) * self.weight''',
    "Llama": LLAMA,
    "OtherWeight": LLAMA.replace("self.weight", "self.gain"),
}
#: Others compute in the type of x: the library does that only in f32.
FORMULAS_FOR_F32 = {
    "Textbook": "return x / torch.sqrt(x.pow(2).mean(-1, True) + self.eps) * self.weight",
    "TextbookProduct": """
return self.weight * (x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + self.eps))""",
    "Chained": """
inverse = x.pow(2).mean(dim=-1, keepdim=True).add_(self.eps).rsqrt()
return x.mul(inverse).mul(self.weight)""",
    "ProductFirst": """
return self.weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + self.eps)""",
    # As x-transformers has it.
    "Unit": """
gamma = self.weight + float(self.unit_offset)
return F.normalize(x, dim=-1) * self.scale * gamma""",
    "OlderUnit": "return F.normalize(x, dim=-1) * self.scale * (self.weight + 1)",
    # As other models of lucidrains have it.
    "Least": """
norm = torch.norm(x, dim=-1, keepdim=True) * self.scale
return x / norm.clamp(min=self.least) * self.weight""",
}
NORMS = {name: norm_class(name, text) for name, text in (FORMULAS | FORMULAS_FOR_F32).items()}
Functional, Meta, Google, LitGPT = (NORMS[n] for n in ("Functional", "Meta", "Google", "LitGPT"))
#: How to make each of them.
USUAL = {
    "nn.RMSNorm": torch.nn.RMSNorm,
    "nn.RMSNorm without weight": lambda d: torch.nn.RMSNorm(d, 1e-3, False),
    **NORMS,
    **{
        f"{name} without offset": functools.partial(NORMS[name], add_unit_offset=False)
        for name in ("Google", "LitGPT", "OlderLitGPT")
    },
    "Least": lambda d: NORMS["Least"](d, scale=d**-0.5),
    "no optional weight": functools.partial(NORMS["OptionalWeight"], weight=None),
    "Heir": type("Heir", (NORMS["Power"],), {}),
}


# ------------------------------------------------------------------------------- every norm


def types_of(name):
    """The types of x and of the weight that a norm takes."""
    same = [(x_dtype, dtype) for x_dtype, dtype in TYPES if x_dtype == dtype]
    return [(F32, F32)] if name in FORMULAS_FOR_F32 else same if name in USUAL else TYPES


#: For each norm, a function of d and the type of the weight that gives its modules.
MAKERS = {label(norm): functools.partial(make_all, norm) for norm in KNOWN} | {
    name: lambda d, dtype, make=make: [make(d).to(dtype)] for name, make in USUAL.items()
}
#: The first norm of each formula.
KINDS = [*{formula(norm).text: label(norm) for norm in reversed(KNOWN)}.values()]


#: Classes that hold a norm, which is replaced.
HOLDERS = {
    "AXK2GatedRMSNorm",
    "diffusers.LuminaRMSNormZero",
    "diffusers.MochiModulatedRMSNorm",
    "diffusers.MochiRMSNormZero",
}


def test_every_rmsnorm_is_known_or_listed():
    """A class that is left alone is left alone for a reason that somebody has looked at."""
    gives_the_inverse = "HYV4UnweightedRMSNorm", "HYV4VLUnweightedRMSNorm"
    # Their rows lie along the channels of an image, not in the last dimension.
    images = "HunyuanImageRefinerRMS_norm", "HunyuanVideo15RMS_norm", "Kandinsky6VAERMSNorm"
    images += "Kandinsky6SRLatentUpscalerRMSNorm", "PerChannelRMSNorm", "WanRMS_norm"
    images += "QwenImageRMS_norm", "QwenImage21RMS_norm"
    listed = {*HOLDERS, *gives_the_inverse, *(f"diffusers.{name}" for name in images)}
    assert {label(norm) for norm in unknown_classes()} <= listed
    assert len(known_classes("transformers")) > 200
    assert len(known_classes("diffusers")) >= 7


@pytest.mark.parametrize("name", MAKERS)
def test_same_bits_where_sums_are_exact(name):
    """With small integers and d a power of two each order of the sum gives the same sum."""
    for d, (x_dtype, weight_dtype) in itertools.product((64, 1024), types_of(name)):
        x = torch.randint(-8, 9, (2, 16, d)).to(x_dtype)
        for module in MAKERS[name](d, weight_dtype):
            options = options_of(type(module))
            if "gate after" in options or "x times" in options:
                continue  # gates have roundings of their own, and x times a weight is no integer
            expected, y = module(x), ours(module, x)
            assert y.dtype == expected.dtype
            if name not in USUAL:
                assert torch.equal(y, expected)
            elif x_dtype != F32:
                # x / RMS and x * (1 / RMS) differ by an ulp of f32.
                assert (y == expected).float().mean() > 0.999


@pytest.mark.parametrize("name", MAKERS)
def test_near_on_random_rows(name):
    for d, (x_dtype, weight_dtype) in itertools.product((64, 1000), types_of(name)):
        # Rows so small that their eps matters, too.
        x = torch.randn(2, 20, d) * torch.logspace(-4, 2, 20)[:, None]
        rounded = coarsest(x_dtype, weight_dtype)
        for module in MAKERS[name](d, weight_dtype):
            bias = getattr(module, "bias", None)
            for inputs in inputs_of(type(module), x.to(x_dtype)):
                y, expected = ours(module, *inputs), module(*inputs)
                assert is_near(y, expected, rounded, bias), (d, rounded, module)


@pytest.mark.parametrize("name", FORMULAS_FOR_F32)
def test_norms_that_round_each_step_are_computed_in_f32_alone(name):
    module, x = USUAL[name](64).to(BF16), torch.randn(3, 64).to(BF16)
    expected = module(x)
    [entry] = use(module).left_alone
    assert "not a plain tensor of float32" in entry.reason
    assert torch.equal(module(x), expected)


def test_flags_with_which_the_class_computes():
    """Where an attribute says that the class computes something else, it computes that."""
    x = torch.randn(64, 64).to(BF16)
    for module in (
        StableAudio3RMSNorm(64, force_fp32=False),
        LitGPT(64, dim=0),
        NORMS["OlderLitGPT"](64, dim=0),
    ):
        module.to(BF16)
        expected = module(x)
        assert len(use(module).replaced) == 1
        assert torch.equal(module(x), expected)
        assert not is_computed_by_library(module, x)


@pytest.mark.parametrize("name", [*KINDS, *USUAL])
def test_gradients(name):
    """Gradients in f32, where both sides are the derivatives of one function."""
    rtol = 1e-4 if name in USUAL else 1e-5
    for module in MAKERS[name](64, F32):
        for inputs in inputs_of(type(module), torch.randn(5, 3, 64)):
            assert_same_gradients(module, replaced(module, *inputs), *inputs, rtol=rtol)


@pytest.mark.parametrize("name", KINDS)
def test_compile_without_a_graph_break(name):
    for module in MAKERS[name](64, BF16):
        for inputs in inputs_of(type(module), torch.randn(5, 64).to(BF16)):
            use(module)
            compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
            assert torch.equal(compiled(*inputs), module(*inputs))
            torch.compiler.reset()


def layouts(sizes):
    """Tensors of these sizes in every layout: permuted, sliced, expanded, with odd strides."""
    for order in itertools.permutations(range(len(sizes))):
        for last in (1, 2):
            wide = torch.randn([sizes[dim] for dim in order[:-1]] + [last * sizes[order[-1]]])
            x = wide[..., ::last].permute([order.index(dim) for dim in range(len(sizes))])
            yield x
            yield x[:1].expand(sizes)
            odd = (7 if n == 1 else stride for n, stride in zip(sizes, x.stride(), strict=True))
            yield x.as_strided(sizes, tuple(odd))


@pytest.mark.parametrize("name", [*KINDS, *USUAL])
def test_results_have_the_strides_of_the_class(name):
    plain = next(iter(MAKERS[name](8, F32)))
    module = copy.deepcopy(plain)
    use(module)
    for sizes in ((2, 3, 4, 8), (2, 1, 3, 8), (1, 3, 1, 8), (3, 8), (2, 0, 8)):
        for x, dtype in itertools.product(layouts(sizes), (F32, BF16)):
            inputs = [x.to(dtype)] * len(formula(type(plain)).arguments)
            try:
                expected = plain(*inputs)
            except (RuntimeError, ValueError):
                continue  # the class has a view() that this layout does not allow
            y = module(*inputs)
            assert y.stride() == expected.stride(), (x.shape, x.stride())
            near = is_near(y, expected, bias=getattr(plain, "bias", None))
            assert dtype == BF16 or x.numel() == 0 or near


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("make", [LlamaRMSNorm, torch.nn.RMSNorm, NORMS["Power"], NORMS["Unit"]])
def test_strides_of_gradients_and_compiled_results(make, dynamic):
    q = torch.randn(2, 5, 3, 8).transpose(1, 2)
    plain, seen = make(8), []
    module = replaced(plain, q)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    for call in (plain, module, compiled):
        x = q.detach().requires_grad_()
        y = call(x)
        [dx] = torch.autograd.grad(y, x, torch.ones_like(y))
        other = call(torch.randn(8, 2, 1, 3).movedim(0, -1))
        seen.append((y.stride(), dx.stride(), other.stride()))
    assert seen[0] == seen[1] == seen[2]
    torch.compiler.reset()


def test_several_normalised_dimensions():
    module, x = torch.nn.RMSNorm((3, 20)), torch.randn(7, 3, 20)
    torch.nn.init.normal_(module.weight)
    assert is_near(ours(module, x).flatten(1), module(x).flatten(1))
    use(module)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        module(torch.randn(7, 20, 3))


class Private(torch.nn.Module):
    """Python stores self.__w as _Private__w, also in classes derived from this one."""

    def __init__(self):
        super().__init__()
        self.__w, self.__eps = torch.nn.Parameter(torch.full((64,), 5.0)), 1e-6

    def __norm(self, x):
        return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.__eps)

    def forward(self, x):
        return self.__w * self.__norm(x).type_as(x)


def test_private_names():
    for make in (Private, type("Heir", (Private,), {})):
        module, x = make(), torch.randn(3, 64)
        assert is_near(ours(module, x), module(x))


EPS = 1e-6


def with_eps(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def is_never():
    return NEVER


NEVER = False


def test_functions_and_constants_that_forward_looks_up(monkeypatch):
    """They are a part of the formula; where one changes, the class computes again."""
    text = "if is_never() and x:\n    return 0\nreturn with_eps(x.float(), EPS).type_as(x)"
    module, x = norm_class("Helped", text)(64), torch.randn(3, 64)
    replacement = replaced(module, x)
    assert is_near(replacement(x), module(x))
    for name, value in (("EPS", 1.0), ("with_eps", torch.add), ("NEVER", True)):
        with monkeypatch.context() as patch:
            patch.setitem(globals(), name, value)
            if name == "NEVER":
                x = torch.tensor([[3.0]])
            assert torch.equal(torch.as_tensor(replacement(x)), torch.as_tensor(module(x)))
            assert not is_computed_by_library(replacement, x)


class OtherMethod(GemmaRMSNorm):
    """Others change classes, too. What counts is the function that runs."""

    def _norm(self, x):
        return x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + self.eps)


def norm_of_another_torch(torch):
    class Norm(Weighted):
        def forward(self, x):
            wide = x.float()
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            return self.weight * wide.to(x.dtype)

    return Norm(64)


def norm_without_source():
    scope = {"torch": torch, "F": F, "__name__": "nowhere"}
    text = "def forward(self, x):\n    return F.rms_norm(x, (x.shape[-1],))\n"
    exec(text, scope)
    return type("Norm", (Weighted,), {"forward": scope["forward"]})(64)


def changed(make, change):
    """A module after a change."""
    module = make()
    change(module)
    return module


def llama(change=lambda module: None):
    return changed(lambda: LlamaRMSNorm(64), change)


def of_text(old, new, inputs="x"):
    """Llama's norm with another text."""
    assert old in LLAMA
    return norm_class("Other", LLAMA.replace(old, new), inputs)(64)


def without(name):
    return changed(Private, lambda module: delattr(module, name))


def lambda_norm(wraps):
    return type("Norm", (LlamaRMSNorm,), {"forward": wraps(lambda self, x: x)})(64)


def no_number(module):
    del module.weight
    module.weight = 2.0


SOURCE = "the source of self.forward() cannot be read"
NO_OPTIONS = "the library has no options for "
TRAINING = "if self.training:\n    wide = wide.to(x.dtype)\nreturn"
#: Modules that are left alone, and how the reason begins.
DECLINED = {
    "a mean over rows": (lambda: of_text("mean(-1", "mean(0"), NO_OPTIONS),
    "a fixed rounding": (lambda: of_text("wide.to(x.dtype)", "wide.to(torch.half)"), NO_OPTIONS),
    "in place": (lambda: of_text("wide = wide * ", "wide = x.mul_"), NO_OPTIONS),
    "training": (lambda: of_text("return", TRAINING), NO_OPTIONS),
    "a statement": (lambda: of_text("wide = wide *", "wide *="), "it has a statement of the kind"),
    "two inputs": (lambda: of_text("", "", "x, other=None"), "it has other parameters than x, or"),
    "a default": (lambda: of_text("", "", "x=torch.ones(64)"), "a parameter has a default that is"),
    "another method": (lambda: OtherMethod(64), "it adds no eps to a mean square"),
    "LayerNorm": (lambda: torch.nn.LayerNorm(64), "it adds no eps to a mean square"),
    "lambda": (lambda: lambda_norm(lambda function: function), SOURCE),
    "wrapped": (lambda: lambda_norm(functools.wraps(LlamaRMSNorm.forward)), SOURCE),
    "no source": (norm_without_source, SOURCE),
    "another torch": (
        lambda: norm_of_another_torch(types.SimpleNamespace(rsqrt=lambda x: x)),
        "it uses torch, which is not PyTorch's",
    ),
    "ours": (lambda: rmsnorm.torch.RMSNorm(64), "it computes with this library already"),
    "no private weight": (lambda: without("_Private__w"), "it has no attribute _Private__w"),
    "no private eps": (lambda: without("_Private__eps"), "it has no attribute _Private__eps"),
    "meta": (lambda: llama().to("meta"), "its weight is a Parameter of float32 on meta,"),
    "float64": (lambda: llama().double(), "its weight is a Parameter of float64 on cpu,"),
    "no weight": (lambda: llama(lambda m: setattr(m, "weight", None)), "its weight is None"),
    "a number": (lambda: llama(no_number), "its weight is a float"),
    "forward": (
        lambda: llama(lambda m: setattr(m, "forward", lambda x: x)),
        "its forward() has been replaced already",
    ),
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_left_alone(name):
    """A class whose source is unknown has identify() in its reason."""
    make, reason = DECLINED[name]
    model = Wrapped(make())
    report = use(model)
    assert not report.replaced
    [entry] = report.left_alone
    assert entry.name == "norm" and entry.reason.startswith(reason), entry.reason
    is_unknown = options_of(type(model.norm)).startswith("left alone") and name != "ours"
    assert ("rmsnorm.identify()" in entry.reason) == is_unknown


WITH_SCALE = """
n = x.float() * torch.pow(x.float().pow(2).mean(-1, keepdim=True) + self.eps, -0.5)
if self.with_scale:
    n = n * self.weight.float()
return n.type_as(x)"""


def test_attributes_that_disappear():
    """Where the class fails, so does the replaced module."""
    plain = NORMS["OptionalWeight"](64)
    scaled = norm_class("Scaled", WITH_SCALE)
    for module, change in (
        (plain, lambda module: delattr(module, "weight")),
        (plain, lambda module: delattr(module, "eps")),
        (scaled(64, with_scale=True), lambda module: setattr(module, "weight", None)),
    ):
        module = replaced(module, torch.randn(3, 64))
        change(module)
        with pytest.raises(AttributeError):
            module(torch.randn(3, 64))
        assert use(module).left_alone
    without = scaled(64, with_scale=False)
    del without.weight
    assert is_near(ours(without, x := torch.randn(3, 64)), without(x))


def test_parameters_of_forward():
    """A gate that the class needs."""
    source = textwrap.dedent(inspect.getsource(MambaRMSNormGated.forward))
    signature, body = source.replace(" nn.", " torch.nn.").split("\n", 1)
    gated_class = norm_class("Gated", textwrap.dedent(body), "hidden_states, gate")
    module, x = gated_class(64, variance_epsilon=1e-5, group_size=16), torch.randn(3, 64)
    assert "gate=None" in signature and is_near(ours(module, x, x), module(x, x))
    use(module)
    with pytest.raises(TypeError):
        module(x)


PYTORCHS = {
    "F.rms_norm": (F, "rms_norm", Functional),
    "torch.rms_norm": (torch, "rms_norm", Functional),
    "torch.rsqrt": (torch, "rsqrt", Meta),
    "torch.float32": (torch, "float32", NORMS["Course"]),
    "Tensor.pow": (Tensor, "pow", Meta),
    "Tensor.__mul__": (Tensor, "__mul__", Meta),
}


@pytest.mark.parametrize(
    ("name", "when"),
    [
        *itertools.product(PYTORCHS, ("before", "after")),
        # torch.compile needs torch.float32, and does not see a method that is replaced later.
        *itertools.product(list(PYTORCHS)[:3], ("compiled", "after compiling")),
        *itertools.product(("Tensor.pow", "Tensor.__mul__"), ("compiled",)),
    ],
)
def test_names_of_pytorch_that_are_replaced(name, when, monkeypatch):
    owner, attribute, make = PYTORCHS[name]
    model, x = Wrapped(make(64)), torch.randn(3, 64) + 2
    plain = copy.deepcopy(model)
    if when != "before":
        use(model)
    call, first = model, model(x)
    if "compil" in when:
        call = torch.compile(model, backend="eager", fullgraph=True)
    if when == "after compiling":
        call(x)
    other = BF16 if name == "torch.float32" else lambda tensor, *others, **named: tensor + 9
    with monkeypatch.context() as patch:
        patch.setattr(owner, attribute, other)
        expected, y = plain(x), call(x)
        assert len(use(model).left_alone) == 1
    torch.testing.assert_close(y, expected, rtol=0, atol=1e-5)
    assert not torch.equal(first, expected)
    assert len(use(model).replaced) == 1
    torch.compiler.reset()


def norm_with_a_closure(torch):
    """A module that finds PyTorch in an enclosing function, and a function to replace it there."""

    def replace(other):
        nonlocal torch
        torch = other

    class Norm(Weighted):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    return Norm(64), replace


@pytest.mark.parametrize("compiled", [False, True])
def test_own_names_that_are_replaced(compiled, monkeypatch):
    def replace_global(other):
        monkeypatch.setitem(Weighted._norm.__globals__, "torch", other)

    x, pytorch = torch.randn(3, 64), torch
    for module, replace in ((Meta(64), replace_global), norm_with_a_closure(torch)):
        expected = [module(x), x * module.weight]
        use(module)
        call = torch.compile(module, backend="eager", fullgraph=True) if compiled else module
        y = [call(x)]
        replace(types.SimpleNamespace(rsqrt=pytorch.ones_like))
        y.append(module(x))
        replace(pytorch)
        assert all(map(is_near, y, expected))
        torch.compiler.reset()


def test_code_that_is_not_in_the_source():
    class Norm(Weighted):
        def forward(self, x):
            return F.rms_norm(x, (self.d,), self.weight, self.eps)

    module, x = Norm(64), torch.randn(3, 64)
    assert use(module).replaced
    Norm.forward.__code__ = (lambda self, x: x + 1).__code__
    assert torch.equal(module(x), x + 1)
    assert not use(module).replaced
    assert torch.equal(module(x), x + 1)


# ------------------------------------------------------------------------------------- use()


def test_report_undo_and_a_second_call():
    model = torch.nn.Sequential(LlamaRMSNorm(64), torch.nn.LayerNorm(64), GemmaRMSNorm(64))
    model[2].forward = lambda x: x + 1
    keys = list(model.state_dict())
    report = use(model)
    text = str(report)
    assert text == repr(report) == str(use(model))
    assert text.startswith("replaced: 1\n  1 x LlamaRMSNorm: before_weight\nleft alone: 2")
    assert [(entry.name, entry.options) for entry in report.replaced] == [("0", "before_weight")]
    assert [entry.name for entry in report.left_alone] == ["1", "2"]
    assert "2 (GemmaRMSNorm): its forward() has been replaced already" in text
    assert list(model.state_dict()) == keys
    report.undo()
    assert type(model[0]) is LlamaRMSNorm
    assert "forward" in vars(model[2])


def test_the_model_itself_may_be_a_norm_and_may_hold_one_twice():
    norm = LlamaRMSNorm(64)
    assert "1 x LlamaRMSNorm" in repr(use(norm))
    report = use(torch.nn.Sequential(norm, norm))
    assert [entry.name for entry in report.replaced] == ["0"]
    assert "the model (LayerNorm)" in repr(use(torch.nn.LayerNorm(4)))


def test_what_a_derived_class_sets_in_motion():
    """use() tells no class of its replacement, and leaves alone what it cannot replace."""
    seen = []

    class Listed(torch.nn.Module):
        def __init_subclass__(cls, key, **named):
            seen.append(key)

    class ListedNorm(Listed, Meta, key="norm"):
        pass

    class Meta_(type):
        def __new__(cls, name, bases, members):
            seen.append(name)
            return super().__new__(cls, name, bases, members)

    class RegisteredNorm(Meta, metaclass=Meta_):
        pass

    class AbstractNorm(Meta, abc.ABC):
        pass

    class SlottedNorm(Meta):
        __slots__ = ("slot",)

    class FrozenNorm(Meta):
        def __setattr__(self, name, value):
            if name == "__class__":
                raise AttributeError("it is frozen")
            super().__setattr__(name, value)

    class BrokenNorm(Meta):
        eps = property(lambda self: 1 // 0)
        __init__ = torch.nn.Module.__init__

    made = [make(64) for make in (ListedNorm, AbstractNorm, SlottedNorm, FrozenNorm)]
    left = [RegisteredNorm(64), BrokenNorm()]
    model, x = torch.nn.Sequential(*left, *made, LlamaRMSNorm(64)), torch.randn(3, 64)
    expected, before = [module(x) for module in model[2:]], list(seen)
    report = use(model)
    reasons = ["its class has the metaclass Meta_", "ZeroDivisionError: "]
    assert [entry.module for entry in report.left_alone] == left
    assert all(e.reason.startswith(r) for e, r in zip(report.left_alone, reasons, strict=True))
    assert [entry.module for entry in report.replaced] == list(model[2:])
    for module, y in zip(model[2:], expected, strict=True):
        assert is_near(module(x), y) and is_near(copy.deepcopy(module)(x), y)
        assert is_computed_by_library(module, x)
        assert not isinstance(made[0], type(made[1]))
    # A class that somebody derives from a replacement is one of the class's.
    type("Derived", (type(made[0]),), {}, key="derived")
    assert seen == [*before, "derived"]
    report.undo()
    assert [type(m) for m in made] == [ListedNorm, AbstractNorm, SlottedNorm, FrozenNorm]


def test_hooks_state_dict_and_names_stay():
    module, seen = LlamaRMSNorm(64), []
    text, keys = repr(module), list(module.state_dict())
    module.register_forward_hook(lambda module, inputs, y: seen.append(y))
    use(module)
    y = module(torch.ones(2, 64))
    assert len(seen) == 1 and seen[0] is y
    assert (repr(module), list(module.state_dict())) == (text, keys)
    assert type(module).__name__ == "LlamaRMSNorm" and isinstance(module, LlamaRMSNorm)
    module.load_state_dict({"weight": torch.full((64,), 2.0)})
    assert inspect.signature(module.forward) == inspect.signature(LlamaRMSNorm(64).forward)


def test_the_class_computes_what_the_library_does_not_take():
    x = torch.randn(4, 64)
    for inputs, change in (
        (x.double(), lambda module: module.double()),
        (x.to("meta"), lambda module: module.to("meta")),
        (x, lambda module: setattr(module, "weight", torch.nn.Parameter(torch.rand(1)))),
    ):
        module = LlamaRMSNorm(64)
        change(module)
        expected = module(inputs)
        use(module)
        y = module(inputs)
        assert (y.dtype, y.shape, y.device) == (expected.dtype, expected.shape, expected.device)
        assert y.device.type == "meta" or torch.equal(y, expected)
    module = replaced(LlamaRMSNorm(64), x)
    assert module(hidden_states=x).shape == x.shape
    for wrong in ((x, x), ()):
        with pytest.raises(TypeError):
            module(*wrong)


def test_a_norm_that_moves():
    model = torch.nn.ModuleDict({"meta": LlamaRMSNorm(64), "float64": LlamaRMSNorm(64)})
    model["meta"].to("meta")
    model["float64"].double()
    assert not use(model).replaced
    model["float64"].float()
    model["meta"].to_empty(device="cpu")
    assert [entry.name for entry in use(model).replaced] == ["meta", "float64"]
    # A norm that the library does not compute any more is put back.
    model["float64"].double()
    assert [entry.name for entry in use(model).replaced] == ["meta"]
    assert type(model["float64"]) is LlamaRMSNorm


def test_a_buffer_as_weight():
    module, x = LlamaRMSNorm(64), torch.randn(3, 64)
    del module.weight
    module.register_buffer("weight", torch.rand(64))
    assert is_near(ours(module, x), module(x))


def test_autocast():
    for make in (LlamaRMSNorm, torch.nn.RMSNorm, NORMS["Unit"]):
        module = make(64)
        for x in (torch.randn(3, 64), torch.randn(3, 64).bfloat16()):
            with torch.autocast("cpu"):
                expected, other = module(x), copy.deepcopy(module)
                use(other)
                assert is_near(other(x), expected, BF16)


def test_an_eps_that_learns_keeps_its_gradient():
    model, x = Meta(64), torch.randn(3, 64)
    del model.eps
    model.eps = torch.nn.Parameter(torch.tensor(1e-5))
    [entry] = use(model).left_alone
    assert entry.reason == "its eps is Parameter, not a number from 0 on"
    model(x).sum().backward()
    assert model.eps.grad is not None
    own = type("Own", (float,), {})(1e-5)
    others = True, own, 1e39, np.float32(1e-5), None
    for eps in ("1e-5", -1.0, float("nan"), torch.tensor(1e-5), *others):
        module = replaced(Meta(64), x)
        module.eps = eps
        if eps is None or isinstance(eps, str):
            with pytest.raises(TypeError):
                module(x)
        else:
            module(x)
        assert use(module).left_alone
    whole = Meta(64, eps=1)
    assert is_near(ours(whole, x), whole(x))


# ------------------------------------------------------------------------- changed objects


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("on_class", [True, False])
@pytest.mark.parametrize("name", ["_norm", "forward"])
@pytest.mark.parametrize("compiled", [True, False])
def test_methods_that_were_replaced(before, on_class, name, compiled):
    def change(norm):
        target = Norm if on_class else norm
        setattr(target, name, other if on_class else types.MethodType(other, norm))
        return target

    def other(self, x):
        return x + 9

    Norm = type("Norm", (Google,), {})
    model, x = Wrapped(Norm(64)), torch.randn(3, 64)
    plain = Norm(64)
    plain.load_state_dict(model.norm.state_dict())
    if not before:
        assert len(use(model).replaced) == 1
    changed = change(model.norm)
    change(plain)
    expected = plain(x)
    if before:
        assert not use(model).replaced
    call = torch.compile(model, backend="eager", fullgraph=True) if compiled else model
    torch.testing.assert_close(call(x), expected, rtol=0, atol=1e-5)
    # Another call of use() finds out, and what is put back can be replaced again.
    assert len(use(model).left_alone) == 1
    assert type(model.norm) is Norm
    delattr(changed, name)
    assert len(use(model).replaced) == 1
    torch.compiler.reset()


def copies(model, folder):
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


@pytest.mark.parametrize("make", [LlamaRMSNorm, torch.nn.RMSNorm, LitGPT])
def test_every_copy_computes_with_its_weight(make, tmp_path):
    model, x = Wrapped(make(64)), torch.randn(3, 64)
    use(model)
    before = model(x)
    for way, copied in copies(model, tmp_path).items():
        assert isinstance(copied.norm, make), way
        assert is_computed_by_library(copied, x), way
        assert torch.equal(copied(x), before), way
        if way == "replica":
            copied.norm.weight = torch.rand(64)
        else:
            copied.norm._parameters = {"weight": torch.nn.Parameter(torch.rand(64))}
        plain = make(64)
        plain.weight = torch.nn.Parameter(copied.norm.weight)
        assert is_near(copied(x), plain(x)), way
        assert torch.equal(model(x), before), way
        # use() finds what it did, and undo() puts it back.
        report = use(copied)
        assert len(report.replaced) == 1 and not report.left_alone, way
        report.undo()
        assert type(copied.norm) is make, way
        assert torch.equal(copied(x), plain(x)), way
        assert len(use(copied).replaced) == 1, way


def test_another_process_reads_the_model(tmp_path):
    """A program that has not called use() reads the file, and computes with the library."""
    module = LlamaRMSNorm(64)
    use(module)
    torch.save(module, tmp_path / "norm.pt")
    program = """
import sys, torch
norm = torch.load(sys.argv[1] + "/norm.pt", weights_only=False)
torch.save(norm(torch.arange(64.0)), sys.argv[1] + "/y.pt")
import rmsnorm.torch
assert len(rmsnorm.torch.use(norm).replaced) == 1
rmsnorm.torch.use(norm).undo()
assert type(norm).__reduce_ex__ is object.__reduce_ex__
"""
    run(program, tmp_path)
    assert torch.equal(torch.load(tmp_path / "y.pt"), module(torch.arange(64.0)))


def test_a_class_derived_from_a_replaced_one():
    module, x = LlamaRMSNorm(64), torch.randn(3, 64)
    expected = module(x) + 1
    use(module)

    class Derived(type(module)):
        def forward(self, x):
            return super().forward(x) + 1

    module.__class__ = Derived
    assert not use(module).replaced
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-5)


def test_parametrized_weights():
    class Double(torch.nn.Module):
        def forward(self, weight):
            return 2 * weight

    module, x = LlamaRMSNorm(64), torch.randn(3, 64)
    expected = 2 * module(x)
    use(module)
    torch.nn.utils.parametrize.register_parametrization(module, "weight", Double())
    assert torch.allclose(module(x), expected) and is_computed_by_library(module, x)
    [entry] = use(module).left_alone
    assert entry.reason == "it is parametrized"
    assert torch.allclose(module(x), expected)
    torch.nn.utils.parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    assert type(module) is LlamaRMSNorm
    assert use(module).replaced


@pytest.mark.parametrize("compile_first", [True, False])
def test_use_on_a_compiled_model(compile_first):
    """use() and undo() after torch.compile lead to another graph."""
    seen = []

    def backend(graph, inputs):
        def run(*inputs):
            seen.append(graph.code)
            return graph(*inputs)

        return run

    def is_computed():
        compiled(torch.randn(3, 64))
        return "rmsnorm" in seen[-1]

    compiled = torch.compile(Wrapped(LlamaRMSNorm(64)), backend=backend, fullgraph=True)
    if compile_first:
        assert not is_computed()
    report = use(compiled)
    assert len(report.replaced) == 1
    assert is_computed()
    report.undo()
    assert not is_computed()
    torch.compiler.reset()


# ------------------------------------------------------------------------- other tensors


def test_jagged_tensors():
    parts = [torch.randn(3, 64), torch.randn(5, 64)]
    x = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for module in (torch.nn.RMSNorm(64), LlamaRMSNorm(64)):
        expected = module(x)
        use(module)
        for a, b in zip(module(x).unbind(), expected.unbind(), strict=True):
            assert torch.equal(a, b)
        assert is_computed_by_library(module, parts[0])


class Scaled(Tensor):
    """A subclass of Tensor with an operation of its own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (Tensor.float, Tensor.to):
            return args[0].as_subclass(Tensor).float() * 2
        return super().__torch_function__(function, types, args, kwargs or {})


@pytest.mark.parametrize("compiled", [True, False])
def test_subclasses_of_tensor(compiled):
    x = torch.randn(3, 64).as_subclass(Scaled)
    module = Meta(64)
    expected = module(x)
    use(module)
    call = torch.compile(module, backend="eager") if compiled else module
    assert torch.equal(call(x), expected) and type(call(x)) is type(expected)
    module.weight = torch.nn.Parameter(module.weight.detach().as_subclass(Scaled))
    [entry] = use(module).left_alone
    assert "its weight is a Scaled of float32 on cpu" in entry.reason
    torch.compiler.reset()


def test_tensors_that_are_not_dense():
    nested = torch.nested.nested_tensor([torch.randn(2, 4), torch.randn(2, 4)])
    for x in (nested, torch.randn(2, 4).to_sparse()):
        module, errors = Meta(4), []
        for _ in range(2):
            with pytest.raises((RuntimeError, NotImplementedError)) as error:
                module(x)
            errors.append((type(error.value), str(error.value)))
            use(module)
        assert errors[0] == errors[1]


@pytest.mark.parametrize("make", [LlamaRMSNorm, torch.nn.RMSNorm, NORMS["Course"]])
def test_tracing_and_transforms(make):
    """Where tensors stand for others, the operators of the library are traced or transformed."""
    plain, x = make(64), torch.randn(3, 64)
    module = replaced(plain, x)
    exported = torch.export.export(module, (x,))
    assert "rmsnorm" in exported.graph_module.code
    assert torch.equal(exported.module()(x), module(x))
    with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert module(mode.from_tensor(x)).shape == (3, 64)
    assert torch.equal(torch.func.vmap(module)(x), module(x))
    gradient, expected = (
        torch.func.grad(lambda x, norm=norm: norm(x).sum())(x) for norm in (module, plain)
    )
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-5)
    # torch.jit and torch.fx keep the operations of the class.
    assert torch.equal(torch.jit.trace(module, (x,))(x), plain(x))
    for recorded in (module, Wrapped(module)):
        assert is_near(torch.fx.symbolic_trace(recorded)(x), plain(x))
    assert torch.equal(torch.jit.script(module)(x), plain(x))


# ------------------------------------------------------------------------- distributed


@pytest.fixture
def gloo(tmp_path):
    """A group of one process."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def assert_trained_alike(model, plain, x):
    """The same gradients in a model that is spread over processes, and in one that is not."""
    model(x).sum().backward()
    plain(x).sum().backward()
    for a, b in zip(model.parameters(), plain.parameters(), strict=True):
        own = a.grad.full_tensor() if hasattr(a.grad, "full_tensor") else a.grad
        torch.testing.assert_close(own, b.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("use_first", [True, False])
def test_fully_shard(use_first, gloo):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), LlamaRMSNorm(64), Meta(64))
    plain, x = copy.deepcopy(model), torch.randn(3, 64)
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
    if use_first:
        use(model)
    fully_shard(model[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    if not use_first:
        # The weights are sharded between calls, and whole within them.
        assert len(use(model).replaced) == 2
    assert is_computed_by_library(model, x)
    assert is_near(model(x), plain(x))
    assert_trained_alike(model, plain, x)
    report = use(model)
    assert len(report.replaced) == 2
    report.undo()
    assert "rmsnorm" not in " ".join(
        str(base.__dict__) for module in model for base in type(module).__mro__
    )
    assert torch.equal(model(x), plain(x))


def test_data_parallel(gloo):
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), LlamaRMSNorm(64))
    plain = copy.deepcopy(model)
    use(model)
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    assert_trained_alike(parallel, plain, torch.randn(3, 64))


# ------------------------------------------------------------------------------------ models


def sizes(text):
    """The fields of a configuration, from words as name=number."""
    return {name: json.loads(number) for name, number in (w.split("=") for w in text.split())}


SIZES = sizes("vocab_size=128 hidden_size=64 num_hidden_layers=2 num_attention_heads=4")
DENSE = SIZES | sizes("intermediate_size=96 num_key_value_heads=2")
EXPERTS = sizes("num_experts_per_tok=2 moe_intermediate_size=32")
#: Tiny models by their configurations: how many norms each has, and its fields.
MODELS = {
    "LlamaConfig": (5, DENSE),
    "Gemma3TextConfig": (13, DENSE | sizes("head_dim=16")),
    "Olmo2Config": (9, DENSE),
    "Qwen3NextConfig": (
        8,
        {**DENSE, **EXPERTS, "layer_types": ["linear_attention", "full_attention"]}
        | sizes("num_experts=4 shared_expert_intermediate_size=32 head_dim=16")
        | sizes("linear_num_key_heads=2 linear_num_value_heads=4")
        | sizes("linear_key_head_dim=16 linear_value_head_dim=16"),
    ),
    "Mamba2Config": (
        5,
        sizes("vocab_size=128 hidden_size=64 num_hidden_layers=2 num_heads=8 head_dim=16")
        | sizes("state_size=16 n_groups=2 chunk_size=8 bos_token_id=0 eos_token_id=1"),
    ),
    "DeepseekV4Config": (
        18,
        SIZES
        | EXPERTS
        | sizes("n_routed_experts=4 head_dim=32 partial_rotary_factor=0.5 q_lora_rank=32")
        | sizes("o_lora_rank=16 o_groups=2 index_n_heads=2 index_head_dim=16 index_topk=8"),
    ),
    "T5Config": (12, sizes("vocab_size=128 d_model=64 d_kv=16 d_ff=96 num_layers=2 num_heads=4")),
}
#: Tiny transformers of diffusers' pipelines: how many norms, fields, and shapes of the inputs.
DIFFUSERS = {
    "FluxTransformer2DModel": (
        6,
        sizes("in_channels=4 num_layers=1 num_single_layers=1 attention_head_dim=16")
        | sizes("num_attention_heads=2 joint_attention_dim=32 pooled_projection_dim=32")
        | sizes("axes_dims_rope=[4,4,8]"),
        sizes("hidden_states=[1,16,4] encoder_hidden_states=[1,8,32] pooled_projections=[1,32]")
        | sizes("img_ids=[16,3] txt_ids=[8,3]"),
    ),
    "SD3Transformer2DModel": (
        8,
        sizes("sample_size=8 patch_size=1 in_channels=4 num_layers=2 attention_head_dim=8")
        | sizes("num_attention_heads=4 caption_projection_dim=32 joint_attention_dim=32")
        | sizes('pooled_projection_dim=64 out_channels=4 qk_norm="rms_norm"'),
        sizes("hidden_states=[1,4,8,8] encoder_hidden_states=[1,8,32] pooled_projections=[1,64]"),
    ),
    "Lumina2Transformer2DModel": (
        25,
        sizes("sample_size=8 patch_size=2 in_channels=4 hidden_size=24 num_layers=2")
        | sizes("num_refiner_layers=1 num_attention_heads=3 num_kv_heads=1 multiple_of=2")
        | sizes("axes_dim_rope=[4,2,2] axes_lens=[128,128,128] cap_feat_dim=8"),
        sizes("hidden_states=[1,4,8,8] encoder_hidden_states=[1,8,8] encoder_attention_mask=[1,8]"),
    ),
    "WanTransformer3DModel": (
        8,
        sizes("num_attention_heads=2 attention_head_dim=12 in_channels=4 out_channels=4")
        | sizes("text_dim=16 ffn_dim=32 num_layers=2 rope_max_seq_len=32"),
        sizes("hidden_states=[1,4,2,8,8] encoder_hidden_states=[1,8,16]"),
    ),
    "LTXVideoTransformer3DModel": (
        6,
        sizes("in_channels=4 out_channels=4 num_attention_heads=2 attention_head_dim=8")
        | sizes("cross_attention_dim=16 num_layers=1 caption_channels=16"),
        sizes("hidden_states=[1,32,4] encoder_hidden_states=[1,8,16] encoder_attention_mask=[1,8]")
        | sizes("num_frames=2 height=4 width=4"),
    ),
    "HunyuanVideoTransformer3DModel": (
        6,
        sizes("in_channels=4 out_channels=4 num_attention_heads=2 attention_head_dim=10")
        | sizes("num_layers=1 num_single_layers=1 num_refiner_layers=1 patch_size=1")
        | sizes("text_embed_dim=16 pooled_projection_dim=8 rope_axes_dim=[2,4,4]")
        | sizes("guidance_embeds=false"),
        sizes("hidden_states=[1,4,1,8,8] encoder_hidden_states=[1,8,16] pooled_projections=[1,8]")
        | sizes("encoder_attention_mask=[1,8]"),
    ),
    "QwenImageTransformer2DModel": (
        9,
        sizes("in_channels=16 out_channels=4 num_layers=2 attention_head_dim=16")
        | sizes("num_attention_heads=3 joint_attention_dim=16 axes_dims_rope=[8,4,4]"),
        sizes("hidden_states=[1,16,16] encoder_hidden_states=[1,8,16]")
        | sizes("encoder_hidden_states_mask=[1,8] img_shapes=[[[1,4,4]]]"),
    ),
    "MochiTransformer3DModel": (
        22,
        sizes("num_attention_heads=2 attention_head_dim=8 num_layers=2 pooled_projection_dim=16")
        | sizes("in_channels=4 text_embed_dim=16 time_embed_dim=4 max_sequence_length=16"),
        sizes("hidden_states=[1,4,2,8,8] encoder_hidden_states=[1,16,16]")
        | sizes("encoder_attention_mask=[1,16]"),
    ),
}
each_model = pytest.mark.parametrize("name", [*MODELS, *DIFFUSERS])
IDS = torch.arange(48).reshape(2, 24)


def with_random_norms(model, dtype):
    """The model with weights of norms that are not all ones."""
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                parameter.data += torch.randn(parameter.shape) * 0.3
    return model.eval().to(dtype)


def make_model(name, dtype):
    """A model of transformers with random weights."""
    config = getattr(transformers, name)(**MODELS[name][1])
    kind = "Seq2SeqLM" if config.is_encoder_decoder else "CausalLM"
    model = getattr(transformers, f"AutoModelFor{kind}").from_config(config)
    return with_random_norms(model, dtype)


def logits_of(model):
    more = {"decoder_input_ids": IDS} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        return model(IDS, **more).logits


def tensor_of(name, shape, dtype):
    """The argument of a diffusers' model: a mask of ones, or random numbers."""
    if "mask" in name:
        return torch.ones(shape, dtype=torch.bool)
    return torch.randn(shape).to(dtype)


def model_and_run(name, dtype):
    """A model of either library, and a function that gives its result."""
    if name in MODELS:
        model = make_model(name, dtype)
        return model, functools.partial(logits_of, model)
    _, fields, inputs = DIFFUSERS[name]
    model = with_random_norms(getattr(diffusers, name)(**fields), dtype)
    arguments = {
        key: value if key == "img_shapes" or type(value) is int else tensor_of(key, value, dtype)
        for key, value in inputs.items()
    }

    @torch.no_grad()
    def run():
        return model(timestep=torch.tensor([500]), return_dict=False, **arguments)[0]

    return model, run


@each_model
def test_results_of_a_model_in_f32(name):
    model, run = model_and_run(name, F32)
    before = run()
    report = use(model)
    assert len(report.replaced) == (MODELS | DIFFUSERS)[name][0], str(report)
    left = {label(type(entry.module)) for entry in report.left_alone} - HOLDERS
    assert not [name for name in left if "RMSNorm" in name]
    after = run()
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * before.abs().max().item())
    report.undo()
    assert torch.equal(run(), before)


@each_model
def test_results_of_a_model_in_bf16(name, monkeypatch):
    """Nearly no element of a norm is rounded differently; with another order, many are.

    Independent roundings add up like a random walk, so a tenth of the difference means that a
    hundredth of the elements differs. On most CPUs no result differs.
    """

    def other(*inputs, rounding="after_weight", **options):
        order = "before_weight" if rounding == "after_weight" else "after_weight"
        return rms_norm(*inputs, rounding=order, **options)

    model, run = model_and_run(name, BF16)
    before = run()
    use(model)
    after = run()
    monkeypatch.setattr(rmsnorm.torch._norms, "rms_norm", other)
    wrong = run()
    assert after.dtype == before.dtype
    difference = (after - before).float().square().mean().sqrt()
    assert difference < (wrong - before).float().square().mean().sqrt() / 10


def test_a_compiled_model():
    model = make_model("LlamaConfig", F32)
    before = logits_of(model)
    use(model)
    after = logits_of(torch.compile(model, fullgraph=True))
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5)


def test_training_a_model():
    """Gradients of all weights, beside those of transformers."""
    model = make_model("Gemma3TextConfig", F32).train()
    gradients = []
    for prepare in (lambda model: None, use):
        prepare(model)
        model.zero_grad()
        model(IDS, labels=IDS).loss.backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


# --------------------------------------------------------------------------------------- page


def worst_of(norm):
    """The worst difference in ulp in f32, and the share of bf16 elements that differ."""
    torch.manual_seed(10)
    worst, share = 0.0, 0.0
    for d, dtype in itertools.product((64, 1000), (F32, BF16)):
        for module, inputs in calls_of(norm, torch.randn(64, d).to(dtype), dtype):
            if getattr(module, "bias", None) is not None:
                continue  # the sum may cancel; other modules of the class have no bias
            y, expected = ours(module, *inputs), module(*inputs)
            if dtype == F32:
                # Numbers between the two, which have one sign.
                ulps = (y.view(torch.int32) - expected.view(torch.int32)).abs()
                worst = max(worst, ulps.max().item())
            else:
                share = max(share, (y != expected).float().mean().item())
    return worst, share


def kinds():
    """The known classes by their options, the most common options first."""
    by_options = {}
    for norm in KNOWN:
        by_options.setdefault(options_of(norm), []).append(norm)
    return dict(sorted(by_options.items(), key=lambda item: -len(item[1])))


def row_of(options, norms):
    """The cells of the table that do not depend on the CPU."""
    return f"| {options} | {len(norms)} | {len({norm.__module__ for norm in norms})} |"


def table():
    """The table, measured here."""
    rows = []
    for options, norms in kinds().items():
        ulps, shares = zip(*map(worst_of, norms), strict=True)
        rows.append(f"{row_of(options, norms)} {max(ulps):.0f} | {max(shares) * 1e6:.0f} |\n")
    columns = "| options | classes | files | f32: worst ulp | bf16: differ, per million |\n"
    return f"{columns}|---|---|---|---|---|\n{''.join(rows)}"


def versions():
    names = f"transformers {transformers.__version__} and diffusers {diffusers.__version__}"
    return f"This page is for {names}.\n"


def lists():
    """The names of the classes by their options."""
    parts = []
    for options, norms in kinds().items():
        names = ", ".join(sorted(map(label, norms)))
        parts.append(f"**{options}**\n\n{textwrap.fill(names, 120)}\n")
    return "\n".join(parts)


def reasons():
    lines = [f"- `{label(n)}`: {options_of(n)}\n" for n in unknown_classes()]
    return "".join(line.replace(": left alone:", ":") for line in lines)


def part_of_page(name, new=None):
    """The text between the comments of this name; with a new text, it is written there."""
    before = PAGE.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    head, rest = before.split(begin)
    part, tail = rest.split(end)
    if new is not None:
        PAGE.write_text(head + begin + new + end + tail)
    return part


#: The parts of the page that do not depend on the CPU.
PARTS = {"versions": versions, "lists": lists, "reasons": reasons}


def test_page_is_current():
    """The page has the classes of these versions, and no figure beyond the bounds."""
    if part_of_page("versions") != versions():
        pytest.skip("the page is for other versions")
    for name, make in PARTS.items():
        assert part_of_page(name) == make(), "run this file as a program to write it"
    text = part_of_page("table")
    for options, norms in kinds().items():
        row = re.escape(row_of(options, norms))
        match = re.search(rf"^{row} (\d+) \| (\d+) \|$", text, re.MULTILINE)
        assert match, options
        assert int(match[1]) <= bound(1000)
        assert int(match[2]) <= 1e6 * share_bound(BF16, 1000)


if __name__ == "__main__":
    for part, make_part in (PARTS | {"table": table}).items():
        part_of_page(part, make_part())

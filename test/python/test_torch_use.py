# SPDX-License-Identifier: Apache-2.0
"""Tests of rmsnorm.torch.use() against the models' own modules.

Run as a program it writes the tables in doc/known_norms.md.
"""

import abc
import ast
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
import pages
import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.parametrize
import transformers
from diffusers.models.normalization import AdaLayerNormContinuous, LuminaRMSNormZero
from diffusers.models.transformers.transformer_mochi import MochiRMSNormZero
from programs import run
from torch import Tensor
from torch_models import assert_bits, is_computed_by_library, whole_rows
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated

import rmsnorm.torch
from rmsnorm.torch import rms_norm, use
from rmsnorm.torch._use import read, reading_of

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


@functools.cache
def readings_of(norm):
    """What a class computes, for each choice of its flags. In the first, all are set."""

    def reading(flags):
        return read(norm, lambda name: flags.get(name, True))

    names = [*reading({}).flags]
    choices = itertools.product((True, False, None), repeat=len(names))
    return [reading(dict(zip(names, values, strict=True))) for values in choices]


@functools.cache
def options_of(norm):
    """All options that a class may have, of those that the library computes in every type."""
    ways = [reading.known for reading in readings_of(norm) if reading.known]
    return {known.options for known in ways if F16 in known.types}


#: The classes that the library computes in every type.
KNOWN = [norm for norm in all_classes() if options_of(norm)]


def known_classes():
    """Those of transformers."""
    return [norm for norm in KNOWN if norm.__module__.startswith("transformers.")]


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
    if "group_size" in parameters and parameters["group_size"].default is None:
        flags["group_size"] += (None,)
    if "eps" in parameters and parameters["eps"].default is inspect.Parameter.empty:
        flags["eps"] = (1e-6,)
    names = [name for name in parameters if name in flags]
    for values in itertools.product(*(flags[name] for name in names)):
        module = norm(**dict(zip(names, values, strict=True)))
        for tensor in itertools.chain(module.parameters(), module.buffers()):
            tensor.data = (torch.randn(tensor.shape) * 0.5).to(weight_dtype)
        yield module


def inputs_of(module, x, gate=None):
    """The arguments to test: x, and x with a gate."""
    reading = reading_of(module)
    if "gate" not in reading.formula.arguments:
        return [(x,)]
    gate = (torch.randn(x.shape) * 2 if gate is None else gate).to(x.dtype)
    needs_gate = re.search("gate after(?!, groups)", reading.known.options)
    return [(x, gate)] if needs_gate or reading.formula.needs_gate else [(x, gate), (x,)]


def replaced(module, *inputs):
    """A copy of a module after use(), which must compute these inputs by the library."""
    copied = copy.deepcopy(module)
    report = use(copied)
    assert len(report.replaced) == 1, str(report)
    assert is_computed_by_library(copied, *inputs)
    return copied


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


def is_near(y, expected, bias=None):
    """Whether a result in f32 is the expected one but for roundings. With a bias, sums cancel."""
    if y.dtype != expected.dtype or y.shape != expected.shape:
        return False
    scale = expected.abs().clamp_min(2.0**-100) + (0 if bias is None else bias.abs())
    return bool(((y - expected).abs() / scale * 2.0**24 <= bound(y.shape[-1])).all())


# --------------------------------------------------------------- norms as other people write them


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
    exec(compile(text, file, "exec"), dict(globals()), members)
    return type(name, (base,), members)


EPS = 1e-6
NEVER = False


def with_eps(x, eps):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


LLAMA = """
wide = x.float()
wide = wide * (torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps))
return self.weight * wide.to(x.dtype)"""

#: Norms as people write them.
FORMULAS = {
    "Functional": "return F.rms_norm(x, (x.size(-1),), self.weight, self.eps)",
    "FunctionalOfTorch": "return torch.rms_norm(x, x.shape[-1:], self.weight)",
    "FunctionalBeforeWeight": "return F.rms_norm(x, (self.d,), eps=self.eps) * self.weight",
    "FunctionalOffset": """
y = torch.nn.functional.rms_norm(x.float(), [self.d], 1 + self.weight.float(), self.eps)
return y.type_as(x)""",
    "Torchtune": """
x_fp32 = x.float()
x_normed = F.rms_norm(x_fp32, normalized_shape=self.shape, weight=self.gain, eps=self.eps)
return x_normed.to(x.dtype)""",
    # Stanford's CS336 asks for this form.
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
is_plain = not self.add_unit_offset
return x_normed * self.weight if is_plain else x_normed * (1 + self.weight)""",
    "OptionalWeight": """
variance = x.to(torch.float32).square().mean((-1,), keepdim=True)
y = (x.float() * (variance + self.eps).rsqrt()).to(x.dtype)
if self.weight is not None:
    y = y * self.weight
return y""",
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
wide: Tensor = x.to(dtype=torch.float32)
mean = wide.square().sum(-1, keepdim=True) / x.shape[-1]
return (torch.pow(mean + 1e-6, -0.5) * wide).type_as(x) * self.weight''',
    "Helped": """
if NEVER and x:
    return 0
return with_eps(x.float(), EPS).type_as(x)""",
    "OtherWeight": LLAMA.replace("self.weight", "self.gain"),
}
#: Others compute in the type of x: the library does that only in f32.
FORMULAS_FOR_F32 = {
    "Textbook": "return x / torch.sqrt(x.pow(2).mean(-1, True) + self.eps) * self.weight",
    "TextbookProduct": """
inverse = (x * x).mean(dim=-1, keepdim=True).add_(self.eps).sqrt().reciprocal()
return self.weight * x.mul(inverse)""",
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
    "LeastWithoutKeyword": """
norm = torch.norm(x, dim=-1, keepdim=True) * self.scale
return x / norm.clamp_min(self.least) * self.weight""",
}
NORMS = {name: norm_class(name, text) for name, text in (FORMULAS | FORMULAS_FOR_F32).items()}
Functional, Meta, Google, LitGPT = (NORMS[n] for n in ("Functional", "Meta", "Google", "LitGPT"))


class Private(torch.nn.Module):
    """Python stores self.__w as _Private__w, also in classes derived from this one."""

    def __init__(self, d):
        super().__init__()
        self.__w, self.__eps = torch.nn.Parameter(torch.full((d,), 5.0)), 1e-6

    def __norm(self, x):
        return x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.__eps)

    def forward(self, x):
        return self.__w * self.__norm(x).type_as(x)


def with_a_buffer(d):
    module = Meta(d)
    del module.weight
    module.register_buffer("weight", torch.rand(d))
    return module


def norm_with_a_gate(d):
    """A class that needs its gate."""
    source = textwrap.dedent(inspect.getsource(MambaRMSNormGated.forward))
    signature, body = source.replace(" nn.", " torch.nn.").split("\n", 1)
    assert "gate=None" in signature
    gated_class = norm_class("Gated", textwrap.dedent(body), "hidden_states, gate")
    return gated_class(d, variance_epsilon=1e-5, group_size=d // 4)


class Listed(torch.nn.Module):
    """It keeps a list of the classes derived from it."""

    seen = []

    def __init_subclass__(cls, key, **named):
        Listed.seen.append(key)


class ListedNorm(Listed, Meta, key="norm"):
    pass


class DoublingNorm(Meta):
    """Its weight is not the parameter of this name."""

    def __getattr__(self, name):
        value = super().__getattr__(name)
        return 2 * value if name == "weight" else value


class StrictNorm(Meta, abc.ABC):
    """It is abstract, has slots, and is frozen."""

    __slots__ = ("slot",)

    def __setattr__(self, name, value):
        if name == "__class__":
            raise AttributeError("it is frozen")
        super().__setattr__(name, value)


#: Norms of no library, and how to make each.
OTHERS = {
    "nn.RMSNorm": torch.nn.RMSNorm,
    "nn.RMSNorm without weight": lambda d: torch.nn.RMSNorm(d, 1e-3, False),
    **NORMS,
    **{
        f"{name} without offset": functools.partial(NORMS[name], add_unit_offset=False)
        for name in ("Google", "LitGPT", "OlderLitGPT")
    },
    **{
        name: lambda d, make=NORMS[name]: make(d, scale=d**-0.5)
        for name in ("Least", "LeastWithoutKeyword")
    },
    "no optional weight": functools.partial(NORMS["OptionalWeight"], weight=None),
    "LitGPT, the dimension by its place": functools.partial(LitGPT, dim=2),
    "a whole eps": functools.partial(Meta, eps=1),
    "a weight in a buffer": with_a_buffer,
    "a gate without a default": norm_with_a_gate,
    "Heir": type("Heir", (NORMS["Power"],), {}),
    "Private": Private,
    "heir of Private": type("Heir", (Private,), {}),
    **{norm.__name__: norm for norm in (ListedNorm, DoublingNorm, StrictNorm)},
}


# ------------------------------------------------------------------------------- every norm


def types_of(name):
    """The types of x and of the weight that a norm takes."""
    same = [(x_dtype, dtype) for x_dtype, dtype in TYPES if x_dtype == dtype]
    return [(F32, F32)] if name in FORMULAS_FOR_F32 else same if name in OTHERS else TYPES


#: For each norm, a function of d and the type of the weight that gives its modules.
MAKERS = {label(norm): functools.partial(make_all, norm) for norm in KNOWN} | {
    name: lambda d, dtype, make=make: [make(d).to(dtype)] for name, make in OTHERS.items()
}


def cases(name, x, weight_dtype, gate=None):
    """For each module of a norm and its inputs: the module, its copy after use(), the inputs."""
    for module in MAKERS[name](x.shape[-1], weight_dtype):
        for inputs in inputs_of(module, x, gate):
            yield module, replaced(module, *inputs), inputs


#: The first norm of each formula.
KINDS = [*{readings_of(norm)[0].formula.text: label(norm) for norm in reversed(KNOWN)}.values()]


@pytest.mark.parametrize("name", MAKERS)
def test_same_bits_where_sums_are_exact(name):
    """With small integers and d a power of two each order of the sum gives the same sum.

    The gates are exact, too: silu(19) is 19 in f32.
    """
    for d, (x_dtype, weight_dtype) in itertools.product((64, 1024), types_of(name)):
        x = torch.randint(-8, 9, (2, 16, d)).to(x_dtype)
        gate = torch.randint(19, 22, x.shape)
        for module, own, inputs in cases(name, x, weight_dtype, gate):
            if "x times" in reading_of(module).known.options:
                # x * 2 is an integer.
                module.weight.data = own.weight.data = torch.ones(d, dtype=weight_dtype)
            y, expected = own(*inputs), module(*inputs)
            assert y.dtype == expected.dtype
            if name not in OTHERS:
                assert torch.equal(y, expected)
            elif x_dtype != F32:
                # x / RMS and x * (1 / RMS) differ by an ulp of f32.
                assert (y == expected).float().mean() > 0.999


@pytest.mark.parametrize("name", MAKERS)
def test_near_on_random_rows(name):
    for d in (64, 1000):
        # Rows so small that their eps matters, too.
        x = torch.randn(2, 20, d) * torch.logspace(-4, 2, 20)[:, None]
        for module, own, inputs in cases(name, x, F32):
            bias = getattr(module, "bias", None)
            assert is_near(own(*inputs), module(*inputs), bias), (d, module)


@pytest.mark.parametrize("name", [*KINDS, *OTHERS])
def test_gradients(name):
    """Gradients in f32, where both sides are the derivatives of one function."""
    for module, own, inputs in cases(name, torch.randn(5, 3, 64), F32):
        gradients = []
        for each in (module, own):
            leaves = [t.clone().requires_grad_() for t in inputs]
            wanted = [*leaves, *each.parameters()]
            total = each(*leaves).sin().sum()
            gradients.append(torch.autograd.grad(total, wanted, allow_unused=True))
        for a, b in zip(*gradients, strict=True):
            rtol = 1e-4 if name in OTHERS else 1e-5
            torch.testing.assert_close(a, b, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("name", KINDS)
def test_compile_without_a_graph_break(name):
    for _, module, inputs in cases(name, torch.randn(5, 64).to(BF16), BF16):
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


@pytest.mark.parametrize("name", [*KINDS, *OTHERS])
def test_results_have_the_strides_of_the_class(name):
    plain = next(iter(MAKERS[name](8, F32)))
    module = copy.deepcopy(plain)
    use(module)
    for sizes in ((2, 3, 4, 8), (2, 1, 3, 8), (1, 3, 1, 8), (3, 8), (2, 0, 8)):
        for x, dtype in itertools.product(layouts(sizes), (F32, BF16)):
            inputs = [x.to(dtype)] * len(reading_of(plain).formula.arguments)
            try:
                expected = plain(*inputs)
            except (IndexError, RuntimeError, ValueError):
                continue  # the class refuses this layout
            y = module(*inputs)
            assert y.stride() == expected.stride(), (x.shape, x.stride())
            bias = getattr(plain, "bias", None)
            assert dtype == BF16 or x.numel() == 0 or is_near(y, expected, bias)


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
    assert is_near(replaced(module, x)(x).flatten(1), module(x).flatten(1))


# ----------------------------------------------------------------------------- what use() leaves


class OtherMethod(GemmaRMSNorm):
    """Others change classes, too. What counts is the function that runs."""

    def _norm(self, x):
        return x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + self.eps)


def norm_without_source():
    text = "def forward(self, x):\n    return F.rms_norm(x, (x.shape[-1],))\n"
    scope = {"F": F, "__name__": "nowhere"}
    exec(text, scope)
    return type("Norm", (Weighted,), {"forward": scope["forward"]})(64)


def of_text(old, new, inputs="x"):
    """Llama's norm with another text."""
    assert old in LLAMA
    return norm_class("Other", LLAMA.replace(old, new), inputs)(64)


def of_functional(arguments):
    return norm_class("Other", f"return F.rms_norm({arguments})")(64)


def of_changed_file():
    """A norm whose file has changed since it was imported."""
    module = norm_class("Edited", LLAMA)(64)
    lines = linecache.cache["<Edited>"][2]
    lines[-1] = lines[-1].replace("self.weight", "self.gain")
    return module


def lambda_norm(wraps):
    return type("Norm", (LlamaRMSNorm,), {"forward": wraps(lambda self, x: x)})(64)


class Registering(type):
    """A metaclass."""


class BrokenNorm(Meta):
    eps = property(lambda self: 1 // 0)
    __init__ = torch.nn.Module.__init__


def derived_from_a_replacement():
    module = LlamaRMSNorm(64)
    use(module)

    class Derived(type(module)):
        def forward(self, x):
            return super().forward(x) + 1

    module.__class__ = Derived
    return module


SOURCE = "the source of self.forward() cannot be read"
NO_OPTIONS = "the library has no options for "
NO_EPS = "it adds no eps to a mean square"
ELSE = "if self.training:\n    wide = wide * 2\nelse:\n    return wide\nreturn"
TRAINING = "if self.training:\n    wide = wide.to(x.dtype)\nreturn"
MEAN = "wide.pow(2).mean(-1, keepdim=True)"
TIMES = "wide = wide * (torch.rsqrt("
MEAN_IN_PLACE = f"{TIMES}{MEAN}", f"mean = {MEAN}\na = mean.add_(1)\n{TIMES}mean"
#: Modules that are left alone, and how the reason begins.
DECLINED = {
    "a mean over rows": (lambda: of_text("mean(-1", "mean(0"), NO_OPTIONS),
    "a fixed rounding": (lambda: of_text("wide.to(x.dtype)", "wide.to(torch.half)"), NO_OPTIONS),
    "in place": (lambda: of_text("wide = wide * ", "wide = x.mul_"), "it calls mul_(), wh"),
    "a mean in place": (lambda: of_text(*MEAN_IN_PLACE), "it calls add_(), which writes"),
    "out": (lambda: of_text("return", "a = torch.exp(x, out=x)\nreturn"), "it calls a function"),
    "a part": (lambda: of_text("wide.to(x.dtype)", "wide.to(x.dtype)[..., :64]"), "what it co"),
    "unused gate": (lambda: of_text("", "", "x, gate=None"), "it does not use gate"),
    "training": (lambda: of_text("return", TRAINING), NO_OPTIONS),
    "a statement": (lambda: of_text("wide = wide *", "wide *="), "it has a statement of the kind"),
    "an attribute": (lambda: of_text("return", "self.d = 64\nreturn"), "it assigns to self.d"),
    "an else": (lambda: of_text("return", ELSE), "it returns from inside an else"),
    "a helper": (lambda: of_text("wide * (", "with_eps("), "with_eps() has other parameters than"),
    "many arguments": (lambda: of_text(".mean(-1", ".mean(-1, 1, 0"), "it calls a function of Py"),
    "a norm of 2 * x": (lambda: of_functional("2 * x, (64,)"), "it calls rms_norm() for some"),
    "a fixed shape": (lambda: of_functional("x, (64,)"), "it calls rms_norm() with the shape [64]"),
    "two shapes": (
        lambda: of_functional("x, (self.d,)) + F.rms_norm(x, self.shape"),
        "it normalises different dimensions",
    ),
    "two inputs": (lambda: of_text("", "", "x, other=None"), "it has other parameters than x, or"),
    "a default": (lambda: of_text("", "", "x=torch.ones(64)"), "a parameter has a default that is"),
    "another method": (lambda: OtherMethod(64), NO_EPS),
    "LayerNorm": (lambda: torch.nn.LayerNorm(64), NO_EPS),
    "lambda": (lambda: lambda_norm(lambda function: function), SOURCE),
    "wrapped": (lambda: lambda_norm(functools.wraps(LlamaRMSNorm.forward)), SOURCE),
    "no source": (norm_without_source, SOURCE),
    "another source": (of_changed_file, "self.forward() runs other code than its source has"),
    "a metaclass": (
        lambda: Registering("Norm", (Meta,), {})(64),
        "its class has the metaclass Registering",
    ),
    "a property that fails": (BrokenNorm, "ZeroDivisionError: "),
    "derived from a replacement": (derived_from_a_replacement, "it uses super, which is not"),
    "ours": (lambda: rmsnorm.torch.RMSNorm(64), "it computes with this library already"),
    # What rounds each step is computed in f32 alone.
    **{
        f"{name} in bf16": (
            lambda name=name: OTHERS[name](64).to(BF16),
            "its weight is a Parameter of bfloat16 on cpu, not a plain tensor of float32 on cpu",
        )
        for name in FORMULAS_FOR_F32
    },
}


@pytest.mark.parametrize("name", DECLINED)
def test_what_is_left_alone(name):
    """A class whose source is unknown has identify() in its reason."""
    make, reason = DECLINED[name]
    model = Wrapped(make())
    before = outcome(model, X.clone())  # one norm writes to x
    report = use(model)
    assert not report.replaced and is_same(outcome(model, X.clone()), before, 1e-5)
    [entry] = report.left_alone
    assert entry.name == "norm" and entry.reason.startswith(reason), entry.reason
    is_unknown = reading_of(model.norm).known is None and name != "ours"
    assert ("rmsnorm.identify()" in entry.reason) == is_unknown


# ----------------------------------------------------------------------------- what changes later


class Doubled(Tensor):
    """A subclass of Tensor with an operation of its own."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function in (Tensor.float, Tensor.to):
            return args[0].as_subclass(Tensor).float() * 2
        return super().__torch_function__(function, types, args, kwargs or {})


def with_a_closure(torch):
    """A class that finds PyTorch in an enclosing function."""

    class Norm(Weighted):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight

    return Norm


def plus_9(x, *others, **named):
    return x + 9


def own_plus_9(self, x):
    return x + 9


OTHER_TORCH = types.SimpleNamespace(float32=F32, mean=torch.mean, sqrt=torch.ones_like)
OTHER_TORCH.rsqrt = torch.ones_like


def parameter(*shape, **options):
    return torch.nn.Parameter(torch.rand(*shape, **options) + 2)


WIDE_WEIGHT, META_WEIGHT = parameter(64, dtype=torch.float64), parameter(64, device="meta")
ONE_WEIGHT, DOUBLED_WEIGHT = parameter(1), torch.nn.Parameter(torch.rand(64).as_subclass(Doubled))
OWN_FLOAT = type("Own", (float,), {})(0.5)


def make_change(patch, change, module, norm):
    """Makes a change, assignments and `del`, that the monkeypatch undoes. `norm` is the class."""
    names = globals() | {"module": module, "norm": norm}
    for statement in ast.parse(change).body:
        [target] = statement.targets
        owner = eval(ast.unparse(target.value), names)
        is_item = isinstance(target, ast.Subscript)
        key = ast.literal_eval(target.slice) if is_item else target.attr
        if isinstance(statement, ast.Delete):
            (patch.delitem if is_item else patch.delattr)(owner, key)
            continue
        value = eval(ast.unparse(statement.value), names)
        if is_item:
            patch.setitem(owner, key, value)
        else:
            patch.setattr(owner, key, value, raising=False)


EAGER = "before after"
#: torch.compile follows a call after the change, or also before it.
ONCE = f"{EAGER} compiled"
COMPILED = f"{ONCE} recompiled"
NOT_PYTORCHS = "which is not PyTorch's"
Course, Helped = NORMS["Course"], NORMS["Helped"]
CLOSURE = with_a_closure(torch)
#: A class, a change, the reason of use() to leave the module alone then, or "", and when to try.
CHANGES = [
    (Functional, "F.rms_norm = plus_9", NOT_PYTORCHS, COMPILED),
    (Functional, "torch.rms_norm = plus_9", NOT_PYTORCHS, COMPILED),
    (Meta, "torch.rsqrt = plus_9", NOT_PYTORCHS, COMPILED),
    # torch.compile needs torch.float32, and does not see a method that is replaced later.
    (Course, "torch.float32 = BF16", NO_OPTIONS, EAGER),
    (Meta, "Tensor.pow = plus_9", NOT_PYTORCHS, ONCE),
    (Meta, "Tensor.__mul__ = plus_9", NOT_PYTORCHS, ONCE),
    (Course, "norm.forward.__globals__['torch'] = OTHER_TORCH", NOT_PYTORCHS, EAGER),
    (CLOSURE, "norm.forward.__closure__[0].cell_contents = OTHER_TORCH", NOT_PYTORCHS, EAGER),
    (Helped, "norm.forward.__globals__['EPS'] = 1.0", "", COMPILED),
    (Helped, "norm.forward.__globals__['with_eps'] = torch.add", NO_EPS, COMPILED),
    (Helped, "norm.forward.__globals__['NEVER'] = True", NO_OPTIONS, EAGER),
    (Functional, "norm.forward.__code__ = own_plus_9.__code__", NO_EPS, EAGER),
    (Google, "norm._norm = own_plus_9", NO_EPS, COMPILED),
    (Google, "norm.forward = own_plus_9", NO_EPS, COMPILED),
    (Google, "vars(module)['_norm'] = plus_9", "its _norm() has been replaced", ONCE),
    (Google, "vars(module)['forward'] = plus_9", "its forward() has been replaced", COMPILED),
    (LlamaRMSNorm, "module._parameters['weight'] = None", "its weight is None", EAGER),
    (Meta, "del module._parameters['weight']", "it has no attribute weight", EAGER),
    (Meta, "del module.eps", "it has no attribute eps", EAGER),
    (Private, "del module._parameters['_Private__w']", "it has no attribute _Private__w", EAGER),
    (Private, "del module._Private__eps", "it has no attribute _Private__eps", EAGER),
    (LlamaRMSNorm, "del module._parameters['weight']; module.weight = 2.0", "is a float", EAGER),
    (NORMS["OptionalWeight"], "module._parameters['weight'] = None", "", COMPILED),
    (LitGPT, "module.add_unit_offset = False", "", COMPILED),
    (LitGPT, "module.dim = 0", "", COMPILED),
    (LlamaRMSNorm, "module._parameters['weight'] = WIDE_WEIGHT", "of float64 on", EAGER),
    (LlamaRMSNorm, "module._parameters['weight'] = META_WEIGHT", "of float32 on meta,", EAGER),
    (LlamaRMSNorm, "module._parameters['weight'] = ONE_WEIGHT", "", COMPILED),
    (Meta, "module._parameters['weight'] = DOUBLED_WEIGHT", "a Doubled of float32 on cpu", EAGER),
    *(
        (Meta, f"module.eps = {eps}", f"its eps is {said or eps}", EAGER)
        for eps, said in (
            *(("'0.5'", ""), ("-1.0", ""), ("float('nan')", "nan"), ("None", ""), ("True", "")),
            ("torch.tensor(0.5, requires_grad=True)", "Tensor, not a number from 0 on"),
            *(("OWN_FLOAT", "0.5"), ("1e+39", ""), ("np.float32(0.5)", "")),
        )
    ),
]


def outcome(call, *inputs, **named):
    """The result of a call, or its error."""
    try:
        return call(*inputs, **named)
    except Exception as error:
        return type(error), str(error)


def is_same(one, two, tolerance=0.0):
    """Whether two calls have the same result or the same error."""
    if not isinstance(one, Tensor) or not isinstance(two, Tensor):
        return type(one) is type(two) and one == two
    if one.is_nested:
        return all(map(is_same, one.unbind(), two.unbind()))
    kinds = [(type(t), t.dtype, t.shape, t.device, t.requires_grad) for t in (one, two)]
    close = functools.partial(torch.allclose, rtol=0, atol=tolerance, equal_nan=True)
    return kinds[0] == kinds[1] and (one.is_meta or close(one, two))


@pytest.mark.parametrize(
    "norm, change, reason, when", [(*row, when) for *row, all in CHANGES for when in all.split()]
)
def test_what_changes(norm, change, reason, when, monkeypatch):
    """A change before or after use() has the effect that it has on the class."""
    plain, x = norm(64), torch.randn(3, 64) + 2
    call = model = Wrapped(copy.deepcopy(plain))
    first, is_compiled = plain(x), "compiled" in when
    if when != "before":
        assert len(use(model).replaced) == 1
    if is_compiled:
        call = torch.compile(model, backend="eager", fullgraph=True)
    if when == "recompiled":
        call(x)
    tolerance = 1e-5 if is_compiled or not reason else 0
    with monkeypatch.context() as patch:
        for module in {plain, model.norm}:
            make_change(patch, change, module, norm)
        expected, y = outcome(plain, x), outcome(call, x)
        report = use(model)
        assert (type(model.norm) is norm) == bool(reason)
        assert is_same(outcome(model, x), expected, 1e-5)
    assert is_same(y, expected, tolerance), (y, expected)
    assert not is_same(first, expected)
    assert (len(report.left_alone), len(report.replaced)) == ((1, 0) if reason else (0, 1))
    assert not reason or reason in report.left_alone[0].reason
    # What is put back can be replaced again.
    report = use(model)
    assert len(report.replaced) == 1 and is_computed_by_library(model, x)
    report.undo()
    assert type(model.norm) is norm and torch.equal(model(x), first)
    torch.compiler.reset()


X = torch.randn(3, 64)
JAGGED = torch.nested.nested_tensor([X, torch.randn(5, 64)], layout=torch.jagged)
#: Calls that the class computes or refuses: its constructor, its arguments, and those by name.
CALLS = {
    "float64": (LlamaRMSNorm, [X.double()]),
    "meta": (LlamaRMSNorm, [X.to("meta")]),
    "no dimension": (Meta, [torch.tensor(3.0)]),
    "two arguments": (LlamaRMSNorm, [X, X]),
    "no argument": (LlamaRMSNorm, []),
    "an argument by name": (LlamaRMSNorm, [], {"hidden_states": X}),
    "no gate": (norm_with_a_gate, [X]),
    "jagged": (LlamaRMSNorm, [JAGGED]),
    "jagged, by PyTorch's norm": (torch.nn.RMSNorm, [JAGGED]),
    "nested": (Meta, [torch.nested.nested_tensor([X, X])]),
    "sparse": (Meta, [X.to_sparse()]),
    "a subclass": (Meta, [X.as_subclass(Doubled)]),
    "another shape": (lambda d: torch.nn.RMSNorm((3, d)), [X.T[None]]),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_class_computes_what_the_library_does_not_take(name):
    make, inputs, *named = CALLS[name]
    module = make(64)
    call = functools.partial(outcome, module, *inputs, **dict(*named))
    expected = call()
    assert len(use(module).replaced) == 1
    assert is_same(call(), expected) and not is_computed_by_library(call)
    if name == "a subclass":
        assert is_same(torch.compile(module, backend="eager")(*inputs), expected)
        torch.compiler.reset()


def test_autocast():
    for make in (LlamaRMSNorm, torch.nn.RMSNorm, NORMS["Unit"]):
        module = make(64)
        with torch.autocast("cpu"):
            assert is_near(replaced(module, X)(X), module(X))
            x = X.bfloat16()
            expected, y = module(x), replaced(module, X)(x)
            assert y.dtype == expected.dtype and (y == expected).float().mean() > 0.99


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
    # A model may hold a norm twice, and be one.
    assert [entry.name for entry in use(torch.nn.Sequential(model[0], model[0])).replaced] == ["0"]
    assert "the model (LayerNorm)" in repr(use(model[1]))
    of_script = torch.nn.Sequential(torch.jit.script(torch.nn.RMSNorm(64)), model[0])
    assert [entry.name for entry in use(of_script).replaced] == ["1"]
    with pytest.raises(TypeError, match=r"^model is of type builtins.list; it must be a torch.nn"):
        use([model])


def test_use_tells_no_class_of_its_replacement():
    listed, abstract = replaced(ListedNorm(64), X), replaced(StrictNorm(64), X)
    assert not isinstance(listed, type(abstract)) and Listed.seen == ["norm"]
    # A class that somebody derives from a replacement is one of the class's.
    type("Derived", (type(listed),), {}, key="derived")
    assert Listed.seen.pop() == "derived"


def test_an_equal_flag_is_no_change():
    module, x = Google(64, add_unit_offset=1000), torch.randn(3, 64)
    use(module)
    module.add_unit_offset = int("1000")  # another object, as in a module that was loaded
    assert is_computed_by_library(module, x)
    module.add_unit_offset = 1001
    assert not is_computed_by_library(module, x)


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


# ------------------------------------------------------------------------- changed objects


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


def test_use_on_a_compiled_model():
    """use() and undo() after torch.compile lead to another graph."""
    seen = []

    def backend(graph, inputs):
        return lambda *inputs: seen.append("rmsnorm" in graph.code) or graph(*inputs)

    compiled = torch.compile(Wrapped(LlamaRMSNorm(64)), backend=backend, fullgraph=True)
    compiled(X)
    report = use(compiled)
    compiled(X)
    report.undo()
    compiled(X)
    assert (len(report.replaced), seen) == (1, [False, True, False])
    torch.compiler.reset()


# ------------------------------------------------------------------------- other ways to call


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


# ------------------------------------------------------------------------------------ models


def words(text):
    """Names and values, from words as name=value."""
    return {name: json.loads(value) for name, value in (w.split("=") for w in text.split())}


#: What makes a model tiny, as far as it has the field or the input. Inputs are shapes, or numbers.
FIELDS = words(
    # transformers
    "vocab_size=128 hidden_size=64 num_hidden_layers=2 num_attention_heads=4 intermediate_size=96"
    " num_key_value_heads=2 head_dim=16 num_experts_per_tok=2 num_experts=4 n_routed_experts=4"
    " moe_intermediate_size=32 shared_expert_intermediate_size=32 linear_num_key_heads=2"
    " linear_num_value_heads=4 linear_key_head_dim=16 linear_value_head_dim=16 q_lora_rank=32"
    " o_lora_rank=16 o_groups=2 index_n_heads=2 index_head_dim=16 index_topk=8 d_model=64 d_kv=16"
    " d_ff=96 num_layers=2 num_heads=4 state_size=16 n_groups=2 chunk_size=8 bos_token_id=0"
    " eos_token_id=1 pad_token_id=0"
    # diffusers
    " in_channels=4 out_channels=4 num_single_layers=1 num_refiner_layers=1 attention_head_dim=16"
    " joint_attention_dim=16 pooled_projection_dim=32 cross_attention_dim=16 caption_channels=16"
    " caption_projection_dim=64 text_dim=16 text_embed_dim=16 cap_feat_dim=16 ffn_dim=32"
    " time_embed_dim=4 patch_size=1 sample_size=8 axes_dims_rope=[4,4,8] rope_axes_dim=[4,4,8]"
    " axes_dim_rope=[4,4,8] axes_lens=[128,128,128] guidance_embeds=false num_kv_heads=2"
    " multiple_of=2 max_sequence_length=16 rope_max_seq_len=32"
    # inputs
    " encoder_hidden_states=[1,8,16] pooled_projections=[1,32] encoder_attention_mask=[1,8]"
    " encoder_hidden_states_mask=[1,8] num_frames=2 height=4 width=4 img_ids=[16,3] txt_ids=[8,3]"
    " img_shapes=[[[1,4,4]]]"
)
#: For each model the number of its norms, and other fields and inputs.
MODELS = {
    "Llama": (5, ""),
    "Gemma3Text": (13, ""),
    "Olmo2": (9, ""),
    "Qwen3Next": (8, 'layer_types=["linear_attention","full_attention"]'),
    "Mamba2": (5, "num_heads=8"),
    "DeepseekV4": (18, "head_dim=32 partial_rotary_factor=0.5"),
    "T5": (12, ""),
    "FluxTransformer2DModel": (6, "num_layers=1 hidden_states=[1,16,4]"),
    "SD3Transformer2DModel": (8, 'qk_norm="rms_norm" hidden_states=[1,4,8,8]'),
    "Lumina2Transformer2DModel": (25, "patch_size=2 hidden_states=[1,4,8,8]"),
    "WanTransformer3DModel": (8, "patch_size=[1,2,2] hidden_states=[1,4,2,8,8]"),
    "LTXVideoTransformer3DModel": (6, "num_layers=1 cross_attention_dim=64 hidden_states=[1,32,4]"),
    "HunyuanVideoTransformer3DModel": (6, "num_layers=1 hidden_states=[1,4,1,8,8]"),
    "QwenImageTransformer2DModel": (9, "in_channels=16 hidden_states=[1,16,16]"),
    "MochiTransformer3DModel": (22, "patch_size=2 hidden_states=[1,4,2,8,8]"),
}
IDS = torch.arange(48).reshape(2, 24)


def tensor_of(name, value, dtype):
    """The argument of a diffusers' model: a mask of ones, random numbers, or the value itself."""
    if type(value) is int or name == "img_shapes":
        return value
    return torch.ones(value, dtype=torch.bool) if "mask" in name else torch.randn(value).to(dtype)


def model_and_call(name, dtype):
    """A model with random weights, also of its norms, and a function that gives its result."""
    own = words(MODELS[name][1])

    def known(names):
        return {key: value for key, value in (FIELDS | own).items() if key in names}

    if make := getattr(diffusers, name, None):
        model, result = make(**known(inspect.signature(make).parameters)), 0
        inputs = known(inspect.signature(model.forward).parameters)
        arguments = {key: tensor_of(key, value, dtype) for key, value in inputs.items()}
        arguments |= {"timestep": torch.tensor([500]), "return_dict": False}
    else:
        make = getattr(transformers, f"{name}Config")
        config = make(**known(vars(make())) | own)
        is_pair = config.is_encoder_decoder
        auto = getattr(transformers, f"AutoModelFor{'Seq2SeqLM' if is_pair else 'CausalLM'}")
        model, result = auto.from_config(config), "logits"
        arguments = {"input_ids": IDS} | ({"decoder_input_ids": IDS} if is_pair else {})
    for module in model.modules():
        if "Norm" in type(module).__name__:
            for parameter in module.parameters(recurse=False):
                parameter.data += torch.randn(parameter.shape) * 0.3
    model.eval().to(dtype)

    @torch.no_grad()
    def call(model):
        return model(**arguments)[result]

    return model, call


def rms(x):
    return x.float().square().mean().sqrt()


@pytest.mark.parametrize("name", MODELS)
def test_results_of_a_model(name, monkeypatch):
    """Before, with and after use(): in f32 near, and in bf16 with the rounding order of the class.

    In bf16 nearly no element of a norm is rounded differently; with another order, many are.
    Independent roundings add up like a random walk, so a tenth of the difference means that a
    hundredth of the elements differs. On most CPUs no result differs.
    """

    def other(*inputs, rounding="after_weight", **options):
        order = "before_weight" if rounding == "after_weight" else "after_weight"
        return rms_norm(*inputs, rounding=order, **options)

    for dtype in (F32, BF16):
        model, call = model_and_call(name, dtype)
        before, report = call(model), use(model)
        after = call(model)
        assert len(report.replaced) == MODELS[name][0], str(report)
        if dtype == F32:
            near = functools.partial(torch.testing.assert_close, rtol=0)
            near(after, before, atol=1e-5 * before.abs().max().item())
        else:
            with monkeypatch.context() as patch:
                patch.setattr(rmsnorm.torch._norms, "rms_norm", other)
                wrong = call(model)
            assert after.dtype == before.dtype
            assert rms(after - before) < rms(wrong - before) / 10
        if (name, dtype) == ("Llama", F32):
            compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
            torch.testing.assert_close(call(compiled), before, rtol=0, atol=1e-5)
        report.undo()
        assert torch.equal(call(model), before)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize(
    "make",
    [
        lambda d: AdaLayerNormContinuous(d, d, norm_type="rms_norm"),
        lambda d: LuminaRMSNormZero(d, 1e-5, True),
        lambda d: MochiRMSNormZero(d, 4 * d),
    ],
)
def test_norms_in_modules_that_modulate_them(make, dtype):
    """The rows' sums of squares are exact."""
    module, x, embedding = make(64).to(dtype), whole_rows(2, 3, 64, dtype=dtype), torch.randn(2, 64)
    expected = module(x, embedding.to(dtype))
    assert [each.name for each in use(module).replaced] == ["norm"]
    assert_bits(module(x, embedding.to(dtype)), expected)


# --------------------------------------------------------------------------------------- page


def worst_of(norm, options):
    """The worst difference in ulp in f32, and the share of bf16 elements that differ."""
    torch.manual_seed(10)
    worst, share = 0.0, 0.0
    for d, dtype in itertools.product((64, 1000), (F32, BF16)):
        for module, own, inputs in cases(label(norm), torch.randn(64, d).to(dtype), dtype):
            if reading_of(module).known.options != options:
                continue
            if "bias" in options:  # the sum may cancel
                module.bias.data.zero_()
                own.bias.data.zero_()
            y, expected = own(*inputs), module(*inputs)
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
        for options in sorted(options_of(norm)):
            by_options.setdefault(options, []).append(norm)
    return dict(sorted(by_options.items(), key=lambda item: -len(item[1])))


def versions():
    names = f"transformers {transformers.__version__} and diffusers {diffusers.__version__}"
    return f"This page is for {names}.\n"


def table(measure=worst_of):
    """The number of classes and of files with them, and the worst differences as measured."""
    rows = []
    for options, norms in kinds().items():
        ulps, shares = zip(*(measure(norm, options) for norm in norms), strict=True)
        files = len({norm.__module__ for norm in norms})
        figures = f"{max(ulps):.0f} | {max(shares) * 1e6:.0f}"
        rows.append([options, str(len(norms)), str(files), figures])
    columns = "options|classes|files|f32: worst ulp|bf16: differ, per million".split("|")
    return pages.table(columns, rows)


def lists():
    """The names of the classes by their options."""
    names = ((f"**{options}**", sorted(map(label, norms))) for options, norms in kinds().items())
    return "\n".join(f"{title}\n\n{textwrap.fill(', '.join(own), 120)}\n" for title, own in names)


def reasons():
    return "".join(f"- `{label(n)}`: {readings_of(n)[0].reason}\n" for n in unknown_classes())


#: The parts of the page, between comments of these names.
PARTS = {make.__name__: make for make in (versions, table, lists, reasons)}


def test_page_is_current():
    """The page has the classes of these versions, and no figure beyond the bounds."""
    text = PAGE.read_text()
    if versions() not in text:
        pytest.skip("the page is for other versions")
    figures = re.findall(r" (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(figures) == len(kinds())
    parts = {"lists": lists(), "reasons": reasons(), "table": table(lambda *_: (0, 0))}
    made = pages.with_parts(PAGE, parts)
    without_figures = functools.partial(re.sub, r"\d+ \| \d+ \|\n", "")
    assert without_figures(text) == without_figures(made), "run this file as a program to write it"
    for ulps, share in figures:
        assert int(ulps) <= bound(1000)
        # Two f32 numbers that differ by the bound round to different neighbours if the middle of
        # these lies between them. A norm rounds to bf16 up to four times.
        assert int(share) <= 1e6 * 4 * bound(1000) * 2.0 ** (8 - 24)


if __name__ == "__main__":
    PAGE.write_text(pages.with_parts(PAGE, {name: make() for name, make in PARTS.items()}))

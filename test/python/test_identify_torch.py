# SPDX-License-Identifier: Apache-2.0
"""identify() of norms in PyTorch and transformers.

Run as a program it writes their tables in doc/identify.md.
"""

import functools
import re

import identify_page
import pytest
import torch
import torch.nn.functional as F
from identify_page import Norm, Norms
from test_torch_use import formula, known_classes, make_all, options_of

import rmsnorm.torch

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
D = 100

# ---------------------------------------------------------------------------------------- PyTorch


def torch_norm(x, weight=None):
    return F.rms_norm(x, (x.shape[-1],), weight)


def module_norm(x, weight):
    module = torch.nn.RMSNorm(x.shape[-1], eps=1e-5, dtype=x.dtype)
    with torch.no_grad():
        module.weight.copy_(weight)
    return module(x)


def layer_norm(x, weight):
    return F.layer_norm(x, (x.shape[-1],), weight, eps=1e-6)


def without_cast(x, weight):
    # Not rsqrt(): in bf16, some of its results depend on the rows around.
    return x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def of_type(dtype, weight_dtype=None, **more):
    return {"dtype": dtype, "weight_dtype": weight_dtype, **more}


ONCE = "rounded once, after the weight"
TORCH_EPS = "eps 1.1920929e-07 inside the root"

SYSTEMS = Norms(
    "PyTorch",
    {
        "`rms_norm`": Norm(torch_norm, TORCH_EPS, of_type(F32)),
        "`rms_norm` in bf16": Norm(torch_norm, f"{TORCH_EPS}, {ONCE}", of_type(BF16)),
        "`rms_norm` in f16": Norm(torch_norm, f"{TORCH_EPS}, {ONCE}", of_type(F16)),
        "`rms_norm` in bf16, weight in f32": Norm(
            torch_norm, f"{TORCH_EPS}, {ONCE}", of_type(BF16, F32)
        ),
        "`rms_norm` without a weight": Norm(
            torch_norm, f"{TORCH_EPS}, {ONCE}", of_type(BF16, weight=False)
        ),
        "`RMSNorm(d, eps=1e-5)`": Norm(
            module_norm, f"eps 1e-05 inside the root, {ONCE}", of_type(BF16)
        ),
        "`layer_norm`": Norm(
            layer_norm, "the mean is subtracted from x: a LayerNorm", of_type(BF16)
        ),
        "`normalize(x, dim=-1)`": Norm(
            functools.partial(F.normalize, dim=-1),
            "eps 1e-12 as the least RMS, the sum of squares not divided",
            of_type(F32, weight=False),
        ),
        "`x / sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight`": Norm(
            without_cast, "eps 1e-06 inside the root", of_type(F32)
        ),
        "`x / sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight` in bf16": Norm(
            without_cast,
            "every operation rounds to bf16, and x is divided by the RMS",
            of_type(BF16),
        ),
    },
)


test_what_is_known_of_pytorch, test_page_has_pytorch = SYSTEMS.tests()


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_this_library(dtype):
    def f(x, weight):
        return rmsnorm.torch.rms_norm(x, weight, 1e-6, weight_offset=1.0)

    answer = rmsnorm.identify(f, D, dtype)
    assert answer.fit == "exact"
    assert answer.options == {"eps": pytest.approx(1e-6), "weight_offset": 1}
    assert answer.depends == dict.fromkeys(
        ("repetition", "history", "batch", "place", "alignment", "threads"), 0
    )


def test_a_residual():
    def f(x, residual, weight):
        return rmsnorm.torch.fused_add_rms_norm(x, residual, weight, 1e-6)

    answer = rmsnorm.identify(f, D, BF16, residual=True)
    assert answer.options == {"eps": pytest.approx(1e-6)}
    assert "residual_out is residual + x in every element." in answer.special
    assert answer.writes == ()


def test_arguments_that_are_written_to():
    def f(x, residual, weight):
        rmsnorm.torch.fused_add_rms_norm_(x, residual, weight, 1e-6)
        return x, residual

    answer = rmsnorm.identify(f, D, BF16, residual=True)
    assert answer.options == {"eps": pytest.approx(1e-6)}
    assert answer.writes == ("residual", "x")


def changed_where(condition):
    """The causes that change rows of a norm that is doubled on a condition."""
    answer = rmsnorm.identify(lambda x, w: torch_norm(x, w) * (2 if condition(x) else 1), D, BF16)
    return {cause for cause, rows in answer.depends.items() if rows}


def test_the_number_of_threads_changes_a_row():
    usual = torch.get_num_threads()
    assert changed_where(lambda x: torch.get_num_threads() != usual) == {"threads"}
    assert torch.get_num_threads() == usual


def test_the_alignment_changes_a_row():
    assert changed_where(lambda x: x.data_ptr() % 16 != 0) == {"alignment"}


def test_the_framework_has_a_name_or_follows_from_the_type():
    def f(x, weight):
        assert (x.dtype, weight.dtype) == (BF16, F32)
        return torch_norm(x, weight)

    by_type = rmsnorm.identify(f, D, BF16, weight_dtype=F32)
    by_name = rmsnorm.identify(f, D, "bfloat16", weight_dtype="float32", framework="torch")
    assert by_type == by_name
    with pytest.raises(ValueError, match="dtype: 'int8'; possible are float32, float16, bfloat16"):
        rmsnorm.identify(f, D, torch.int8)


def test_refused_results():
    with pytest.raises(ValueError, match="ndarray, which is no tensor of PyTorch, instead of y"):
        rmsnorm.identify(lambda x, w: x.float().numpy(), D, BF16)
    with pytest.raises(ValueError, match="elements of type float64, instead of y of shape"):
        rmsnorm.identify(lambda x, w: x.double(), D, BF16)


# ----------------------------------------------------------------------------------- transformers

#: What identify() says for the words of doc/known_norms.md, where x and the weight are bf16.
CLAUSES = {
    "after_weight": ONCE,
    "before_weight": "rounded to bf16 before the weight",
    "before_weight in the type of the weight": "rounded to bf16 before the weight",
    "inverse": "1 / RMS and the norm rounded to bf16 before the weight",
    "weight_offset 1": "1 added to the weight",
    "1 + weight rounded": "1 + weight is rounded to bf16",
    "divisor 1": "the sum of squares not divided",
    "x times 1 + weight rounded": "x is multiplied by 1 + weight before the norm, both rounded",
    "gate before": "of the gate before the norm",
    "gate after": "of the gate after the norm",
    "rounded": "the norm rounded before the gate",
}


@functools.cache
def answers_to(norm):
    """What identify() says of each module of a class."""
    d = 64  # 4 groups of 16
    answers = []
    for module in make_all(norm, d, BF16):
        name = rmsnorm.torch._norms.known(formula(norm)).weight
        has_weight = getattr(module, name, None) is not None

        def f(x, *others, module=module, name=name, has_weight=has_weight):
            *gate, weight = others if has_weight else (*others, None)
            if has_weight:
                getattr(module, name).data = weight
            with torch.no_grad():
                return module(x, *gate)

        gate = "gate" in formula(norm).arguments
        answers.append((module, rmsnorm.identify(f, d, BF16, weight=has_weight, gate=gate)))
    return answers


@pytest.mark.parametrize("norm", known_classes(), ids=lambda norm: norm.__name__)
def test_what_is_known_of_transformers(norm):
    words = options_of(norm).split(", ")
    for module, answer in answers_to(norm):
        assert answer.fit in ("exact", "close"), str(answer)
        assert answer.mistake is None, str(answer)
        for word in words:
            # Without a weight, "before" and "after" are the same.
            if not (word == "before_weight" and "without a weight" in answer.sentence):
                assert CLAUSES.get(word, "") in answer.sentence, str(answer)
        eps = getattr(module, str(formula(norm).eps))
        assert f"eps {torch.tensor(eps).item():.1g} inside the root" in answer.sentence, str(answer)
        is_grouped = getattr(module, "group_size", 64) == 16 or getattr(module, "n_groups", 1) == 4
        assert ("in 4 groups of 16 elements" in answer.sentence) == is_grouped, str(answer)


def table_of_transformers():
    """A row for each kind of class, and for what is said of it."""
    classes = {}
    for norm in known_classes():
        for _, answer in answers_to(norm):
            text = re.sub(r"eps \S+ inside the root, ", "", identify_page.said(answer))
            classes.setdefault((options_of(norm), text), set()).add(norm)
    rows = [[options, str(len(norms)), text] for (options, text), norms in classes.items()]
    rows.sort(key=lambda row: -int(row[1]))
    return identify_page.table(["options of the class", "classes", "what `identify` says"], rows)


# ------------------------------------------------------------------------------------------- page


def test_page_has_transformers():
    assert identify_page.read("transformers") == table_of_transformers()


if __name__ == "__main__":
    SYSTEMS.write()
    identify_page.write("transformers", table_of_transformers())

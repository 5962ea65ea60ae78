# SPDX-License-Identifier: Apache-2.0
"""identify() of norms in PyTorch, transformers, ONNX and ONNX Runtime."""

import functools
import re

import onnx
import onnx.parser
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from identify_page import Norm, make_tests, page_test, said
from onnx.reference import ReferenceEvaluator
from pages import table
from test_torch_use import known_classes, make_all, reading_of

import rmsnorm.torch

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
ONCE = "rounded once, after the weight"

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


NO_WEIGHT = {"weight": False}
EPS = "eps 1.1920929e-07 inside the root"
test_what_is_known_of_pytorch, test_page_has_pytorch, _ = make_tests(
    "PyTorch",
    {
        "`rms_norm`": Norm(torch_norm, EPS, F32),
        "`rms_norm` in bf16": Norm(torch_norm, f"{EPS}, {ONCE}", BF16),
        "`rms_norm` in f16": Norm(torch_norm, f"{EPS}, {ONCE}", F16),
        "`rms_norm` in bf16, weight in f32": Norm(
            torch_norm, f"{EPS}, {ONCE}", BF16, {"weight_dtype": F32}
        ),
        "`rms_norm` without a weight": Norm(torch_norm, f"{EPS}, {ONCE}", BF16, NO_WEIGHT),
        "`RMSNorm(d, eps=1e-5)`": Norm(module_norm, f"eps 1e-05 inside the root, {ONCE}", BF16),
        "`layer_norm`": Norm(layer_norm, "the mean is subtracted from x: a LayerNorm", BF16),
        "`normalize(x, dim=-1)`": Norm(
            functools.partial(F.normalize, dim=-1),
            "eps 1e-12 as the least RMS, the sum of squares not divided",
            F32,
            NO_WEIGHT,
        ),
        "`normalize(x, dim=-1) * d**0.5 * weight` in bf16": Norm(
            lambda x, w: F.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * w,
            "eps 1e-12 as the least RMS, rounded once, after the weight, x is divided by its",
            BF16,
        ),
        "`x / sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight`": Norm(
            without_cast, "eps 1e-06 inside the root", F32
        ),
        "`x / sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight` in bf16": Norm(
            without_cast, "every operation rounds to bf16, and x is divided by the RMS", BF16
        ),
    },
)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
def test_this_library_in_place(dtype):
    def f(x, residual, weight):
        rmsnorm.torch.fused_add_rms_norm_(x, residual, weight, 1e-6, weight_offset=1.0)
        return x, residual

    answer = rmsnorm.identify(f, 100, dtype, residual=True)
    assert (answer.fit, answer.writes) == ("exact", ("residual", "x"))
    assert answer.options == {"eps": pytest.approx(1e-6), "weight_offset": 1}
    causes = "repetition", "history", "batch", "place", "alignment", "threads"
    assert answer.depends == dict.fromkeys(causes, 0)


def test_threads_and_alignment_change_rows():
    def changed_where(condition):
        answer = rmsnorm.identify(
            lambda x, w: torch_norm(x, w) * (2 if condition(x) else 1), 100, BF16
        )
        return {cause for cause, rows in answer.depends.items() if rows}

    usual = torch.get_num_threads()
    assert changed_where(lambda x: torch.get_num_threads() != usual) == {"threads"}
    assert torch.get_num_threads() == usual
    assert changed_where(lambda x: x.data_ptr() % 16 != 0) == {"alignment"}


def test_the_framework_has_a_name_or_follows_from_the_type():
    def f(x, weight):
        assert (x.dtype, weight.dtype) == (BF16, F32)
        y = torch_norm(x, weight)
        x.unsqueeze_(0)
        return y

    by_type = rmsnorm.identify(f, 100, BF16, weight_dtype=F32)
    by_name = rmsnorm.identify(f, 100, "bfloat16", weight_dtype="float32", framework="torch")
    assert (by_type, by_type.writes) == (by_name, ("x",))
    with pytest.raises(ValueError, match="dtype: 'int8'; possible are float32, float16, bfloat16"):
        rmsnorm.identify(f, 100, torch.int8)


def test_refused_results():
    with pytest.raises(ValueError, match="ndarray, which is no tensor of PyTorch, instead of y"):
        rmsnorm.identify(lambda x, w: x.float().numpy(), 100, BF16)
    with pytest.raises(ValueError, match="elements of type float64, instead of y of shape"):
        rmsnorm.identify(lambda x, w: x.double(), 100, BF16)


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
    """For each module of a class, what use() and identify() say of it."""
    d = 64  # 4 groups of 16
    answers = []
    for module in make_all(norm, d, BF16):
        reading = reading_of(module)
        name = reading.known.weight

        def f(x, *others, module=module, name=name):
            *gate, weight = others if name else (*others, None)
            if name:
                getattr(module, name).data = weight
            with torch.no_grad():
                return module(x, *gate)

        gate = "gate" in reading.formula.arguments
        answer = rmsnorm.identify(f, d, BF16, weight=bool(name), gate=gate)
        answers.append((module, reading, answer))
    return answers


@pytest.mark.parametrize("norm", known_classes(), ids=lambda norm: norm.__name__)
def test_what_is_known_of_transformers(norm):
    for module, reading, answer in answers_to(norm):
        assert answer.fit in ("exact", "close"), str(answer)
        assert answer.mistake is None, str(answer)
        for word in reading.known.options.split(", "):
            assert CLAUSES.get(word, "") in answer.sentence, str(answer)
        eps = getattr(module, str(reading.formula.eps))
        assert f"eps {torch.tensor(eps).item():.1g} inside the root" in answer.sentence, str(answer)
        is_grouped = getattr(module, "group_size", 64) == 16 or getattr(module, "n_groups", 1) == 4
        assert ("in 4 groups of 16 elements" in answer.sentence) == is_grouped, str(answer)


def table_of_transformers():
    """A row for each kind of norm, and for what is said of it."""
    classes = {}
    for norm in known_classes():
        for _, reading, answer in answers_to(norm):
            text = re.sub(r"eps \S+ inside the root, ", "", said(answer))
            classes.setdefault((reading.known.options, text), set()).add(norm)
    rows = [[options, str(len(norms)), text] for (options, text), norms in classes.items()]
    rows.sort(key=lambda row: -int(row[1]))
    return table(["options of the norm", "classes", "what `identify` says"], rows)


test_page_has_transformers = page_test("transformers", table_of_transformers)

# ------------------------------------------------------------------------------------------- ONNX

ONNX_TYPES = {"float32": "float", "float16": "float16"}


def model_of(operator, dtype, residual=""):
    """A model of one operator, with inputs of a type, and y."""
    names = ["x", *([residual] if residual else []), "weight"]
    of_type = ONNX_TYPES[dtype]
    inputs = ", ".join(f"{of_type}[{'d' if n == 'weight' else 'r, d'}] {n}" for n in names)
    return onnx.parser.parse_model(
        f'''<ir_version: 10, opset_import: ["": 23, "com.microsoft": 1]>
        norm ({inputs}) => ({of_type}[r, d] y) {{ y = {operator} ({", ".join(names)}) }}'''
    )


def by_runtime(*arguments):
    model = model_of(*arguments)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    names = [each.name for each in model.graph.input]
    return lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0]


def by_reference(dtype):
    """ONNX's class for the operator, in NumPy."""
    evaluator = ReferenceEvaluator(model_of("RMSNormalization", dtype))
    return lambda x, weight: evaluator.run(None, {"x": x, "weight": weight})[0]


def by_definition(dtype):
    """The function that defines RMSNormalization in the operator's schema."""
    schema = onnx.defs.get_schema("RMSNormalization", 23)
    model = model_of("RMSNormalization", dtype)
    node, of_type = model.graph.node[0], model.graph.input[0].type.SerializeToString()
    function = schema.get_context_dependent_function(node.SerializeToString(), [of_type, of_type])
    evaluator = ReferenceEvaluator(onnx.FunctionProto.FromString(function))
    attributes = {"epsilon": 1e-5, "axis": -1, "stash_type": 1}
    return lambda x, weight: evaluator.run(None, {"X": x, "scale": weight}, attributes)[0]


IN_ROOT = "eps 1e-05 inside the root"
ROWS = {
    "RMSNormalization-23, ONNX's reference": Norm(by_reference("float32"), IN_ROOT, "float32"),
    # It rounds the squares and their mean to f16, and nothing then, unlike the definition.
    "RMSNormalization-23, ONNX's reference, in f16": Norm(by_reference("float16"), "", "float16"),
    "RMSNormalization-23, its definition, in f16": Norm(
        by_definition("float16"), f"{IN_ROOT}, rounded to f16 before the weight", "float16"
    ),
}
for operator in ("RMSNormalization", "SimplifiedLayerNormalization"):
    name = operator.replace("RMSNormalization", "RMSNormalization-23") + ", ONNX Runtime"
    ROWS[name] = Norm(by_runtime(operator, "float32"), IN_ROOT, "float32")
    ROWS[f"{name}, in f16"] = Norm(
        by_runtime(operator, "float16"), f"{IN_ROOT}, {ONCE}", "float16"
    )
ROWS["SkipSimplifiedLayerNormalization, ONNX Runtime"] = Norm(
    by_runtime("com.microsoft.SkipSimplifiedLayerNormalization", "float32", "residual"),
    "eps 1e-12 inside the root",
    "float32",
    {"residual": True},
)
test_what_is_known_of_onnx, test_page_has_onnx, _ = make_tests("ONNX", ROWS)

# SPDX-License-Identifier: Apache-2.0
"""identify() of ONNX's reference and of ONNX Runtime.

Run as a program it writes their table in doc/identify.md.
"""

import numpy as np
import onnx
import onnxruntime
from identify_page import Norm, Norms
from onnx import helper
from onnx.reference import ReferenceEvaluator

TYPES = {
    "float32": onnx.TensorProto.FLOAT,
    "float16": onnx.TensorProto.FLOAT16,
    "bfloat16": onnx.TensorProto.BFLOAT16,
}
ONNX, MICROSOFT = "", "com.microsoft"


def model_of(operator, dtype, domain=ONNX, inputs=("x", "weight"), **attributes):
    """A model of one operator, with the type's inputs and one output."""
    code = TYPES[dtype]
    values = [
        helper.make_tensor_value_info(name, code, ["d"] if name == "weight" else ["rows", "d"])
        for name in inputs
    ]
    y = helper.make_tensor_value_info("y", code, ["rows", "d"])
    node = helper.make_node(operator, inputs, ["y"], domain=domain, **attributes)
    opsets = [helper.make_opsetid(ONNX, 23), helper.make_opsetid(MICROSOFT, 1)]
    graph = helper.make_graph([node], "norm", values, [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def by_runtime(*arguments, inputs=("x", "weight"), **more):
    model = model_of(*arguments, inputs=inputs, **more).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return lambda *arrays: session.run(None, dict(zip(inputs, arrays, strict=True)))[0]


def by_reference(*arguments):
    """ONNX's class for the operator, in NumPy."""
    evaluator = ReferenceEvaluator(model_of(*arguments))
    return lambda x, weight: evaluator.run(None, {"x": x, "weight": weight})[0]


def by_definition(dtype):
    """The function that defines RMSNormalization in the operator's schema."""
    schema = onnx.defs.get_schema("RMSNormalization", 23)
    node = model_of("RMSNormalization", dtype, epsilon=1e-5).graph.node[0]
    of_type = helper.make_tensor_type_proto(TYPES[dtype], None).SerializeToString()
    function = onnx.FunctionProto.FromString(
        schema.get_context_dependent_function(node.SerializeToString(), [of_type, of_type])
    )
    evaluator = ReferenceEvaluator(function)
    attributes = {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    return lambda x, weight: evaluator.run(None, {"X": x, "scale": weight}, attributes)[0]


def in_type(dtype, **more):
    return {"dtype": dtype, **more}


SKIP = "SkipSimplifiedLayerNormalization", "float32", MICROSOFT
EPS = "eps 1e-05 inside the root"

SYSTEMS = Norms(
    "ONNX",
    {
        "RMSNormalization-23, ONNX's reference": Norm(
            by_reference("RMSNormalization", "float32"), EPS, in_type("float32")
        ),
        # It rounds the squares and their mean to f16, and nothing then, unlike the definition.
        "RMSNormalization-23, ONNX's reference, in f16": Norm(
            by_reference("RMSNormalization", "float16"), "", in_type("float16")
        ),
        "RMSNormalization-23, its definition, in f16": Norm(
            by_definition("float16"), f"{EPS}, rounded to f16 before the weight", in_type("float16")
        ),
        "RMSNormalization-23, ONNX Runtime": Norm(
            by_runtime("RMSNormalization", "float32"), EPS, in_type("float32")
        ),
        "RMSNormalization-23, ONNX Runtime, in f16": Norm(
            by_runtime("RMSNormalization", "float16"),
            f"{EPS}, rounded once, after the weight",
            in_type("float16"),
        ),
        "SimplifiedLayerNormalization, ONNX Runtime": Norm(
            by_runtime("SimplifiedLayerNormalization", "float32"), EPS, in_type("float32")
        ),
        "SimplifiedLayerNormalization, ONNX Runtime, in f16": Norm(
            by_runtime("SimplifiedLayerNormalization", "float16"),
            f"{EPS}, rounded once, after the weight",
            in_type("float16"),
        ),
        "SkipSimplifiedLayerNormalization, ONNX Runtime": Norm(
            by_runtime(*SKIP, inputs=("x", "residual", "weight")),
            "eps 1e-12 inside the root",
            in_type("float32", residual=True),
        ),
    },
)


test_what_is_known_of_onnx, test_page_has_onnx = SYSTEMS.tests()


if __name__ == "__main__":
    SYSTEMS.write()

# SPDX-License-Identifier: Apache-2.0
"""Models with the norms of rmsnorm.torch, or after use(), in ONNX, run by ONNX Runtime."""

import onnx
import onnxruntime
import pytest
import torch
from torch_models import MODELS, TwoKinds

import rmsnorm.torch

ONNX_WAYS = {
    "dynamo": {"dynamo": True},
    "dynamo, opset 23": {"dynamo": True, "opset_version": 23},
    "TorchScript": {"dynamo": False},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*MODELS, "after use()"])
@pytest.mark.parametrize("way", ONNX_WAYS)
def test_onnx(name, way, tmp_path):
    # PyTorch has no translation of torch.nn.RMSNorm for the exporter of TorchScript.
    others = [torch.nn.RMSNorm(16)] * (way != "TorchScript")
    model = MODELS[name]() if name in MODELS else TwoKinds(*others)
    x, path = torch.randn(2, 3, 16), tmp_path / "model.onnx"
    expected, report = model(x), rmsnorm.torch.use(model)
    assert len(report.replaced) == (0 if name in MODELS else len(model.norms))
    torch.onnx.export(model, (x,), path, input_names=["x"], **ONNX_WAYS[way])
    graph = onnx.load(path).graph
    assert {node.domain for node in graph.node} <= {"", "pkg.onnxscript.torch_lib.common"}
    if way == "dynamo, opset 23" and name == "module":
        assert "RMSNormalization" in {node.op_type for node in graph.node}
    [y] = onnxruntime.InferenceSession(str(path)).run(None, {"x": x.numpy()})
    assert torch.allclose(torch.from_numpy(y), expected, rtol=1e-5, atol=1e-5)

# SPDX-License-Identifier: Apache-2.0
"""ncnn: its layer RMSNorm, in f32 and with bf16 or f16 storage."""

import os
import tempfile

import ncnn
import numpy as np


def norm(x, weight, options="1=1e-6"):
    net = ncnn.Net()
    net.opt.use_vulkan_compute = False
    net.opt.num_threads = int(os.environ["OMP_NUM_THREADS"])
    net.opt.use_bf16_storage = x.dtype.name == "bfloat16"
    net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = x.dtype == np.float16
    layers = ("Input x 0 1 x", f"RMSNorm norm 1 1 x y 0={weight.size} {options}")
    net.load_param_mem("\n".join(("7767517", "2 2", *layers, "")))
    with tempfile.NamedTemporaryFile() as file:
        weight.astype(np.float32).tofile(file.name)
        net.load_model(file.name)
    x32 = x.astype(np.float32)  # ncnn.Mat does not keep it
    rows = ncnn.Mat(x32).clone()
    extractor = net.create_extractor()
    extractor.input("x", rows)
    status, y = extractor.extract("y")
    assert status == 0
    return np.array(y, np.float32, copy=True).astype(x.dtype)


ENGINES = {"ncnn": {"`RMSNorm`": norm}}

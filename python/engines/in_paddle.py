# SPDX-License-Identifier: Apache-2.0
"""PaddlePaddle: paddle.incubate.nn.functional.fused_rms_norm, alone and with a residual."""

import numpy as np
import paddle
from paddle.incubate.nn.functional import fused_rms_norm


def tensor(array):
    if array.dtype.name == "bfloat16":
        return paddle.to_tensor(array.view(np.uint16), dtype="bfloat16")
    return paddle.to_tensor(array)


def norm(x, weight, **residual):
    results = fused_rms_norm(tensor(x), tensor(weight), None, 1e-6, 1, **residual)
    return tuple(each.numpy().view(x.dtype) for each in results[:2])


ENGINES = {
    "PaddlePaddle": {
        "`fused_rms_norm`": lambda x, weight: norm(x, weight)[0],
        "`fused_rms_norm` with a residual": lambda x, residual, weight: norm(
            x, weight, residual=tensor(residual)
        ),
    }
}

# SPDX-License-Identifier: Apache-2.0
"""tinygrad: nn.RMSNorm on its device CPU."""

import os

os.environ["DEV"] = "CPU"
import numpy as np
from tinygrad import Tensor, dtypes, nn

TYPES = {"float32": dtypes.float32, "float16": dtypes.float16, "bfloat16": dtypes.bfloat16}


def tensor(array):
    return Tensor(array.astype(np.float32)).cast(TYPES[array.dtype.name]).contiguous().realize()


def norm(x, weight):
    module = nn.RMSNorm(weight.size)
    module.weight = tensor(weight)
    return module(tensor(x)).realize().cast(dtypes.float32).numpy().astype(x.dtype)


ENGINES = {"tinygrad": {"`nn.RMSNorm`": norm}}

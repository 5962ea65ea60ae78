# SPDX-License-Identifier: Apache-2.0
"""TVM: relax.op.nn.rms_norm, compiled by LLVM."""

import functools

import numpy as np
import tvm
from tvm import relax


@functools.cache
def compiled(shape, dtype):
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    weight = relax.Var("weight", relax.TensorType(shape[-1:], dtype))
    with builder.function("main", [x, weight]):
        builder.emit_func_output(
            builder.emit(relax.op.nn.rms_norm(x, weight, axes=-1, epsilon=1e-6))
        )
    machine = relax.VirtualMachine(tvm.compile(builder.get(), "llvm"), tvm.cpu())
    return machine["main"]


def norm(x, weight):
    values = [tvm.runtime.tensor(np.ascontiguousarray(each)) for each in (x, weight)]
    return compiled(x.shape, x.dtype.name)(*values).numpy()


ENGINES = {"TVM": {"`relax.op.nn.rms_norm`": norm}}

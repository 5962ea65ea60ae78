# SPDX-License-Identifier: Apache-2.0
"""MLX on the CPU: mlx.core.fast.rms_norm."""

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)


def norm(x, weight=None):
    def array(values):
        bits = values.view(np.uint32 if values.itemsize == 4 else np.uint16)
        return mx.array(bits).view(getattr(mx, values.dtype.name))

    y = mx.fast.rms_norm(array(x), None if weight is None else array(weight), 1e-6)
    return np.array(y.view(mx.uint32 if y.itemsize == 4 else mx.uint16)).view(x.dtype)


ENGINES = {
    "MLX on the CPU": {
        "`fast.rms_norm`": norm,
        "`fast.rms_norm` without a weight": lambda x: norm(x),
    }
}

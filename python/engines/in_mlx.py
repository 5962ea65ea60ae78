# SPDX-License-Identifier: Apache-2.0
"""MLX on the CPU: mlx.core.fast.rms_norm."""

import mlx.core as mx
import numpy as np

mx.set_default_device(mx.cpu)


def to_mlx(array):
    bits = array.view(np.uint32 if array.itemsize == 4 else np.uint16)
    return mx.array(bits).view(getattr(mx, array.dtype.name))


def norm(x, weight):
    y = mx.fast.rms_norm(to_mlx(x), to_mlx(weight), 1e-6)
    return np.array(y.view(mx.uint32 if y.itemsize == 4 else mx.uint16)).view(x.dtype)


def without_weight(x):
    y = mx.fast.rms_norm(to_mlx(x), None, 1e-6)
    return np.array(y.view(mx.uint32 if y.itemsize == 4 else mx.uint16)).view(x.dtype)


NORMS = {"`fast.rms_norm`": norm, "`fast.rms_norm` without a weight": without_weight}

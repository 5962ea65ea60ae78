# SPDX-License-Identifier: Apache-2.0
"""Keras: its layer, with JAX as its backend."""

import os

os.environ["KERAS_BACKEND"] = "jax"
import keras

FRAMEWORK = "jax"


def norm(x, weight):
    layer = keras.layers.RMSNormalization(dtype=x.dtype.name)
    layer.build(x.shape)
    layer.scale.assign(weight)
    return layer(x)


NORMS = {"`layers.RMSNormalization`": norm}

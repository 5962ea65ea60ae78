# SPDX-License-Identifier: Apache-2.0
"""Haiku: hk.RMSNorm."""

import haiku

FRAMEWORK = "jax"
NORM = haiku.without_apply_rng(haiku.transform(lambda x: haiku.RMSNorm(axis=-1)(x)))


def norm(x, weight):
    return NORM.apply({"rms_norm": {"scale": weight}}, x)


NORMS = {"`RMSNorm`": norm}

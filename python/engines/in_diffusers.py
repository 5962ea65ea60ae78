# SPDX-License-Identifier: Apache-2.0
"""diffusers: its RMSNorm, eager."""

import torch
from diffusers.models.normalization import RMSNorm

FRAMEWORK = "torch"


@torch.no_grad()
def norm(x, weight):
    module = RMSNorm(weight.numel(), eps=1e-6).to(x.dtype)
    module.weight.copy_(weight)
    return module(x)


def without_weight(x):
    return RMSNorm(x.shape[-1], eps=1e-6, elementwise_affine=False)(x)


NORMS = {"`RMSNorm`": norm, "`RMSNorm` without a weight": without_weight}

# SPDX-License-Identifier: Apache-2.0
"""PyTorch: its norm, eager and compiled by Inductor, and compiled with a sum before it."""

import torch
from torch.nn.functional import rms_norm

FRAMEWORK = "torch"


def eager(x, weight):
    return rms_norm(x, weight.shape, weight)


def without_weight(x):
    return rms_norm(x, x.shape[-1:])


@torch.compile(dynamic=True)
def compiled(x, weight):
    return rms_norm(x, weight.shape, weight)


@torch.compile(dynamic=True)
def compiled_sum(x, residual, weight):
    h = x + residual
    return rms_norm(h, weight.shape, weight), h


NORMS = {
    "`rms_norm`": eager,
    "`rms_norm` without a weight": without_weight,
    "`torch.compile` of it": compiled,
    "`torch.compile` of it and a sum": compiled_sum,
}

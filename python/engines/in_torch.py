# SPDX-License-Identifier: Apache-2.0
"""PyTorch, eager and compiled by Inductor, and classes of transformers and diffusers, eager."""

import torch
from diffusers.models.normalization import RMSNorm
from torch.nn.functional import rms_norm
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

FRAMEWORK = "torch"


def eager(x, weight):
    return rms_norm(x, weight.shape, weight)


def after_sum(x, residual, weight):
    h = x + residual
    return rms_norm(h, weight.shape, weight), h


def module(kind, **options):
    @torch.no_grad()
    def norm(x, weight):
        made = kind(weight.numel(), **options).to(x.dtype)
        made.weight.copy_(weight)
        return made(x)

    return norm


def without_weight(x):
    return RMSNorm(x.shape[-1], eps=1e-6, elementwise_affine=False)(x)


ENGINES = {
    "PyTorch": {
        "`rms_norm`": eager,
        "`rms_norm` without a weight": lambda x: rms_norm(x, x.shape[-1:]),
        "`torch.compile` of it": torch.compile(eager, dynamic=True),
        "`torch.compile` of it and a sum": torch.compile(after_sum, dynamic=True),
    },
    "transformers": {
        f"`{kind.__name__}`": module(kind) for kind in (LlamaRMSNorm, GemmaRMSNorm, T5LayerNorm)
    },
    "diffusers": {
        "`RMSNorm`": module(RMSNorm, eps=1e-6),
        "`RMSNorm` without a weight": without_weight,
    },
}

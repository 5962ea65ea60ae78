# SPDX-License-Identifier: Apache-2.0
"""transformers: three of its classes, eager."""

import torch
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

FRAMEWORK = "torch"


def norm(kind):
    @torch.no_grad()
    def f(x, weight):
        module = kind(weight.numel()).to(x.dtype)
        module.weight.copy_(weight)
        return module(x)

    return f


NORMS = {f"`{kind.__name__}`": norm(kind) for kind in (LlamaRMSNorm, GemmaRMSNorm, T5LayerNorm)}

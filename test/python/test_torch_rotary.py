# SPDX-License-Identifier: Apache-2.0
"""Norms and rotary positions of q and k: rmsnorm.torch beside the attention of transformers."""

import pytest
import torch
from torch_models import assert_bits, gradients, whole_rows
from transformers.models.qwen3 import modeling_qwen3 as qwen3

import rmsnorm.torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
TOKENS, HEADS, OF_K, D = 5, 4, 2, 64
HALF = D // 2


def layer(dtype):
    """Returns the norms of an attention layer, and its tables for some positions of two rows."""
    config = qwen3.Qwen3Config(head_dim=D, hidden_size=D * HEADS, num_attention_heads=HEADS)
    norms = [qwen3.Qwen3RMSNorm(D, 1e-6).to(dtype) for _ in range(2)]
    for norm in norms:
        torch.nn.init.normal_(norm.weight)
    positions = torch.tensor([range(3, 3 + TOKENS), range(1000, 1000 + TOKENS)])
    tables = qwen3.Qwen3RotaryEmbedding(config)(torch.empty(0, dtype=dtype), positions)
    return norms, tables


def step(q, k, weights, tables):
    """The step of the layer by this library, on q and k of [batch, tokens, heads, d]."""
    cos, sin = (table[:, None, :, :HALF] for table in tables)
    q, k = q.transpose(1, 2), k.transpose(1, 2)
    return rmsnorm.torch.qk(q, k, *weights, 1e-6, cos, sin, rounding="before_weight")


def step_of_transformers(q, k, norms, tables):
    q, k = (norm(x).transpose(1, 2) for norm, x in zip(norms, (q, k), strict=True))
    return qwen3.apply_rotary_pos_emb(q, k, *tables)


@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_of_transformers(dtype):
    norms, tables = layer(dtype)
    q, k = (whole_rows(2, TOKENS, heads, D, dtype=dtype) for heads in (HEADS, OF_K))
    with torch.no_grad():
        expected = step_of_transformers(q, k, norms, tables)
        weights = [norm.weight for norm in norms]
        assert_bits(step(q, k, weights, tables), expected)
        # In place, in a buffer of q, k and v.
        buffer = torch.cat((q, k, k), 2)
        parts = buffer.split((HEADS, OF_K, OF_K), 2)
        cos, sin = (table[:, :, None, :HALF] for table in tables)
        for x, weight in zip(parts, weights):
            options = {"weight": weight, "eps": 1e-6, "rounding": "before_weight"}
            rmsnorm.torch.forward(x=x, y=x, cos=cos, sin=sin, **options)
        assert_bits([x.transpose(1, 2) for x in parts[:2]], expected)
        assert_bits(parts[2], k)


def test_gradients_of_transformers():
    norms, tables = layer(torch.float32)
    q, k = (torch.randn(2, TOKENS, heads, D) for heads in (HEADS, OF_K))
    weights = [norm.weight.detach() for norm in norms]

    def theirs(q, k, *weights):
        for norm, weight in zip(norms, weights):
            del norm.weight
            norm.weight = weight
        return step_of_transformers(q, k, norms, tables)

    leaves = (q, k, *weights)
    dys = [torch.randn_like(y) for y in step(q, k, weights, tables)]
    found = gradients(lambda q, k, *weights: step(q, k, weights, tables), leaves, dys)
    torch.testing.assert_close(found, gradients(theirs, leaves, dys), rtol=1e-4, atol=1e-5)

# SPDX-License-Identifier: Apache-2.0
"""CTranslate2: the last norm of an encoder. Its embeddings are the rows; its layer adds zeros."""

import os
import tempfile

import ctranslate2
import numpy as np
from ctranslate2.specs import TransformerEncoderModelSpec, TransformerEncoderSpec


def norm(x, weight):
    rows, d = x.shape
    spec = TransformerEncoderSpec(1, 1, rms_norm=True, head_dim=8, rotary_dim=8)
    layer = spec.layer[0]
    linears = {(24, d): layer.self_attention.linear[0], (d, 8): layer.self_attention.linear[1]}
    linears |= {(8, d): layer.ffn.linear_0, (d, 8, 1): layer.ffn.linear_1}
    for shape, linear in linears.items():
        linear.weight = np.zeros(shape[:2], x.dtype)
        linear.bias = np.zeros(shape[0], x.dtype)
    for each in (layer.self_attention.layer_norm, layer.ffn.layer_norm, spec.layer_norm):
        each.gamma = weight
    spec.embeddings[0].weight = x
    spec.scale_embeddings = False
    model = TransformerEncoderModelSpec(spec)
    model.register_vocabulary([str(row) for row in range(rows)])
    model.config.layer_norm_epsilon = 1e-6
    with tempfile.TemporaryDirectory() as folder:
        model.validate()
        model.save(folder)
        threads = int(os.environ["OMP_NUM_THREADS"])
        encoder = ctranslate2.Encoder(folder, compute_type=x.dtype.name, intra_threads=threads)
    # A sequence for each row: attention would spread the NaN of one row to others.
    y = encoder.forward_batch([[row] for row in range(rows)]).last_hidden_state
    return np.array(y)[:, 0].copy()


ENGINES = {"CTranslate2": {"`RMSNorm` of the CPU": norm}}

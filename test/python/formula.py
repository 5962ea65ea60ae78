# SPDX-License-Identifier: Apache-2.0
"""The norm as a formula, for tensors of PyTorch and arrays of JAX."""

import numpy as np


def formula(
    framework,
    x,
    weight=None,
    residual=None,
    gate=None,
    bias=0.0,
    post_norm_weight=None,
    cos=None,
    sin=None,
    *,
    eps,
    eps_placement="inside",
    weight_offset=0.0,
    divisor=None,
    factor=1.0,
    residual_factor=1.0,
    activation="silu",
    gate_placement="after",
    rotary_pairs="halves",
    rotary_part="start",
    **_roundings,
):
    """Returns y, and residual_out with a residual, without a rounding."""

    def norm(h, weight):
        mean = (h * h).sum(axis=-1, keepdims=True) / (divisor or h.shape[-1])
        rms = {
            "inside": lambda: framework.sqrt(mean + eps),
            "outside": lambda: framework.sqrt(mean) + eps,
            "floor": lambda: framework.sqrt(mean).clip(min=eps),
        }[eps_placement]()
        return h / rms * (1.0 if weight is None else weight_offset + weight)

    before = after = 1.0
    if gate is not None:
        activated = 1.0 if activation == "none" else 1 / (1 + framework.exp(-gate))
        activated = activated * (1.0 if activation == "sigmoid" else gate)
        before, after = (1.0, activated) if gate_placement == "after" else (activated, 1.0)
    h = (x if post_norm_weight is None else norm(x, post_norm_weight)) * factor * before
    h = h if residual is None else (residual + h) * residual_factor
    y = (norm(h, weight) + bias) * after
    if cos is not None:
        # Each element, times its cosine, and its partner, times its sine, by matrices of 0 and 1.
        d, half = y.shape[-1], cos.shape[-1]
        one, two = np.arange(half), np.arange(half, 2 * half)
        if rotary_pairs == "neighbours":
            one, two = 2 * one, 2 * one + 1
        rest = d - 2 * half if rotary_part == "end" else 0
        a, b = np.eye(d)[one + rest], np.eye(d)[two + rest]

        def times(rows, matrix):  # JAX 0.6 refuses rows @ matrix where rows are split explicitly
            return (rows[..., None] * framework.asarray(matrix)).sum(axis=-2)

        others = framework.asarray(1 - (a + b).sum(0))
        y = y * (times(cos, a + b) + others) + times(y, a.T @ b + b.T @ a) * times(sin, b - a)
    return (y,) if residual is None else (y, h)

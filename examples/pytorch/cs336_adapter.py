# SPDX-License-Identifier: Apache-2.0
"""The adapter for RMSNorm in the first assignment of Stanford's CS336, which calls the library:
import run_rmsnorm into the assignment's tests/adapters.py in place of the original."""

from rmsnorm_module import RMSNorm


def run_rmsnorm(d_model, eps, weights, in_features):
    """Returns the norm of in_features, of shape [..., d_model], with weights of shape [d_model]."""
    norm = RMSNorm(d_model, eps, device=weights.device, dtype=weights.dtype)
    norm.load_state_dict({"weight": weights})
    return norm(in_features)

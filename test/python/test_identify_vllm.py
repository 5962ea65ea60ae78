# SPDX-License-Identifier: Apache-2.0
"""identify() of vLLM's operations, in their portable code.

Run as a program it writes their table in doc/identify.md.
"""

import torch
from identify_page import Norm, Norms
from vllm.ir import ops

F32, BF16 = torch.float32, torch.bfloat16


def rms_norm(x, weight=None):
    return ops.rms_norm.impls["native"].impl_fn(x, weight, 1e-6)


def fused_add_rms_norm(x, residual, weight=None):
    return ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, 1e-6)


def in_bf16(weight_dtype=BF16, **more):
    return {"dtype": BF16, "weight_dtype": weight_dtype, **more}


BEFORE = "eps 1e-06 inside the root, rounded to bf16 before the weight"
ONCE = "eps 1e-06 inside the root, rounded once, after the weight"
UNROUNDED = "of the sum before it is rounded"

SYSTEMS = Norms(
    "vLLM",
    {
        "`rms_norm`": Norm(rms_norm, BEFORE, in_bf16()),
        "`rms_norm`, weight in f32": Norm(rms_norm, ONCE, in_bf16(F32)),
        "`rms_norm` without a weight": Norm(rms_norm, ONCE, in_bf16(weight=False)),
        "`rms_norm` in f32": Norm(rms_norm, "eps 1e-06 inside the root", {"dtype": F32}),
        "`fused_add_rms_norm`": Norm(
            fused_add_rms_norm, f"{BEFORE}, {UNROUNDED}", in_bf16(residual=True)
        ),
        "`fused_add_rms_norm`, weight in f32": Norm(
            fused_add_rms_norm, f"{ONCE}, {UNROUNDED}", in_bf16(F32, residual=True)
        ),
        "`fused_add_rms_norm` without a weight": Norm(
            fused_add_rms_norm, f"{ONCE}, {UNROUNDED}", in_bf16(residual=True, weight=False)
        ),
    },
)


test_what_is_known_of_vllm, test_page_has_vllm = SYSTEMS.tests()


if __name__ == "__main__":
    SYSTEMS.write()

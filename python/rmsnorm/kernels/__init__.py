# SPDX-License-Identifier: Apache-2.0
"""Layers for Hugging Face's kernels. rmsnorm.transformers.KERNELS is this folder."""

from . import layers

__all__ = ["layers"]

# SPDX-License-Identifier: Apache-2.0
"""RMSNorm for CPUs, with the same bits on every CPU and for every number of threads.

    import numpy, rmsnorm

    x = numpy.ones((2, 4096), "float32")
    y = rmsnorm.rms_norm(x, numpy.ones(4096, "float32"), eps=1e-6)

Arrays are NumPy's, or those of any library that offers its memory on the CPU by DLPack.
rmsnorm.torch has operators for PyTorch, and puts them into models; rmsnorm.vllm offers them to
vLLM, and rmsnorm.jax has one for JAX. Each is imported only on request.
"""

from ._arrays import Array, SupportsDLPack
from ._calls import backward, bind_backward, bind_forward, bind_forward_all, forward, forward_all
from ._calls import rms_norm, rms_norm_backward, targets, version
from ._identify import Ambiguity, Identification, identify, identify_files, identify_rotary
from ._module import RMSNorm

__version__ = version()

__all__ = [
    "Ambiguity",
    "Array",
    "Identification",
    "RMSNorm",
    "SupportsDLPack",
    "backward",
    "bind_backward",
    "bind_forward",
    "bind_forward_all",
    "forward",
    "forward_all",
    "identify",
    "identify_files",
    "identify_rotary",
    "rms_norm",
    "rms_norm_backward",
    "targets",
]

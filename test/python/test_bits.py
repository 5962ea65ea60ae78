# SPDX-License-Identifier: Apache-2.0
"""Exact results by programs that share no code with the library: the package gives every bit, on
every target and in every way to make a call. ../data/README.md describes the files."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rmsnorm
from rmsnorm._calls import CONTEXT
from rmsnorm._options import OPTIONS

FILES = ("contract", "family", "models", "rotary")
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools" / "vectors"))
import check_vectors  # pylint: disable=wrong-import-position


def arguments_of(case):
    """Returns the arguments of a call that computes a case, with new arrays for the results."""
    arguments = {name: value for name, value in case.options.items() if name in case.words}
    arrays = {name: np.zeros_like(array) for name, array in case.wanted.items()}
    for name, array in case.inputs.items():
        result = name.removesuffix("_in")
        arrays[result] = array
        if result != name:  # an existing gradient
            arguments["add_to"] = (*arguments.get("add_to", ()), result)
    for name, array in arrays.items():
        arguments[name] = array.view(ml_dtypes.bfloat16) if array.dtype == np.uint16 else array
    return arguments


def recorded(array):
    """Returns an array as files hold it: bfloat16 is its bits."""
    return array.view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array


def of_norm(call):
    """Returns a way by a norm, call(norm, **others), which holds what it can of the arguments."""

    def way(x, **arguments):
        held = {n for n in ("weight", "bias", "post_norm_weight") if np.ndim(arguments.get(n)) == 1}
        options = {*OPTIONS, *CONTEXT} & arguments.keys()
        # float32 holds the values of each type.
        norm = rmsnorm.RMSNorm(x.shape[-1], **{name: arguments[name] for name in options})
        for name in held:
            setattr(norm, name, arguments[name])
        others = arguments.keys() - held - options
        return call(norm, x=x, **{name: arguments[name] for name in others})

    return way


def of_calls(call):
    """Returns a way by a function of several calls."""
    return lambda threads=None, target=None, **arguments: call(
        [arguments], threads=threads, target=target
    )


#: The ways to make a call with these arguments, which has outputs among them.
FORWARD_WAYS = {
    "forward": rmsnorm.forward,
    "forward_all": of_calls(rmsnorm.forward_all),
    "rms_norm": lambda y=None, **arguments: rmsnorm.rms_norm(out=y, **arguments),
    "norm": of_norm(lambda norm, y=None, **arguments: norm(out=y, **arguments)),
    "norm.forward": of_norm(rmsnorm.RMSNorm.forward),
    "norm.bind": of_norm(lambda norm, **arguments: norm.bind(**arguments)()),
    "bind_forward": lambda **arguments: rmsnorm.bind_forward(**arguments)(),
    "bind_forward_all": of_calls(lambda *a, **named: rmsnorm.bind_forward_all(*a, **named)()),
}
BACKWARD_WAYS = {
    "backward": rmsnorm.backward,
    "norm.backward": of_norm(rmsnorm.RMSNorm.backward),
    "norm.bind_backward": of_norm(lambda norm, **arguments: norm.bind_backward(**arguments)()),
    "bind_backward": lambda **arguments: rmsnorm.bind_backward(**arguments)(),
}


def assert_recorded(file, operation, way, is_possible=lambda case: True, **context):
    """A way has the recorded bits of the cases of an operation."""

    def compute(case):
        arguments = arguments_of(case)
        if case.operation == operation and is_possible(case):
            way(**arguments, **context)
            return {name: recorded(arguments[name]) for name in case.wanted}
        return case.wanted

    report = check_vectors.check(compute, ROOT / "test" / "data" / f"{file}.safetensors")
    assert report.is_exact and report.groups["all"]["missing"] == 0, str(report)


def can_be_held(case):
    """Whether a norm can hold the weight: it has one row."""
    return np.ndim(case.inputs.get("weight", ())) == 1


@pytest.mark.parametrize("target", rmsnorm.targets())
@pytest.mark.parametrize("file", FILES)
def test_every_target(file, target):
    assert_recorded(file, "forward", rmsnorm.forward, target=target)
    assert_recorded(file, "backward", rmsnorm.backward, target=target)


@pytest.mark.parametrize("way", [*FORWARD_WAYS, *BACKWARD_WAYS])
@pytest.mark.parametrize("file", FILES)
def test_every_way(file, way):
    operation = "forward" if way in FORWARD_WAYS else "backward"
    call = (FORWARD_WAYS | BACKWARD_WAYS)[way]
    assert_recorded(file, operation, call, *[can_be_held] * way.startswith("norm"))

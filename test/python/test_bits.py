# SPDX-License-Identifier: Apache-2.0
"""Exact results by programs that share no code with the library: the package gives every bit, on every
target. ../data/README.md describes the files."""

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rmsnorm

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


@pytest.mark.parametrize("target", rmsnorm.targets())
@pytest.mark.parametrize("file", ("contract", "family", "models", "rotary"))
def test_recorded_bits(file, target):
    def compute(case):
        arguments = arguments_of(case)
        call = rmsnorm.backward if case.operation == "backward" else rmsnorm.forward
        call(target=target, **arguments)
        return {name: recorded(arguments[name]) for name in case.wanted}

    report = check_vectors.check(compute, ROOT / "test" / "data" / f"{file}.safetensors")
    assert report.is_exact and report.groups["all"]["missing"] == 0, str(report)

# SPDX-License-Identifier: Apache-2.0
"""Exact results by a program that shares no code with the library: the package meets every bit, on
every target. ../data/README.md describes the files."""

import json
import struct
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import rmsnorm

DATA = Path(__file__).parents[1] / "data"
DTYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "I8": np.int8,
}


def read(name):
    """Returns the metadata and the tensors of a file in the format safetensors."""
    content = (DATA / name).read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for key, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensor = np.frombuffer(content[begin:end], DTYPES[entry["dtype"]])
        tensors[key] = tensor.reshape(entry["shape"])
    return metadata, tensors


def same_bits(a, b):
    """Compares bits, except that all NaNs are equal."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    bits = {8: np.uint64, 4: np.uint32, 2: np.uint16, 1: np.uint8}[a.itemsize]
    equal = np.ascontiguousarray(a).view(bits) == np.ascontiguousarray(b).view(bits)
    if a.dtype != np.int8:
        equal |= np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    return bool(equal.all())


CONTRACT = {
    "default": {},
    "big": {},
    "llama": {"rounding": "before_weight"},
    "gemma": {"eps": 1e-6, "weight_offset": 1},
    "outside": {"eps": 1e-6, "eps_placement": "outside"},
    "divisor": {"divisor": 100.5},
    "eps0": {"eps": 0},
    "tiny": {"eps": 0},
}


@pytest.mark.parametrize("target", rmsnorm.targets())
def test_contract(target):
    _, tensors = read("contract.safetensors")
    cases = [name for name in tensors if name.startswith("y.")]
    assert len(cases) >= 120
    for case in cases:
        _, option, d, x_type, weight_type, _ = case.split(".")
        x = {"eps0": "x0", "big": "big", "tiny": "tiny"}.get(option, "x")
        weight = tensors[f"w.{d}.{x_type}.{weight_type}"]
        y = np.empty_like(tensors[case])
        rmsnorm.rms_norm(
            tensors[f"{x}.{d}.{x_type}"], weight, out=y, target=target, **CONTRACT[option]
        )
        assert same_bits(y, tensors[case]), case


# Where a word of family.safetensors is not the name of an operand or an option.
NAMES = {
    "post-weight": "post_norm_weight",
    "z": "gate",
    "residual-out": "residual_out",
    "inverse-rms": "rstd",
}
NUMBERS = ("eps", "weight-offset", "divisor", "factor")
WORDS = {
    "scale-then-cast": "after_weight",
    "cast-then-scale": "before_weight",
    "inverse-rounded": "inverse",
}
ROUNDED = {"yes": "rounded", "no": "unrounded"}
RESULTS = ("y", "residual-out", "inverse-rms", "q", "scale", "zero", "dx", "dw", "db")


def arguments_of(words, tensors):
    """Returns the arguments of a case, and the results by their operands."""
    arguments, results = {}, {}
    for key, value in words.items():
        name = NAMES.get(key, key.replace("-", "_"))
        if key in RESULTS:
            results[name] = tensors[value]
            arguments[name] = np.empty_like(tensors[value])
        elif key in NUMBERS:
            arguments[name] = float(value)
        elif key in ("residual-rounding", "gate-rounding"):
            arguments[name] = ROUNDED[value]
        elif key in ("eps-placement", "rounding", "gate-placement", "activation"):
            arguments[name] = WORDS.get(value, value)
        elif key not in ("op", "quantise", "dw-in", "db-in"):
            arguments[name] = tensors[value]
    if "weight" not in words and "post-weight" not in words:
        # Some cases have an offset without a weight: it has no effect there, but is an error here.
        arguments.pop("weight_offset", None)
    for gradient in ("dw", "db"):
        if gradient + "-in" in words:
            np.copyto(arguments[gradient], tensors[words[gradient + "-in"]])
            arguments["add_to"] = (*arguments.get("add_to", ()), gradient)
    return arguments, results


@pytest.mark.parametrize("target", rmsnorm.targets())
def test_family(target):
    metadata, tensors = read("family.safetensors")
    operations = {"forward": 0, "add": 0, "backward": 0, "activation": 0}
    for case, text in metadata.items():
        words = dict(word.split("=", 1) for word in text.split())
        operations[words["op"]] += 1
        if words["op"] == "activation":  # a table of the functions, which are not calls
            continue
        arguments, results = arguments_of(words, tensors)
        call = rmsnorm.backward if words["op"] == "backward" else rmsnorm.forward
        call(target=target, **arguments)
        for name, expected in results.items():
            assert same_bits(arguments[name], expected), f"{case}: {name}"
    assert min(operations.values()) > 0
    assert len(metadata) > 300

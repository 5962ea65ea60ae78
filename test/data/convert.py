#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Gives recorded results the names of doc/vectors.md.

  convert.py contract|family ORIGINAL CONVERTED [D...]

takes the rows of D elements, or all rows. README.md describes the originals. Tensors keep their
bytes."""

import collections
import os
import sys

import numpy as np

sys.path.append(os.path.join(os.path.dirname(__file__), "../../tools/vectors"))
import check_vectors  # pylint: disable=wrong-import-position

# The options of a group of contract, and its x. The file says so in its metadata.
CONTRACT = {
    "default": ("x", "eps=1e-05"),
    "llama": ("x", "eps=1e-05 rounding=before_weight"),
    "gemma": ("x", "eps=1e-06 weight_offset=1"),
    "outside": ("x", "eps=1e-06 eps_placement=outside"),
    "divisor": ("x", "eps=1e-05 divisor=100.5"),
    "eps0": ("x0", "eps=0"),
    "big": ("big", "eps=1e-05"),
    "tiny": ("tiny", "eps=0"),
}

# Where a word or a value of family is not the library's.
NAMES = {"post-weight": "post_norm_weight", "z": "gate", "inverse-rms": "rstd"}
VALUES = {
    "scale-then-cast": "after_weight",
    "cast-then-scale": "before_weight",
    "inverse-rounded": "inverse",
    "yes": "rounded",
    "no": "unrounded",
}


# Both yield the cases of a file: the group, the length of a row, the words of operation and
# options, and the names of tensors by operand.


def contract(_, tensors):
    for y in tensors:
        kind, *parts = y.split(".")
        if kind == "y":
            group, d, x_type, weight_type, _ = parts
            x, words = CONTRACT[group]
            operands = {"x": f"{x}.{d}.{x_type}", "weight": f"w.{d}.{x_type}.{weight_type}", "y": y}
            yield group, d, "op=forward " + words, operands


def family(metadata, tensors):
    for case, text in metadata.items():
        group, d, _ = case.split(".")
        words = dict(word.split("=") for word in text.split(" "))
        operation = words.pop("op")
        if operation == "activation":
            # The gate of a norm of ones, whose RMS is 1, the floor.
            tensors["ones." + d] = np.ones(int(d), "<f4")
            options = "op=forward eps=1 eps_placement=floor divisor=1e20 activation="
            for activation, y in words.items():
                if activation != "z":
                    operands = {"x": "ones." + d, "gate": words["z"], "y": y}
                    yield group, d, options + activation, operands
            continue
        words.pop("quantise", None)  # scale and zero say so
        if operation == "backward" and "weight" not in words:
            words.pop("weight-offset", None)  # it has no effect there, and the library refuses it
        options = "op=" + operation.replace("add", "forward")  # the addition alone has no y
        operands = {}
        for key, value in words.items():
            name = NAMES.get(key, key.replace("-", "_"))
            if value in tensors:
                operands[name] = value
            else:
                options += f" {name}={VALUES.get(value, value)}"
        yield group, d, options, operands


RESULTS = ("residual_out", "y", "q", "rstd", "scale", "zero", "dx", "dw", "db")


def main(kind, original, converted, *lengths):
    cases_of = {"contract": contract, "family": family}[kind]
    metadata, tensors = check_vectors.read(original)
    index, arrays, numbers = {}, {}, collections.Counter()
    for group, d, words, operands in cases_of(metadata, tensors):
        if lengths and d not in lengths:
            continue
        case = f"{group}.{d}.{numbers[group, d]}"
        numbers[group, d] += 1
        for operand, tensor in operands.items():
            name = f"{case}.{operand}" if operand in RESULTS else tensor
            words += f" {operand}={name}"
            arrays[name] = tensors[tensor]
        index[case] = words
    check_vectors.write(converted, arrays, index)


if __name__ == "__main__":
    main(*sys.argv[1:])

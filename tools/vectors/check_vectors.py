#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares another implementation of RMSNorm with the vectors of rmsnorm.

  python3 check_vectors.py VECTORS RESULTS

VECTORS is the file vectors.safetensors of the archive, or another one of its format. RESULTS is a
.safetensors file with tensors of the same names, types and shapes as the results in VECTORS: all
of them, or some. In Python, check() calls a function for each case instead.

The status is 0 if all results that are given have the exact bits, 1 if not, and 2 if a file cannot
be read. The page vectors.md beside this file describes the vectors and the output."""

import argparse
import collections
import json
import math
import struct
import sys

import numpy as np

# The type of an array for each type of a file. NumPy has no bfloat16, so its bits are in a uint16.
ARRAY_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}

# The options and their defaults. The default divisor is the length of a row.
OPTIONS = {
    "eps": 1e-5,
    "eps_placement": "inside",
    "rounding": "after_weight",
    "residual_rounding": "rounded",
    "weight_offset": 0.0,
    "divisor": None,
    "factor": 1.0,
    "activation": "silu",
    "gate_placement": "after",
    "gate_rounding": "unrounded",
}

# What a report counts, and the heads of its table.
COUNTS = {"cases": "cases", "equal": "equal", "near": "1 ulp", "wrong": "wrong"}
COUNTS["missing"] = "not given"

# A report names up to this number of cases that differ in each group.
MOST_NAMED = 3


def from_bfloat16(bits):
    """Returns the float32 array for an array of bfloat16 bits."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def to_bfloat16(values):
    """Returns the bits of a float32 array rounded to bfloat16, as an array of uint16."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


class Tensor:
    """An array and its type in a file, such as "BF16"."""

    def __init__(self, dtype, array):
        self.dtype, self.array = dtype, array

    def __str__(self):
        return f"{self.dtype.lower()} {list(self.array.shape)}"

    def bits(self):
        """Returns the elements as unsigned integers."""
        return self.array.view(f"<u{self.array.itemsize}")

    def is_nan(self):
        if self.dtype == "BF16":
            return np.isnan(from_bfloat16(self.array))
        return np.isnan(self.array)

    def places(self):
        """Returns integers that are 1 apart for neighbouring numbers of the type."""
        if self.dtype == "I8":
            return self.array.astype(np.int64)
        sign = 1 << 8 * self.array.itemsize - 1
        bits = self.bits()
        magnitude = (bits & bits.dtype.type(sign - 1)).astype(np.int64)
        return np.where(bits >= sign, -magnitude, magnitude)


def read(path):
    """Returns the metadata and the tensors of a .safetensors file, by name."""
    with open(path, "rb") as file:
        content = file.read()
    if len(content) < 8:
        raise ValueError("a .safetensors file has 8 bytes or more")
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        dtype = ARRAY_TYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{name} is {entry['dtype']}, which no result is")
        begin, count = entry["data_offsets"][0], math.prod(entry["shape"])
        array = np.frombuffer(content, dtype, count, 8 + length + begin)
        tensors[name] = Tensor(entry["dtype"], array.reshape(entry["shape"]))
    return metadata, tensors


class Case:
    """One call.

    name:      such as "residual.64.12": the group, the length of a row, and a number
    operation: "forward" or "backward"
    options:   all of OPTIONS, as numbers and words
    inputs:    arrays by name, such as "x"; "dw_in" is an existing gradient that dw is added to
    wanted:    the expected Tensor of each result, by name, such as "y"
    words:     what tells the case from others, for a report
    """

    def __init__(self, name, text, tensors):
        words = dict(word.split("=") for word in text.split(" "))
        self.name, self.operation = name, words.pop("op")
        self.group = name.split(".")[0]
        self.options = dict(OPTIONS)
        self.inputs, self.wanted = {}, {}
        self.words = [self.operation]
        for key, value in words.items():
            word = value
            if value == f"{name}.{key}":
                self.wanted[key] = tensors[value]
                word = tensors[value].dtype.lower()
            elif key in OPTIONS:
                self.options[key] = value if isinstance(OPTIONS[key], str) else float(value)
            elif not key.endswith("_values"):
                self.inputs[key] = tensors[value].array.copy()  # which a function may write to
                word = tensors[value].dtype.lower()
            self.words.append(f"{key}={word}")
        *rows, d = self.inputs["x"].shape
        self.words += ["rows=" + "x".join(map(str, rows)), f"d={d}"]
        if self.options["divisor"] is None:
            self.options["divisor"] = float(d)


def read_cases(vectors):
    """Returns the cases of the vectors at a path."""
    metadata, tensors = read(vectors)
    return [Case(name, text, tensors) for name, text in metadata.items()]


def compare(wanted, given):
    """Returns counts of the elements of a result, and a description of what differs, or ""."""
    if given.dtype != wanted.dtype or given.array.shape != wanted.array.shape:
        return collections.Counter(wrong=wanted.array.size), f"is {given}, not {wanted}"
    nan, given_nan = wanted.is_nan(), given.is_nan()
    equal = (wanted.bits() == given.bits()) | (nan & given_nan)
    near = ~equal & ~nan & ~given_nan & (np.abs(wanted.places() - given.places()) <= 1)
    wrong = ~equal & ~near
    groups = {"equal": equal, "near": near, "wrong": wrong}
    counts = collections.Counter({name: int(found.sum()) for name, found in groups.items()})
    if equal.all():
        return counts, ""
    first = tuple(int(i) for i in np.argwhere(wrong if wrong.any() else near)[0])
    digits = 2 * wanted.array.itemsize
    return counts, (
        f"{counts['near']} of {equal.size} are 1 ulp away, {counts['wrong']} are wrong; "
        f"{list(first)} is 0x{given.bits()[first]:0{digits}x}, "
        f"not 0x{wanted.bits()[first]:0{digits}x}"
    )


class Report:
    """What a comparison found. str() returns it as text.

    groups: for each group, a Counter of its cases and of the elements of results: equal, near (1 ulp
            away), wrong and missing (not given); "all" has the sums
    cases:  for each case that has results, its group, its Counter and what differs
    """

    def __init__(self):
        self.groups, self.cases = collections.defaultdict(collections.Counter), []

    @property
    def is_exact(self):
        """Whether there are results, and all of them have the exact bits."""
        total = self.groups["all"]
        return total["equal"] > 0 and total["near"] == total["wrong"] == 0

    def add(self, case, given):
        """Compares the results of a case: Tensors by name."""
        counts, faults = collections.Counter(cases=1), ""
        for name, wanted in case.wanted.items():
            if name not in given:
                counts["missing"] += wanted.array.size
                continue
            found, fault = compare(wanted, given[name])
            counts.update(found)
            faults += f"\n  {name}: {fault}" if fault else ""
        for group in (case.group, "all"):
            self.groups[group].update(counts)
        if given:
            text = f"{case.name}: {' '.join(case.words)}{faults}" if faults else ""
            self.cases.append((case.group, counts, text))

    def table(self):
        """Yields the lines of the table of groups."""
        yield f"{'group':24}" + "".join(f"{key:>11}" for key in COUNTS.values())
        for group in sorted(self.groups, key=lambda name: name == "all"):
            yield f"{group:24}" + "".join(f"{self.groups[group][key]:11}" for key in COUNTS)

    def differing(self):
        """Yields the text on the cases that differ: in each group the wrong ones first."""
        for name in self.groups:
            found = [(counts, text) for group, counts, text in self.cases if group == name and text]
            found.sort(key=lambda one: one[0]["wrong"] == 0)
            yield from (text for _, text in found[:MOST_NAMED])
            if len(found) > MOST_NAMED:
                yield f"{name}: {len(found) - MOST_NAMED} more cases differ"

    def __str__(self):
        wrong = sum(counts["wrong"] > 0 for _, counts, _ in self.cases)
        exact = sum(not text for _, _, text in self.cases)
        near = len(self.cases) - exact - wrong
        summary = f"cases: {exact} exact, {near} within 1 ulp, {wrong} wrong"
        return "\n".join([*self.table(), *self.differing(), summary])


def tensor_of(name, array):
    """Returns the Tensor for an array that a function takes or returns."""
    for dtype, array_type in ARRAY_TYPES.items():
        if array.dtype == np.dtype(array_type):
            return Tensor(dtype, np.ascontiguousarray(array).reshape(array.shape))
    raise TypeError(f"{name}: an array of {array.dtype}; bfloat16 is given as uint16")


def check(function, vectors):
    """Calls function(case) for each Case of the vectors at a path, and returns a Report.

    The function returns a dictionary of arrays by the names in case.wanted, all of them or some, or
    None for a case that it does not compute. Arrays of bfloat16, both inputs and results, are the
    bits as uint16: from_bfloat16() and to_bfloat16() convert them.
    """
    report = Report()
    for case in read_cases(vectors):
        results = function(case) or {}
        for name in results:
            if name not in case.wanted:
                raise ValueError(f"{case.name} has no result {name!r}")
        report.add(case, {name: tensor_of(name, array) for name, array in results.items()})
    return report


def check_file(results, vectors):
    """Compares a .safetensors file of results with the vectors at a path, and returns a Report."""
    _, given = read(results)
    report = Report()
    for case in read_cases(vectors):
        names = {name: f"{case.name}.{name}" for name in case.wanted}
        report.add(case, {name: given.pop(key) for name, key in names.items() if key in given})
    if given:
        raise ValueError(f"{results}: no case has the result {sorted(given)[0]!r}")
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("vectors", help="vectors.safetensors")
    parser.add_argument("results", help="a .safetensors file with results of the same names")
    arguments = parser.parse_args()
    try:
        report = check_file(arguments.results, arguments.vectors)
    except (OSError, KeyError, ValueError) as error:
        print(f"check_vectors.py: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())

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
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I8": "i1"}
NAMES = {np.dtype(array_type): name for name, array_type in TYPES.items()}

# The options and their defaults. The default divisor is the length of a row.
OPTIONS = {
    "eps": 1e-5,
    "eps_placement": "inside",
    "rounding": "after_weight",
    "residual_rounding": "rounded",
    "weight_offset": 0.0,
    "divisor": 0.0,
    "factor": 1.0,
    "activation": "silu",
    "gate_placement": "after",
    "gate_rounding": "unrounded",
    "group": 0,
    "residual_factor": 1.0,
    "rotary_pairs": "halves",
    "rotary_part": "start",
    "rotary_rounding": "each",
}
# Of a case, the worst last: none of its results are given, all elements that are given have the
# exact bits, some are 1 ulp away, some are farther away.
VERDICTS = ("missing", "exact", "near", "wrong")


def from_bfloat16(bits):
    """Returns the float32 array for an array of bfloat16 bits."""
    return (np.asarray(bits, np.uint32) << 16).view(np.float32)


def to_bfloat16(values):
    """Returns the bits of a float32 array rounded to bfloat16, as an array of uint16."""
    values = np.asarray(values, np.float32)
    bits = values.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(np.uint16)


def to_float32(array):
    """Returns an array of any type of floating point as float32."""
    return from_bfloat16(array) if array.dtype == np.uint16 else np.float32(array)


def rounded(values, dtype):
    """Returns a float32 array rounded to the type of an array, as float32."""
    return to_float32(to_bfloat16(values) if dtype == np.uint16 else values.astype(dtype))


def rotate(m, cos, sin, dtype, options):
    """Returns the rows m, a float32 array, rotated by tables with one number for each pair, as an
    array of y's type. `options` has the rotary ones."""
    cast = lambda values: rounded(values, dtype)
    each = cast if options["rotary_rounding"] == "each" else lambda values: values
    y = m.copy() if options["rotary_rounding"] == "none" else cast(m)
    c, s = each(to_float32(cos)), each(to_float32(sin))
    part = y[..., -2 * c.shape[-1] :] if options["rotary_part"] == "end" else y
    part = part[..., : 2 * c.shape[-1]]
    halves = options["rotary_pairs"] == "halves"
    a, b = np.split(part, 2, axis=-1) if halves else (part[..., ::2], part[..., 1::2])
    a[...], b[...] = each(a * c) - each(b * s), each(b * c) + each(a * s)
    return to_bfloat16(y) if dtype == np.uint16 else y.astype(dtype)


def read(path):
    """Returns the metadata and the arrays of a .safetensors file, by name."""
    with open(path, "rb") as file:
        content = file.read()
    if len(content) < 8:
        raise ValueError("a .safetensors file has 8 bytes or more")
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    metadata, arrays = header.pop("__metadata__", {}), {}
    for name, entry in header.items():
        if entry["dtype"] not in TYPES:
            raise ValueError(f"{name} is {entry['dtype']}, which no result is")
        begin, count = entry["data_offsets"][0], math.prod(entry["shape"])
        array = np.frombuffer(content, TYPES[entry["dtype"]], count, 8 + length + begin)
        arrays[name] = array.reshape(entry["shape"])
    return metadata, arrays


def write(path, arrays, metadata=None):
    """Writes a .safetensors file."""
    header, data = {"__metadata__": metadata or {}}, b""
    # Larger elements come first, so each tensor is aligned.
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": NAMES[array.dtype], "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


class Case:
    """One call.

    name:      such as "residual.64.12": the group, the length of a row, and a number
    operation: "forward" or "backward"
    options:   all of OPTIONS, as numbers and words
    inputs:    arrays by name, such as "x"; "dw_in" is an existing gradient that dw is added to
    wanted:    the array of each expected result, by name, such as "y"
    words:     what the case gives, as text by name: options, types of arrays, rows
    """

    def __init__(self, name, text, arrays):
        self.name, self.group = name, name.split(".")[0]
        self.words = dict(word.split("=") for word in text.split(" "))
        self.operation = self.words.pop("op")
        self.options, self.inputs, self.wanted = dict(OPTIONS), {}, {}
        for key, value in self.words.items():
            if key in OPTIONS:
                self.options[key] = type(OPTIONS[key])(value)
            elif value in arrays:
                is_result = value == f"{name}.{key}"
                # A function may write to an input.
                (self.wanted if is_result else self.inputs)[key] = arrays[value].copy()
                self.words[key] = NAMES[arrays[value].dtype].lower()
        *rows, d = self.inputs["x"].shape
        self.words |= {"rows": "x".join(map(str, rows)), "d": str(d)}
        self.options["divisor"] = self.options["divisor"] or float(d)


def read_cases(vectors):
    """Returns the cases of the vectors at a path."""
    metadata, arrays = read(vectors)
    return [Case(name, text, arrays) for name, text in metadata.items()]


def compare(wanted, given):
    """Returns a verdict on a result, and a description of what differs."""
    arrays = wanted, np.asarray(given, order="C")
    types = [f"{NAMES.get(a.dtype, str(a.dtype)).lower()} {list(a.shape)}" for a in arrays]
    if types[0] != types[1]:
        return "wrong", f"is {types[1]}, not {types[0]}"
    signed, places, nan = f"<i{wanted.itemsize}", [], []
    for array in arrays:
        # In `places` neighbouring numbers of the type are 1 apart.
        bits, most = array.view(signed).astype(np.int64), np.iinfo(signed).max
        places.append(np.where(bits < 0, bits ^ most, bits) if array.dtype != np.int8 else bits)
        nan.append(np.isnan(from_bfloat16(array) if array.dtype == np.uint16 else array))
    differs = (places[0] != places[1]) & ~(nan[0] & nan[1])
    wrong = differs & ((nan[0] != nan[1]) | (np.abs(places[0] - places[1]) != 1))
    if not differs.any():
        return "exact", ""
    first = tuple(np.argwhere(wrong if wrong.any() else differs)[0].tolist())
    bits = [f"{each.view(f'<u{each.itemsize}')[first]:0{2 * each.itemsize}x}" for each in arrays]
    return "wrong" if wrong.any() else "near", (
        f"{(differs & ~wrong).sum()} of {wanted.size} are 1 ulp away, {wrong.sum()} are wrong; "
        f"{list(first)} is 0x{bits[1]}, not 0x{bits[0]}"
    )


class Report:
    """A comparison of pairs of a Case and its results, which are arrays by name. It prints as text.

    groups:    a Counter of VERDICTS for each group and for "all" cases
    differing: the verdicts and texts on the cases of a group that are near or wrong
    """

    def __init__(self, results):
        self.groups = collections.defaultdict(collections.Counter)
        self.differing = collections.defaultdict(list)
        for case, given in results:
            for name in given.keys() - case.wanted.keys():
                raise ValueError(f"{case.name} has no result {name!r}")
            found = {name: compare(case.wanted[name], array) for name, array in given.items()}
            verdicts = {verdict for verdict, _ in found.values()} | {"missing"}
            verdict = max(verdicts, key=VERDICTS.index)
            for group in (case.group, "all"):
                self.groups[group][verdict] += 1
            if verdict in ("near", "wrong"):
                words = " ".join(f"{name}={value}" for name, value in case.words.items())
                faults = [f"\n  {name}: {text}" for name, (_, text) in found.items() if text]
                text = f"{case.name}: {case.operation} {words}{''.join(faults)}"
                self.differing[case.group].append((verdict, text))

    @property
    def is_exact(self):
        """Whether there are results, and all of them have the exact bits."""
        total = self.groups["all"]
        return total["exact"] > 0 and total["near"] == total["wrong"] == 0

    def __str__(self):
        lines = [f"{'cases':24}" + "".join(f"{verdict:>9}" for verdict in VERDICTS)]
        for group in sorted(self.groups, key=lambda name: name == "all"):
            counts = (self.groups[group][verdict] for verdict in VERDICTS)
            lines.append(f"{group:24}" + "".join(f"{count:9}" for count in counts))
        for group, found in self.differing.items():  # up to three of each, the wrong ones first
            found = sorted(found, key=lambda one: one[0] != "wrong")
            lines += [text for _, text in found[:3]]
            lines += [f"{group}: {len(found) - 3} more cases differ"] if len(found) > 3 else []
        return "\n".join(lines)


def check(function, vectors):
    """Calls function(case) for each Case of the vectors at a path, and returns a Report.

    The function returns a dictionary of arrays by the names in case.wanted, all of them or some, or
    None for a case that it does not compute. Arrays of bfloat16, both inputs and results, are the
    bits as uint16: from_bfloat16() and to_bfloat16() convert them.
    """
    return Report((case, function(case) or {}) for case in read_cases(vectors))


def check_file(results, vectors):
    """Compares a .safetensors file of results with the vectors at a path, and returns a Report."""
    _, arrays = read(results)
    cases, given = read_cases(vectors), collections.defaultdict(dict)
    for name, array in arrays.items():
        case, _, key = name.rpartition(".")
        given[case][key] = array
    for case in given.keys() - {case.name for case in cases}:
        raise ValueError(f"{results}: there is no case {case!r}")
    return Report((case, given[case.name]) for case in cases)


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

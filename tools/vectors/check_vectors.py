#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares another implementation of RMSNorm with the vectors of rmsnorm.

  python3 check_vectors.py VECTORS RESULTS

VECTORS is the archive, the folder that it was unpacked into, or its file vectors.safetensors.
RESULTS is a .safetensors file with tensors of the same names, types and shapes as the results in
VECTORS: all of them, or some. In Python, check() calls a function for each case instead.

The status is 0 if all results that are given have the exact bits, 1 if not, and 2 if a file cannot
be read. The page vectors.md beside this file describes the vectors and the output.

Where the rmsnorm command or its Python package is installed, the script also says which norm the
results of a case follow."""

import argparse
import collections
import functools
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile

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
RESULTS = ("residual_out", "y", "q", "rstd", "sums_out", "scale", "zero", "dx", "dw", "db")

# The operands that identify takes, with their names there, and the shortest rows that show much.
IDENTIFIED = {"x": "input", "residual": "residual", "gate": "gate", "weight": "weight"}
IDENTIFIED.update(bias="bias", y="output")
SHORTEST_IDENTIFIED = 64
HINT = "The rmsnorm command, or its Python package, would say which norm these results follow."

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

    def description(self):
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


def parse_safetensors(content):
    """Returns the metadata and the tensors of a .safetensors file, by name."""
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


def write_safetensors(path, tensors):
    """Writes a .safetensors file of tensors, by name."""
    header, begin = {}, 0
    for name, tensor in tensors.items():
        end = begin + tensor.array.nbytes
        shape = tensor.array.shape
        header[name] = {"dtype": tensor.dtype, "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.array.tobytes())


def read(path):
    with open(path, "rb") as file:
        return file.read()


def read_vectors(path):
    """Returns the bytes of vectors.safetensors, from the archive, its folder or the file itself."""
    if os.path.isdir(path):
        return read(os.path.join(path, "vectors.safetensors"))
    if not tarfile.is_tarfile(path):
        return read(path)
    with tarfile.open(path) as archive:
        for member in archive:
            if os.path.basename(member.name) == "vectors.safetensors":
                return archive.extractfile(member).read()
    raise ValueError(f"{path} holds no vectors.safetensors")


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
            if key in RESULTS and value == f"{name}.{key}":
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
    metadata, tensors = parse_safetensors(read_vectors(vectors))
    return [Case(name, text, tensors) for name, text in metadata.items()]


class Counts:
    """Numbers of cases, and of elements that are equal, 1 ulp away, wrong, and not given."""

    def __init__(self, cases=0):
        self.cases, self.equal, self.near, self.wrong, self.missing = cases, 0, 0, 0, 0

    def add(self, other):
        for name, count in vars(other).items():
            setattr(self, name, getattr(self, name) + count)


def compare(wanted, given, counts):
    """Counts the elements of a result, and returns a description of what differs, or ""."""
    if given.dtype != wanted.dtype or given.array.shape != wanted.array.shape:
        counts.wrong += wanted.array.size
        return f"is {given.description()}, not {wanted.description()}"
    nan, given_nan = wanted.is_nan(), given.is_nan()
    equal = (wanted.bits() == given.bits()) | (nan & given_nan)
    near = ~equal & ~nan & ~given_nan & (np.abs(wanted.places() - given.places()) <= 1)
    wrong = ~equal & ~near
    counts.equal += int(equal.sum())
    counts.near += int(near.sum())
    counts.wrong += int(wrong.sum())
    if equal.all():
        return ""
    first = tuple(int(i) for i in np.argwhere(wrong if wrong.any() else near)[0])
    digits = 2 * wanted.array.itemsize
    return (
        f"{int(near.sum())} of {equal.size} are 1 ulp away, {int(wrong.sum())} are wrong; "
        f"{list(first)} is 0x{given.bits()[first]:0{digits}x}, "
        f"not 0x{wanted.bits()[first]:0{digits}x}"
    )


@functools.lru_cache(maxsize=None)
def find_identify():
    """Returns a function from the flags of `rmsnorm identify` to its sentence, or None."""
    command = shutil.which("rmsnorm")
    if command:

        def by_command(**flags):
            words = [f"--{name}={value}" for name, value in flags.items()]
            done = subprocess.run(
                (command, "identify", *words), capture_output=True, encoding="utf-8", check=False
            )
            return done.stdout.partition("\n")[0]

        return by_command
    try:
        import rmsnorm
    except ImportError:
        return None
    return lambda eps, **files: rmsnorm.identify_files(eps=[eps], **files).sentence


class Compared:
    """A case with results: the Tensors, their Counts, and descriptions of those that differ."""

    def __init__(self, case, given, counts, faults):
        self.case, self.given, self.counts, self.faults = case, given, counts, faults

    def can_identify(self):
        """Whether identify takes the case: a forward call with a wrong y."""
        y = self.given.get("y")
        return (
            self.case.operation == "forward"
            and self.case.inputs.keys() <= IDENTIFIED.keys()
            and any(fault.startswith("y: ") for fault in self.faults)
            and (y.dtype, y.array.shape)
            == (self.case.wanted["y"].dtype, self.case.inputs["x"].shape)
            and y.array.shape[-1] >= SHORTEST_IDENTIFIED
        )

    def identified(self):
        """Returns the norm that the results follow, in a list of one line; or an empty list."""
        identify = find_identify()
        if identify is None or not self.can_identify():
            return []
        tensors = {name: tensor_of(name, array) for name, array in self.case.inputs.items()}
        tensors["y"] = self.given["y"]
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "case.safetensors")
            write_safetensors(path, tensors)
            files = {IDENTIFIED[name]: f"{path}:{name}" for name in tensors}
            sentence = identify(eps=self.case.options["eps"], **files)
        return [f"identify: {sentence}"] if sentence else []

    def __str__(self):
        head = f"{self.case.name}: {' '.join(self.case.words)}"
        return "\n  ".join([head, *self.faults, *self.identified()])


class Report:
    """What a comparison found. str() returns it as text.

    groups:   Counts by group
    total:    Counts of all
    compared: what was found for each case that has results
    """

    def __init__(self):
        self.groups, self.total, self.compared = collections.defaultdict(Counts), Counts(), []

    @property
    def is_exact(self):
        """Whether there are results, and all of them have the exact bits."""
        return self.total.equal > 0 and self.total.near == self.total.wrong == 0

    def add(self, case, given):
        """Compares the results of a case: Tensors by name."""
        counts, faults = Counts(cases=1), []
        for name, wanted in case.wanted.items():
            if name not in given:
                counts.missing += wanted.array.size
                continue
            fault = compare(wanted, given[name], counts)
            if fault:
                faults.append(f"{name}: {fault}")
        self.groups[case.group].add(counts)
        self.total.add(counts)
        if counts.missing < sum(wanted.array.size for wanted in case.wanted.values()):
            self.compared.append(Compared(case, given, counts, faults))

    def table(self):
        """Yields the lines of the table of groups."""
        rows = [("group", "cases", "equal", "1 ulp", "wrong", "not given")]
        for name, counts in [*self.groups.items(), ("all", self.total)]:
            numbers = (counts.cases, counts.equal, counts.near, counts.wrong, counts.missing)
            rows.append((name, *map(str, numbers)))
        widths = [max(map(len, column)) for column in zip(*rows)]
        for row in rows:
            numbers = [text.rjust(width) for text, width in zip(row[1:], widths[1:])]
            yield "  ".join([row[0].ljust(widths[0]), *numbers])

    def names(self):
        """Yields the text on the cases that differ: in each group the wrong ones first."""
        for group in self.groups:
            differing = [one for one in self.compared if one.faults and one.case.group == group]
            differing.sort(key=lambda one: one.counts.wrong == 0)
            yield from map(str, differing[:MOST_NAMED])
            if len(differing) > MOST_NAMED:
                yield f"{group}: {len(differing) - MOST_NAMED} more cases differ"

    def words(self):
        """Yields the words whose cases, if there are three, are exact less than half as often as
        all cases."""
        of_word = collections.defaultdict(list)
        for one in self.compared:
            for word in one.case.words:
                of_word[word].append(not one.faults)
        usual = sum(not one.faults for one in self.compared) / max(len(self.compared), 1)
        for word, exact in sorted(of_word.items()):
            if len(exact) >= 3 and sum(exact) < usual / 2 * len(exact):
                yield f"{word}: {sum(exact)} of {len(exact)} cases exact"

    def __str__(self):
        wrong = sum(one.counts.wrong > 0 for one in self.compared)
        exact = sum(not one.faults for one in self.compared)
        near = len(self.compared) - exact - wrong
        summary = f"cases: {exact} exact, {near} within 1 ulp, {wrong} wrong"
        can_identify = any(one.can_identify() for one in self.compared)
        hint = [HINT] if can_identify and find_identify() is None else []
        return "\n".join([*self.table(), *self.names(), *self.words(), summary, *hint])


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
    _, given = parse_safetensors(read(results))
    report = Report()
    for case in read_cases(vectors):
        names = {name: f"{case.name}.{name}" for name in case.wanted}
        report.add(case, {name: given.pop(key) for name, key in names.items() if key in given})
    if given:
        raise ValueError(f"{results}: no case has the result {sorted(given)[0]!r}")
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("vectors", help="the archive, its folder, or vectors.safetensors")
    parser.add_argument("results", help="a .safetensors file with results of the same names")
    arguments = parser.parse_args()
    try:
        report = check_file(arguments.results, arguments.vectors)
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        print(f"check_vectors.py: {error}", file=sys.stderr)
        return 2
    print(report)
    return 0 if report.is_exact else 1


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts a file of exact results down to its shorter rows: cut_data.py contract|family FULL > SMALL"""

import json
import struct
import sys

CONTRACT_SIZES = {"1", "2", "3", "64", "65", "129"}
FAMILY_SIZES = {"1", "65", "2547"}  # only activations have the last size


def cut_contract(header):
    """Returns the metadata, and the names of the tensors to keep."""

    def size_of(name):
        parts = name.split(".")
        return parts[2] if parts[0] == "y" else parts[1]

    metadata = header.pop("__metadata__")
    return metadata, {name for name in header if size_of(name) in CONTRACT_SIZES}


def cut_family(header):
    """Returns the cases to keep, and the names of their tensors."""
    cases = {}
    needed = set()
    for name, words in header.pop("__metadata__").items():
        _, size, _ = name.split(".")
        if size in FAMILY_SIZES:
            cases[name] = words
            needed |= {word.split("=", 1)[1] for word in words.split()}
    return cases, needed


def main():
    cut = {"contract": cut_contract, "family": cut_family}[sys.argv[1]]
    with open(sys.argv[2], "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]

    metadata, needed = cut(header)
    small = {"__metadata__": metadata}
    kept = b""
    for name, tensor in header.items():
        if name in needed:
            begin, end = tensor["data_offsets"]
            tensor["data_offsets"] = [len(kept), len(kept) + end - begin]
            small[name] = tensor
            kept += data[begin:end]
    text = json.dumps(small, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sys.stdout.buffer.write(struct.pack("<Q", len(text)) + text + kept)


if __name__ == "__main__":
    main()

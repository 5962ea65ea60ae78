#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts contract.safetensors down to its shorter rows: cut_contract.py FULL > SMALL"""

import json
import struct
import sys

SIZES = {"1", "2", "3", "64", "65", "129"}


def size_of(name):
    parts = name.split(".")
    return parts[2] if parts[0] == "y" else parts[1]


def main():
    with open(sys.argv[1], "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]

    small = {"__metadata__": header.pop("__metadata__")}
    kept = b""
    for name, tensor in header.items():
        if size_of(name) in SIZES:
            begin, end = tensor["data_offsets"]
            tensor["data_offsets"] = [len(kept), len(kept) + end - begin]
            small[name] = tensor
            kept += data[begin:end]
    text = json.dumps(small, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    sys.stdout.buffer.write(struct.pack("<Q", len(text)) + text + kept)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cuts family.safetensors down to the shorter rows of some groups: cut_family.py FULL > SMALL"""

import json
import struct
import sys

GROUPS = {
    "backward",
    "backward-cold",
    "backward-floor",
    "backward-rows",
    "backward-tie",
    "bias",
    "floor",
    "heads",
    "inverse",
    "modulated",
    "residual-mixed",
}
SIZES = {"1", "65"}


def main():
    with open(sys.argv[1], "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]

    cases = {}
    needed = set()
    for name, words in header.pop("__metadata__").items():
        group, size, _ = name.split(".")
        if group in GROUPS and size in SIZES:
            cases[name] = words
            needed |= {word.split("=", 1)[1] for word in words.split()}

    small = {"__metadata__": cases}
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

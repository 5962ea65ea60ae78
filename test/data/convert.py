#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts recorded results to the format of doc/vectors.md:

  convert.py [--all] contract|family|migration ORIGINAL CONVERTED

Without --all, the longer rows of contract and family are left out. README.md describes the
originals. Each tensor keeps its bytes, and at the end this compares the bytes in both files."""

import json
import os
import re
import struct
import sys

SIZES = {"contract": (1, 2, 3, 64, 65, 129), "family": (1, 65, 2547), "migration": (64, 100)}
TYPES = ("f32", "f16", "bf16")
PAGE = os.path.join(os.path.dirname(__file__), "../../doc/migration.md")


def read(path):
    """Returns the metadata of a .safetensors file, and (type, shape, bytes) of each tensor."""
    with open(path, "rb") as file:
        content = file.read()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    metadata = header.pop("__metadata__", {})
    return metadata, {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


# Each of the next functions yields the cases of a file: the group, the length of a row, the words of
# operation and options, and the tensors by operand.


def contract(metadata, tensors):
    assert metadata == {
        "y": "y.OPTION.d.x.w.y types; eps 1e-5 but 1e-6 for gemma (offset 1) and outside, "
        "0 for eps0 (input x0) and tiny; llama casts first; divisor 100.5"
    }
    options = {
        "default": ("x", "eps=1e-05"),
        "llama": ("x", "eps=1e-05 rounding=before_weight"),
        "gemma": ("x", "eps=1e-06 weight_offset=1"),
        "outside": ("x", "eps=1e-06 eps_placement=outside"),
        "divisor": ("x", "eps=1e-05 divisor=100.5"),
        "eps0": ("x0", "eps=0"),
        "big": ("big", "eps=1e-05"),
        "tiny": ("tiny", "eps=0"),
    }
    for y in tensors:
        kind, *parts = y.split(".")
        if kind == "y":
            group, d, x_type, weight_type, _ = parts
            x, words = options[group]
            operands = {"x": f"{x}.{d}.{x_type}", "weight": f"w.{d}.{x_type}.{weight_type}", "y": y}
            yield group, d, "op=forward " + words, operands


# Where a word or a value of the family is not the library's.
NAMES = {"post-weight": "post_norm_weight", "z": "gate", "inverse-rms": "rstd"}
VALUES = {
    "scale-then-cast": "after_weight",
    "cast-then-scale": "before_weight",
    "inverse-rounded": "inverse",
    "yes": "rounded",
    "no": "unrounded",
}


def family(metadata, tensors):
    for case, text in metadata.items():
        group, d, _ = case.split(".")
        words = dict(word.split("=") for word in text.split(" "))
        operation = words.pop("op")
        if operation == "activation":
            # The gate of a norm of ones, whose RMS is 1, the floor.
            tensors["ones." + d] = ("F32", [int(d)], struct.pack("<f", 1) * int(d))
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


def cells_of(line):
    return [cell.strip().strip("`") for cell in line.split("|")[1:-1]]


def rows_of_page():
    """Yields the rows of the tables of doc/migration.md, by column."""
    with open(PAGE, encoding="utf-8") as file:
        for table in re.findall(r"(?m)(?:^\|.*\n)+", file.read()):
            names, _, *rows = map(cells_of, table.splitlines())
            if "name" in names:
                yield from (dict(zip(names, row)) for row in rows)


def migration(_, tensors):
    options = ("eps", "eps_placement", "rounding", "weight_offset", "residual_rounding", "factor")
    options += ("activation", "gate_placement", "gate_rounding")
    rows = {row["name"]: row for row in rows_of_page()}
    for y in tensors:
        kind, *parts = y.split(".")
        if kind != "y":
            continue
        name, d, x_type = parts
        row, key = rows[name], f".{d}.{x_type}"
        # No words say that the sums are those before residual_out is rounded: the test knows the row.
        two_phases = {"residual_rounding": "unrounded"}
        row |= two_phases if row["residual_rounding"] == "two phases" else {}
        # Each head of Qwen3 is a row of x.
        tensors[y] = tensors[y][0], tensors["x" + key][1], tensors[y][2]
        operands = {"x": "x" + key}
        if row["residual_rounding"]:
            operands.update(residual="r" + key, residual_out=f"sum.{name}{key}")
        if row.get("weight") != "none":
            operands["weight"] = f"w.{d}.{'f32' if row.get('weight') == 'f32' else x_type}"
        if row.get("post_norm"):
            operands["post_norm_weight"] = "p" + key
        if row.get("activation"):
            operands["gate"] = "z" + key
        words = "".join(f" {option}={row[option]}" for option in options if row.get(option))
        yield name, d, "op=forward" + words, operands | {"y": y}


RESULTS = ("residual_out", "y", "q", "rstd", "scale", "zero", "dx", "dw", "db")


def main():
    arguments = sys.argv[1:]
    everything = arguments[0] == "--all"
    kind, original, converted = arguments[everything:]
    metadata, tensors = read(original)
    index, names = {}, {}  # the cases, and the name of each tensor
    numbers = {}  # of the next case of a group with a length
    for group, d, options, operands in globals()[kind](metadata, tensors):
        if not everything and int(d) not in SIZES[kind]:
            continue
        number = numbers[group, d] = numbers.get((group, d), -1) + 1
        case = f"{group}.{d}.{number}"
        words = options
        for operand, tensor in operands.items():
            is_result = operand in RESULTS
            name = names.setdefault(tensor, f"{case}.{operand}" if is_result else tensor)
            assert not is_result or name == f"{case}.{operand}"
            words += f" {operand}={name}"
        index[case] = words

    header, data = {"__metadata__": index}, b""
    # Larger elements come first, so each tensor is aligned.
    sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I8": 1}
    for tensor, name in sorted(names.items(), key=lambda one: -sizes[tensors[one[0]][0]]):
        dtype, shape, content = tensors[tensor]
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(converted, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)

    written = read(converted)[1]
    assert {name: tensors[tensor] for tensor, name in names.items()} == written
    results = sum(name.rsplit(".", 1)[1] in RESULTS for name in written)
    print(f"{converted}: {len(index)} cases, {results} results with the bytes of {original}")


if __name__ == "__main__":
    main()

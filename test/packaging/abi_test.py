# SPDX-License-Identifier: Apache-2.0
"""The C interface is the one that packaging/rust/rmsnorm-sys/src/lib.rs records: functions, types, fields and constants.
The compiler takes the record, turned into C, beside the header: `abi_test.py COMPILER...`"""

import os
import re
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
HEADER = os.path.join(ROOT, "include", "rmsnorm", "rmsnorm.h")
RECORD = os.path.join(ROOT, "packaging", "rust", "rmsnorm-sys", "src", "lib.rs")
C_TYPES = {
    **{"c_char": "char", "c_void": "void", "f32": "float", "i32": "int32_t"},
    **{"isize": "ptrdiff_t", "u32": "uint32_t", "usize": "size_t"},
}


def declare(name, kind):
    """Returns the C declaration of a name with a type of Rust."""
    if pointer := re.fullmatch(r"\*(const|mut) (.*)", kind):
        return declare("*" + name if pointer[1] == "mut" else "const *" + name, pointer[2])
    if array := re.fullmatch(r"\[(\w+); (\w+)\]", kind):
        return declare(f"{name}[{array[2]}]", array[1])
    return f"{C_TYPES.get(kind, kind)} {name}"


def function(name, parameters, result="c_void"):
    kinds = re.findall(r"\w+: ([^,\n]+)", parameters)
    return declare(f"{name}({', '.join(declare('', kind) for kind in kinds) or 'void'})", result)


def as_c(record):
    """Yields declarations that a compiler takes after the header if it has the same interface."""
    for name, parameters, result in re.findall(
        r"pub fn (\w+)\((.*?)\)(?: -> (.*?))?;", record, re.S
    ):
        yield f"RMSNORM_API {function(name, parameters, result or 'c_void')};"
    for name, parameters in re.findall(
        r"pub type (\w+) = Option<[^(]*\((.*?)\)\s*,?\s*>;", record, re.S
    ):
        yield f"typedef {function(f'(*{name})', parameters)};"
    for name, kind in re.findall(r"pub type (\w+) = (\w+);", record):
        yield f"typedef {declare(name, kind)};"
    for name, fields in re.findall(r"pub struct (\w+) \{\n(    pub .*?)\}", record, re.S):
        fields = re.findall(r"pub (\w+): (.*),", fields)
        yield f"struct record_{name} {{ {' '.join(declare(*field) + ';' for field in fields)} }};"
        sizes = []
        for field, _ in fields:
            ours, theirs = (f"(({kind}*)0)->{field}" for kind in (name, "struct record_" + name))
            is_same_type = f"_Generic(&{ours}, __typeof__({theirs})*: 1, default: 0)"
            is_there = f"offsetof({name}, {field}) == offsetof(struct record_{name}, {field})"
            yield f'_Static_assert({is_same_type} && {is_there}, "{name}.{field}");'
            sizes.append(f"sizeof({ours})")
        yield f'_Static_assert(sizeof({name}) == {" + ".join(sizes)}, "another field of {name}");'


def read(path):
    with open(path, encoding="utf-8") as file:
        return re.sub(r"//.*", "", file.read())


def read_record():
    """Returns the record with the declarations that its macro and aliases stand for."""
    record = re.sub(r"(?m)^    (\w+) \{(?=\s+RMSNORM_)", r"pub type \1 = i32;", read(RECORD))
    for alias, kind in re.findall(r"(?m)^type (\w+) = (.*);", record):
        record = re.sub(rf"\b{alias}\b", kind, record)
    return record


def main(*compiler):
    header, record = read(HEADER), read_record()
    names_of = {
        header: r"(?m)^(?:RMSNORM_API [^;(]*?|typedef (?:\w+ )+|typedef void \(\*|\} )(\w+)[(;)]",
        record: r"pub (?:fn|struct|type) (\w+)",
    }
    constant = r"(RMSNORM_\w+)(?:: \w+)? = (-?\d+)|#define (RMSNORM_MAX_\w+) (\d+)"
    interfaces = []
    for text in (header, record):
        constants = [" = ".join(filter(None, parts)) for parts in re.findall(constant, text)]
        interfaces.append({*re.findall(names_of[text], text), *constants})
    assert len(interfaces[0]) > 90, interfaces[0]
    differences = sorted(interfaces[0] ^ interfaces[1])
    source = "\n".join([f'#include "{HEADER}"', *as_c(record)])
    options = ("-std=c11", "-Werror", "-fsyntax-only", "-I" + os.path.join(ROOT, "include"))
    done = subprocess.run(
        [*compiler, *options, "-x", "c", "-"], input=source, text=True, check=False
    )
    if differences or done.returncode != 0:
        print("Recorded alone, or in the header alone:", *differences, sep="\n  ")
        sys.exit(
            f"{HEADER} and {RECORD} differ. doc/releasing.md says when the interface may change."
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""The binary interface is the one in packaging/rust/rmsnorm-sys/src/lib.rs, which so records it: functions, types,
fields and constants. libabigail reads it from the debug information of a library: `abi_test.py LIBRARY`.
"""

import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
HEADERS = os.path.join(ROOT, "include", "rmsnorm")
BINDINGS = os.path.join("packaging", "rust", "rmsnorm-sys", "src", "lib.rs")
SKIPPED = 77  # tells Meson that the test is skipped
RUST_TYPES = {
    "char": "c_char",
    "float": "f32",
    "int32_t": "i32",
    "ptrdiff_t": "isize",
    "size_t": "usize",
    "uint32_t": "u32",
    "void": "c_void",
}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


class Library:
    """The interface of a library as lines of Rust, without names of parameters."""

    def __init__(self, dump):
        self.types = {element.get("id"): element for element in dump.iter() if element.get("id")}
        self.lines = [
            self.function("fn " + one.get("name"), one) for one in dump.iter("function-decl")
        ]
        for element in self.types.values():
            name = element.get("name", "")
            if element.tag == "class-decl" and element.find("data-member") is not None:
                self.lines.append(self.struct(element))
            elif element.tag == "typedef-decl" and name.startswith("rmsnorm_"):
                if self.of(element) != name:
                    self.lines.append(f"type {name} = {self.of(element)}")

    def of(self, element):
        """Returns the type that an element of the dump refers to."""
        kind = self.types[element.get("type-id")]
        name = kind.get("name")
        if name in RUST_TYPES:
            return RUST_TYPES[name]
        if kind.tag == "array-type-def":
            return f"[{self.of(kind)}; {kind.find('subrange').get('length')}]"
        if kind.tag == "qualified-type-def":
            return self.of(kind)
        if kind.tag == "pointer-type-def":
            target = self.types[kind.get("type-id")]
            if target.tag == "function-type":
                return f"Option<{self.function('unsafe extern C fn', target)}>"
            return f"*{'const' if target.get('const') else 'mut'} {self.of(kind)}"
        return name

    def function(self, name, element):
        result = self.of(element.find("return"))
        parameters = ", ".join(map(self.of, element.findall("parameter")))
        return f"{name}({parameters})" + ("" if result == "c_void" else f" -> {result}")

    def alignment(self, element):
        """Returns the bits of a number or a pointer, or of an element of an array."""
        kind = self.types[element.get("type-id")]
        if kind.tag in ("typedef-decl", "qualified-type-def", "array-type-def"):
            return self.alignment(kind)
        return int(kind.get("size-in-bits"))

    def struct(self, element):
        """Returns its fields, which must lie as Rust's repr(C) puts them."""
        fields, end, widest = [], 0, 1
        for member in element.findall("data-member"):
            field = member.find("var-decl")
            bits, kind = self.alignment(field), self.of(field)
            begin = -(-end // bits) * bits
            assert int(member.get("layout-offset-in-bits")) == begin, (element.attrib, field.attrib)
            length = re.search(r"; (\d+)]", kind)  # of an array
            end = begin + bits * (int(length[1]) if length else 1)
            widest = max(widest, bits)
            fields.append(f"{field.get('name')}: {kind}")
        assert int(element.get("size-in-bits")) == -(-end // widest) * widest, element.attrib
        return f"struct {element.get('name')} {{ {', '.join(fields)} }}"


def interface_of(library):
    """Returns the interface in a library, and the constants of its header."""
    options = ("--headers-dir", HEADERS, "--drop-private-types", "--exported-interfaces-only")
    dump = subprocess.run(["abidw", *options, library], check=True, stdout=subprocess.PIPE).stdout
    lines = Library(xml.etree.ElementTree.fromstring(dump)).lines
    # The dump has neither constants nor the const of a void.
    header = re.sub(r"(?ms)^static inline.*?^}|//.*?$", "", read(HEADERS, "rmsnorm.h"))
    lines += ["constant " + name for name in re.findall(r"const void\* (\w+)", header)]
    values = re.findall(r"(RMSNORM_\w+) = (-?\d+)|#define (RMSNORM_MAX_\w+) (\d+)", header)
    return lines + ["const " + " = ".join(filter(None, parts)) for parts in values]


def recorded():
    """Returns the same lines, of the bindings."""
    code = re.sub(r"\s+", " ", re.sub(r"//[^\n]*|\"", "", read(BINDINGS)))
    most = re.search(r"const RMSNORM_MAX_DIMS: \w+ = (\d+)", code)[1]
    code = code.replace("; RMSNORM_MAX_DIMS", f"; {most}")
    lines = ["constant " + name for name in re.findall(r"(\w+): \*const c_void", code)]
    code = code.replace("*const c_void", "*mut c_void")
    values = re.findall(r"pub const (\w+): \w+ = (-?\d+);", code)
    lines += [f"const {name} = {value}" for name, value in values]
    for name, fields in re.findall(r"pub struct (\w+) \{ (pub .*?), \}", code):
        lines.append(f"struct {name} {{ {fields.replace('pub ', '')} }}")
    for item in re.findall(r"pub ((?:fn|type) [^;]+);", code):
        item = re.sub(r"(?<=[(,]) ?\w+: ", " ", item)  # names of parameters
        lines.append(re.sub(r"(?<=[(<]) +|,? +(?=[)>])", "", item).replace(",>", ">"))
    return lines


def main(library):
    if not shutil.which("abidw"):
        print("libabigail's abidw is not installed (Debian: abigail-tools)")
        sys.exit(SKIPPED)
    present, record = interface_of(library), recorded()
    lines = [f"- {line}" for line in record if line not in present]
    lines += [f"+ {line}" for line in present if line not in record]
    if lines or len(present) < 100:
        print("\n".join(lines))
        sys.exit(
            f"The library has another interface than {BINDINGS}. doc/releasing.md says when it may change."
        )


if __name__ == "__main__":
    main(*sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""The crates in packaging/rust: they are the C interface, and give its bits. The variables CARGO and
RMSNORM_VECTORS name the program and, if there is one, the file of golden vectors; see installed.py for the others."""

import json
import os
import re
import shutil
import struct
import unittest

import installed
from installed import ROOT, VERSION, read, run, succeed

CRATES = os.path.join(ROOT, "packaging", "rust")
HEADER = read(ROOT, "include", "rmsnorm", "rmsnorm.h")
BINDINGS = read(CRATES, "rmsnorm-sys", "src", "lib.rs")
CARGO = os.environ["CARGO"]

# ----------------------------------------------------------------- the header and the bindings

RUST_TYPES = {
    **{"char": "c_char", "float": "f32", "int32_t": "i32", "ptrdiff_t": "isize"},
    **{"size_t": "usize", "uint32_t": "u32", "void": "c_void"},
}


def rust_type(c_type):
    """Returns the type in Rust for one in C, such as `const void*`."""
    qualifiers = re.findall(r"\w+|\*", c_type)
    constant = qualifiers[0] == "const"
    base, *pointers = qualifiers[constant:]
    result = RUST_TYPES.get(base, base)
    for index, word in enumerate(pointers):
        if word == "*":
            result = f"*{'const' if constant else 'mut'} {result}"
            constant = pointers[index + 1 : index + 2] == ["const"]
    return result


def declared(text):
    """Returns a declaration of C, such as `size_t shape[RMSNORM_MAX_DIMS]`, in Rust's form."""
    c_type, name, count = re.fullmatch(r"\s*(.*\W)(\w+)(?:\[(\w+)\])?\s*", text, re.S).groups()
    result = rust_type(c_type)
    return f"{name}: [{result}; {count}]" if count else f"{name}: {result}"


def items_of_header(header):
    """Returns lines for the structs, constants and functions of the header, as Rust has them."""
    code = re.sub(r"//[^\n]*|__attribute__.*", "", header)
    items = {}
    for name, fields in re.findall(r"typedef struct (\w+) \{(.*?)\}", code, re.S):
        items[name] = [declared(field) for field in fields.split(";") if field.strip()]
    values = re.findall(r"(RMSNORM_\w+) = (-?\d+)|#define (RMSNORM_MAX_\w+) (\d+)", code)
    items["constants"] = [" = ".join(filter(None, parts)) for parts in values]
    functions = re.findall(r"RMSNORM_API\s([^;{}()]*?)(\w+)\(([^;{}]*?)\)\s*RMSNORM_NOEXCEPT", code)
    items["functions"] = [
        f"{name}({', '.join(declared(one) for one in arguments.split(',') if one != 'void')})"
        + ("" if result.strip() == "void" else f" -> {rust_type(result)}")
        for result, name, arguments in functions
    ]
    return items


def items_of_bindings(bindings):
    """Returns the same lines, of the bindings."""
    code = re.sub(r"//[^\n]*", "", bindings)
    items = {}
    for name, fields in re.findall(r"pub struct (\w+) \{(.*?)\}", code, re.S):
        items[name] = re.findall(r"pub (\w+: [^,]+)", fields)
    items = {name: fields for name, fields in items.items() if fields}  # without opaque structs
    items["constants"] = [
        f"{name} = {value}" for name, value in re.findall(r"pub const (\w+): \w+ = (-?\d+);", code)
    ]
    items["functions"] = [
        re.sub(r",? \)", ")", re.sub(r"\s+", " ", function).replace("( ", "("))
        for function in re.findall(r"pub fn ([^;]+);", code)
    ]
    return items


class Bindings(unittest.TestCase):
    def test_have_every_item_of_the_header(self):
        header, bindings = items_of_header(HEADER), items_of_bindings(BINDINGS)
        self.assertEqual(list(header), list(bindings))
        for name, lines in header.items():
            self.assertGreater(len(lines), 2, name)
            self.assertEqual(lines, bindings[name], name)


# ------------------------------------------------------------------------------------ the crates


def cases_of(vectors):
    """Returns lines of cases and the data of their tensors, as rust_vectors.rs reads them."""
    (length,) = struct.unpack("<Q", vectors[:8])
    tensors = json.loads(vectors[8 : 8 + length])
    lines = []
    for case, text in tensors.pop("__metadata__").items():
        words = [case]
        for key, value in (word.split("=") for word in text.split(" ")):
            if value in tensors:
                tensor = tensors[value]
                shape = ",".join(map(str, tensor["shape"]))
                kind = "result:" if value == f"{case}.{key}" else ""
                value = f"{kind}{tensor['dtype']}:{shape}:{tensor['data_offsets'][0]}"
            words.append(f"{key}={value}")
        lines.append(" ".join(words) + "\n")
    return "".join(lines), vectors[8 + length :]


class Crates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = installed.temporary_directory(cls.addClassCleanup)
        cls.prefix = installed.install(directory)
        cls.library_dir = os.path.join(cls.prefix, installed.LIBDIR)
        cls.crates = os.path.join(directory, "rust")
        shutil.copytree(CRATES, cls.crates, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
        cls.directory = directory
        cls.variables = {
            **installed.variables_for(cls.prefix),
            "CARGO_NET_OFFLINE": "true",
            "CARGO_TARGET_DIR": os.path.join(directory, "target"),
            "RUSTDOCFLAGS": "-D warnings",
            "RUSTFLAGS": "-D warnings",
        }

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def command(self, *arguments, **variables):
        manifest = os.path.join(self.crates, "Cargo.toml")
        return (CARGO, *arguments[:1], "--manifest-path", manifest, *arguments[1:]), {
            **self.variables,
            **variables,
        }

    def cargo(self, *arguments, **variables):
        """Runs Cargo and returns what it printed."""
        command, variables = self.command(*arguments, **variables)
        return succeed(*command, **variables)

    def refused(self, *arguments, **variables):
        """Returns the errors of a run that fails."""
        command, variables = self.command(*arguments, **variables)
        done = run(*command, **variables)
        self.assertNotEqual(done.returncode, 0, done.stdout)
        return done.stderr

    def needs(self, subcommand):
        if run(CARGO, subcommand, "--version").returncode != 0:
            self.skipTest(f"no cargo {subcommand} here")

    def write(self, text, *names):
        os.makedirs(os.path.dirname(self.path(*names)), exist_ok=True)
        with open(self.path(*names), "wb" if isinstance(text, bytes) else "w") as file:
            file.write(text)
        return self.path(*names)

    def test_pass_their_tests(self):
        printed = self.cargo("test", "--workspace")
        counts = [int(count) for count in re.findall(r"test result: ok\. (\d+) passed", printed)]
        self.assertGreater(sum(counts), 40, printed)

    def test_link_either_library(self):
        page = read(ROOT, "doc", "other_languages.md")
        (program,) = re.findall(r"^```rust\n(.*?)^```$", page, re.M | re.S)
        self.write(program, "rust", "rmsnorm", "examples", "page.rs")
        kinds = ["shared", "static"] if installed.LIBRARIES == "both" else [installed.LIBRARIES]
        for kind in kinds:
            for variables in ({}, {"RMSNORM_LIB_DIR": self.library_dir, "PKG_CONFIG": "false"}):
                with self.subTest(kind=kind, variables=variables):
                    if kind == "static":
                        variables["RMSNORM_STATIC"] = "1"
                    printed = self.cargo("run", "--quiet", "--example", "page", **variables)
                    self.assertEqual(printed, "0.8485 1.1314\n")
                    needed = installed.needed_by(self.path("target", "debug", "examples", "page"))
                    is_shared = any(name.startswith("librmsnorm.so") for name in needed)
                    self.assertEqual(is_shared, kind == "shared", needed)

    def test_say_what_to_install(self):
        empty = installed.temporary_directory(self.addCleanup)
        nowhere = {"PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": empty}
        for variables, reason in (
            (nowhere, "rmsnorm-sys: Package"),
            ({"PKG_CONFIG": "/no/pkg-config"}, "rmsnorm-sys: cannot run /no/pkg-config"),
            ({"RMSNORM_LIB_DIR": empty}, f"rmsnorm-sys: {empty} holds no library to link"),
        ):
            errors = self.refused("build", **variables)
            self.assertIn(reason, errors)
            self.assertIn("Install the rmsnorm library, version ", errors)

    def test_refuse_a_library_of_another_minor_version(self):
        directory = installed.temporary_directory(self.addCleanup)
        major, minor, _ = map(int, VERSION.split("."))
        text = read(self.library_dir, "pkgconfig", "rmsnorm.pc")
        for other in (f"{major}.{minor + 1}.0", f"{major}.{minor - 1}.9"):
            if "-" in other:
                continue
            self.write(
                text.replace(f"Version: {VERSION}", f"Version: {other}"), directory, "rmsnorm.pc"
            )
            errors = self.refused("build", PKG_CONFIG_PATH=directory)
            self.assertRegex(
                errors, rf"(?s)rmsnorm-sys: .*\b{re.escape(other)}\b.*Install the rmsnorm"
            )

    def test_have_the_version_of_the_library(self):
        packages = json.loads(self.cargo("metadata", "--format-version=1", "--no-deps"))["packages"]
        self.assertEqual({package["version"] for package in packages}, {VERSION})
        self.assertEqual({package["name"] for package in packages}, {"rmsnorm", "rmsnorm-sys"})
        (dependency,) = [one for package in packages for one in package["dependencies"]]
        self.assertEqual(dependency["req"], "^" + VERSION)

    def test_recorded_bits(self):
        source = read(ROOT, "test", "packaging", "rust_vectors.rs")
        self.write(source, "rust", "rmsnorm", "examples", "vectors.rs")
        folder = os.path.join(ROOT, "test", "data")
        files = {f"{folder}/{name}.safetensors": 100 for name in ("contract", "family")}
        if "RMSNORM_VECTORS" in os.environ:
            files[os.environ["RMSNORM_VECTORS"]] = 3000
        for path, least in files.items():
            with open(path, "rb") as file:
                lines, data = cases_of(file.read())
            arguments = (self.write(lines, "vectors", "list"), self.write(data, "vectors", "data"))
            printed = self.cargo(
                "run", "--quiet", "--release", "--example", "vectors", "--", *arguments
            )
            found = re.fullmatch(r"(\d+) cases, (\d+) results, 0 wrong\n", printed)
            self.assertEqual(int(found[1]), lines.count("\n"))
            self.assertGreater(int(found[2]), 2 * least)

    def test_have_no_lints(self):
        self.needs("clippy")
        self.cargo("clippy", "--workspace", "--all-targets", "--", "-D", "warnings")

    def test_are_formatted(self):
        self.needs("fmt")
        self.cargo("fmt", "--all", "--", "--check")

    def test_have_pages(self):
        self.cargo("doc", "--workspace", "--no-deps", "--document-private-items")

    def test_are_complete_packages(self):
        for crate, wanted in (
            ("rmsnorm-sys", {"build.rs", "src/lib.rs"}),
            ("rmsnorm", {"src/lib.rs", "tests/calls.rs"}),
        ):
            listed = self.cargo("package", "--list", "--allow-dirty", "--package", crate)
            files = set(listed.split())
            self.assertEqual((wanted | {"Cargo.toml", "LICENSE", "README.md"}) - files, set())
        # Builds the crates from their packages. Before 1.90, Cargo finds rmsnorm-sys in a registry only.
        version = run(CARGO, "--version").stdout.split()[1]
        knows_both = [int(part) for part in version.split(".")[:2]] >= [1, 90]
        which = ("--workspace",) if knows_both else ("--package", "rmsnorm-sys")
        self.cargo("package", "--allow-dirty", *which)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The crate in packaging/rust, with the installed library. The variable CARGO names the program; see installed.py for
the others. abi_test.py compares its C interface with the header."""

import os
import re
import shutil
import unittest

import installed
from installed import ROOT, VERSION, read, run

CRATE = os.path.join(ROOT, "packaging", "rust")
CARGO = os.environ["CARGO"]


class Crate(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = installed.temporary_directory(cls.addClassCleanup)
        cls.prefix = installed.install(directory)
        cls.library_dir = os.path.join(cls.prefix, installed.LIBDIR)
        cls.crate = os.path.join(directory, "rust")
        shutil.copytree(CRATE, cls.crate, ignore=shutil.ignore_patterns("target", "Cargo.lock"))
        cls.directory = directory
        cls.variables = {
            **installed.variables_for(cls.prefix),
            "CARGO_NET_OFFLINE": "true",
            "RMSNORM_RECORDED": os.path.join(ROOT, "test", "data", "contract.safetensors"),
            "CARGO_TARGET_DIR": os.path.join(directory, "target"),
            "RUSTDOCFLAGS": "-D warnings",
            "RUSTFLAGS": "-D warnings",
        }

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def cargo(self, subcommand, *arguments, is_refused=False, **variables):
        """Runs Cargo and returns what it printed, or the errors of a build that is refused."""
        manifest = ("--manifest-path", os.path.join(self.crate, "Cargo.toml"))
        done = run(CARGO, subcommand, *manifest, *arguments, **{**self.variables, **variables})
        self.assertEqual(done.returncode != 0, is_refused, done.stdout + done.stderr)
        return done.stderr if is_refused else done.stdout

    def needs(self, subcommand):
        if run(CARGO, subcommand, "--version").returncode != 0:
            self.skipTest(f"no cargo {subcommand} here")

    def test_passes_its_tests(self):
        printed = self.cargo("test")
        counts = [int(count) for count in re.findall(r"test result: ok\. (\d+) passed", printed)]
        self.assertGreater(sum(counts), 38, printed)

    def test_links_either_library(self):
        os.makedirs(self.path("rust", "examples"))
        expected = {}  # by the name of the program
        for name, page in (("page", "doc/other_languages.md"), ("readme", "README.md")):
            (program,) = re.findall(r"^```rust\n(.*?)^```$", read(ROOT, page), re.M | re.S)
            (expected[name],) = re.findall(r"println!\(.*;\s+// (.*\n)", program)
            with open(self.path("rust", "examples", name + ".rs"), "w") as file:
                file.write(program)
        kinds = ["shared", "static"] if installed.LIBRARIES == "both" else [installed.LIBRARIES]
        for kind in kinds:
            for variables in ({}, {"RMSNORM_LIB_DIR": self.library_dir, "PKG_CONFIG": "false"}):
                with self.subTest(kind=kind, variables=variables):
                    if kind == "static":
                        variables["RMSNORM_STATIC"] = "1"
                    for name, text in expected.items():
                        printed = self.cargo("run", "--quiet", "--example", name, **variables)
                        self.assertEqual(printed, text)
                    needed = installed.needed_by(self.path("target", "debug", "examples", "page"))
                    is_shared = any(name.startswith("librmsnorm.so") for name in needed)
                    self.assertEqual(is_shared, kind == "shared", needed)

    def test_says_what_to_install(self):
        empty = installed.temporary_directory(self.addCleanup)
        nowhere = {"PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": empty}
        for variables, reason in (
            (nowhere, "rmsnorm: Package"),
            ({"PKG_CONFIG": "/no/pkg-config"}, "rmsnorm: cannot run /no/pkg-config"),
            ({"RMSNORM_LIB_DIR": empty}, f"rmsnorm: {empty} holds no library to link"),
        ):
            errors = self.cargo("build", is_refused=True, **variables)
            self.assertIn(reason, errors)
            self.assertIn("Install the rmsnorm library, version ", errors)

    def test_refuses_a_library_of_another_minor_version(self):
        directory = installed.temporary_directory(self.addCleanup)
        major, minor, _ = map(int, VERSION.split("."))
        text = read(self.library_dir, "pkgconfig", "rmsnorm.pc")
        for other in (f"{major}.{minor + 1}.0", f"{major}.{minor - 1}.9"):
            if "-" in other:
                continue
            with open(os.path.join(directory, "rmsnorm.pc"), "w") as file:
                file.write(text.replace(f"Version: {VERSION}", f"Version: {other}"))
            errors = self.cargo("build", is_refused=True, PKG_CONFIG_PATH=directory)
            reason = rf"(?s)rmsnorm: .*\b{re.escape(other)}\b.*Install the rmsnorm"
            self.assertRegex(errors, reason)

    def test_has_no_lints(self):
        self.needs("clippy")
        self.cargo("clippy", "--all-targets", "--", "-D", "warnings")

    def test_is_formatted(self):
        self.needs("fmt")
        self.cargo("fmt", "--", "--check")

    def test_has_pages(self):
        self.cargo("doc", "--document-private-items")

    def test_is_a_complete_package(self):
        files = self.cargo("package", "--list", "--allow-dirty").split()
        wanted = {"Cargo.toml", "LICENSE", "README.md", "build.rs", "src/lib.rs", "tests/calls.rs"}
        self.assertEqual(wanted - set(files), set())
        self.cargo("package", "--allow-dirty")  # builds the crate from its package


if __name__ == "__main__":
    unittest.main()

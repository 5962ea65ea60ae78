# SPDX-License-Identifier: Apache-2.0
"""The crates in packaging/rust, with the installed library. The variable CARGO names the program; see installed.py for
the others. abi_test.py compares rmsnorm-sys with the library."""

import os
import re
import shutil
import unittest

import installed
from installed import ROOT, VERSION, read, run

CRATES = os.path.join(ROOT, "packaging", "rust")
CARGO = os.environ["CARGO"]


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
            "RMSNORM_RECORDED": os.path.join(ROOT, "test", "data", "contract.safetensors"),
            "CARGO_TARGET_DIR": os.path.join(directory, "target"),
            "RUSTDOCFLAGS": "-D warnings",
            "RUSTFLAGS": "-D warnings",
        }

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def cargo(self, subcommand, *arguments, is_refused=False, **variables):
        """Runs Cargo and returns what it printed, or the errors of a build that is refused."""
        manifest = ("--manifest-path", os.path.join(self.crates, "Cargo.toml"))
        done = run(CARGO, subcommand, *manifest, *arguments, **{**self.variables, **variables})
        self.assertEqual(done.returncode != 0, is_refused, done.stdout + done.stderr)
        return done.stderr if is_refused else done.stdout

    def needs(self, subcommand):
        if run(CARGO, subcommand, "--version").returncode != 0:
            self.skipTest(f"no cargo {subcommand} here")

    def test_pass_their_tests(self):
        printed = self.cargo("test", "--workspace")
        counts = [int(count) for count in re.findall(r"test result: ok\. (\d+) passed", printed)]
        self.assertGreater(sum(counts), 40, printed)

    def test_link_either_library(self):
        os.makedirs(self.path("rust", "rmsnorm", "examples"))
        expected = {}  # by the name of the program
        for name, page in (("page", "doc/other_languages.md"), ("readme", "README.md")):
            (program,) = re.findall(r"^```rust\n(.*?)^```$", read(ROOT, page), re.M | re.S)
            (expected[name],) = re.findall(r"println!\(.*;\s+// (.*\n)", program)
            with open(self.path("rust", "rmsnorm", "examples", name + ".rs"), "w") as file:
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

    def test_say_what_to_install(self):
        empty = installed.temporary_directory(self.addCleanup)
        nowhere = {"PKG_CONFIG_PATH": "", "PKG_CONFIG_LIBDIR": empty}
        for variables, reason in (
            (nowhere, "rmsnorm-sys: Package"),
            ({"PKG_CONFIG": "/no/pkg-config"}, "rmsnorm-sys: cannot run /no/pkg-config"),
            ({"RMSNORM_LIB_DIR": empty}, f"rmsnorm-sys: {empty} holds no library to link"),
        ):
            errors = self.cargo("build", is_refused=True, **variables)
            self.assertIn(reason, errors)
            self.assertIn("Install the rmsnorm library, version ", errors)

    def test_refuse_a_library_of_another_minor_version(self):
        directory = installed.temporary_directory(self.addCleanup)
        major, minor, _ = map(int, VERSION.split("."))
        text = read(self.library_dir, "pkgconfig", "rmsnorm.pc")
        for other in (f"{major}.{minor + 1}.0", f"{major}.{minor - 1}.9"):
            if "-" in other:
                continue
            with open(os.path.join(directory, "rmsnorm.pc"), "w") as file:
                file.write(text.replace(f"Version: {VERSION}", f"Version: {other}"))
            errors = self.cargo("build", is_refused=True, PKG_CONFIG_PATH=directory)
            reason = rf"(?s)rmsnorm-sys: .*\b{re.escape(other)}\b.*Install the rmsnorm"
            self.assertRegex(errors, reason)

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

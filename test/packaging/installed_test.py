# SPDX-License-Identifier: Apache-2.0
"""Lists everything that `meson install` installs, and checks that there is nothing else: files and
their sizes, public symbols, and libraries needed at run time."""

import os
import re
import unittest

from installed import BUILD, LIBDIR, LIBRARIES, OPENMP, OPTIONS, ROOT, VERSION
from installed import files_below, install, interface_of, needed_by, read, succeed
from installed import temporary_directory

SHARED = LIBRARIES != "static"
# What Debian's package and Rust's crate record.
DEBIAN = read(ROOT, "packaging", "debian", "librmsnorm0.symbols")
SONAME = re.search(r"^librmsnorm\.so\.\d+", DEBIAN, re.M)[0]
SYMBOL_VERSION = re.search(r"^ \(symver\)(\w+)", DEBIAN, re.M)[1]
FUNCTIONS = re.findall(r"pub fn (\w+)", read(ROOT, "packaging/rust/rmsnorm-sys/src/lib.rs"))
LIBRARY = os.path.join(LIBDIR, "librmsnorm.so")
COMMAND = os.path.join(OPTIONS["bindir"], "rmsnorm")
HAS_COMMAND = os.path.exists(os.path.join(BUILD, "tools", "rmsnorm"))
FILES = {
    OPTIONS["includedir"]: [
        f"rmsnorm/{name}" for name in ("dlpack.hpp", "rmsnorm.h", "rmsnorm.hpp", "version.h")
    ],
    LIBDIR: [
        *("cmake/rmsnorm/rmsnormConfig.cmake", "cmake/rmsnorm/rmsnormConfigVersion.cmake"),
        *("cmake/rmsnorm/rmsnormTargets-TYPE.cmake", "pkgconfig/rmsnorm.pc"),
        *(["librmsnorm.a"] if LIBRARIES != "shared" else []),
        *(["librmsnorm.so", SONAME, "librmsnorm.so." + VERSION] if SHARED else []),
    ],
    OPTIONS["bindir"]: ["rmsnorm"] if HAS_COMMAND else [],
    OPTIONS["mandir"]: ["man1/rmsnorm.1"] if HAS_COMMAND else [],
}
# These come with every C and C++ compiler; the compiler chooses which of them a binary needs.
RUNTIME = re.compile(r"(libc|libm|libgcc_s|libstdc\+\+|libc\+\+(abi)?|libunwind|ld-.*)\.so\.\d+")


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = temporary_directory(cls.addClassCleanup)
        cls.prefix = install(cls.directory)

    def path(self, name):
        return os.path.join(self.prefix, name)

    def test_files(self):
        found = files_below(self.prefix)
        for name in found:
            print(f"{os.lstat(self.path(name)).st_size:>9}  {name}")
        expected = [os.path.join(folder, name) for folder in FILES for name in FILES[folder]]
        found = [re.sub(r"(?<=Targets-)\w+", "TYPE", name) for name in found]
        self.assertEqual(sorted(found), sorted(expected))
        outside = os.path.join(self.directory, "destdir")
        self.assertEqual(files_below(outside), [], "outside of the prefix")

    @unittest.skipUnless(SHARED, "no shared library")
    @unittest.skipUnless(OPTIONS["buildtype"] == "release", "a budget of release builds")
    def test_size(self):
        """The shared library without symbols keeps the budget of doc/design.md."""
        budgets = read(ROOT, "doc", "design.md")
        budget = re.search(r"^\| shared library, stripped, .* \| (\d+) KiB \|$", budgets, re.M)
        largest = int(budget[1]) * 1024
        stripped = os.path.join(self.directory, "stripped")
        succeed("strip", "-o", stripped, self.path(LIBRARY))
        size = os.path.getsize(stripped)
        print(f"{size:>9}  the shared library without symbols, of {largest} allowed")
        self.assertLessEqual(size, largest)

    def needed(self, name):
        """Returns the libraries that a binary needs beside the runtimes of C, of the compiler and of OpenMP."""
        needed = needed_by(self.path(name))
        print(name, "needs", *needed)
        return {file for file in needed if not RUNTIME.fullmatch(file) and "omp" not in file}

    @unittest.skipUnless(SHARED, "no shared library")
    def test_the_library_needs(self):
        self.assertEqual(self.needed(LIBRARY), set())
        self.assertEqual("omp" in "".join(needed_by(self.path(LIBRARY))), bool(OPENMP))

    @unittest.skipUnless(HAS_COMMAND, "no command")
    def test_the_command(self):
        """It needs the library alone, and finds it without LD_LIBRARY_PATH, in a prefix that was moved."""
        # The plain loops of `rmsnorm bench` with -ffast-math call expf of glibc's vectors.
        needed = {name.split(".so")[0] for name in self.needed(COMMAND)}
        self.assertEqual(needed - {"libmvec", "libbenchmark"}, {"librmsnorm"} if SHARED else set())
        printed = succeed(self.path(COMMAND), "--version", LD_LIBRARY_PATH="")
        self.assertIn(VERSION, printed)

    @unittest.skipUnless(SHARED, "no shared library")
    def test_symbols(self):
        """The library has the recorded name and functions, and no other symbol."""
        soname, defined = interface_of(self.path(LIBRARY))
        print(len(defined), "public symbols:", *defined)
        self.assertEqual(defined, sorted(f"{name}@@{SYMBOL_VERSION}" for name in FUNCTIONS))
        self.assertEqual(soname, SONAME)


if __name__ == "__main__":
    unittest.main()

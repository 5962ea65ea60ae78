# SPDX-License-Identifier: Apache-2.0
"""Lists everything that `meson install` installs, and checks that there is nothing else: files and
their sizes, public symbols, and libraries needed at run time."""

import os
import re
import unittest

from installed import LIBDIR, LIBRARIES, ROOT, VERSION, install, interface_of, needed_by, read
from installed import succeed, temporary_directory

FILES = os.environ["RMSNORM_INSTALLED"].split(":")
SHARED = LIBRARIES != "static"
LIBRARY = os.path.join(LIBDIR, "librmsnorm.so")
COMMAND = next((name for name in FILES if name.endswith("/rmsnorm")), None)
# These come with every C and C++ compiler; the compiler chooses which of them a binary needs.
RUNTIME = re.compile(r"(libc|libm|libgcc_s|libc\+\+abi|libunwind|ld-.*)\.so\.\d+")


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = temporary_directory(cls.addClassCleanup)
        cls.prefix = install(cls.directory)

    def path(self, name):
        return os.path.join(self.prefix, name)

    @staticmethod
    def files(directory):
        return sorted(
            os.path.relpath(os.path.join(folder, name), directory)
            for folder, _, names in os.walk(directory)
            for name in names
        )

    def test_files(self):
        found = self.files(self.prefix)
        for name in found:
            print(f"{os.lstat(self.path(name)).st_size:>9}  {name}")
        self.assertEqual(found, sorted(FILES))
        outside = os.path.join(self.directory, "destdir")
        self.assertEqual(self.files(outside), [], "outside of the prefix")

    @unittest.skipUnless(SHARED, "no shared library")
    @unittest.skipUnless(os.environ["RMSNORM_BUILDTYPE"] == "release", "a budget of release builds")
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
        needed = needed_by(self.path(name))
        print(name, "needs", *needed)
        return {file.split(".so")[0] for file in needed if not RUNTIME.fullmatch(file)}

    @unittest.skipUnless(SHARED, "no shared library")
    def test_the_library_needs(self):
        self.assertEqual(self.needed(LIBRARY), set(os.environ["RMSNORM_LIBRARY_NEEDS"].split()))

    @unittest.skipUnless(COMMAND, "no command")
    def test_the_command_needs(self):
        # The plain loops of `rmsnorm bench` with -ffast-math call expf of glibc's vectors.
        needed = self.needed(COMMAND) - {"libmvec"}
        self.assertEqual(needed, set(os.environ["RMSNORM_COMMAND_NEEDS"].split()))

    @unittest.skipUnless(COMMAND, "no command")
    def test_the_command_starts(self):
        """It finds the library without LD_LIBRARY_PATH, in a prefix that was moved."""
        printed = succeed(self.path(COMMAND), "--version", LD_LIBRARY_PATH="")
        self.assertIn(VERSION, printed)

    @unittest.skipUnless(SHARED, "no shared library")
    def test_symbols(self):
        """The library has the name and the symbols that Debian's package records, and no other."""
        recorded = read(ROOT, "packaging", "debian", "librmsnorm0.symbols")
        symbols = re.findall(r"^ (rmsnorm_\w+)@(\w+) ", recorded, re.M)
        soname, defined = interface_of(self.path(LIBRARY))
        print(len(defined), "public symbols:", *defined)
        self.assertEqual(defined, sorted("@@".join(symbol) for symbol in symbols))
        self.assertIn(f"\n{soname} ", recorded)


if __name__ == "__main__":
    unittest.main()

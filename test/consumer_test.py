# SPDX-License-Identifier: Apache-2.0
"""Each project in test/consumer, copied out of the source tree, finds the installed library, builds
against it without a warning and runs. Named on the command line: the class of the way to test."""

import glob
import os
import shutil
import tempfile
import unittest

from installed import MESON, ROOT, install, run, succeed, variables_for

# The default_library of the build: shared, static or both.
LIBRARIES = os.environ["RMSNORM_LIBRARIES"]
KINDS = ("shared", "static") if LIBRARIES == "both" else (LIBRARIES,)
# What each consumer prints.
RESULT = f"rmsnorm {os.environ['RMSNORM_VERSION']}: 0.8485 1.1314\n"
# For consumers that build the library: it takes seconds so. The kernels are for other tests.
NO_KERNELS = "-DHWY_COMPILE_ONLY_STATIC"
OWN_COMPILERS = (os.environ["CC"], os.environ["CXX"])


def compilers(kind):
    """(C, C++) for consumers. A static library with OpenMP takes the compiler that built it, whose
    OpenMP it is."""
    found = {OWN_COMPILERS}
    if kind == "shared":
        for pair in (("gcc", "g++"), ("clang", "clang++")):
            if all(map(shutil.which, pair)):
                found.add(pair)
    return sorted(found)


class Consumer(unittest.TestCase):
    way = ""  # the folder in test/consumer

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.source = os.path.join(self.directory, "app")
        shutil.copytree(os.path.join(ROOT, "test", "consumer", self.way), self.source)

    def check(self, program, kind, **variables):
        """It gives the right result, with the library inside or beside it."""
        self.assertEqual(succeed(program, **variables), RESULT)
        needed = succeed("readelf", "--dynamic", program)
        self.assertEqual("librmsnorm.so.0" in needed, kind == "shared", needed)


class Installed(Consumer):
    """For consumers of the installed library."""

    def setUp(self):
        super().setUp()
        self.prefix = install(self.directory)
        self.variables = variables_for(self.prefix)

    def keep_only(self, kind):
        """For tools that take the shared library wherever there is one."""
        if kind == "static":
            shared = os.path.join(self.prefix, os.environ["RMSNORM_LIBDIR"], "librmsnorm.so*")
            for file in glob.glob(shared):
                os.remove(file)

    @staticmethod
    def if_chosen(kind, option):
        """The option with which the static library is chosen where both are installed."""
        return [option] if LIBRARIES == "both" and kind == "static" else []


class Meson(Installed):
    way = "meson"

    def test_installed(self):
        for kind in KINDS:
            with self.subTest(kind):
                build = os.path.join(self.directory, kind)
                options = ["-Dwerror=true", *self.if_chosen(kind, "-Dprefer_static=true")]
                succeed(MESON, "setup", build, self.source, *options, **self.variables)
                succeed(MESON, "compile", "-C", build)
                self.check(os.path.join(build, "app"), kind, **self.variables)


class Subproject(Consumer):
    way = "meson"

    def test_subproject(self):
        os.mkdir(os.path.join(self.source, "subprojects"))
        os.symlink(ROOT, os.path.join(self.source, "subprojects", "rmsnorm"))
        build = os.path.join(self.directory, "build")
        printed = succeed(
            *(MESON, "setup", build, self.source, "--wrap-mode=nodownload"),
            *("--force-fallback-for=rmsnorm", "-Dbuildtype=plain", "-Dwerror=true"),
            "-Drmsnorm:cpp_args=" + NO_KERNELS,
        )
        for part in ("command", "rmsnorm bench", "tests"):
            self.assertRegex(printed, rf"{part} *: NO")
        self.assertRegex(printed, r"highway *: [0-9.]+, installed in /")
        for libraries, endings in (("shared", {"so"}), ("both", {"so", "a"}), ("static", {"a"})):
            with self.subTest(libraries):
                succeed(MESON, "configure", build, "-Drmsnorm:default_library=" + libraries)
                succeed(MESON, "compile", "-C", build)
                kind = "static" if libraries == "static" else "shared"
                self.check(os.path.join(build, "app"), kind, LD_LIBRARY_PATH="")
                made = os.path.join(build, "subprojects", "rmsnorm", "lib", "librmsnorm.")
                there = {end for end in ("so", "a") if os.path.exists(made + end)}
                self.assertEqual(there, endings)
                for end in endings:
                    os.remove(made + end)


class PkgConfig(Installed):
    """pkg-config by hand: a Makefile."""

    way = "pkg-config"
    flags_variable = "CXXFLAGS"
    standards = ("c++17", "c++20")

    def make(self, kind, *arguments, **variables):
        """Twice in the same place it builds twice."""
        succeed("make", "--always-make", "-C", self.source, *arguments, **variables)
        self.check(os.path.join(self.source, "app"), kind, **variables)

    def test_as_it_is(self):
        self.make(KINDS[0], **self.variables)

    def test_strict(self):
        strict = "-O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror"
        for kind in KINDS:
            self.keep_only(kind)
            for c, cpp in compilers(kind):
                for standard in self.standards:
                    with self.subTest(kind, compiler=cpp, standard=standard):
                        self.make(
                            *(kind, "CC=" + c, "CXX=" + cpp),
                            f"{self.flags_variable}={strict} -std={standard}",
                            *self.if_chosen(kind, "STATIC=1"),
                            **self.variables,
                        )

    def test_build_directory(self):
        """Its pkg-config file serves as well."""
        build = os.environ["RMSNORM_BUILD"]
        self.make(
            KINDS[0],
            PKG_CONFIG_PATH=os.path.join(build, "meson-uninstalled"),
            LD_LIBRARY_PATH=os.path.join(build, "lib"),
        )


class PlainC(PkgConfig):
    way = "c"
    standards = ("c99", "c11")
    flags_variable = "CFLAGS"


class NoExceptions(PkgConfig):
    way = "no-exceptions"


class Cmake(Installed):
    way = "cmake"
    static_option = "-Drmsnorm_USE_STATIC_LIBS=ON"

    def configure(self, build, *options):
        return run("cmake", "-S", self.source, "-B", build, *options, **self.variables)

    def build(self, kind):
        build = os.path.join(self.directory, kind)
        options = self.if_chosen(kind, self.static_option)
        done = self.configure(build, "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", *options)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        succeed("cmake", "--build", build)
        self.check(os.path.join(build, "app"), kind, **self.variables)

    def test_find_package(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.build(kind)

    def test_other_versions(self):
        file = os.path.join(self.source, "CMakeLists.txt")
        with open(file, encoding="utf-8") as text:
            right = text.read()
        major, minor, patch = map(int, os.environ["RMSNORM_VERSION"].split("."))
        for version, fits in (
            (f"{major}.{minor}", True),
            (f"{major}.{minor}.{patch} EXACT", True),
            (f"{major}.{minor}.{patch + 1}", False),
            (f"{major}.{minor + 1}", False),
            (f"{major + 1}.0", False),
        ):
            with self.subTest(version):
                with open(file, "w", encoding="utf-8") as text:
                    text.write(right.replace("rmsnorm 0.1 REQUIRED", f"rmsnorm {version} REQUIRED"))
                done = self.configure(os.path.join(self.directory, version.replace(" ", "_")))
                self.assertEqual(done.returncode == 0, fits, done.stdout + done.stderr)
                if not fits:
                    self.assertIn("compatible with requested version", done.stderr)


class CmakePkgConfig(Cmake):
    way = "cmake-pkg-config"
    static_option = "-DPKG_CONFIG_ARGN=--static"
    test_find_package = test_other_versions = None  # those of find_package alone

    def test_pkg_check_modules(self):
        for kind in KINDS:
            with self.subTest(kind):
                self.keep_only(kind)
                self.build(kind)


if __name__ == "__main__":
    unittest.main()

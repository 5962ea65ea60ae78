# SPDX-License-Identifier: Apache-2.0
"""Each project in test/packaging/consumer, copied out of the source tree, finds the library, builds against it
without a warning and runs. Named on the command line: the class of the way to test."""

import glob
import json
import os
import re
import shlex
import shutil
import unittest

from installed import BUILD, CONSUMERS, HIGHWAY_PKG_CONFIG, HIGHWAY_PREFIX, LIBDIR, LIBRARIES, MESON
from installed import (
    NO_KERNELS,
    OPENMP,
    RESULT,
    ROOT,
    VERSION,
    compare_bits,
    copy_consumer,
    install,
)
from installed import needed_by, read, replace_in, run, search_path, succeed, temporary_directory
from installed import variables_for

KINDS = ("shared", "static") if LIBRARIES == "both" else (LIBRARIES,)
OWN_COMPILERS = (os.environ["CC"], os.environ["CXX"])
UNPACKED_HIGHWAY = os.path.join(ROOT, "subprojects", "highway-1.2.0")


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
    way = ""  # the folder in test/packaging/consumer
    in_c = False
    is_installed = True

    def setUp(self):
        self.directory = temporary_directory(self.addCleanup)
        self.source = copy_consumer(self.way, os.path.join(self.directory, "app"), self.in_c)
        self.build = os.path.join(self.directory, "build")
        if self.is_installed:
            self.prefix = install(self.directory)
            self.variables = variables_for(self.prefix)

    def check(self, program, kind, **variables):
        """It gives the right result, with the library inside or beside it, and no Highway."""
        self.assertEqual(succeed(program, **variables), RESULT)
        needed = needed_by(program)
        self.assertEqual("librmsnorm.so.0" in needed, kind == "shared", needed)
        self.assertNotIn("libhwy", " ".join(needed))

    def keep_only(self, kind):
        """For tools that take the shared library wherever there is one."""
        if kind == "static":
            for file in glob.glob(os.path.join(self.prefix, LIBDIR, "librmsnorm.so*")):
                os.remove(file)

    @staticmethod
    def if_chosen(kind, option):
        """The option with which the static library is chosen where both are installed."""
        return [option] if LIBRARIES == "both" and kind == "static" else []


class Meson(Consumer):
    way = "meson"

    def test_installed(self):
        for kind in KINDS:
            with self.subTest(kind):
                build = self.build + kind
                options = ["-Dwerror=true", *self.if_chosen(kind, "-Dprefer_static=true")]
                succeed(MESON, "setup", build, self.source, *options, **self.variables)
                succeed(MESON, "compile", "-C", build)
                self.check(os.path.join(build, "app"), kind, **self.variables)


class Subproject(Consumer):
    """The library in subprojects/, without the network."""

    way = "meson"
    is_installed = False

    def setUp(self):
        super().setUp()
        subprojects = os.path.join(self.source, "subprojects")
        os.mkdir(subprojects)
        os.symlink(ROOT, os.path.join(subprojects, "rmsnorm"))

    def setup(self, *options, flags=""):
        """Returns what `meson setup` prints, and the commands that compile each file, by its name."""
        printed = succeed(
            *(MESON, "setup", self.build, self.source, "--wrap-mode=nodownload"),
            *("--force-fallback-for=rmsnorm", "-Dbuildtype=plain", "-Dwerror=true"),
            *("-Dpkg_config_path=" + HIGHWAY_PKG_CONFIG, *options),
            CXXFLAGS=NO_KERNELS + flags,  # Meson ignores the option rmsnorm:cpp_args
        )
        lines = json.loads(read(self.build, "compile_commands.json"))
        return printed, {re.sub(r".*/lib/", "", line["file"]): line["command"] for line in lines}

    def test_subproject(self):
        printed, _ = self.setup()
        for part in ("command", "rmsnorm bench", "tests"):
            self.assertRegex(printed, rf"{part} *: NO")
        self.assertRegex(printed, rf"highway *: [0-9.]+, installed in {HIGHWAY_PREFIX or '/'}")
        self.assertNotIn("SIGILL", printed)
        for libraries, endings in (("both", {"so", "a"}), ("static", {"a"}), ("shared", {"so"})):
            with self.subTest(libraries):
                succeed(MESON, "configure", self.build, "-Drmsnorm:default_library=" + libraries)
                succeed(MESON, "compile", "-C", self.build)
                kind = "static" if libraries == "static" else "shared"
                self.check(os.path.join(self.build, "app"), kind, LD_LIBRARY_PATH="")
                made = os.path.join(self.build, "subprojects", "rmsnorm", "lib", "librmsnorm.")
                there = {end for end in ("so", "a") if os.path.exists(made + end)}
                self.assertEqual(there, endings)
                for end in endings:
                    os.remove(made + end)

    def test_options_of_the_parent(self):
        """A parent may compile without exceptions, as an older C++, with warnings as errors, several
        files as one and for a newer CPU. The kernels are optimized, and without sanitizers."""
        replace_in(
            os.path.join(self.source, "meson.build"),
            "rmsnorm = dependency",
            "add_global_arguments(\n"
            "  '-fno-exceptions', '-fno-rtti', '-fno-threadsafe-statics', '-Werror',\n"
            "  '-Wold-style-cast', '-Wswitch-enum', language: 'cpp')\n"
            "rmsnorm = dependency",
        )
        printed, commands = self.setup(
            *("-Dunity=on", "-Db_lto=true", "-Dcpp_eh=none", "-Drmsnorm:cpp_std=c++14"),
            flags=" -Os -march=native -fsanitize=address",
        )
        self.assertIn("SIGILL", printed)
        self.check_commands(commands, "-O3")
        for name, command in commands.items():
            if name.endswith(".cc") and not name.startswith("kernels/"):
                command = re.sub(r" -(MD|MQ \S+|MF \S+|o \S+|c)(?= )", "", command)
                succeed("env", "-C", self.build, *shlex.split(command), "-fsyntax-only")
        shutil.rmtree(self.build)
        options = ("-Db_sanitize=address", "-Drmsnorm:optimize_kernels=false")
        _, commands = self.setup(*options, flags=" -Os")
        self.check_commands(commands, "-Os")

    def check_commands(self, commands, level):
        """The last options that count, of the kernels and of another source; no file is merged with others."""
        for name, expected, without in (
            ("kernels/forward.cc", level, True),
            ("kernels/backward.cc", level, True),
            ("plan.cc", "-Os", False),
        ):
            self.assertEqual(re.findall(r" (-O\w) ", commands[name])[-1], expected, name)
            last = re.findall(" -f(?:no-)?sanitize=[a-z,]+", commands[name])[-1]
            self.assertEqual(last == " -fno-sanitize=all", without, commands[name])


class Sources(Consumer):
    """The library's sources in a project's own Makefile, with its kernels. gcc makes fmas of products and sums from
    -O2 on, or by -fexpensive-optimizations, unless told otherwise."""

    way = "sources"
    is_installed = False

    def test_bits(self):
        highway = os.path.join(HIGHWAY_PREFIX, "include") if HIGHWAY_PREFIX else UNPACKED_HIGHWAY
        succeed(
            *("make", "-j2", "-C", self.source, "RMSNORM=" + ROOT, "HIGHWAY=" + highway),
            *("CXX=" + OWN_COMPILERS[1], "OPENMP=" + " ".join(OPENMP)),
            *("LEVEL=-O1", "CXXFLAGS=-O1 -fexpensive-optimizations -ffast-math -march=native"),
        )
        self.check(os.path.join(self.source, "app"), "static")
        compare_bits(*glob.glob(os.path.join(self.source, "**", "*.o"), recursive=True))


class PkgConfig(Consumer):
    """pkg-config by hand: a Makefile."""

    way = "pkg-config"
    flags_variable = "CXXFLAGS"
    standards = ("c++17", "c++20", "c++17 -fno-exceptions -fno-rtti")

    def make(self, kind, *arguments, **variables):
        """Twice in the same place it builds twice."""
        succeed("make", "--always-make", "-C", self.source, *arguments, **variables)
        self.check(os.path.join(self.source, "app"), kind, **variables)

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
        path = search_path(os.path.join(BUILD, "meson-uninstalled"), HIGHWAY_PKG_CONFIG)
        libraries = os.path.join(BUILD, "lib")
        self.make(KINDS[0], PKG_CONFIG_PATH=path, LD_LIBRARY_PATH=libraries)


class PlainC(PkgConfig):
    in_c = True
    standards = ("c99", "c11")
    flags_variable = "CFLAGS"


class Cmake(Consumer):
    way = "cmake"
    static_option = "-Drmsnorm_USE_STATIC_LIBS=ON"
    finds_both = True

    def configure(self, build, *options):
        """The package asks for C++17, and for no Highway."""
        options += ("-DCMAKE_CXX_STANDARD=14", "-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON")
        return run("cmake", "-S", self.source, "-B", build, *options, **self.variables)

    def test_builds(self):
        for kind in KINDS:
            with self.subTest(kind):
                if not self.finds_both:
                    self.keep_only(kind)
                build, options = self.build + kind, self.if_chosen(kind, self.static_option)
                done = self.configure(build, "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", *options)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                succeed("cmake", "--build", build)
                self.check(os.path.join(build, "app"), kind, **self.variables)

    def test_other_versions(self):
        major, minor, patch = map(int, VERSION.split("."))
        asked = "0.1"
        for version, fits in (
            (f"{major}.{minor}.{patch} EXACT", True),
            ("0.0", False),
            (f"{major}.{minor}.{patch + 1}", False),
            (f"{major}.{minor + 1}", False),
            (f"{major + 1}.0", False),
        ):
            with self.subTest(version):
                lists = os.path.join(self.source, "CMakeLists.txt")
                replace_in(lists, f"rmsnorm {asked} REQUIRED", f"rmsnorm {version} REQUIRED")
                asked = version
                done = self.configure(self.build)
                self.assertEqual(done.returncode == 0, fits, done.stdout + done.stderr)
                if not fits:
                    self.assertIn("compatible with requested version", done.stderr)


class CmakePkgConfig(Cmake):
    """A project in C alone."""

    way = "cmake-pkg-config"
    in_c = True
    static_option = "-DPKG_CONFIG_ARGN=--static"
    finds_both = False
    test_other_versions = None  # of find_package alone


class Readme(unittest.TestCase):
    def test_says_what_the_consumers_do(self):
        """Each line of a build file in its section "Link it" stands in one of theirs."""
        texts = [read(name) for name in glob.glob(os.path.join(CONSUMERS, "*", "*"))]
        section = read(ROOT, "README.md").split("\n## Link it\n")[1].split("\n## ")[0]
        blocks = re.findall(r"^```(meson|cmake)\n(.*?)^```$", section, re.M | re.S)
        self.assertEqual({language for language, _ in blocks}, {"meson", "cmake"})
        for _, block in blocks:
            for line in filter(None, block.splitlines()):
                self.assertTrue(any(line + "\n" in text for text in texts), line)

    def test_lines_that_fetch_are_a_whole_project(self):
        """cmake_test builds it, without a warning of CMake."""
        project = re.sub("^#.*\n", "", read(CONSUMERS, "cmake-fetch", "CMakeLists.txt"), flags=re.M)
        for page in ("README.md", "doc/building.md"):
            text = re.sub("^ {4}|  #.*$", "", read(ROOT, page), flags=re.M)
            self.assertIn(f"```cmake\n{project}```\n", text, page)

    def test_lines_for_conan_write_where_git_ignores(self):
        for page in ("README.md", "doc/building.md"):
            (line,) = re.findall("^ *conan install .*$", read(ROOT, page), re.M)
            self.assertRegex(line, " -of build", page)

    def test_quotes_errors_of_the_headers(self):
        """Each #error that the page on troubleshooting shows is in a source of the library."""
        names = [name for way in ("include/*/*", "lib/*.h") for name in glob.glob(f"{ROOT}/{way}")]
        sources = "".join(map(read, names))
        quoted = re.findall(r"^ +(#error .*\n)", read(ROOT, "doc", "troubleshooting.md"), re.M)
        self.assertTrue(quoted)
        for line in quoted:
            self.assertIn(line, sources)


if __name__ == "__main__":
    unittest.main()

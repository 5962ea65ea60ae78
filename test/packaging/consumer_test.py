# SPDX-License-Identifier: Apache-2.0
"""Each project in test/packaging/consumer, copied out of the source tree, finds the installed library, builds
against it without a warning and runs. Named on the command line: the class of the way to test."""

import glob
import json
import os
import re
import shutil
import unittest

from installed import CONSUMERS, HIGHWAY_PKG_CONFIG, HIGHWAY_PREFIX, LIBDIR, LIBRARIES, MESON
from installed import NO_KERNELS, RESULT, ROOT, VERSION, install, needed_by, read, replace_in, run
from installed import search_path, succeed, temporary_directory, variables_for

KINDS = ("shared", "static") if LIBRARIES == "both" else (LIBRARIES,)
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
    way = ""  # the folder in test/packaging/consumer

    def setUp(self):
        self.directory = temporary_directory(self.addCleanup)
        self.source = os.path.join(self.directory, "app")
        shutil.copytree(os.path.join(CONSUMERS, self.way), self.source)

    def check(self, program, kind, **variables):
        """It gives the right result, with the library inside or beside it, and no Highway."""
        self.assertEqual(succeed(program, **variables), RESULT)
        needed = needed_by(program)
        self.assertEqual("librmsnorm.so.0" in needed, kind == "shared", needed)
        self.assertNotIn("libhwy", " ".join(needed))


class Installed(Consumer):
    """For consumers of the installed library."""

    def setUp(self):
        super().setUp()
        self.prefix = install(self.directory)
        self.variables = variables_for(self.prefix)

    def keep_only(self, kind):
        """For tools that take the shared library wherever there is one."""
        if kind == "static":
            for file in glob.glob(os.path.join(self.prefix, LIBDIR, "librmsnorm.so*")):
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
    """The library in subprojects/, without the network."""

    way = "meson"

    def setUp(self):
        super().setUp()
        self.subprojects = os.path.join(self.source, "subprojects")
        os.mkdir(self.subprojects)
        os.symlink(ROOT, os.path.join(self.subprojects, "rmsnorm"))
        self.build = os.path.join(self.directory, "build")

    def setup(self, *fallbacks, options=(), flags=""):
        """What `meson setup` prints when these are not to be the system's."""
        return succeed(
            *(MESON, "setup", self.build, self.source, "--wrap-mode=nodownload"),
            *("--force-fallback-for=" + ",".join(fallbacks), "-Dbuildtype=plain", "-Dwerror=true"),
            *("-Dpkg_config_path=" + HIGHWAY_PKG_CONFIG, *options),
            CXXFLAGS=NO_KERNELS + flags,  # Meson ignores the option rmsnorm:cpp_args
        )

    def compile(self, libraries):
        succeed(MESON, "configure", self.build, "-Drmsnorm:default_library=" + libraries)
        succeed(MESON, "compile", "-C", self.build)
        kind = "static" if libraries == "static" else "shared"
        self.check(os.path.join(self.build, "app"), kind, LD_LIBRARY_PATH="")

    def test_subproject(self):
        printed = self.setup("rmsnorm")
        for part in ("command", "rmsnorm bench", "tests"):
            self.assertRegex(printed, rf"{part} *: NO")
        self.assertRegex(printed, rf"highway *: [0-9.]+, installed in {HIGHWAY_PREFIX or '/'}")
        for libraries, endings in (("shared", {"so"}), ("both", {"so", "a"}), ("static", {"a"})):
            with self.subTest(libraries):
                self.compile(libraries)
                made = os.path.join(self.build, "subprojects", "rmsnorm", "lib", "librmsnorm.")
                there = {end for end in ("so", "a") if os.path.exists(made + end)}
                self.assertEqual(there, endings)
                for end in endings:
                    os.remove(made + end)

    def test_options_of_the_parent(self):
        """A parent may compile without exceptions, as an older C++, with warnings as errors, and
        several files as one."""
        replace_in(
            os.path.join(self.source, "meson.build"),
            "rmsnorm = dependency",
            "add_global_arguments(\n"
            "  '-fno-exceptions', '-fno-rtti', '-fno-threadsafe-statics', '-Werror',\n"
            "  '-Wold-style-cast', '-Wswitch-enum', language: 'cpp')\n"
            "rmsnorm = dependency",
        )
        self.setup("rmsnorm", options=["-Dunity=on", "-Db_lto=true", "-Dcpp_eh=none"])
        for source in ("lib/plan.cc", "lib/kernels/forward.cc"):
            self.assertTrue(self.commands(source), source + " is merged with others")
        succeed(MESON, "configure", self.build, "-Drmsnorm:cpp_std=c++14")
        self.compile("shared")

    def commands(self, part):
        """The commands that compile files of this name."""
        lines = json.loads(read(self.build, "compile_commands.json"))
        return [line["command"] for line in lines if part in line["file"]]

    def test_kernels_are_optimized(self):
        """At whatever level the project is, unless it does not want that."""
        self.setup("rmsnorm", flags=" -Os")
        for wanted in (True, False):
            option = f"-Drmsnorm:optimize_kernels={str(wanted).lower()}"
            succeed(MESON, "setup", "--reconfigure", self.build, self.source, option)
            for part, optimized in (("kernels/", wanted), ("app.cc", False)):
                levels = {re.findall(r" (-O\w) ", command)[-1] for command in self.commands(part)}
                self.assertEqual(levels, {"-O3" if optimized else "-Os"}, part)

    def test_options_for_a_newer_cpu(self):
        """A program for one ends on an older CPU before the library can say why."""
        for flags, said in (("", False), (" -march=native", True)):
            shutil.rmtree(self.build, ignore_errors=True)
            self.assertEqual("SIGILL" in self.setup("rmsnorm", flags=flags), said, flags)

    def test_sanitizers_leave_the_kernels_out(self):
        """Whether a project asks Meson for them or gives the option itself."""
        for option in ("-Dcpp_args=-fsanitize=address", "-Db_sanitize=address"):
            shutil.rmtree(self.build, ignore_errors=True)
            self.setup("rmsnorm", options=[option])
            for part, are_last in (("kernels/", True), ("plan.cc", False)):
                for command in self.commands(part):
                    last = re.findall(" -f(?:no-)?sanitize=[a-z,]+", command)[-1]
                    self.assertEqual(last == " -fno-sanitize=all", are_last, command)


class HighwayWrap(Subproject):
    """The same with Highway from subprojects/highway.wrap, and in a project in C alone."""

    way = "meson-c"
    test_subproject = test_options_of_the_parent = test_kernels_are_optimized = None
    test_options_for_a_newer_cpu = test_sanitizers_leave_the_kernels_out = None

    def test_highway_is_inside(self):
        cache = os.path.join("subprojects", "packagecache")
        shutil.copytree(os.path.join(ROOT, cache), os.path.join(self.source, cache))
        self.assertRegex(self.setup("rmsnorm", "libhwy"), r"highway *: [0-9.]+, built here")
        for libraries in ("both", "static"):
            with self.subTest(libraries):
                self.compile(libraries)


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
            PKG_CONFIG_PATH=search_path(
                os.path.join(build, "meson-uninstalled"), HIGHWAY_PKG_CONFIG
            ),
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
        major, minor, patch = map(int, VERSION.split("."))
        asked = "0.1"
        for version, fits in (
            (f"{major}.{minor}", True),
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
        names = [name for way in ("include/*/*", "lib/*.cc") for name in glob.glob(f"{ROOT}/{way}")]
        sources = "".join(map(read, names))
        page = read(ROOT, "doc", "troubleshooting.md")
        quoted = re.findall(r"^ +(#error .*\n)", page, re.M)
        self.assertTrue(quoted)
        for line in quoted:
            self.assertIn(line, sources)


if __name__ == "__main__":
    unittest.main()

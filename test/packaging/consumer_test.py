# SPDX-License-Identifier: Apache-2.0
"""Each project in test/packaging/consumer, copied out of the source tree, finds the installed library or builds it, and
its program runs. The command line names the class or the test to run."""

import glob
import hashlib
import os
import re
import shlex
import shutil
import tarfile
import unittest

from installed import BUILD, CMAKE, CONSUMERS, HIGHWAY, HIGHWAY_PKG_CONFIG, HIGHWAY_PREFIX, LIBDIR
from installed import LIBRARIES, MESON, NO_KERNELS, OPENMP, QUICK, ROOT, VERSION
from installed import build_each_kind, check_program, commands_of, compare_bits, compile_in
from installed import configure, copy_consumer, install, needed_by, read, replace_in, run
from installed import search_path, succeed, temporary_directory, variables_for

KINDS = ("shared", "static") if LIBRARIES == "both" else (LIBRARIES,)
OWN_COMPILERS = (os.environ["CC"], os.environ["CXX"])


def compilers(kind):
    """(C, C++) for consumers. A static library with OpenMP takes the compiler that built it, whose
    OpenMP it is."""
    pairs = {("gcc", "g++"), ("clang", "clang++")} if kind == "shared" else set()
    return sorted({OWN_COMPILERS, *(pair for pair in pairs if all(map(shutil.which, pair)))})


class Consumer(unittest.TestCase):
    def setUp(self):
        self.directory = temporary_directory(self.addCleanup)
        self.source = os.path.join(self.directory, "app")


class Installed(Consumer):
    """The project finds the library."""

    def setUp(self):
        super().setUp()
        self.prefix = install(self.directory)
        self.variables = variables_for(self.prefix)

    def each_kind(self, static_option, finds_both=True):
        """Yields each kind of library, and the option that chooses the static one where both are installed. A tool
        that takes the shared one wherever it is finds the static one alone."""
        for kind in KINDS:
            if kind == "static" and not finds_both:
                for file in glob.glob(os.path.join(self.prefix, LIBDIR, "librmsnorm.so*")):
                    os.remove(file)
            with self.subTest(kind):
                yield kind, [static_option] if LIBRARIES == "both" and kind == "static" else []

    def check(self, way, static_option, *options, in_c=False, finds_both=True):
        copy_consumer(way, self.source, in_c)
        for kind, chosen in self.each_kind(static_option, finds_both):
            folder, _ = configure(self.source, *options, *chosen, build=kind, **self.variables)
            check_program(compile_in(folder), kind, **self.variables)

    def test_meson(self):
        self.check("meson", "-Dprefer_static=true", "-Dwerror=true")

    # The package asks for C++17, and for no Highway.
    CMAKE_OPTIONS = ("-DCMAKE_CXX_STANDARD=14", "-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON")

    def test_cmake(self):
        options = ("-DCMAKE_COMPILE_WARNING_AS_ERROR=ON", *self.CMAKE_OPTIONS)
        self.check("cmake", "-Drmsnorm_USE_STATIC_LIBS=ON", *options)
        major, minor, patch = map(int, VERSION.split("."))
        asked = "0.1"
        for version, fits in (
            (f"{major}.{minor}.{patch} EXACT", True),
            ("0.0", False),
            (f"{major}.{minor}.{patch + 1}", False),
            (f"{major}.{minor + 1}", False),
            (f"{major + 1}.0", False),
        ):
            lists = os.path.join(self.source, "CMakeLists.txt")
            replace_in(lists, f"rmsnorm {asked} REQUIRED", f"rmsnorm {version} REQUIRED")
            asked = version
            folder = os.path.join(self.source, "build")
            done = run(CMAKE, "-S", self.source, "-B", folder, **self.variables)
            self.assertEqual(done.returncode == 0, fits, done.stdout + done.stderr)
            self.assertEqual("compatible with requested version" in done.stderr, not fits)

    def test_cmake_pkg_config(self):
        """A project in C alone."""
        static = "-DPKG_CONFIG_ARGN=--static"
        self.check("cmake-pkg-config", static, *self.CMAKE_OPTIONS, in_c=True, finds_both=False)

    def check_make(self, language, *standards):
        """pkg-config by hand: a Makefile. The pkg-config file of the build directory serves as well."""
        copy_consumer("pkg-config", self.source, in_c=language == "C")
        path = search_path(os.path.join(BUILD, "meson-uninstalled"), HIGHWAY_PKG_CONFIG)
        uninstalled = {"PKG_CONFIG_PATH": path, "LD_LIBRARY_PATH": os.path.join(BUILD, "lib")}
        builds = [(KINDS[0], uninstalled, [])]
        strict = f"{language}FLAGS=-O2 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror -std="
        for kind, chosen in self.each_kind("STATIC=1", finds_both=False):
            for c, cpp in compilers(kind):
                for standard in standards:
                    options = ("CC=" + c, "CXX=" + cpp, strict + standard, *chosen)
                    builds.append((kind, self.variables, options))
            for kind, variables, options in builds:
                with self.subTest(kind, options=options):
                    succeed("make", "--always-make", "-C", self.source, *options, **variables)
                    check_program(os.path.join(self.source, "app"), kind, **variables)
            builds.clear()

    def test_pkg_config(self):
        self.check_make("CXX", "c++17", "c++20", "c++17 -fno-exceptions -fno-rtti")

    def test_c(self):
        self.check_make("C", "c99", "c11")


class Builds(Consumer):
    """The project builds the library."""

    # What a project may ask for in all its code, and what the library's files still have.
    AROUND = (
        *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics", "-Werror"),
        *("-Wold-style-cast", "-Wswitch-enum"),
    )
    OWN = (
        *("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno"),
        *("-fexceptions", "-fthreadsafe-statics"),
    )

    def check_options(self, folder, level, kernel_level, around=AROUND):
        """The library's options count, of the kernels their level of optimization and no sanitizer. No file is merged
        with others."""
        commands = commands_of(folder)
        lines = read(ROOT, "lib", "sources.txt").splitlines()
        self.assertEqual(sorted(commands), sorted(line for line in lines if line[0] != "#"))
        for name, words in commands.items():
            with self.subTest(name):
                is_kernel = name.startswith("kernels/")
                levels = [word for word in words if word.startswith("-O")]
                self.assertEqual(levels[-1], kernel_level if is_kernel else level)
                sanitizers = [word for word in words if re.match("-f(no-)?sanitize=", word)]
                self.assertEqual(sanitizers[-1:] == ["-fno-sanitize=all"], is_kernel)
                theirs = max(i for i, word in enumerate(words) if word in around)
                for option in self.OWN:
                    self.assertGreater(words.index(option), theirs, option)
        return commands

    def cmake(self, way, *options, in_c=False, edits=(), flags=QUICK):
        """Configures a project of CMake with the library in its folder `rmsnorm`."""
        copy_consumer(way, self.source, in_c, edits)
        os.symlink(ROOT, os.path.join(self.source, "rmsnorm"))
        return configure(
            *(self.source, "-DCMAKE_CXX_FLAGS=" + flags, "-DCMAKE_PREFIX_PATH=" + HIGHWAY_PREFIX),
            *("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", *options),
        )

    def check(self, folder, kind):
        """Builds the project and compares the stored bits. Returns what program and library need."""
        needed = check_program(compile_in(folder), kind, LD_LIBRARY_PATH="")
        (library,) = glob.glob(os.path.join(folder, "**", "librmsnorm.*[ao]"), recursive=True)
        compare_bits(library)
        needed = " ".join(needed + (needed_by(library) if kind == "shared" else []))
        self.assertNotIn("libhwy", needed)
        return needed


class Subproject(Builds):
    def subproject(self, *options, flags="", edits=()):
        """Configures a project of Meson with the library in subprojects/, without the network."""
        copy_consumer("meson", self.source, edits=edits)
        os.mkdir(os.path.join(self.source, "subprojects"))
        os.symlink(ROOT, os.path.join(self.source, "subprojects", "rmsnorm"))
        return configure(
            *(self.source, "--wrap-mode=nodownload", "--force-fallback-for=rmsnorm"),
            *("-Dbuildtype=plain", "-Dwerror=true", "-Dpkg_config_path=" + HIGHWAY_PKG_CONFIG),
            *options,
            CXXFLAGS=NO_KERNELS + flags,  # Meson ignores the option rmsnorm:cpp_args
        )

    def test_meson(self):
        folder, printed = self.subproject()
        for part in ("command", "rmsnorm bench", "tests"):
            self.assertRegex(printed, rf"{part} *: NO")
        self.assertRegex(printed, rf"highway *: [0-9.]+, installed in {HIGHWAY_PREFIX or '/'}")
        self.assertNotIn("SIGILL", printed)
        build_each_kind(folder, "rmsnorm")

    def test_meson_options(self):
        """A parent may compile without exceptions, as an older C++, with warnings as errors, several
        files as one and for a newer CPU."""
        words = ", ".join(map(repr, self.AROUND))
        words = f"add_global_arguments({words}, language: 'cpp')\nrmsnorm = dependency"
        folder, printed = self.subproject(
            *("-Dunity=on", "-Db_lto=true", "-Dcpp_eh=none", "-Drmsnorm:cpp_std=c++14"),
            flags=" -Os -march=native -fsanitize=address",
            edits=[("rmsnorm = dependency", words)],
        )
        self.assertIn("SIGILL", printed)
        for name, words in self.check_options(folder, "-Os", "-O3").items():
            if not name.startswith("kernels/"):
                command = re.sub(r" -(MD|MQ \S+|MF \S+|o \S+|c)(?= )", "", shlex.join(words))
                compiler = shlex.split(os.environ["CXX"])
                succeed("env", "-C", folder, *compiler, *shlex.split(command), "-fsyntax-only")
        options = ("-Db_sanitize=address", "-Drmsnorm:optimize_kernels=false")
        succeed(MESON, "configure", folder, "-Db_lto=false", *options)
        succeed(MESON, "setup", "--reconfigure", folder, self.source)
        self.check_options(folder, "-Os", "-Os")


class Sources(Builds):
    def test_sources(self):
        """The library's sources in a project's own Makefile, with its kernels. gcc makes fmas of products and sums
        from -O2 on, or by -fexpensive-optimizations, unless told otherwise."""
        unpacked = os.path.join(ROOT, "subprojects", "highway-1.2.0")
        highway = os.path.join(HIGHWAY_PREFIX, "include") if HIGHWAY_PREFIX else unpacked
        copy_consumer("sources", self.source)
        succeed(
            *("make", "-j2", "-C", self.source, "RMSNORM=" + ROOT, "HIGHWAY=" + highway),
            *("CXX=" + OWN_COMPILERS[1], "OPENMP=" + " ".join(OPENMP)),
            *("LEVEL=-O1", "CXXFLAGS=-O1 -fexpensive-optimizations -ffast-math -march=native"),
        )
        check_program(os.path.join(self.source, "app"), "static")
        compare_bits(*glob.glob(os.path.join(self.source, "**", "*.o"), recursive=True))


class Projects(Builds):
    def test_cmake_in_c(self):
        """The project is in C alone. Nothing is installed that it does not ask for."""
        folder, printed = self.cmake("cmake-subdirectory", "-G", "Unix Makefiles", in_c=True)
        self.assertNotIn("SIGILL", printed)
        self.check(folder, "static")
        nothing = os.path.join(self.directory, "nothing")
        succeed(CMAKE, "--install", folder, DESTDIR=nothing)
        self.assertFalse(os.path.exists(nothing))

    def test_cmake_fetch(self):
        """From a tarball, with an older C++ than the library asks for."""
        tarball = os.path.join(self.directory, "rmsnorm.tar.gz")
        with tarfile.open(tarball, "w:gz") as file:
            needed = ("CMakeLists.txt", "include", "lib", "meson.build", "subprojects/highway.wrap")
            for name in needed:
                file.add(os.path.join(ROOT, name), os.path.join("rmsnorm", name))
        with open(tarball, "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        folder, _ = self.cmake(
            *("cmake-fetch", "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON", "-DRMSNORM_OPENMP=OFF"),
            *("-DRMSNORM_URL=" + tarball, "-DRMSNORM_SHA256=" + checksum),
            "-DCMAKE_CXX_STANDARD=14",
        )
        self.assertNotRegex(self.check(folder, "shared"), "lib[gi]?omp")

    def test_cmake_override(self):
        """The program needs no shared library."""
        version = re.search(r"(\d+)\.(\d+)", succeed(CMAKE, "--version")).groups()
        if tuple(map(int, version)) < (3, 24):
            self.skipTest("CMake before 3.24")
        folder, _ = self.cmake(
            *("cmake-override", "-G", "Ninja", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"),
            *("-DRMSNORM_URL=elsewhere", "-DFETCHCONTENT_SOURCE_DIR_RMSNORM=" + ROOT),
            "-DCMAKE_EXE_LINKER_FLAGS=-static",
        )
        self.assertEqual(self.check(folder, "static"), "")

    @unittest.skipUnless(HIGHWAY, "no release of Highway in subprojects/packagecache")
    def test_cmake_highway(self):
        """The library is compiled with the headers of the project's Highway. Nothing is compiled here."""
        with tarfile.open(HIGHWAY[0]) as tarball:
            tarball.extractall(self.directory)
        (highway,) = glob.glob(os.path.join(self.directory, "highway-*"))
        added = f"add_subdirectory({highway} highway EXCLUDE_FROM_ALL)\nadd_sub"
        options = ("cmake-subdirectory", "-G", "Ninja", "-DHWY_ENABLE_TESTS=OFF")
        folder, _ = self.cmake(*options, edits=[("add_sub", added)])
        for words in commands_of(folder).values():
            self.assertIn(highway, words)


class Bits(Builds):
    def test_cmake_options(self):
        """A project asks for other arithmetic, an older C++, no exceptions, warnings as errors and merged files in all
        its code. When gcc links with -ffast-math, program and library also make the CPU flush subnormals to zero.
        """
        linked = "-Ofast -ffp-contract=on"
        added = "-funsafe-math-optimizations -std=c++14 -Wall -Wextra -Werror=float-equal"
        lines = (
            "add_library(around INTERFACE)\n"
            f"target_compile_options(around INTERFACE {linked})\n"
            "link_libraries(around)\n"
            f"add_compile_options({added} {' '.join(self.AROUND)})\n"
            "set(CMAKE_UNITY_BUILD ON)\n"
            "add_subdirectory(rmsnorm)\n"
            "set_property(DIRECTORY PROPERTY COMPILE_OPTIONS)\n"
        )
        folder, printed = self.cmake(
            *("cmake-subdirectory", "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON"),
            "-DCMAKE_BUILD_TYPE=MinSizeRel",
            edits=[("add_subdirectory(rmsnorm)\n", lines)],
            flags="-ffast-math -march=native " + QUICK,
        )
        self.assertIn("SIGILL", printed)
        self.check(folder, "shared")
        around = (*linked.split(), *added.split(), *self.AROUND)
        self.check_options(folder, "-Ofast", "-O3", around)


class Page(unittest.TestCase):
    def setUp(self):
        page = read(ROOT, "doc/building.md").split("\n## Use it in a project\n")[1]
        self.section = re.sub("^ {4}|  #.*$", "", page.split("\n## ")[0], flags=re.M)

    def test_says_what_the_consumers_do(self):
        """Each line of a build file stands in one of theirs."""
        texts = [read(name) for name in glob.glob(os.path.join(CONSUMERS, "*", "*"))]
        blocks = re.findall(r"^```(meson|cmake)\n(.*?)^```$", self.section, re.M | re.S)
        self.assertEqual({language for language, _ in blocks}, {"meson", "cmake"})
        for _, block in blocks:
            for line in filter(None, block.splitlines()):
                self.assertTrue(any(line + "\n" in text for text in texts), line)

    def test_lines_that_fetch_are_a_whole_project(self):
        """Another test builds it, without a warning of CMake."""
        project = re.sub("^#.*\n", "", read(CONSUMERS, "cmake-fetch", "CMakeLists.txt"), flags=re.M)
        self.assertIn(f"```cmake\n{project}```\n", self.section)

    def test_lines_for_conan_write_where_git_ignores(self):
        (line,) = re.findall("^conan install .*$", self.section, re.M)
        self.assertRegex(line, " -of build")

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

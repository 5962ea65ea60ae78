# SPDX-License-Identifier: Apache-2.0
"""Tests the library as CMake builds it: its sources and options are Meson's, its package is Meson's, and
projects that build it get the bits stored in data/. The command line names the class to run. The
environment may name CMake (RMSNORM_CMAKE), and may ask for the kernels in every project
(RMSNORM_CMAKE_WHOLE=1), which takes minutes."""

import glob
import hashlib
import json
import os
import re
import shlex
import shutil
import tarfile
import unittest

from installed import CONSUMERS, HIGHWAY_PREFIX, LIBDIR, LIBRARIES, NO_KERNELS, RESULT, ROOT
from installed import install, interface_of, needed_by, read, replace_in, run, succeed
from installed import temporary_directory, variables_for

CMAKE = os.environ.get("RMSNORM_CMAKE") or "cmake"
CMAKE_VERSION = tuple(map(int, re.search(r"(\d+)\.(\d+)", succeed(CMAKE, "--version")).groups()))
QUICK = "" if os.environ.get("RMSNORM_CMAKE_WHOLE") == "1" else NO_KERNELS
# Meson compiled the tests of the stored bits, which takes longer than compiling the library.
BUILD = os.environ["RMSNORM_BUILD"]
OWN_OPTIONS = (
    *("-ffp-contract=off", "-fno-fast-math", "-fno-math-errno"),
    *("-fexceptions", "-fthreadsafe-statics"),
)
HIGHWAY = glob.glob(os.path.join(ROOT, "subprojects", "packagecache", "highway-*.tar.gz"))


class Builds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = temporary_directory(cls.addClassCleanup)

    def path(self, *names):
        return os.path.join(self.directory, *names)

    def configure(self, source, build, *options, flags=QUICK, **variables):
        """Returns what CMake prints. Warnings are errors, except in Highway's CMakeLists.txt."""
        done = run(
            *(CMAKE, "-S", source, "-B", build, "-DCMAKE_CXX_FLAGS=" + flags, *options),
            *("-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", "-DCMAKE_PREFIX_PATH=" + HIGHWAY_PREFIX),
            **variables,
        )
        printed = done.stdout + done.stderr
        self.assertEqual(done.returncode, 0, printed)
        for warning in re.findall(r"CMake .*Warning.* at (.*)", printed):
            self.assertIn("highway", warning, printed)
        return printed

    def build(self, build):
        succeed(CMAKE, "--build", build, "--parallel", "2")

    def compare_bits(self, source, build, **variables):
        """Links the test of the stored bits to the library of a project that was built, and runs
        it."""
        with open(os.path.join(source, "CMakeLists.txt"), "a", encoding="utf-8") as file:
            file.write("enable_language(CXX)\nfind_package(GTest REQUIRED)\n")
            file.write(
                f'add_executable(golden_test "{BUILD}/test/library/numbers/golden_test.p/golden_test.cc.o")\n'
                "set_target_properties(golden_test PROPERTIES LINKER_LANGUAGE CXX)\n"
                f'target_link_libraries(golden_test PRIVATE "{BUILD}/test/libtensor_files.a"\n'
                f'  "{BUILD}/cases/librmsnorm_cases.a" rmsnorm::rmsnorm GTest::gtest_main)\n'
            )
        self.build(build)
        data = os.path.join(ROOT, "test", "data")
        succeed(os.path.join(build, "golden_test"), RMSNORM_DATA=data, **variables)


def commands_of(build):
    """Returns the options of each source of the library, in order."""
    found = {}
    for entry in json.loads(read(build, "compile_commands.json")):
        file = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
        name = os.path.relpath(file, ROOT)
        words = shlex.split(entry["command"])
        of_the_library = re.search(r"rmsnorm(_core|_kernels)?\.(a\.p|dir)/", entry["command"])
        if name.startswith("lib/") and of_the_library:
            found[name[len("lib/") :]] = words[1:]
    return found


class Commands(Builds):
    """CMake compiles each source as Meson does. Nothing is compiled here."""

    @staticmethod
    def what_counts(words):
        """Returns the macros and the options of the compiler, without warnings and file names. The
        last level of optimization counts."""
        # Meson adds these macros by itself or on request.
        left_out = (
            r"-D_(FILE_OFFSET_BITS|GLIBCXX_ASSERT).*|-f(diagnostics-color|color-diag|openmp=).*"
        )
        kept = {word for word in words if re.match("-[DUfmps]", word)}
        kept = {word for word in kept if not re.fullmatch(left_out, word)}
        if any(word.startswith("-fopenmp") for word in words):
            kept.add("-fopenmp")
        return sorted(kept) + [word for word in words if word.startswith("-O")][-1:]

    def test_same_as_mesons(self):
        meson = commands_of(BUILD)
        if not all("-O3" in words and "-DNDEBUG" in words for words in meson.values()):
            self.skipTest("release builds are compared")
        openmp = any("-fopenmp" in words for words in meson.values())
        build = self.path("build")
        self.configure(
            *(ROOT, build, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"),
            f"-DBUILD_SHARED_LIBS={'OFF' if LIBRARIES == 'static' else 'ON'}",
            f"-DRMSNORM_OPENMP={'ON' if openmp else 'OFF'}",
            flags="",
        )
        cmake = commands_of(build)
        self.assertGreater(len(cmake), 10)
        self.assertEqual(sorted(cmake), sorted(meson))
        for name, words in meson.items():
            with self.subTest(name):
                self.assertEqual(self.what_counts(cmake[name]), self.what_counts(words))

    def test_own_options_are_last(self):
        """The library's options follow everything that the parent project sets."""
        source, build = self.path("app"), self.path("around")
        shutil.copytree(os.path.join(CONSUMERS, "cmake-subdirectory"), source)
        os.symlink(ROOT, os.path.join(source, "rmsnorm"))
        replace_in(
            os.path.join(source, "CMakeLists.txt"),
            "add_subdirectory(rmsnorm)",
            "add_library(around INTERFACE)\n"
            "target_compile_options(around INTERFACE -Ofast -ffp-contract=on)\n"
            "link_libraries(around)\n"
            "add_compile_options(-funsafe-math-optimizations)\n"
            "add_compile_options(-fno-exceptions -fno-threadsafe-statics)\n"
            "set(CMAKE_UNITY_BUILD ON)\n"
            "add_subdirectory(rmsnorm)",
        )
        around = "-ffast-math -ffp-contract=fast -O1 -fsanitize=address,undefined"
        printed = self.configure(source, build, "-DCMAKE_BUILD_TYPE=MinSizeRel", flags=around)
        self.assertNotIn("SIGILL", printed)
        printed = self.configure(source, build, flags=around + " -march=native")
        self.assertIn("SIGILL", printed)
        commands = commands_of(build)
        lines = read(ROOT, "lib", "sources.txt").splitlines()
        sources = [line for line in lines if not line.startswith("#")]
        self.assertEqual(sorted(commands), sorted(sources))
        for name, words in commands.items():
            with self.subTest(name):
                around = (
                    r"-Ofast|-ffast-math|-ffp-contract=(fast|on)|-funsafe-math-optimizations"
                    r"|-fno-exceptions|-fno-threadsafe-statics|-fsanitize=.*"
                )
                theirs = [i for i, word in enumerate(words) if re.fullmatch(around, word)]
                self.assertGreaterEqual(len(theirs), 8)
                for option in OWN_OPTIONS:
                    self.assertGreater(words.index(option), theirs[-1])
                levels = [word for word in words if word.startswith("-O")]
                if name.startswith("kernels/"):
                    self.assertEqual(levels[-1], "-O3")
                    self.assertGreater(words.index("-fno-sanitize=all"), theirs[-1])
                else:
                    self.assertNotIn("-fno-sanitize=all", words)


class Package(Builds):
    """`cmake --install` installs what `meson install` installs. One build directory makes all
    packages: their libraries have the same objects."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.meson = install(os.path.join(cls.directory, "meson"))
        (targets,) = glob.glob(cls.file(cls.meson, "rmsnormTargets-*.cmake"))
        cls.openmp = re.search(r"_openmp_\w+ TRUE", cls.text(targets)) is not None
        cls.build_type = re.search(r"_types (\w+)", cls.text(targets))[1]

    @staticmethod
    def file(prefix, name):
        folder = "pkgconfig" if name.endswith(".pc") else os.path.join("cmake", "rmsnorm")
        return os.path.join(prefix, LIBDIR, folder, name)

    def install(self, name, *options, build_type=None):
        """Returns the prefix with the library, moved after the installation."""
        build, build_type = self.path("build"), build_type or self.build_type
        if build_type == "NOCONFIG":
            build_type = ""
        self.configure(
            *(ROOT, build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=" + build_type, *options),
            *("-DCMAKE_CXX_FLAGS_" + kind + "=" for kind in ("DEBUG", "RELEASE")),
            *("-DCMAKE_INSTALL_PREFIX=/usr/local", "-DCMAKE_INSTALL_LIBDIR=" + LIBDIR),
            f"-DRMSNORM_OPENMP={'ON' if self.openmp else 'OFF'}",
            "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
            *("-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON" for _ in HIGHWAY),  # the release in its place
        )
        self.build(build)
        succeed(CMAKE, "--install", build, DESTDIR=self.path("destdir"))
        return shutil.move(self.path("destdir", "usr/local"), self.path(name))

    @staticmethod
    def text(name):
        """CMake and Meson expand @PACKAGE_INIT@ with other words."""
        return re.sub(r"\n####### Expanded.*?\n####{30,}\n+", "\n", read(name), flags=re.S)

    def expect_same(self, *files):
        with self.subTest(files[0]):
            self.assertEqual(*map(self.text, files))

    @staticmethod
    def interface(prefix):
        library = os.path.join(prefix, LIBDIR, "librmsnorm.so")
        return interface_of(library), "NODELETE" in succeed("readelf", "--dynamic", library)

    def consume(self, prefix, name, way, *options):
        """Builds a project that finds the package alone, which asks for C++17. Returns its build
        directory."""
        source, build = self.path(name), self.path(name, "build")
        shutil.copytree(os.path.join(CONSUMERS, way), source)
        without = "-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON"
        older = "-DCMAKE_CXX_STANDARD=14" if way == "cmake" else "-DCMAKE_C_STANDARD=99"
        where = "-DCMAKE_PREFIX_PATH=" + prefix
        succeed(CMAKE, "-S", source, "-B", build, without, where, older, *options)
        self.build(build)
        self.assertEqual(succeed(os.path.join(build, "app"), **variables_for(prefix)), RESULT)
        return build

    def consume_from_c_and_cpp(self, prefix, kind):
        """The program in C++ also compares the bits."""
        for way in ("cmake", "cmake-c"):
            build = self.consume(prefix, f"{way}-{kind}", way)
            needed = needed_by(os.path.join(build, "app"))
            self.assertEqual("librmsnorm.so.0" in needed, kind == "shared", needed)
        source = self.path("cmake-" + kind)
        self.compare_bits(source, os.path.join(source, "build"), **variables_for(prefix))

    def test_shared(self):
        prefix = self.install("shared", "-DBUILD_SHARED_LIBS=ON", "-DRMSNORM_TESTS=ON")
        succeed(CMAKE, "--build", self.path("build"), "--target", "test")

        def files(folder, left_out):
            names = glob.glob(os.path.join(folder, "**"), recursive=True)
            names = {os.path.relpath(name, folder) for name in names if os.path.isfile(name)}
            return sorted(name for name in names if not re.fullmatch(left_out, name))

        ours = files(prefix, r".*/librmsnorm\.so.*" if LIBRARIES == "static" else "")
        self.assertEqual(ours, files(self.meson, r"bin/rmsnorm|share/.*|.*/librmsnorm\.a"))
        for name in ours:
            if name.startswith("include/rmsnorm/") or name.endswith(".cmake"):
                self.expect_same(os.path.join(prefix, name), os.path.join(self.meson, name))
        if LIBRARIES != "static":
            self.expect_same(self.file(prefix, "rmsnorm.pc"), self.file(self.meson, "rmsnorm.pc"))
            self.assertEqual(self.interface(prefix), self.interface(self.meson))
        self.consume_from_c_and_cpp(prefix, "shared")

    def test_static(self):
        prefix = self.install("static", "-DBUILD_SHARED_LIBS=OFF", "-DRMSNORM_TESTS=OFF")
        if LIBRARIES == "static":
            self.expect_same(self.file(prefix, "rmsnorm.pc"), self.file(self.meson, "rmsnorm.pc"))
        self.assertNotIn("hwy", self.text(self.file(prefix, "rmsnorm.pc")))
        self.consume_from_c_and_cpp(prefix, "static")

    def test_types_side_by_side(self):
        """Release and debug libraries, in two layouts: told apart by a postfix, as CMake does it, or
        by a folder `debug`, as vcpkg does it, which moves one file and edits its paths. A project
        takes the library of its own type."""
        static = ("-DBUILD_SHARED_LIBS=OFF", "-DRMSNORM_TESTS=OFF")
        release = self.install("release", *static, build_type="Release")
        debug = self.install("debug", *static, "-DCMAKE_DEBUG_POSTFIX=d", build_type="Debug")
        for prefix in (self.path("postfix"), self.path("vcpkg")):
            shutil.copytree(release, prefix)
        postfix, vcpkg = self.path("postfix"), self.path("vcpkg")
        shutil.copytree(debug, postfix, dirs_exist_ok=True)
        shutil.copytree(debug, os.path.join(vcpkg, "debug"))
        debug = self.file(os.path.join(vcpkg, "debug"), "rmsnormTargets-debug.cmake")
        moved = shutil.copy(debug, self.file(vcpkg, os.path.basename(debug)))
        replace_in(moved, "PREFIX}/lib", "PREFIX}/debug/lib")
        for prefix in (postfix, vcpkg):
            for build_type, file in {
                "Debug": ("debug/" if prefix == vcpkg else "") + LIBDIR + "/librmsnormd.a",
                "Release": LIBDIR + "/librmsnorm.a",
                "RelWithDebInfo": LIBDIR + "/librmsnorm.a",
            }.items():
                with self.subTest(prefix, build_type=build_type):
                    name = os.path.basename(prefix) + "-" + build_type
                    options = ("-G", "Unix Makefiles", "-DCMAKE_BUILD_TYPE=" + build_type)
                    build = self.consume(prefix, name, "cmake-c", *options)
                    link = read(build, "CMakeFiles/app.dir/link.txt")
                    self.assertIn(f" {prefix}/{file} ", link)


class Builders(Builds):
    """For projects that build the library themselves."""

    def project(self, way, *options, parent_options="", **arguments):
        """Builds a consumer, runs its program, and compares the stored bits. Returns the build
        directory. The consumer compiles its folder `rmsnorm` with the parent's options."""
        name = way + "-" + self.id().split(".")[-1]
        source, build = self.path(name), self.path(name, "build")
        shutil.copytree(os.path.join(CONSUMERS, way), source)
        os.symlink(ROOT, os.path.join(source, "rmsnorm"))
        if parent_options:
            replace_in(
                os.path.join(source, "CMakeLists.txt"),
                "add_subdirectory(rmsnorm)\n",
                f"add_compile_options({parent_options})\n"
                "add_subdirectory(rmsnorm)\n"
                "set_property(DIRECTORY PROPERTY COMPILE_OPTIONS)\n",
            )
        if way == "cmake-highway":
            with tarfile.open(HIGHWAY[0]) as tarball:
                tarball.extractall(source)
            (unpacked,) = glob.glob(os.path.join(source, "highway-*"))
            os.rename(unpacked, os.path.join(source, "highway"))
        self.configure(source, build, *options, **arguments)
        self.build(build)
        app = os.path.join(build, "app")
        self.assertEqual(succeed(app), RESULT)
        for library in glob.glob(os.path.join(build, "**", "librmsnorm.so"), recursive=True):
            self.assertNotIn("libhwy", " ".join(needed_by(library)))
        self.compare_bits(source, build)
        return build

    def needs(self, build):
        return " ".join(needed_by(os.path.join(build, "app")))


class Projects(Builders):
    def test_subdirectory_in_c(self):
        """The project is in C alone."""
        build = self.project("cmake-c-subdirectory", "-G", "Unix Makefiles")
        self.assertNotIn("librmsnorm.so", self.needs(build))
        # Nothing is installed that the project does not ask for.
        succeed(CMAKE, "--install", build, DESTDIR=self.path("nothing"))
        self.assertFalse(os.path.exists(self.path("nothing")))

    def test_options_of_the_parent(self):
        """A parent may compile without exceptions, as an older C++, and with warnings as errors."""
        parent_options = (
            "-std=c++14 -fno-exceptions -fno-rtti -fno-threadsafe-statics -Ofast"
            " -Werror -Wall -Wextra -Wold-style-cast -Wswitch-enum -Werror=float-equal"
        )
        self.project("cmake-subdirectory", "-G", "Ninja", parent_options=parent_options)

    def test_fetch(self):
        """From a tarball."""
        tarball = self.path("rmsnorm.tar.gz")
        with tarfile.open(tarball, "w:gz") as file:
            needed = ("CMakeLists.txt", "include", "lib", "meson.build", "subprojects/highway.wrap")
            for name in needed:
                file.add(os.path.join(ROOT, name), os.path.join("rmsnorm", name))
        with open(tarball, "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        build = self.project(
            *("cmake-fetch", "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON", "-DRMSNORM_OPENMP=OFF"),
            *("-DRMSNORM_URL=" + tarball, "-DRMSNORM_SHA256=" + checksum),
            "-DCMAKE_CXX_STANDARD=14",  # the library asks for C++17
        )
        self.assertIn("librmsnorm.so.0", self.needs(build))

    @unittest.skipUnless(CMAKE_VERSION >= (3, 24), "CMake before 3.24")
    def test_override(self):
        """The program needs no shared library."""
        build = self.project(
            *("cmake-override", "-G", "Ninja", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"),
            *("-DRMSNORM_URL=elsewhere", "-DFETCHCONTENT_SOURCE_DIR_RMSNORM=" + ROOT),
            "-DCMAKE_EXE_LINKER_FLAGS=-static",
        )
        self.assertEqual(self.needs(build), "")

    @unittest.skipUnless(HIGHWAY, "no release of Highway in subprojects/packagecache")
    def test_highway_of_the_project(self):
        build = self.project("cmake-highway", "-G", "Ninja")
        self.assertNotIn("libhwy.so", self.needs(build))


class Bits(Builders):
    """A project asks for other arithmetic in all its code, kernels included. When gcc links with
    -ffast-math, program and library also make the CPU flush subnormals to zero."""

    def test_fast_math(self):
        build = self.project(
            *("cmake-subdirectory", "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON"),
            "-DCMAKE_BUILD_TYPE=Release",
            flags="-ffast-math -march=native " + QUICK,  # the kernels for one target, this CPU's
        )
        library = glob.glob(os.path.join(build, "**", "librmsnorm.so"), recursive=True)[0]
        symbols = succeed("readelf", "--symbols", "--wide", library)
        self.assertIn("kernels", symbols.lower())


if __name__ == "__main__":
    unittest.main()

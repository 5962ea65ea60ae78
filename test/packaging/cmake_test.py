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

from installed import BUILD, HIGHWAY_PREFIX, LIBDIR, LIBRARIES, NO_KERNELS, RESULT, ROOT
from installed import compare_bits, copy_consumer, install, interface_of, needed_by, read
from installed import replace_in, run, succeed, temporary_directory

CMAKE = os.environ.get("RMSNORM_CMAKE") or "cmake"
CMAKE_VERSION = tuple(map(int, re.search(r"(\d+)\.(\d+)", succeed(CMAKE, "--version")).groups()))
QUICK = "" if os.environ.get("RMSNORM_CMAKE_WHOLE") == "1" else NO_KERNELS
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

    def expect_same_text(self, prefix, name):
        with self.subTest(name):
            self.assertEqual(*(self.text(os.path.join(at, name)) for at in (prefix, self.meson)))

    @staticmethod
    def interface(prefix):
        library = os.path.join(prefix, LIBDIR, "librmsnorm.so")
        return interface_of(library), "NODELETE" in succeed("readelf", "--dynamic", library)

    def test_shared(self):
        prefix = self.install("shared", "-DBUILD_SHARED_LIBS=ON", "-DRMSNORM_TESTS=ON")
        succeed(CMAKE, "--build", self.path("build"), "--target", "test")  # of the stored bits

        def files(folder, left_out):
            names = glob.glob(os.path.join(folder, "**"), recursive=True)
            names = {os.path.relpath(name, folder) for name in names if os.path.isfile(name)}
            return sorted(name for name in names if not re.fullmatch(left_out, name))

        ours = files(prefix, r".*/librmsnorm\.so.*" if LIBRARIES == "static" else "")
        self.assertEqual(ours, files(self.meson, r"bin/rmsnorm|share/.*|.*/librmsnorm\.a"))
        for name in ours:
            if name.startswith("include/rmsnorm/") or name.endswith(".cmake"):
                self.expect_same_text(prefix, name)
        if LIBRARIES != "static":
            self.expect_same_text(prefix, self.file("", "rmsnorm.pc"))
            self.assertEqual(self.interface(prefix), self.interface(self.meson))

    def test_static(self):
        prefix = self.install("static", "-DBUILD_SHARED_LIBS=OFF", "-DRMSNORM_TESTS=OFF")
        if LIBRARIES == "static":
            self.expect_same_text(prefix, self.file("", "rmsnorm.pc"))
        self.assertNotIn("hwy", self.text(self.file(prefix, "rmsnorm.pc")))
        compare_bits(os.path.join(prefix, LIBDIR, "librmsnorm.a"))

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
        source = copy_consumer("cmake", self.path("app"), in_c=True)
        for prefix in (postfix, vcpkg):
            for build_type, file in {
                "Debug": ("debug/" if prefix == vcpkg else "") + LIBDIR + "/librmsnormd.a",
                "Release": LIBDIR + "/librmsnorm.a",
                "RelWithDebInfo": LIBDIR + "/librmsnorm.a",
            }.items():
                with self.subTest(prefix, build_type=build_type):
                    build = f"{prefix}-{build_type}"
                    where = ("-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_BUILD_TYPE=" + build_type)
                    succeed(CMAKE, "-S", source, "-B", build, "-G", "Unix Makefiles", *where)
                    self.build(build)
                    self.assertEqual(succeed(os.path.join(build, "app")), RESULT)
                    link = read(build, "CMakeFiles/app.dir/link.txt")
                    self.assertIn(f" {prefix}/{file} ", link)


class Builders(Builds):
    """For projects that build the library themselves."""

    def project(self, way, *options, in_c=False, **arguments):
        """Builds a consumer with the library in its folder `rmsnorm`, runs its program, and compares
        the stored bits. Returns the build directory, and what program and library need.
        """
        source, build = self.path(way), self.path(way, "build")
        if not os.path.exists(source):  # else the test has changed it
            copy_consumer(way, source, in_c)
        os.symlink(ROOT, os.path.join(source, "rmsnorm"))
        self.printed = self.configure(source, build, *options, **arguments)
        self.build(build)
        app = os.path.join(build, "app")
        self.assertEqual(succeed(app), RESULT)
        (library,) = glob.glob(os.path.join(build, "**", "librmsnorm.*[ao]"), recursive=True)
        compare_bits(library)
        needed = " ".join(needed_by(app) + (needed_by(library) if library[-1] == "o" else []))
        self.assertNotIn("libhwy", needed)
        return build, needed


class Projects(Builders):
    def test_subdirectory_in_c(self):
        """The project is in C alone. Nothing is installed that it does not ask for."""
        build, needed = self.project("cmake-subdirectory", "-G", "Unix Makefiles", in_c=True)
        self.assertNotIn("SIGILL", self.printed)
        self.assertNotIn("librmsnorm.so", needed)
        succeed(CMAKE, "--install", build, DESTDIR=self.path("nothing"))
        self.assertFalse(os.path.exists(self.path("nothing")))

    def test_fetch(self):
        """From a tarball, with an older C++ than the library asks for."""
        tarball = self.path("rmsnorm.tar.gz")
        with tarfile.open(tarball, "w:gz") as file:
            needed = ("CMakeLists.txt", "include", "lib", "meson.build", "subprojects/highway.wrap")
            for name in needed:
                file.add(os.path.join(ROOT, name), os.path.join("rmsnorm", name))
        with open(tarball, "rb") as file:
            checksum = hashlib.sha256(file.read()).hexdigest()
        _, needed = self.project(
            *("cmake-fetch", "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON", "-DRMSNORM_OPENMP=OFF"),
            *("-DRMSNORM_URL=" + tarball, "-DRMSNORM_SHA256=" + checksum),
            "-DCMAKE_CXX_STANDARD=14",
        )
        self.assertIn("librmsnorm.so.0", needed)
        self.assertNotRegex(needed, "lib[gi]?omp")

    @unittest.skipUnless(CMAKE_VERSION >= (3, 24), "CMake before 3.24")
    def test_override(self):
        """The program needs no shared library."""
        _, needed = self.project(
            *("cmake-override", "-G", "Ninja", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"),
            *("-DRMSNORM_URL=elsewhere", "-DFETCHCONTENT_SOURCE_DIR_RMSNORM=" + ROOT),
            "-DCMAKE_EXE_LINKER_FLAGS=-static",
        )
        self.assertEqual(needed, "")

    @unittest.skipUnless(HIGHWAY, "no release of Highway in subprojects/packagecache")
    def test_highway_of_the_project(self):
        """The library is compiled with its headers. Nothing is compiled here."""
        source, build = copy_consumer("cmake-subdirectory", self.path("app")), self.path("build")
        lists = os.path.join(source, "CMakeLists.txt")
        replace_in(lists, "add_sub", "add_subdirectory(highway EXCLUDE_FROM_ALL)\nadd_sub")
        with tarfile.open(HIGHWAY[0]) as tarball:
            tarball.extractall(source)
        (unpacked,) = glob.glob(os.path.join(source, "highway-*"))
        os.rename(unpacked, os.path.join(source, "highway"))
        os.symlink(ROOT, os.path.join(source, "rmsnorm"))
        self.configure(source, build, "-G", "Ninja", "-DHWY_ENABLE_TESTS=OFF")
        for words in commands_of(build).values():
            self.assertIn(os.path.join(source, "highway"), words)


class Bits(Builders):
    """A project asks for other arithmetic, an older C++, no exceptions, warnings as errors and merged files in
    all its code. When gcc links with -ffast-math, program and library also make the CPU flush
    subnormals to zero."""

    AROUND = (
        *("-Ofast", "-ffp-contract=on", "-funsafe-math-optimizations", "-std=c++14"),
        *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
        *(
            "-Werror",
            "-Wall",
            "-Wextra",
            "-Wold-style-cast",
            "-Wswitch-enum",
            "-Werror=float-equal",
        ),
    )

    def test_options_of_the_parent(self):
        source = copy_consumer("cmake-subdirectory", self.path("cmake-subdirectory"))
        replace_in(
            os.path.join(source, "CMakeLists.txt"),
            "add_subdirectory(rmsnorm)\n",
            "add_library(around INTERFACE)\n"
            f"target_compile_options(around INTERFACE {' '.join(self.AROUND[:2])})\n"
            "link_libraries(around)\n"
            f"add_compile_options({' '.join(self.AROUND[2:])})\n"
            "set(CMAKE_UNITY_BUILD ON)\n"
            "add_subdirectory(rmsnorm)\n"
            "set_property(DIRECTORY PROPERTY COMPILE_OPTIONS)\n",
        )
        build, _ = self.project(
            *("cmake-subdirectory", "-G", "Ninja", "-DBUILD_SHARED_LIBS=ON"),
            "-DCMAKE_BUILD_TYPE=MinSizeRel",
            flags="-ffast-math -march=native " + QUICK,
        )
        self.assertIn("SIGILL", self.printed)
        commands = commands_of(build)
        lines = read(ROOT, "lib", "sources.txt").splitlines()
        self.assertEqual(sorted(commands), sorted(x for x in lines if not x.startswith("#")))
        for name, words in commands.items():
            with self.subTest(name):
                theirs = max(i for i, word in enumerate(words) if word in self.AROUND)
                own = OWN_OPTIONS
                if name.startswith("kernels/"):
                    own = (*OWN_OPTIONS, "-fno-sanitize=all")
                    self.assertEqual([word for word in words if word.startswith("-O")][-1], "-O3")
                for option in own:
                    self.assertGreater(words.index(option), theirs, option)
                self.assertEqual("-fno-sanitize=all" in words, own != OWN_OPTIONS)


if __name__ == "__main__":
    unittest.main()

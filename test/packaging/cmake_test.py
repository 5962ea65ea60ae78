# SPDX-License-Identifier: Apache-2.0
"""CMake builds and installs what Meson does. The command line names the class to run."""

import glob
import os
import re
import shutil
import unittest

from installed import BUILD, CMAKE, HIGHWAY, HIGHWAY_PREFIX, LIBDIR, LIBRARIES, OPENMP, QUICK, ROOT
from installed import check_program, commands_of, compare_bits, compile_in, configure, copy_consumer
from installed import files_below, install, interface_of, read, replace_in, succeed
from installed import temporary_directory

COMMON = (
    *(ROOT, "-DCMAKE_PREFIX_PATH=" + HIGHWAY_PREFIX, "-DCMAKE_POSITION_INDEPENDENT_CODE=ON"),
    f"-DRMSNORM_OPENMP={'ON' if OPENMP else 'OFF'}",
)


class Commands(unittest.TestCase):
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
        folder, _ = configure(
            *(*COMMON, "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"),
            f"-DBUILD_SHARED_LIBS={'OFF' if LIBRARIES == 'static' else 'ON'}",
            build=temporary_directory(self.addCleanup),
        )
        cmake = commands_of(folder)
        self.assertGreater(len(cmake), 10)
        self.assertEqual(sorted(cmake), sorted(meson))
        for name, words in meson.items():
            with self.subTest(name):
                self.assertEqual(self.what_counts(cmake[name]), self.what_counts(words))


class Package(unittest.TestCase):
    """`cmake --install` installs what `meson install` installs. One build directory makes all
    packages: their libraries have the same objects."""

    @classmethod
    def setUpClass(cls):
        cls.directory = temporary_directory(cls.addClassCleanup)
        cls.meson = install(cls.path("meson"))
        (targets,) = glob.glob(cls.file(cls.meson, "rmsnormTargets-*.cmake"))
        cls.build_type = re.search(r"_type (\w+)", read(targets))[1].replace("NOCONFIG", "")

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.directory, *names)

    @staticmethod
    def file(prefix, name):
        folder = "pkgconfig" if name.endswith(".pc") else os.path.join("cmake", "rmsnorm")
        return os.path.join(prefix, LIBDIR, folder, name)

    def install(self, name, *options, build_type=None):
        """Returns the prefix with the library, moved after the installation."""
        build_type = self.build_type if build_type is None else build_type
        folder, _ = configure(
            *(*COMMON, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=" + build_type, *options),
            *("-DCMAKE_CXX_FLAGS_" + kind + "=" for kind in ("DEBUG", "RELEASE")),
            *("-DCMAKE_INSTALL_PREFIX=/usr/local", "-DCMAKE_INSTALL_LIBDIR=" + LIBDIR),
            "-DCMAKE_CXX_FLAGS=" + QUICK,
            # The release in its place, if that is here.
            f"-DCMAKE_DISABLE_FIND_PACKAGE_hwy={'ON' if HIGHWAY else 'OFF'}",
            build=self.path("build"),
        )
        compile_in(folder)
        succeed(CMAKE, "--install", folder, DESTDIR=self.path("destdir"))
        return shutil.move(self.path("destdir", "usr/local"), self.path(name))

    @staticmethod
    def text(*name):
        """CMake and Meson expand @PACKAGE_INIT@ with other words."""
        return re.sub(r"\n####### Expanded.*?\n####{30,}\n+", "\n", read(*name), flags=re.S)

    @staticmethod
    def interface(prefix):
        library = os.path.join(prefix, LIBDIR, "librmsnorm.so")
        return interface_of(library), "NODELETE" in succeed("readelf", "--dynamic", library)

    def test_each_kind(self):
        for kind, tests in (("shared", "ON"), ("static", "OFF")):
            with self.subTest(kind):
                shared = f"-DBUILD_SHARED_LIBS={'ON' if kind == 'shared' else 'OFF'}"
                prefix = self.install(kind, shared, "-DRMSNORM_TESTS=" + tests)
                is_ours = LIBRARIES == kind or (kind, LIBRARIES) == ("shared", "both")
                of_others = {"shared": r"\.a", "static": r"\.so.*"}[kind] if is_ours else r"\..*"
                left_out = r"bin/rmsnorm|share/.*|.*/librmsnorm" + of_others
                found, wanted = (
                    [name for name in files_below(folder) if not re.fullmatch(left_out, name)]
                    for folder in (prefix, self.meson)
                )
                self.assertEqual(found, wanted)
                for name in wanted:
                    if name.endswith((".h", ".hpp", ".cmake")) or (
                        is_ours and name.endswith(".pc")
                    ):
                        self.assertEqual(self.text(prefix, name), self.text(self.meson, name), name)
                if kind == "shared":
                    succeed(CMAKE, "--build", self.path("build"), "--target", "test")  # stored bits
                    if is_ours:
                        self.assertEqual(self.interface(prefix), self.interface(self.meson))
                else:
                    self.assertNotIn("hwy", read(self.file(prefix, "rmsnorm.pc")))
                    compare_bits(os.path.join(prefix, LIBDIR, "librmsnorm.a"))

    def test_types_side_by_side(self):
        """Release and debug libraries, in two layouts: told apart by a postfix, as CMake does it, or
        by a folder `debug`, as vcpkg does it, which moves one file and edits its paths. A project
        takes the library of its own type."""
        static = ("-DBUILD_SHARED_LIBS=OFF", "-DRMSNORM_TESTS=OFF")
        release = self.install("release", *static, build_type="Release")
        debug = self.install("debug", *static, "-DCMAKE_DEBUG_POSTFIX=d", build_type="Debug")
        postfix, vcpkg = (
            shutil.copytree(release, self.path(name)) for name in ("postfix", "vcpkg")
        )
        shutil.copytree(debug, postfix, dirs_exist_ok=True)
        shutil.copytree(debug, os.path.join(vcpkg, "debug"))
        moved = shutil.copy(self.file(debug, "rmsnormTargets-debug.cmake"), self.file(vcpkg, ""))
        replace_in(moved, "PREFIX}/lib", "PREFIX}/debug/lib")
        source = copy_consumer("cmake", self.path("app"), in_c=True)
        for prefix in (postfix, vcpkg):
            for build_type, file in {
                "Debug": ("debug/" if prefix == vcpkg else "") + LIBDIR + "/librmsnormd.a",
                "Release": LIBDIR + "/librmsnorm.a",
                "RelWithDebInfo": LIBDIR + "/librmsnorm.a",
            }.items():
                with self.subTest(prefix, build_type=build_type):
                    where = ("-DCMAKE_PREFIX_PATH=" + prefix, "-DCMAKE_BUILD_TYPE=" + build_type)
                    build = f"{prefix}-{build_type}"
                    folder, _ = configure(source, "-G", "Unix Makefiles", *where, build=build)
                    check_program(compile_in(folder), "static")
                    link = read(folder, "CMakeFiles/app.dir/link.txt")
                    self.assertIn(f" {prefix}/{file} ", link)


if __name__ == "__main__":
    unittest.main()

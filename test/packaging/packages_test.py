# SPDX-License-Identifier: Apache-2.0
"""The files that package indexes ask for, as tools/release/packages makes them for a tarball of this tree. Those of
Conan and of Meson's WrapDB install the library from it, and its results have the stored bits. The
command line names the class to run."""

import glob
import hashlib
import itertools
import json
import os
import re
import shutil
import tarfile
import unittest

import cmake_test
from installed import CONSUMERS, MESON, NO_KERNELS, RESULT, ROOT, VERSION
from installed import needed_by, read, replace_in, run, succeed, temporary_directory

BUILD = os.environ["RMSNORM_BUILD"]
OWN_COMPILERS = (os.environ["CC"], os.environ["CXX"])
NAME = "rmsnorm-" + VERSION


def is_source(member):
    """Leaves out what git ignores."""
    left_out = r"[^/]*/(\.git|build[^/]*|subprojects/(packagecache|highway-.*)|.*__pycache__)(/.*)?"
    return None if re.fullmatch(left_out, member.name) else member


class Packages(cmake_test.Builds):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.tarball = os.path.join(cls.directory, NAME + ".tar.xz")
        with tarfile.open(cls.tarball, "w:xz", preset=0) as tarball:
            tarball.add(ROOT, NAME, filter=is_source)
        script = os.path.join(ROOT, "tools", "release", "packages")
        cls.indexes = os.path.join(cls.directory, "indexes")
        succeed(script, "--local", "--to", cls.indexes, cls.tarball)

    def index(self, *names):
        return os.path.join(self.indexes, *names)


class Files(Packages):
    """What the files say is what the project says."""

    FILES = {
        "Conan": "conan-center-index/recipes/rmsnorm/all/conanfile.py",
        "Conan's sources": "conan-center-index/recipes/rmsnorm/all/conandata.yml",
        "Conan's versions": "conan-center-index/recipes/rmsnorm/config.yml",
        "conda": "staged-recipes/recipes/rmsnorm/recipe.yaml",
        "Meson": "wrapdb/subprojects/rmsnorm.wrap",
        "Nix": "nixpkgs/pkgs/by-name/rm/rmsnorm/package.nix",
        "vcpkg": "vcpkg/ports/rmsnorm/vcpkg.json",
        "vcpkg's sources": "vcpkg/ports/rmsnorm/portfile.cmake",
    }

    def setUp(self):
        self.texts = {name: read(self.index(path)) for name, path in self.FILES.items()}

    def expect_in(self, part, *names):
        for name in names:
            with self.subTest(name):
                self.assertIn(part, self.texts[name])

    def test_no_placeholder_is_left(self):
        for name, text in self.texts.items():
            with self.subTest(name):
                self.assertNotRegex(text, r"@\w+@")

    def test_version(self):
        self.expect_in(
            f'"{VERSION}"', "Conan's versions", "Conan's sources", "conda", "Nix", "vcpkg"
        )
        self.expect_in(f"directory = {NAME}\n", "Meson")

    def test_source(self):
        with open(self.tarball, "rb") as file:
            content = file.read()
        sha256, sha512 = hashlib.sha256(content), hashlib.sha512(content)
        self.expect_in(sha256.hexdigest(), "Conan's sources", "conda", "Meson", "Nix")
        self.expect_in(sha512.hexdigest(), "vcpkg's sources")
        sources = ("Conan's sources", "conda", "Meson", "Nix", "vcpkg's sources")
        self.expect_in("file://" + self.tarball, *sources)

    def test_address_of_a_release(self):
        """Without --local the address is in the repository, and the hash is the same."""
        script = os.path.join(ROOT, "tools", "release", "packages")
        succeed(script, "--to", self.path("release"), self.tarball)
        home = re.search(r"^repository-code: (.*)$", read(ROOT, "CITATION.cff"), re.M)[1]
        released = f"{home}/releases/download/v{VERSION}/{NAME}.tar.xz"
        for name, path in self.FILES.items():
            with self.subTest(name):
                text = self.texts[name].replace("file://" + self.tarball, released)
                self.assertEqual(read(self.path("release"), path), text)

    def test_licence_and_description(self):
        """meson.build has the licence, and the pkg-config file of the build the description."""
        project = read(ROOT, "meson.build")
        licence = re.search(r"^  license: '(.*)',$", project, re.M)[1]
        self.expect_in(licence, "Conan", "conda", "vcpkg")
        self.assertEqual(licence, "Apache-2.0")  # which Nix calls asl20
        self.expect_in("license = lib.licenses.asl20;", "Nix")
        installed = read(BUILD, "meson-private", "rmsnorm.pc")
        description = re.search(r"^Description: (.*)$", installed, re.M)[1]
        self.expect_in(f'"{description}"', "Conan", "conda", "Nix", "vcpkg")

    def test_options_exist(self):
        options = read(ROOT, "meson_options.txt")
        for name in ("conda", "Nix"):
            asked = re.findall(r"-D(\w+)=(\w+)", self.texts[name])
            self.assertEqual(len(asked), 4, name)
            for option, value in asked:
                self.assertIn(f"option('{option}', type: 'feature'", options)
                self.assertIn(value, ("enabled", "disabled"))
        asked = re.findall(r'project_options\["(\w+)"\]', self.texts["Conan"])
        asked += (
            re.search(r"for part in \((.*)\)", self.texts["Conan"])[1].replace('"', "").split(", ")
        )
        self.assertEqual(sorted(asked), ["benchmarks", "openmp", "tests", "tools"])
        asked = re.findall(r"\bRMSNORM_\w+", self.texts["vcpkg's sources"])
        self.assertEqual(asked, ["RMSNORM_OPENMP"])
        self.assertIn("RMSNORM_OPENMP AUTO CACHE", read(ROOT, "CMakeLists.txt"))

    def test_oldest_meson_and_highway(self):
        project = read(ROOT, "meson.build")
        self.assertIn("meson_version: '>= 1.0'", project)
        self.expect_in('"meson/[>=1.0 <2]"', "Conan")
        highway = re.search(
            r"^directory = highway-(.*)$", read(ROOT, "subprojects", "highway.wrap"), re.M
        )[1]
        self.expect_in(f'"highway/{highway}"', "Conan")

    def test_vcpkg(self):
        """Its formatter sorts nothing, but asks for a newline at the end and two spaces."""
        text = self.texts["vcpkg"]
        port = json.loads(text)
        self.assertEqual(text, json.dumps(port, indent=2) + "\n")
        self.assertEqual(set(port["default-features"]), set(port["features"]))
        feature = re.search(r"(\w+) RMSNORM_OPENMP", self.texts["vcpkg's sources"])[1]
        self.assertEqual(list(port["features"]), [feature])


class Conan(Packages):
    """Conan takes the recipe from a local index, without another remote, into an empty cache."""

    def setUp(self):
        self.home = os.path.join(temporary_directory(self.addCleanup), "conan")
        # It knows neither ccache nor cc and c++ by name; without names it finds gcc or clang.
        self.compilers = [compiler.split()[-1] for compiler in OWN_COMPILERS]
        names = ["", ""] if self.compilers == ["cc", "c++"] else self.compilers
        self.conan("profile", "detect", CC=names[0], CXX=names[1])
        self.conan("remote", "remove", "*")
        folder = self.index("conan-center-index")
        self.conan("remote", "add", "rmsnorm", folder, "--type", "local-recipes-index")
        self.profile = os.path.join(ROOT, "test", "packaging", "system.profile")

    def conan(self, *arguments, **variables):
        """Returns what it prints."""
        variables = {"CONAN_HOME": self.home, "LD_LIBRARY_PATH": "", **variables}
        done = run(os.environ["RMSNORM_CONAN"], *arguments, **variables)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def options(self, *options):
        configuration = {
            "tools.build:compiler_executables": dict(zip(("c", "cpp"), self.compilers)),
            "tools.build:cxxflags": [NO_KERNELS],
            "tools.build:jobs": 2,
        }
        pairs = [("-c", f"{key}={value}") for key, value in configuration.items()]
        # For clang 14 Conan takes C++14 unless told.
        common = ("-pr", self.profile, "-s", "compiler.cppstd=17")
        return (*common, *itertools.chain(*pairs), *options)

    def install(self, *options):
        """Returns what Conan prints, and the folder of its files for CMake and pkg-config."""
        folder = os.path.join(self.home, "generated")
        printed = self.conan(
            *("install", "--requires=rmsnorm/" + VERSION, "--build=missing"),
            *("-g", "CMakeDeps", "-g", "PkgConfigDeps", "--output-folder", folder),
            *self.options(*options),
        )
        # Nobody who links the library needs Highway.
        for name in glob.glob(os.path.join(folder, "*")):
            self.assertNotIn("hwy", read(name))
        return printed, folder

    def run_test_package(self, *options):
        recipe = self.index("conan-center-index", "recipes", "rmsnorm", "all", "test_package")
        folder = shutil.copytree(recipe, os.path.join(self.home, "test_package"))
        printed = self.conan("test", folder, "rmsnorm/" + VERSION, *self.options(*options))
        self.assertIn(RESULT, printed)
        program = glob.glob(os.path.join(folder, "build", "**", "test_package"), recursive=True)
        return " ".join(needed_by(*program))

    def consume(self, folder):
        """By pkg-config with a Makefile, and by CMake with the test of the stored bits."""
        source = shutil.copytree(os.path.join(CONSUMERS, "c"), os.path.join(self.home, "c"))
        environment = {
            "LD_LIBRARY_PATH": os.path.dirname(self.library()),
            "PKG_CONFIG_PATH": folder,
        }
        succeed("make", "-C", source, "CC=" + OWN_COMPILERS[0], **environment)
        self.assertEqual(succeed(os.path.join(source, "app"), **environment), RESULT)
        source = shutil.copytree(
            os.path.join(CONSUMERS, "cmake-c"), os.path.join(self.home, "cmake")
        )
        build = os.path.join(source, "build")
        self.configure(source, build, "-Drmsnorm_DIR=" + folder, "-DCMAKE_BUILD_TYPE=Release")
        self.compare_bits(source, build, **environment)

    def library(self):
        (found,) = glob.glob(
            os.path.join(self.home, "p", "b", "rmsno*", "p", "lib", "librmsnorm.*[ao]")
        )
        return found

    def test_static_with_highway_from_a_package(self):
        """The library takes headers alone, as nothing of this Highway can be linked."""
        recipe = os.path.join(self.home, "conanfile.py")
        with open(recipe, "w", encoding="utf-8") as text:
            text.write(HIGHWAY_RECIPE)
        self.conan("create", recipe)
        text = re.sub(r"\[(platform|replace)_requires\]\n.*\n", "", read(self.profile))
        self.profile = os.path.join(self.home, "without_highway.profile")
        with open(self.profile, "w", encoding="utf-8") as profile:
            profile.write(text)
        _, folder = self.install()
        self.assertNotIn("librmsnorm", self.run_test_package())
        licences = os.path.join(self.home, "p", "b", "rmsno*", "p", "licenses", "LICENSE")
        self.assertEqual(len(glob.glob(licences)), 1)
        self.consume(folder)

    def test_shared_with_the_highway_of_the_system(self):
        options = ("-o", "rmsnorm/*:shared=True", "-o", "rmsnorm/*:with_openmp=False")
        printed, folder = self.install(*options)
        self.assertRegex(printed, r"highway *: [0-9.]+, installed in /")
        needed = self.run_test_package(*options)
        self.assertIn("librmsnorm.so.0", needed)
        self.assertNotIn("omp", " ".join(needed_by(self.library())))
        self.consume(folder)

    def test_systems(self):
        """Linux and Windows are accepted, macOS is not yet. Nothing is built."""
        for system, answer in (("Linux", "Missing"), ("Windows", "Missing"), ("Macos", "Invalid")):
            with self.subTest(system):
                printed = self.conan(
                    *("graph", "info", "--requires=rmsnorm/" + VERSION),
                    *self.options("-s", "os=" + system),
                )
                self.assertIn("binary: " + answer, printed)

    def test_wrong_tarball_is_refused(self):
        data = self.index("conan-center-index", "recipes", "rmsnorm", "all", "conandata.yml")
        right, wrong = re.search("[0-9a-f]{64}", read(data))[0], "0" * 64
        self.addCleanup(replace_in, data, wrong, right)
        replace_in(data, right, wrong)
        command = ("install", "--requires=rmsnorm/" + VERSION, "--build=missing", *self.options())
        done = run(os.environ["RMSNORM_CONAN"], *command, CONAN_HOME=self.home)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout + done.stderr, r"sha256 \w+ failed for 'rmsnorm-")


# Stands for ConanCenter's, with its components, around the headers of the system.
HIGHWAY_RECIPE = """
from conan import ConanFile

class Highway(ConanFile):
    name, version = "highway", "1.2.0"

    def package_info(self):
        hwy = self.cpp_info.components["hwy"]
        hwy.set_property("pkg_config_name", "libhwy")
        hwy.system_libs, hwy.defines = ["none_such"], ["HWY_SHARED_DEFINE"]
        self.cpp_info.components["hwy_test"].system_libs = ["none_such"]
"""

# Links the test of the stored bits to the library of the subproject.
GOLDEN_TEST = f"""
add_languages('cpp', native: false)
executable('golden_test',
  objects: '{BUILD}/test/library/numbers/golden_test.p/golden_test.cc.o',
  link_args: ['{BUILD}/test/libtensor_files.a', '{BUILD}/cases/librmsnorm_cases.a'],
  dependencies: [rmsnorm, dependency('gtest_main')],
  link_language: 'cpp',
)
"""


class Wrap(Packages):
    """A project in C has the wrap, and Meson takes the library from the tarball, out of its cache."""

    def test_forced_fallback(self):
        source = shutil.copytree(os.path.join(CONSUMERS, "meson-c"), self.path("app"))
        subprojects, build = os.path.join(source, "subprojects"), os.path.join(source, "build")
        shutil.copytree(self.index("wrapdb", "subprojects"), subprojects)
        cache = os.path.join(subprojects, "packagecache")
        shutil.copytree(os.path.join(ROOT, "subprojects", "packagecache"), cache)
        shutil.copy(self.tarball, cache)
        # The dependency is found by its name in the wrap.
        project = os.path.join(source, "meson.build")
        replace_in(project, ", fallback: ['rmsnorm', 'rmsnorm']", "")
        with open(project, "a", encoding="utf-8") as file:
            file.write(GOLDEN_TEST)
        # An address that cannot be reached: the file has to come from the cache.
        wrap = os.path.join(subprojects, "rmsnorm.wrap")
        replace_in(wrap, "file://" + self.tarball, "https://rmsnorm.invalid/" + NAME + ".tar.xz")
        printed = succeed(
            *(MESON, "setup", build, source, "--wrap-mode=forcefallback", "-Dwerror=true"),
            CXXFLAGS=NO_KERNELS,  # Meson ignores the option rmsnorm:cpp_args
        )
        self.assertRegex(printed, r"highway *: [0-9.]+, built here")
        for libraries in ("shared", "static"):
            with self.subTest(libraries):
                succeed(MESON, "configure", build, "-Drmsnorm:default_library=" + libraries)
                succeed(MESON, "compile", "-C", build)
                program = os.path.join(build, "app")
                self.assertEqual(succeed(program, LD_LIBRARY_PATH=""), RESULT)
                kind = "librmsnorm.so.0" in needed_by(program)
                self.assertEqual(kind, libraries == "shared")
                data = os.path.join(ROOT, "test", "data")
                succeed(os.path.join(build, "golden_test"), RMSNORM_DATA=data, LD_LIBRARY_PATH="")


if __name__ == "__main__":
    unittest.main()

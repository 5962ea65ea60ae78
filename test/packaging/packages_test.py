# SPDX-License-Identifier: Apache-2.0
"""The files that package indexes ask for, as tools/release/packages makes them for a tarball of this tree. Those of
Conan and of Meson's WrapDB install the library from it, and its results have the stored bits. The
command line names the class to run."""

import glob
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import tarfile
import unittest

from installed import BUILD, NO_KERNELS, RESULT, ROOT, VERSION, build_each_kind
from installed import compare_bits, configure, copy_consumer, needed_by, read, replace_in, run
from installed import succeed, temporary_directory

OWN_COMPILERS = (os.environ["CC"], os.environ["CXX"])
NAME = "rmsnorm-" + VERSION


def is_source(member):
    """Leaves out what git ignores."""
    left_out = r"[^/]*/(\.git|build[^/]*|subprojects/(packagecache|highway-.*)|.*__pycache__)(/.*)?"
    return None if re.fullmatch(left_out, member.name) else member


class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = temporary_directory(cls.addClassCleanup)
        cls.tarball = cls.path(NAME + ".tar.xz")
        with tarfile.open(cls.tarball, "w:xz", preset=0) as tarball:
            tarball.add(ROOT, NAME, filter=is_source)
        cls.make("--local", "--to", cls.path("indexes"))

    @classmethod
    def path(cls, *names):
        return os.path.join(cls.directory, *names)

    @classmethod
    def make(cls, *options):
        succeed(os.path.join(ROOT, "tools", "release", "packages"), *options, cls.tarball)

    def index(self, *names):
        return self.path("indexes", *names)


class Files(Packages):
    def test_files(self):
        """They say what the project says. Without --local the address is in the repository, and the hash is the same."""
        sha256 = hashlib.sha256(pathlib.Path(self.tarball).read_bytes()).hexdigest()
        project = read(ROOT, "meson.build")
        self.assertIn("meson_version: '>= 1.0'", project)
        licence = re.search(r"^  license: '(.*)',$", project, re.M)[1]
        installed = read(BUILD, "meson-private", "rmsnorm.pc")
        description = re.search(r"^Description: (.*)$", installed, re.M)[1]
        wrap = read(ROOT, "subprojects", "highway.wrap")
        highway = re.search(r"^directory = highway-(.*)$", wrap, re.M)[1]
        home = re.search(r"^repository-code: (.*)$", read(ROOT, "CITATION.cff"), re.M)[1]
        self.make("--to", self.path("release"))
        source, recipes = ("file://" + self.tarball, sha256), "conan-center-index/recipes/rmsnorm/"
        says = (f'license = "{licence}"', f'description = "{description}"', '"meson/[>=1.0 <2]"')
        for path, parts in {
            recipes + "config.yml": (f'"{VERSION}"',),
            recipes + "all/conandata.yml": (f'"{VERSION}"', *source),
            recipes + "all/conanfile.py": (*says, f'"highway/{highway}"'),
            "wrapdb/subprojects/rmsnorm.wrap": (f"directory = {NAME}\n", *source),
        }.items():
            text = read(self.index(path))
            for part in parts:
                self.assertIn(part, text, path)
            released = f"{home}/releases/download/v{VERSION}/{NAME}.tar.xz"
            text = text.replace("file://" + self.tarball, released)
            self.assertEqual(read(self.path("release"), path), text)
            self.assertNotRegex(text, r"@\w+@")

    def test_lengths_of_lines(self):
        """Debian's lintian refuses lines of more than 512 characters, but not those of tensors."""
        with tarfile.open(self.tarball) as tarball:
            for member in tarball:
                if member.isfile() and not member.name.endswith(".safetensors"):
                    lines = tarball.extractfile(member).read().split(b"\n")
                    self.assertLessEqual(max(map(len, lines)), 512, member.name)


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
        """By pkg-config with a Makefile, in C; the test package is by CMake. Compares the stored bits, too."""
        variables = {
            "LD_LIBRARY_PATH": os.path.dirname(self.library()),
            "PKG_CONFIG_PATH": folder,
        }
        source = copy_consumer("pkg-config", os.path.join(self.home, "make"), in_c=True)
        succeed("make", "-C", source, "CC=" + OWN_COMPILERS[0], **variables)
        self.assertEqual(succeed(os.path.join(source, "app"), **variables), RESULT)
        compare_bits(self.library())

    def library(self):
        (found,) = glob.glob(
            os.path.join(self.home, "p", "b", "rmsno*", "p", "lib", "librmsnorm.*[ao]")
        )
        return found

    def test_static_with_highway_from_a_package(self):
        """The library takes headers alone, as nothing of this Highway can be linked."""
        recipe = pathlib.Path(self.home, "conanfile.py")
        recipe.write_text(HIGHWAY_RECIPE, encoding="utf-8")
        self.conan("create", recipe)
        text = re.sub(r"\[(platform|replace)_requires\]\n.*\n", "", read(self.profile))
        self.profile = os.path.join(self.home, "without_highway.profile")
        pathlib.Path(self.profile).write_text(text, encoding="utf-8")
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


class Wrap(Packages):
    """A project in C has the wrap, and Meson takes the library from the tarball, out of its cache."""

    def test_forced_fallback(self):
        # The dependency is found by its name in the wrap.
        edits = [(", fallback: ['rmsnorm', 'rmsnorm']", "")]
        source = copy_consumer("meson", self.path("app"), in_c=True, edits=edits)
        subprojects = os.path.join(source, "subprojects")
        shutil.copytree(self.index("wrapdb", "subprojects"), subprojects)
        cache = os.path.join(subprojects, "packagecache")
        shutil.copytree(os.path.join(ROOT, "subprojects", "packagecache"), cache)
        shutil.copy(self.tarball, cache)
        # An address that cannot be reached: the file has to come from the cache.
        wrap = os.path.join(subprojects, "rmsnorm.wrap")
        replace_in(wrap, "file://" + self.tarball, "https://rmsnorm.invalid/" + NAME + ".tar.xz")
        build, printed = configure(
            *(source, "--wrap-mode=forcefallback", "-Dwerror=true"),
            CXXFLAGS=NO_KERNELS,  # Meson ignores the option rmsnorm:cpp_args
        )
        self.assertRegex(printed, r"highway *: [0-9.]+, built here")
        build_each_kind(build, NAME)


if __name__ == "__main__":
    unittest.main()

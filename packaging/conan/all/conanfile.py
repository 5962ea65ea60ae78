# SPDX-License-Identifier: Apache-2.0
import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd, stdcpp_library
from conan.tools.files import copy, get, rmdir
from conan.tools.gnu import PkgConfigDeps
from conan.tools.layout import basic_layout
from conan.tools.meson import Meson, MesonToolchain
from conan.tools.scm import Version

required_conan_version = ">=2.4"


class RmsnormConan(ConanFile):
    name = "rmsnorm"
    description = "RMSNorm for CPUs: fast, and the same bits everywhere"
    license = "Apache-2.0"
    url = "https://github.com/conan-io/conan-center-index"
    homepage = "@homepage@"
    topics = ("rmsnorm", "normalization", "simd", "machine-learning", "inference")
    package_type = "library"
    languages = "C++"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "fPIC": [True, False], "with_openmp": [True, False]}
    default_options = {"shared": False, "fPIC": True, "with_openmp": True}
    implements = ["auto_shared_fpic"]

    def layout(self):
        basic_layout(self, src_folder="src")

    def requirements(self):
        # Only the headers are used, by the library's own sources.
        self.requires("highway/1.2.0", libs=False, run=False, visible=False)

    def build_requirements(self):
        self.tool_requires("meson/[>=1.0 <2]")
        if not self.conf.get("tools.gnu:pkg_config", check_type=str):
            self.tool_requires("pkgconf/[>=2.2 <3]")

    def validate(self):
        check_min_cppstd(self, 17)
        oldest = {"gcc": "12", "clang": "14"}.get(str(self.settings.compiler))
        if not oldest or Version(self.settings.compiler.version) < oldest:
            raise ConanInvalidConfiguration(f"{self.ref} takes gcc 12 or clang 14, or later")
        if self.settings.os not in ("Linux", "Windows"):
            raise ConanInvalidConfiguration(f"{self.ref} was tried on Linux and Windows only")

    def source(self):
        get(self, **self.conan_data["sources"][self.version], strip_root=True)

    def generate(self):
        toolchain = MesonToolchain(self)
        toolchain.project_options["openmp"] = "enabled" if self.options.with_openmp else "disabled"
        for part in ("benchmarks", "tests", "tools"):
            toolchain.project_options[part] = "disabled"
        toolchain.generate()
        PkgConfigDeps(self).generate()

    def build(self):
        meson = Meson(self)
        meson.configure()
        meson.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        Meson(self).install()
        for written_by_conan in ("cmake", "pkgconfig"):
            rmdir(self, os.path.join(self.package_folder, "lib", written_by_conan))

    def package_info(self):
        # By Conan's defaults the package, the target of CMake and the file for pkg-config have its name.
        self.cpp_info.libs = ["rmsnorm"]
        if not self.options.shared:
            self.cpp_info.system_libs += ["m", stdcpp_library(self)]
            if self.options.with_openmp:
                self.cpp_info.exelinkflags.append("-fopenmp")
                self.cpp_info.sharedlinkflags.append("-fopenmp")

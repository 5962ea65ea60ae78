# SPDX-License-Identifier: Apache-2.0
"""The library of the build directory for its users: installed, and found by their builds.
test/meson.build sets the RMSNORM_... variables."""

import os
import re
import shlex
import shutil
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BUILD = os.environ["RMSNORM_BUILD"]
MESON = os.environ["RMSNORM_MESON"]
OPENMP = os.environ["RMSNORM_OPENMP"].split()  # the compiler's option, if there is one
# The folder of libhwy.pc and the prefix of this build's Highway; empty if Highway was built with the
# library. Users of the static library must get the same Highway.
HIGHWAY_PKG_CONFIG = os.environ["RMSNORM_HIGHWAY_PKG_CONFIG"]
HIGHWAY_PREFIX = os.environ["RMSNORM_HIGHWAY_PREFIX"]
# The default_library of the build: shared, static or both.
LIBRARIES = os.environ["RMSNORM_LIBRARIES"]
LIBDIR = os.environ["RMSNORM_LIBDIR"]
VERSION = os.environ["RMSNORM_VERSION"]
CONSUMERS = os.path.join(ROOT, "test", "packaging", "consumer")
# What each consumer in C++ says differently in C.
IN_C = {
    **{"LANGUAGES CXX": "LANGUAGES C", "CXXFLAGS": "CFLAGS", "$(CXX)": "$(CC)", "c++17": "c99"},
    **{"'cpp'": "'c'", "cpp_std": "c_std", "app.cc": "app.c"},
}
# What each consumer prints.
RESULT = f"rmsnorm {VERSION}: 0.8485 1.1314\n"
# For consumers that build the library: it takes seconds so. The kernels are for other tests.
NO_KERNELS = "-DHWY_COMPILE_ONLY_STATIC"


def run(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def succeed(*command, **variables):
    """Runs the command and returns its output."""
    done = run(*command, **variables)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def temporary_directory(add_cleanup):
    """Makes a directory that the addCleanup or addClassCleanup of a test removes."""
    directory = tempfile.TemporaryDirectory()
    add_cleanup(directory.cleanup)
    return directory.name


def read(*path):
    with open(os.path.join(*path), encoding="utf-8") as file:
        return file.read()


def replace_in(path, old, new):
    text = read(path)
    assert old in text, f"{path} lacks {old}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(old, new))


def needed_by(binary):
    """Returns the names of the shared libraries that a binary needs."""
    printed = succeed("readelf", "--dynamic", "--wide", binary)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", printed)


def interface_of(library):
    """Returns the name of a shared library and its public symbols."""
    printed = succeed("readelf", "--dynamic", "--dyn-syms", "--wide", library)
    symbols = re.findall(r" (?:GLOBAL|WEAK|UNIQUE) +DEFAULT +\d+ (\S+)$", printed, re.M)
    return re.search(r"\(SONAME\).*\[(.*)\]", printed)[1], sorted(symbols)


def search_path(*folders):
    return os.pathsep.join(filter(None, folders))


def variables_for(prefix):
    """Returns the environment in which builds and programs find the installed files."""
    library_dir = os.path.join(prefix, LIBDIR)
    return {
        "CMAKE_PREFIX_PATH": search_path(prefix, HIGHWAY_PREFIX),
        "LD_LIBRARY_PATH": library_dir,  # replaces Meson's entry, the build directory
        "PKG_CONFIG_PATH": search_path(os.path.join(library_dir, "pkgconfig"), HIGHWAY_PKG_CONFIG),
    }


def install(directory):
    """Installs into `directory` and returns the prefix, after moving it away from its intended
    place."""
    succeed(
        *(MESON, "install", "-C", BUILD),
        *("--no-rebuild", "--quiet", "--destdir", os.path.join(directory, "destdir")),
    )
    meant = os.path.join(directory, "destdir", os.environ["RMSNORM_PREFIX"].lstrip("/"))
    return shutil.move(meant, os.path.join(directory, "prefix"))


def copy_consumer(way, to, in_c=False):
    """Copies a project of test/packaging/consumer and its program, or makes it a project in C alone.
    Returns the folder."""
    shutil.copytree(os.path.join(CONSUMERS, way), to)
    shutil.copy(os.path.join(CONSUMERS, "app.c" if in_c else "app.cc"), to)
    (file,) = os.listdir(os.path.join(CONSUMERS, way))
    for word, word_in_c in IN_C.items() if in_c else ():
        if word in read(to, file):
            replace_in(os.path.join(to, file), word, word_in_c)
    return to


def compare_bits(*library):
    """Links the test of the stored bits, which Meson compiled, to a library or objects, and runs it."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "golden_test")
        succeed(
            *(*shlex.split(os.environ["CXX"]), "-o", program),
            f"{BUILD}/test/library/numbers/golden_test.p/golden_test.cc.o",
            *(f"{BUILD}/cases/librmsnorm_vectors.a", f"{BUILD}/cases/librmsnorm_cases.a"),
            *(f"{BUILD}/cases/libguarded_memory.a", *library, *OPENMP, "-lpthread"),
        )
        files = (f"{ROOT}/test/data/{name}.safetensors" for name in ("contract", "family"))
        succeed(program, *files, LD_LIBRARY_PATH=os.path.dirname(library[0]))

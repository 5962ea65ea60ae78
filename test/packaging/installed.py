# SPDX-License-Identifier: Apache-2.0
"""The library of the build directory for its users: installed, found and built by their projects.
test/packaging/meson.build sets the variables. A user may name CMake (RMSNORM_CMAKE), and may ask for the kernels in what
it builds (RMSNORM_CMAKE_WHOLE=1), which takes minutes."""

import glob
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
BUILD = os.environ["RMSNORM_BUILD"]
MESON = os.environ["RMSNORM_MESON"]
CMAKE = os.environ.get("RMSNORM_CMAKE") or "cmake"
OPENMP = os.environ["RMSNORM_OPENMP"].split()  # the compiler's option, if there is one
# The folder of libhwy.pc and the prefix of this build's Highway; empty if Highway was built with the
# library. Users of the static library must get the same Highway.
HIGHWAY_PKG_CONFIG = os.environ["RMSNORM_HIGHWAY_PKG_CONFIG"]
HIGHWAY_PREFIX = os.environ["RMSNORM_HIGHWAY_PREFIX"]
VERSION = os.environ["RMSNORM_VERSION"]
CONSUMERS = os.path.join(ROOT, "test", "packaging", "consumer")
# What each consumer in C++ says differently in C.
IN_C = {
    **{"LANGUAGES CXX": "LANGUAGES C", "CXXFLAGS": "CFLAGS", "$(CXX)": "$(CC)", "c++17": "c99"},
    **{"'cpp'": "'c'", "cpp_std": "c_std", "app.cc": "app.c"},
}
# What each consumer prints.
RESULT = f"rmsnorm {VERSION}: 0.8485 1.1314\n"
# The release of Highway, if it is here.
HIGHWAY = glob.glob(os.path.join(ROOT, "subprojects", "packagecache", "highway-*.tar.gz"))
# For consumers that build the library: it takes seconds so. The kernels are for other tests.
NO_KERNELS = "-DHWY_COMPILE_ONLY_STATIC"
# With CMake, unless the environment asks for all.
QUICK = "" if os.environ.get("RMSNORM_CMAKE_WHOLE") == "1" else NO_KERNELS


def run(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def succeed(*command, **variables):
    """Runs the command and returns its output."""
    done = run(*command, **variables)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


# The options of the build: default_library is shared, static or both.
OPTIONS = {
    option["name"]: option["value"]
    for option in json.loads(succeed(MESON, "introspect", "--buildoptions", BUILD))
}
LIBRARIES = OPTIONS["default_library"]
LIBDIR = OPTIONS["libdir"]


def temporary_directory(add_cleanup):
    """Makes a directory that the addCleanup or addClassCleanup of a test removes."""
    directory = tempfile.TemporaryDirectory()
    add_cleanup(directory.cleanup)
    return directory.name


def read(*path):
    return pathlib.Path(*path).read_text(encoding="utf-8")


def replace_in(path, old, new):
    text = read(path)
    assert old in text, f"{path} lacks {old}"
    pathlib.Path(path).write_text(text.replace(old, new), encoding="utf-8")


def files_below(folder):
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


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
    meant = os.path.join(directory, "destdir", OPTIONS["prefix"].lstrip("/"))
    return shutil.move(meant, os.path.join(directory, "prefix"))


def copy_consumer(way, to, in_c=False, edits=()):
    """Copies a project of test/packaging/consumer and its program, or makes it a project in C alone.
    Returns the folder."""
    shutil.copytree(os.path.join(CONSUMERS, way), to)
    shutil.copy(os.path.join(CONSUMERS, "app.c" if in_c else "app.cc"), to)
    (file,) = (os.path.join(to, name) for name in os.listdir(os.path.join(CONSUMERS, way)))
    for word, word_in_c in IN_C.items() if in_c else ():
        if word in read(file):
            replace_in(file, word, word_in_c)
    for old, new in edits:
        replace_in(file, old, new)
    return to


def configure(source, *options, build="build", **variables):
    """Configures a project by the tool that it is for. Returns the build directory, and what was printed. CMake
    warns of nothing, except in Highway's CMakeLists.txt."""
    folder = os.path.join(source, build)
    if not os.path.exists(os.path.join(source, "CMakeLists.txt")):
        return folder, succeed(MESON, "setup", folder, source, *options, **variables)
    done = run(CMAKE, "-S", source, "-B", folder, *options, **variables)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, printed
    for warning in re.findall(r"CMake .*Warning.* at (.*)", printed):
        assert "highway" in warning, printed
    return folder, printed


def compile_in(folder):
    """Returns the program."""
    if os.path.exists(os.path.join(folder, "meson-info")):
        succeed(MESON, "compile", "-C", folder)
    else:
        succeed(CMAKE, "--build", folder, "--parallel", "2")
    return os.path.join(folder, "app")


def check_program(program, kind, **variables):
    """It gives the right result, with the library inside or beside it, and no Highway. Returns what it needs."""
    assert succeed(program, **variables) == RESULT
    needed = needed_by(program)
    assert ("librmsnorm.so.0" in needed) == (kind == "shared"), needed
    assert "libhwy" not in " ".join(needed), needed
    return needed


def build_each_kind(folder, name):
    """Builds a project of Meson with each kind of the library, which is its subproject of this name."""
    for kind, endings in (("both", ["a", "so"]), ("static", ["a"]), ("shared", ["so"])):
        succeed(MESON, "configure", folder, "-Drmsnorm:default_library=" + kind)
        program = compile_in(folder)
        check_program(program, "static" if kind == "static" else "shared", LD_LIBRARY_PATH="")
        made = glob.glob(os.path.join(folder, "subprojects", name, "lib", "librmsnorm.*[ao]"))
        assert sorted(library.rsplit(".", 1)[1] for library in made) == endings, made
        for library in made:
            compare_bits(library)
            os.remove(library)


def commands_of(folder):
    """Returns the options with which a build compiles each source of the library, in order."""
    found = {}
    for entry in json.loads(read(folder, "compile_commands.json")):
        file = os.path.realpath(os.path.join(entry["directory"], entry["file"]))
        name = os.path.relpath(file, os.path.join(ROOT, "lib"))
        of_the_library = re.search(r"rmsnorm(_core|_kernels)?\.(a\.p|dir)/", entry["command"])
        if not name.startswith("..") and of_the_library:
            words = shlex.split(entry["command"])
            found[name] = list(itertools.dropwhile(lambda word: word[0] != "-", words))
    return found


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
        names = ("contract", "family", "models", "rotary")
        files = (f"{ROOT}/test/data/{name}.safetensors" for name in names)
        succeed(program, *files, LD_LIBRARY_PATH=os.path.dirname(library[0]))

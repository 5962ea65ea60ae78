# SPDX-License-Identifier: Apache-2.0
"""The library of the build directory for its users: installed, and found by their builds.
test/meson.build sets the RMSNORM_... variables."""

import os
import shutil
import subprocess
import tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
MESON = os.environ["RMSNORM_MESON"]
# The folder of libhwy.pc and the prefix of this build's Highway; empty if Highway was built with the
# library. Users of the static library must get the same Highway.
HIGHWAY_PKG_CONFIG = os.environ["RMSNORM_HIGHWAY_PKG_CONFIG"]
HIGHWAY_PREFIX = os.environ["RMSNORM_HIGHWAY_PREFIX"]


def run(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def succeed(*command, **variables):
    """Runs the command and returns its output."""
    done = run(*command, **variables)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def temporary_directory(test_class):
    """Makes a directory that is removed after the tests of a class."""
    directory = tempfile.TemporaryDirectory()
    test_class.addClassCleanup(directory.cleanup)
    return directory.name


def search_path(*folders):
    return os.pathsep.join(filter(None, folders))


def variables_for(prefix):
    """Returns the environment in which builds and programs find the installed files."""
    library_dir = os.path.join(prefix, os.environ["RMSNORM_LIBDIR"])
    return {
        "CMAKE_PREFIX_PATH": search_path(prefix, HIGHWAY_PREFIX),
        "LD_LIBRARY_PATH": library_dir,  # replaces Meson's entry, the build directory
        "PKG_CONFIG_PATH": search_path(os.path.join(library_dir, "pkgconfig"), HIGHWAY_PKG_CONFIG),
    }


def install(directory):
    """Installs into `directory` and returns the prefix, after moving it away from its intended
    place."""
    succeed(
        *(MESON, "install", "-C", os.environ["RMSNORM_BUILD"]),
        *("--no-rebuild", "--quiet", "--destdir", os.path.join(directory, "destdir")),
    )
    meant = os.path.join(directory, "destdir", os.environ["RMSNORM_PREFIX"].lstrip("/"))
    return shutil.move(meant, os.path.join(directory, "prefix"))

# SPDX-License-Identifier: Apache-2.0
"""The library of the build directory as its users have it: installed, and found by their builds. The
environment's RMSNORM_... variables come from test/meson.build."""

import os
import shutil
import subprocess

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
MESON = os.environ["RMSNORM_MESON"]
# The folder of libhwy.pc and the prefix of the Highway that the build took; empty where that was built
# with it. Users of the static library must get the same one.
HIGHWAY_PKG_CONFIG = os.environ["RMSNORM_HIGHWAY_PKG_CONFIG"]
HIGHWAY_PREFIX = os.environ["RMSNORM_HIGHWAY_PREFIX"]


def run(*command, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def succeed(*command, **variables):
    """What the command prints."""
    done = run(*command, **variables)
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


def search_path(*folders):
    return os.pathsep.join(filter(None, folders))


def variables_for(prefix):
    """The environment in which builds and programs find what was installed there."""
    library_dir = os.path.join(prefix, os.environ["RMSNORM_LIBDIR"])
    return {
        "CMAKE_PREFIX_PATH": search_path(prefix, HIGHWAY_PREFIX),
        "LD_LIBRARY_PATH": library_dir,  # and not the build directory, which Meson put there
        "PKG_CONFIG_PATH": search_path(os.path.join(library_dir, "pkgconfig"), HIGHWAY_PKG_CONFIG),
    }


def install(directory):
    """Installs into `directory` and returns the prefix, which has been moved from where it was meant
    to be."""
    succeed(
        *(MESON, "install", "-C", os.environ["RMSNORM_BUILD"]),
        *("--no-rebuild", "--quiet", "--destdir", os.path.join(directory, "destdir")),
    )
    meant = os.path.join(directory, "destdir", os.environ["RMSNORM_PREFIX"].lstrip("/"))
    return shutil.move(meant, os.path.join(directory, "prefix"))

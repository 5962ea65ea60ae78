# SPDX-License-Identifier: Apache-2.0
"""The tarball of the last commit: it holds every file of that, and builds where there is nothing else.
`tools/dev dist` runs the whole suite there."""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

from consumer_test import NO_KERNELS
from installed import MESON, ROOT, succeed

SKIPPED = 77  # Meson's word for it


class Dist(unittest.TestCase):
    name = f"rmsnorm-{os.environ['RMSNORM_VERSION']}"

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.directory = directory.name
        # A build directory of its own, so that a tarball made for a release stays.
        maker = os.path.join(cls.directory, "maker")
        succeed(MESON, "setup", maker, ROOT, "-Dauto_features=disabled")
        succeed(MESON, "dist", "-C", maker, "--no-tests", "--allow-dirty")
        cls.tarball = os.path.join(maker, "meson-dist", cls.name + ".tar.xz")

    def test_holds_the_commit(self):
        """With the same modes, too."""
        listed = succeed("git", "-C", ROOT, "ls-tree", "-r", "-z", "HEAD").split("\0")
        commit = {line.split("\t")[1]: line[:6] == "100755" for line in filter(None, listed)}
        with tarfile.open(self.tarball) as tarball:
            files = [member for member in tarball if not member.isdir()]
        held = {file.name[len(self.name) + 1 :]: bool(file.mode & 0o100) for file in files}
        self.assertEqual(sorted(held.items() ^ commit.items()), [])

    def test_builds_alone(self):
        """Every part is configured, and the library built with a test of it."""
        shutil.unpack_archive(self.tarball, self.directory)
        source, build = (os.path.join(self.directory, name) for name in (self.name, "build"))
        succeed(MESON, "setup", build, source, "-Dbuildtype=plain", "-Dcpp_args=" + NO_KERNELS)
        succeed(MESON, "compile", "-C", build, "header_c_test")
        succeed(MESON, "test", "-C", build, "--no-rebuild", "header_c")


def commit_is_there():
    try:
        git = subprocess.run(("git", "-C", ROOT, "rev-parse", "--show-prefix"), capture_output=True)
    except FileNotFoundError:
        return False
    return git.returncode == 0 and git.stdout == b"\n"  # and no repository around this folder


if __name__ == "__main__":
    if not commit_is_there():
        print("This is no git checkout, or git is not installed")
        sys.exit(SKIPPED)
    unittest.main()

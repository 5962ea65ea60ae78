# SPDX-License-Identifier: Apache-2.0
"""The tarball of the last commit contains every file of the commit. `tools/release/dist` builds it alone, and runs the
whole suite there."""

import os
import subprocess
import sys
import tarfile
import unittest

from installed import ROOT, VERSION, succeed, temporary_directory

SKIPPED = 77  # tells Meson that the test is skipped


class Dist(unittest.TestCase):
    name = f"rmsnorm-{VERSION}"

    @classmethod
    def setUpClass(cls):
        cls.directory = temporary_directory(cls.addClassCleanup)
        cls.tarball = cls.make_tarball(ROOT, "tarball")

    @classmethod
    def make_tarball(cls, source, folder, umask="022", **variables):
        folder = os.path.join(cls.directory, folder)
        script = 'umask "$1"; source tools/dev; make_tarball "$2"'
        command = ("env", "-C", source, "bash", "-c", script, "dist_test", umask, folder)
        succeed(*command, **variables)
        return os.path.join(folder, cls.name + ".tar.xz")

    def test_depends_on_the_commit_alone(self):
        """Not on the folder, the time, the umask, the user's settings of git and xz. The checksum is right."""
        clone = os.path.join(self.directory, "a folder", "clone")
        succeed("git", "clone", "--quiet", ROOT, clone)
        settings = os.path.join(self.directory, "gitconfig")
        with open(settings, "w", encoding="utf-8") as file:
            file.write("[tar]\n  umask = 077\n")
        variables = {"GIT_CONFIG_GLOBAL": settings, "TZ": "Asia/Tokyo", "XZ_OPT": "-9e"}
        other = self.make_tarball(clone, "other", "077", **variables)
        succeed("cmp", self.tarball, other)
        checksums = os.path.basename(other) + ".sha256sum"
        succeed("env", "-C", os.path.dirname(other), "sha256sum", "--check", checksums)

    def test_holds_the_commit(self):
        """Compares the names and the modes of the files."""
        listed = succeed("git", "-C", ROOT, "ls-tree", "-r", "-z", "HEAD").split("\0")
        commit = {line.split("\t")[1]: line[:6] == "100755" for line in filter(None, listed)}
        with tarfile.open(self.tarball) as tarball:
            files = [member for member in tarball if not member.isdir()]
        held = {
            file.name[len(self.name) + 1 :]: file.isreg() and bool(file.mode & 0o100)
            for file in files
        }
        self.assertEqual(sorted(held.items() ^ commit.items()), [])


def commit_is_there():
    try:
        git = subprocess.run(("git", "-C", ROOT, "rev-parse", "--show-prefix"), capture_output=True)
    except FileNotFoundError:
        return False
    return git.returncode == 0 and git.stdout == b"\n"  # this folder is the root of the repository


if __name__ == "__main__":
    if not commit_is_there():
        print("This is no git checkout, or git is not installed")
        sys.exit(SKIPPED)
    unittest.main()

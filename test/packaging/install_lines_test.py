# SPDX-License-Identifier: Apache-2.0
"""Runs the lines that install the library, word for word, as a new user would: in an empty home,
from a repository of these sources. The comment behind a program is what it prints."""

import os
import re
import shutil
import subprocess
import unittest

from installed import HIGHWAY_PKG_CONFIG, HIGHWAY_PREFIX, NO_KERNELS, ROOT, succeed
from installed import temporary_directory
from page_lines import page_lines


class InstallLines(unittest.TestCase):
    def setUp(self):
        directory = temporary_directory(self.addCleanup)
        self.repository = os.path.join(directory, "repository")
        self.home = os.path.join(directory, "home")
        os.mkdir(self.home)
        not_in_repository = shutil.ignore_patterns(".*", "build", "build-*", "packagecache")
        shutil.copytree(ROOT, self.repository, ignore=not_in_repository)
        git = ("git", "-C", self.repository, "-c", "user.name=test", "-c", "user.email=test")
        for command in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "test"]):
            succeed(*git, *command)

    def follow(self, page, *headings):
        variables = {
            "CMAKE_PREFIX_PATH": HIGHWAY_PREFIX,
            "CXXFLAGS": NO_KERNELS,
            "HOME": self.home,
            "PKG_CONFIG_PATH": HIGHWAY_PKG_CONFIG,
            "RMSNORM_REPOSITORY": self.repository,
        }
        environment = {**os.environ, **variables}
        for name in ("CC", "CXX", "LD_LIBRARY_PATH"):  # Meson's, and those of the build around
            environment.pop(name, None)
        lines = page_lines(os.path.join(ROOT, page), headings, installs=False)
        done = subprocess.run(
            ("bash", "-e", "-c", lines),
            **{"cwd": self.home, "env": environment, "text": True, "check": False},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        programs = re.findall(r"^(\S+) +# (.*)$", lines, re.M)
        self.assertTrue(programs)
        for program, expected in programs:
            self.assertIn(expected, done.stdout)
            # It also starts in a new terminal.
            again = subprocess.run(
                os.path.join(self.home, program),
                **{"env": {}, "capture_output": True, "text": True, "check": True},
            )
            wanted = expected.split()
            self.assertEqual(again.stdout.split()[-len(wanted) :], wanted)

    def test_readme(self):
        self.follow("README.md", "Quick start", "C++", "In C")

    def test_building(self):
        self.follow("doc/building.md", "Install it")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Runs the shell lines of the sections "Install it", word for word, as a new user would: in an
empty home, from a repository of these sources. The comment behind the last line is how its
output ends."""

import os
import re
import shutil
import subprocess
import unittest

from installed import HIGHWAY_PKG_CONFIG, HIGHWAY_PREFIX, NO_KERNELS, ROOT, read, succeed
from installed import temporary_directory
from page_programs import programs

FRAME = os.path.join(ROOT, "test", "packaging", "page_frame.cc.in")


def lines_to_install(page):
    section = re.search(r"^## Install it\n.*?(?=^## )", read(ROOT, page), re.M | re.S)
    assert section, f'{page} has no section "Install it"'
    return "".join(re.findall(r"^```sh\n(.*?)^```$", section[0], re.M | re.S))


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

    def follow(self, page):
        """Returns the output of a page's lines, with the README's first program as app.cc."""
        readme = os.path.join(ROOT, "README.md")
        with open(os.path.join(self.home, "app.cc"), "w", encoding="utf-8") as file:
            file.write(programs(readme, FRAME)["readme_1.cc"])
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
        lines = lines_to_install(page)
        done = subprocess.run(
            ("bash", "-e", "-c", lines),
            **{"cwd": self.home, "env": environment, "text": True, "check": False},
            **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
        )
        self.assertEqual(done.returncode, 0, done.stdout)
        program, expected = re.search(r"(\S+) +# (.*)\n\Z", lines).groups()
        # The program also starts in a new terminal.
        again = subprocess.run(
            os.path.join(self.home, program),
            **{"env": {}, "capture_output": True, "text": True, "check": True},
        )
        for printed in (done.stdout, again.stdout):
            self.assertEqual(printed.split()[-len(expected.split()) :], expected.split())

    def test_readme(self):
        self.follow("README.md")

    def test_building(self):
        self.follow("doc/building.md")


if __name__ == "__main__":
    unittest.main()

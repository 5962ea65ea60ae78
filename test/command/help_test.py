# SPDX-License-Identifier: Apache-2.0
"""The help and the manual page doc/rmsnorm.1 have the same commands, options and words."""

import os
import pty
import re
import shutil
import subprocess
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PAGE = os.path.join(ROOT, "doc", "rmsnorm.1")
COMMAND = os.path.abspath(os.environ["RMSNORM_COMMAND"])
WRAPPER = [word for word in [os.environ.get("RMSNORM_COMMAND_WRAPPER")] if word]


def rmsnorm(*words):
    command = [*WRAPPER, COMMAND, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def printed_commands():
    return re.findall(r"^  (\S+)", rmsnorm("--help").split("\nSubcommands:\n")[1], re.M)


def printed_options(*command):
    """Returns the long options in the help of a command, in order, each with its possible words."""
    options = {}
    for name, rest in re.findall(r"^  (?:-h,)?(--\S+)(.*)", rmsnorm(*command, "--help"), re.M):
        choices = re.match(r" \S+:\{(.*?)\}", rest)
        options[name] = sorted(choices[1].split(",")) if choices else []
    return options


def page_options(section):
    """Returns the long options in a section of the page."""
    options = {}
    for line in re.findall(r"^\.It (Fl .*)", section, re.M):
        choices = re.search(r" Cm (.*)", line)
        name = "-" + re.findall(r"Fl (-\S+)", line)[-1]
        options[name] = sorted(choices[1].split(" | ")) if choices else []
    return options


class Man(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(PAGE, encoding="utf-8") as file:
            page = file.read()
        description = page[page.index(".Sh DESCRIPTION") : page.index(".Sh ENVIRONMENT")]
        parts = re.split(r"^\.Ss (.*)$", description, flags=re.M)
        cls.general = parts[0]
        cls.sections = dict(zip(parts[1::2], parts[2::2]))

    def test_commands(self):
        self.assertIn("check", printed_commands())
        self.assertEqual(sorted(self.sections), sorted(printed_commands()))

    def test_options(self):
        self.assertEqual(page_options(self.general), printed_options())
        for command, section in self.sections.items():
            printed = printed_options(command)
            printed.pop("--help")
            self.assertEqual(page_options(section), printed, command)
        self.assertIn("--every", page_options(self.sections["check"]))

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_well_formed(self):
        done = subprocess.run(
            ["mandoc", "-Tlint", "-W", "warning", PAGE], capture_output=True, text=True, check=False
        )
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


class Progress(unittest.TestCase):
    def test_long_work_shows_a_percentage_on_a_terminal(self):
        terminal, end = pty.openpty()
        with subprocess.Popen(
            [*WRAPPER, COMMAND, "check"], stdout=subprocess.DEVNULL, stderr=end
        ) as process:
            os.close(end)
            printed = os.read(terminal, 1000).decode()
            process.kill()
        os.close(terminal)
        self.assertRegex(printed, r"^\r +\d+ %")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""doc/rmsnorm.1 is well-formed, and has exactly the commands and options that the command
prints."""

import os
import re
import shutil
import subprocess
import unittest

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "doc", "rmsnorm.1")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def printed_help(*command):
    wrapper = os.environ.get("RMSNORM_COMMAND_WRAPPER")
    run = [wrapper] if wrapper else []
    return output(*run, os.environ["RMSNORM_COMMAND"], *command, "--help")


def printed_options(*command):
    """Returns the long options in the help of a command, each with its possible words."""
    options = {}
    for name, rest in re.findall(r"^  (?:-h,)?(--\S+)(.*)", printed_help(*command), re.M):
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
        listed = printed_help().split("\nSubcommands:\n")[1]
        commands = re.findall(r"^  (\S+)", listed, re.M)
        self.assertIn("apply", commands)
        self.assertEqual(sorted(self.sections), sorted(commands))

    def test_options(self):
        self.assertEqual(page_options(self.general), printed_options())
        for command, section in self.sections.items():
            printed = printed_options(command)
            printed.pop("--help")
            self.assertEqual(page_options(section), printed, command)
        self.assertIn("--eps-placement", page_options(self.sections["apply"]))

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_well_formed(self):
        done = subprocess.run(
            ["mandoc", "-Tlint", "-W", "warning", PAGE], capture_output=True, text=True, check=False
        )
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The words of the command, and what it says of wrong ones; `rmsnorm info`; the files of `rmsnorm
check`; the manual page doc/rmsnorm.1, which has the commands, options and words of the help.

The arguments are the version of the build and the command. RMSNORM_COMMAND_WRAPPER is the program that
runs it if this machine cannot (an emulator)."""

import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../doc/rmsnorm.1")
WRAPPER = os.environ.get("RMSNORM_COMMAND_WRAPPER")
COMMAND = [*filter(None, [WRAPPER]), os.path.abspath(sys.argv.pop())]
VERSION = sys.argv.pop()
HELP = subprocess.run([*COMMAND, "--help"], stdout=subprocess.PIPE, text=True, check=True).stdout


class Command(unittest.TestCase):
    def run_command(self, words, stdout, variables):
        environment = {**os.environ, "RMSNORM_TARGET": "", **variables}
        streams = {"stdout": stdout, "stderr": subprocess.PIPE, "encoding": "utf-8"}
        return subprocess.run([*COMMAND, *words], **streams, env=environment, check=False)

    def print(self, *words, **variables):
        """Returns what the command prints where it succeeds."""
        done = self.run_command(words, subprocess.PIPE, variables)
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def refuse(self, words, problem, stdout=subprocess.PIPE, **variables):
        """The command refuses its words: status 2, and one line on standard error."""
        done = self.run_command(words, stdout, variables)
        self.assertEqual((done.returncode, done.stdout or ""), (2, ""), words)
        self.assertRegex(done.stderr, r"\Armsnorm: [ -~]{1,1200}\n\Z", words)
        self.assertIn(problem, done.stderr)


class Words(Command):
    def test_version(self):
        self.assertEqual(self.print("--version"), f"rmsnorm {VERSION}\n")

    def test_help(self):
        self.assertEqual(self.print("-h"), HELP)
        for command in ("info", "check"):
            self.assertIn(f"\n  {command} ", HELP)
            self.assertIn(f"rmsnorm {command} ", self.print(command, "--help"))

    def test_wrong_use(self):
        for words, problem in (
            ([], "a command is missing; see rmsnorm --help"),
            (["frobnicate"], "'frobnicate'"),
            (["--frobnicate"], "'--frobnicate'"),
            (["two\nlines"], "'two\\x0alines'"),
            ([b"\xff\x1b[2J"], "\\x1b[2J"),  # Windows replaces bytes that are not UTF-8
            ([""], "''"),
            (["info", "more"], "more"),
            (["info", "--more"], "--more"),
            (["info", "info"], "info"),
            (["identify", "--input", "x.npy"], "python -m rmsnorm identify"),
            (["chekc"], "unknown word 'chekc'; see rmsnorm --help"),
            (["check", "--tagret", "NEON"], "unknown word '--tagret'; see rmsnorm check --help"),
            (["a" * 30000], "unknown word 'aaa"),
        ):
            self.refuse(words, problem)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_lost_output(self):
        for words in (["--help"], ["--version"], ["info"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                self.refuse(words, "cannot write to standard output", full)

    def test_bad_target_in_the_environment(self):
        """It stops only what computes on it."""
        one = "--target reference --case forward,x=f32,y=f32,rows=1,d=4".split()
        for words in (["--help"], ["--version"], ["check", "--help"], ["check", *one]):
            self.assertEqual(self.print(*words, RMSNORM_TARGET="PDP11"), self.print(*words))
        self.refuse(["check", "--every", "9999"], "RMSNORM_TARGET: 'PDP11'", RMSNORM_TARGET="PDP11")


class Info(Command):
    def info(self, **variables):
        version, *lines = self.print("info", **variables).splitlines()
        return {"version": version, **dict(line.split(": ", 1) for line in lines)}

    def test_lines(self):
        info = self.info(OMP_NUM_THREADS="1")
        self.assertEqual(info.pop("version") + "\n", self.print("--version"))
        for key, value in {
            "CPU": r"\S.*",
            "caches": r"L1 .*|unknown",
            "compiled targets": r"(\w+ )*reference",
            "supported targets": r"(\w+ )*reference",
            "active target": re.escape(info["supported targets"].split()[0]),
            "Highway": r"\d+\.\d+\.\d+|none.*",
            "OpenMP": "yes|no",
            "threads": "1",
        }.items():
            self.assertRegex(info.pop(key), rf"\A({value})\Z")
        self.assertEqual(info, {})

    def test_target_in_the_environment(self):
        """Where there is no such target, info says so and shows the rest."""
        usual = self.info()
        wrong = "none; RMSNORM_TARGET: '{}' is none of this build's targets"
        for name, expected in (
            ("Reference", "reference"),
            ("PDP11", wrong.format("PDP11")),
            ("two\nlines\x1b[2J", wrong.format(r"two\x0alines\x1b[2J")),
            ("A" * 5000, "none; RMSNORM_TARGET: 'AAA"),
        ):
            info = self.info(RMSNORM_TARGET=name)
            active = info.pop("active target")
            self.assertEqual(info, {key: usual[key] for key in info})
            self.assertEqual(active[: len(expected)], expected)
            self.assertLess(len(active), 200)  # it has the start of a long name


class Check(Command):
    def test_targets(self):
        targets = self.print("info").split("supported targets: ")[1].splitlines()[0]
        for line in (
            "forward,x=bf16,weight=f16,rows=3,d=100;forward,rows=1,d=2",
            "backward,rows=40,d=100,x_values=mixed",
        ):
            count = len(targets.split())
            expected = f"targets: {targets}; cases: 1\n{count} passed, 0 failed\n"
            self.assertEqual(self.print("check", "--case", line), expected)
            for target in targets.split():
                two = ["--target", target, "--target", "Reference"]
                expected = f"targets: {target} reference; cases: 1\n2 passed, 0 failed\n"
                self.assertEqual(self.print("check", *two, "--case", line), expected)

    def test_wrong_use(self):
        for line, problem in (
            ("--target frobnicate", "--target: 'frobnicate' is none of this build's targets"),
            ("--target", "--target"),
            ("--case forward,rows=1,d=1,size=2", "--case: unknown name 'size'"),
            ("--case forward,rows=1,d=1,threads=-1", "context: threads is -1; it must be"),
            ("--case backward,rows=1,d=1,eps=-1", "--case: options: eps is -1; it must be"),
            ("--every 2 --case forward,rows=1,d=1", "--every"),
            ("--every 0", "--every: Value 0 not in range"),
            ("--random 9 --list checked.txt", "--random"),
            ("--case ", "--case: it is empty"),
            ("--list ", "--list: it is empty"),
            ("--vectors ", "--vectors: it is empty"),
            ("--list /", "/ cannot be read"),
            ("--seed -1", "--seed: Value -1 not in range 0 to 4294967295"),
            ("--seed 1 --random 0", "there is no case to check"),
            ("--formula --target reference", "--formula"),
            ("--vectors /nowhere", "/nowhere is no file of recorded bits: it cannot be read"),
            ("--vectors bits --formula", "--formula"),
        ):
            self.refuse(["check", *line.split(" ")], problem)

    def path(self, name):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name, name)

    def test_list(self):
        """As an editor of Windows writes it."""
        path = self.path("list.txt")
        path.write_bytes(b"forward,rows=1,d=4|5\r\n# a list\r\n")
        self.assertIn("; cases: 2\n", self.print("check", "--list", path))
        path.write_bytes(b"forward,rows=1,d=4|0")
        self.refuse(["check", "--list", path], f"--list {path}: --case: d must not be 0")

    def test_vectors(self):
        """A file with one case, a norm of ones."""
        path = self.path("bits.safetensors")
        one = struct.pack("<2f", 1, 1)
        right = "op=forward x=x y=ones.2.0.y eps=0"

        def write(words=right, y=one, shape=(2,)):
            tensor = {"dtype": "F32", "shape": shape, "data_offsets": [0, 8]}
            y_tensor = {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}
            names = {"__metadata__": {"ones.2.0": words}, "x": tensor, "ones.2.0.y": y_tensor}
            header = json.dumps(names).encode()
            path.write_bytes(struct.pack("<Q", len(header)) + header + one + y)

        twice = ["check", "--target", "reference", "--vectors", path, "--vectors", path, "--case"]
        write()
        expected = "targets: reference; cases: 2\n2 passed, 0 failed\n"
        self.assertEqual(self.print(*twice, "ones.2.0"), expected)
        self.refuse([*twice, "ones.2.1"], "no case of the vectors is called")
        for bit in (0, 22, 31, 32, 63):
            write(y=(int.from_bytes(one, "little") ^ 1 << bit).to_bytes(8, "little"))
            done = self.run_command([*twice, "ones.2.0"], subprocess.PIPE, {})
            self.assertEqual(done.returncode, 1)
            fault = f"FAILED on reference: y[0, {bit // 32}] is 0x3f800000, not 0x"
            repeat = f"\n  rmsnorm check --target reference --vectors {path} --case ones.2.0\n"
            self.assertIn(fault, done.stdout)
            self.assertIn(repeat, done.stdout)
        for changes, problem in (
            ({"y": one[:7]}, "a tensor lies beyond the end of the file"),
            ({"words": "op=sideways x=x y=ones.2.0.y"}, "'sideways' is neither"),
            ({"words": right + " eps"}, "'eps' is not NAME=VALUE"),
            ({"words": right + " z=x"}, "unknown name 'z'"),
            ({"words": "op=forward x=x y=no"}, "'no' is no value for 'y'"),
            ({"words": "op=forward x=x rstd=ones.2.0.y"}, "no such shape of rstd belongs to x"),
            ({"words": "op=forward y=ones.2.0.y"}, "there are no rows of x"),
            ({"words": "op=forward x=x dx_in=x dx=x"}, "forward takes no dx"),
            ({"shape": (3,)}, ""),
            ({"shape": (1, 2)}, "no such shape of y"),
        ):
            write(**changes)
            self.refuse([*twice, "ones.2.0"], f"{path} is no file of recorded bits: ")
            self.refuse([*twice, "ones.2.0"], problem)
        for content, problem in (
            (bytes(7), "it cannot be read, or is too"),
            (b"\2" + bytes(7) + b"{}", ""),
        ):
            path.write_bytes(content)
            self.refuse(["check", "--vectors", path], f"no file of recorded bits: {problem}")

    @unittest.skipIf(WRAPPER or not hasattr(os, "openpty"), "no terminal for the command here")
    def test_progress(self):
        """Long work shows a percentage on a terminal."""
        terminal, end = os.openpty()
        command = [*COMMAND, "check"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=end) as process:
            os.close(end)
            printed = os.read(terminal, 1000).decode()
            process.kill()
        os.close(terminal)
        self.assertRegex(printed, r"^\r +\d+ %")


def page_options(section):
    """Returns the long options in a section of the page, each with its possible words."""
    options = {}
    for line in re.findall(r"^\.It (Fl .*)", section, re.M):
        choices = re.search(r" Cm (.*)", line)
        name = "-" + re.findall(r"Fl (-\S+)", line)[-1]
        options[name] = sorted(choices[1].split(" | ")) if choices else []
    return options


def printed_options(text):
    """Returns the same of a help."""
    options = {}
    for name, rest in re.findall(r"^  (?:-h,)?(--\S+)(.*)", text, re.M):
        choices = re.match(r" \S+:\{(.*?)\}", rest)
        options[name] = sorted(choices[1].split(",")) if choices else []
    return options


class ManualPage(Command):
    @unittest.skipUnless("\n  bench " in HELP, "no `rmsnorm bench` in this build")
    def test_commands_and_options(self):
        page = pathlib.Path(PAGE).read_text(encoding="utf-8")
        description = page[page.index(".Sh DESCRIPTION") : page.index(".Sh ENVIRONMENT")]
        general, *parts = re.split(r"^\.Ss (.*)$", description, flags=re.M)
        sections = dict(zip(parts[::2], parts[1::2]))
        printed = re.findall(r"^  (\S+)", HELP.split("\nSubcommands:\n")[1], re.M)
        self.assertEqual(sorted(sections), sorted(printed))
        self.assertEqual(page_options(general), printed_options(HELP))
        for command, section in sections.items():
            options = printed_options(self.print(command, "--help"))
            options.pop("--help")
            self.assertEqual(page_options(section), options, command)
        self.assertIn("--every", page_options(sections["check"]))

    @unittest.skipUnless(shutil.which("mandoc"), "mandoc is not installed")
    def test_form(self):
        line = ["mandoc", "-Tlint", "-W", "warning", PAGE]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The help, the manual page doc/rmsnorm.1 and the completion in bash, zsh and fish have the
same commands, options and words. Each shell runs, gets a line and completes it."""

import os
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
PAGE = os.path.join(ROOT, "doc", "rmsnorm.1")
FOLDER = os.path.join(ROOT, "tools", "completions")
COMMAND = os.path.abspath(os.environ["RMSNORM_COMMAND"])
WRAPPER = [word for word in [os.environ.get("RMSNORM_COMMAND_WRAPPER")] if word]
ENVIRONMENT = {**os.environ, "PATH": os.path.dirname(COMMAND) + ":" + os.environ["PATH"]}
PROMPT = "what next? "

# Each shell gets a key, Ctrl-X I, that inserts all completions, and one, Ctrl-X D, that writes the
# line into a file.
BASH = f"""
source {FOLDER}/rmsnorm.bash
bind '"\\C-xi": insert-completions'
write_line() {{ printf %s "$READLINE_LINE" >line; exit; }}
bind -x '"\\C-xd": write_line'
PS1='{PROMPT}'
"""
ZSH = f"""
fpath=({FOLDER} $fpath)
autoload -Uz compinit
compinit -u -D
zle -C all-matches complete-word _generic
zstyle ':completion:all-matches:*' completer _all_matches _complete
zstyle ':completion:all-matches:*' insert yes
bindkey '^Xi' all-matches
write_line() {{ print -rn -- "$BUFFER" >line; exit }}
zle -N write_line
bindkey '^Xd' write_line
PS1='{PROMPT}'
"""


def typed(shell, line, directory):
    """Types a line in an interactive shell, and returns it with all its completions."""
    environment = {**ENVIRONMENT, "TERM": "dumb", "HISTFILE": ""}
    terminal, end = pty.openpty()
    with subprocess.Popen(
        shell, stdin=end, stdout=end, stderr=end, cwd=directory, env=environment
    ) as process:
        os.close(end)
        printed = ""
        while PROMPT not in printed:
            printed += os.read(terminal, 1000).decode()
        os.write(terminal, line.encode() + b"\x18i\x18d")
        try:
            while os.read(terminal, 1000):
                pass
        except OSError:  # the shell has ended
            pass
    os.close(terminal)
    with open(os.path.join(directory, "line"), encoding="utf-8") as file:
        return file.read()


def output(*command, cwd=None):
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=cwd, env=ENVIRONMENT
    ).stdout


def rmsnorm(*words):
    return output(*WRAPPER, COMMAND, *words)


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
        self.assertIn("apply", printed_commands())
        self.assertEqual(sorted(self.sections), sorted(printed_commands()))

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


@unittest.skipIf(os.environ.get("RMSNORM_COMMAND_WRAPPER"), "the command needs an emulator")
class Completion(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        for name in ("x.npy", "xy.npy", "a b.npy"):
            with open(os.path.join(self.directory, name), "w", encoding="utf-8"):
                pass

    def test_the_words_are_those_of_the_help(self):
        commands = printed_commands()
        for command in ["", *commands]:
            listed = list(printed_options(*command.split()))
            self.assertIn("--help", listed)
            printed = rmsnorm("complete", *command.split(), "--").splitlines()
            self.assertEqual([line.split("\t")[0] for line in printed], listed)
        for begun in ([], [""]):
            printed = rmsnorm("complete", *begun)
            self.assertEqual(re.findall(r"^(\w+)\t", printed, re.M), commands)

    def check(self, complete):
        """`complete` returns the words that a shell puts in place of the last word of a line."""
        for line, expected in {
            "ap": ["apply"],
            "help a": ["apply"],
            "apply --dtype ": ["bf16", "f16", "f32"],
            "apply --dtype=b": ["--dtype=bf16"],
            "apply --input x.npy --eps 1 --eps": ["--eps", "--eps-placement"],
            "apply --output x": ["x.npy", "xy.npy"],
            "apply --input=xy": ["--input=xy.npy"],
            "apply --eps ": [],
            "check --target ref": ["reference"],
            "bench --operations norm,gate_": ["norm,gate_after", "norm,gate_before"],
        }.items():
            self.assertEqual(complete(line), expected, line)

    def check_keys(self, shell):
        def complete(line):
            line = f"rmsnorm {line}"
            result = typed(shell, line, self.directory)
            before = line[: line.rfind(" ") + 1]
            self.assertTrue(result.startswith(before), result)
            return sorted(result[len(before) :].split())

        self.check(complete)

    @unittest.skipUnless(shutil.which("bash"), "bash is not installed")
    def test_bash(self):
        start = os.path.join(self.directory, "start")
        with open(start, "w", encoding="utf-8") as file:
            file.write(BASH)
        shell = ["bash", "--rcfile", start, "-i"]
        self.check_keys(shell)
        # bash takes what follows a colon for a word; it is no file here.
        tensor = "rmsnorm apply --input m.safetensors:x"
        self.assertEqual(typed(shell, tensor, self.directory), tensor)
        quoted = typed(shell, "rmsnorm apply --input 'a ", self.directory)
        self.assertEqual(quoted, "rmsnorm apply --input 'a b.npy' ")

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        with open(os.path.join(self.directory, ".zshrc"), "w", encoding="utf-8") as file:
            file.write(ZSH)
        self.check_keys(["env", "ZDOTDIR=" + self.directory, "zsh", "-d", "-i"])

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        def complete(line):
            ask = ["fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]"]
            script = os.path.join(FOLDER, "rmsnorm.fish")
            printed = output(*ask, script, f"rmsnorm {line}", cwd=self.directory)
            return sorted(candidate.split("\t")[0] for candidate in printed.splitlines())

        self.check(complete)


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

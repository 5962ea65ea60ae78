# SPDX-License-Identifier: Apache-2.0
"""Completion in bash, zsh and fish: each shell runs, gets a line and completes it."""

import os
import pty
import re
import shutil
import subprocess
import tempfile
import unittest

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "completions")
FOLDER_OF_COMMAND = os.path.dirname(os.path.abspath(os.environ["RMSNORM_COMMAND"]))
ENVIRONMENT = {**os.environ, "PATH": FOLDER_OF_COMMAND + ":" + os.environ["PATH"]}
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


def printed_help(*command):
    return output("rmsnorm", *command, "--help")


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
        commands = re.findall(r"^  (\w+)", printed_help().split("\nSubcommands:\n")[1], re.M)
        self.assertIn("apply", commands)
        for command in ["", *commands]:
            words = command.split()
            listed = re.findall(r"^  (?:-h,)?(--[\w-]+)", printed_help(*words), re.M)
            self.assertIn("--help", listed)
            printed = output("rmsnorm", "complete", *words, "--").splitlines()
            self.assertEqual([line.split("\t")[0] for line in printed], listed)
        for begun in ([], [""]):
            printed = output("rmsnorm", "complete", *begun)
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
            "bench --operations norm,post_": ["norm,post_add", "norm,post_norm"],
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


if __name__ == "__main__":
    unittest.main()

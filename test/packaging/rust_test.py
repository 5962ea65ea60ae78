# SPDX-License-Identifier: Apache-2.0
"""Builds examples/rust with rustc alone and runs it, by the lines of doc/other_languages.md, and
compares the blocks of that page with the example. The environment names the shared library,
RMSNORM_LIBRARY, and the compiler, RUSTC."""

import os
import re
import subprocess
import sys
import tempfile

SKIPPED = 77  # tells Meson that the test is skipped
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
EXAMPLE = os.path.join(ROOT, "examples", "rust", "rmsnorm.rs")
EXPECTED = """\
norm: 0.8485 1.1314 0.8485 1.1314
rstd: 0.2828 0.1414
add_norm: 3 4 3f59 3f91
refused: options: eps is -1; it must be finite and not negative
"""


def blocks_of_page(language):
    with open(os.path.join(ROOT, "doc", "other_languages.md"), encoding="utf-8") as file:
        return re.findall(rf"^```{language}\n(.*?)^```$", file.read(), re.M | re.S)


def check_page():
    """Checks that the blocks of the page are parts of the example."""
    with open(EXAMPLE, encoding="utf-8") as file:
        example = file.read()
    for part in "\n\n".join(blocks_of_page("rust")).split("\n\n"):
        if part.strip("\n") not in example:
            sys.exit(f"doc/other_languages.md has what the example has not:\n{part}")


def knows(edition):
    done = subprocess.run(
        (os.environ["RUSTC"], "--edition", edition, "--print", "sysroot"),
        **{"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "check": False},
    )
    return done.returncode == 0


def main():
    check_page()
    if "RMSNORM_LIBRARY" not in os.environ:
        print("There is no shared library for this machine")
        sys.exit(SKIPPED)
    folder = os.path.dirname(os.environ["RMSNORM_LIBRARY"])
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": folder,
        "PATH": os.path.dirname(os.environ["RUSTC"]) + os.pathsep + os.environ["PATH"],
        "PKG_CONFIG_PATH": os.path.join(os.path.dirname(folder), "meson-uninstalled"),
    }
    blocks = blocks_of_page("sh")
    if len(blocks) != 2:
        sys.exit("doc/other_languages.md must build the example in two ways")
    for lines in blocks:
        edition = re.search(r"--edition (\d+)", lines)[1]
        if not knows(edition):
            print(f"This Rust knows no edition {edition}")
            continue
        with tempfile.TemporaryDirectory() as directory:
            os.symlink(os.path.join(ROOT, "examples"), os.path.join(directory, "examples"))
            done = subprocess.run(
                ("sh", "-ec", lines),
                **{"cwd": directory, "env": environment, "text": True, "check": False},
                **{"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT},
            )
        if done.stdout != EXPECTED:  # a warning makes a difference, too
            sys.exit(f"{lines}\nprinted\n{done.stdout}instead of\n{EXPECTED}")


if __name__ == "__main__":
    main()

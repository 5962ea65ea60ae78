# SPDX-License-Identifier: Apache-2.0
"""Builds examples/rust with rustc alone, and runs it. Compares it with doc/other_languages.md, too. The
environment names the shared library, RMSNORM_LIBRARY, and the compiler, RUSTC."""

import os
import re
import subprocess
import sys
import tempfile

SKIPPED = 77  # tells Meson that the test is skipped
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLE = os.path.join(ROOT, "examples", "rust", "rmsnorm.rs")
EXPECTED = """\
norm: 0.8485 1.1314 0.8485 1.1314
rstd: 0.2828 0.1414
add_norm: 3 4 3f59 3f91
refused: options: eps is -1; it must be finite and not negative
"""


def check_page():
    """Checks that the blocks of the page are parts of the example."""
    with open(EXAMPLE, encoding="utf-8") as file:
        example = file.read()
    with open(os.path.join(ROOT, "doc", "other_languages.md"), encoding="utf-8") as file:
        blocks = re.findall(r"^```rust\n(.*?)^```$", file.read(), re.M | re.S)
    for part in "\n\n".join(blocks).split("\n\n"):
        if part.strip("\n") not in example:
            sys.exit(f"doc/other_languages.md has what the example has not:\n{part}")


def main():
    check_page()
    if "RMSNORM_LIBRARY" not in os.environ:
        print("There is no shared library for this machine")
        sys.exit(SKIPPED)
    folder = os.path.dirname(os.environ["RMSNORM_LIBRARY"])
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program")
        subprocess.run(
            (os.environ["RUSTC"], "--edition", "2021", "-D", "warnings", "-o", program)
            + ("-L", f"native={folder}", "-l", "rmsnorm", "-C", f"link-arg=-Wl,-rpath,{folder}")
            + (EXAMPLE,),
            check=True,
        )
        output = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
    if output != EXPECTED:
        sys.exit(f"The program printed\n{output}instead of\n{EXPECTED}")


if __name__ == "__main__":
    main()

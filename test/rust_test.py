# SPDX-License-Identifier: Apache-2.0
"""Builds examples/rust with rustc alone, and runs it. Named by the environment: RMSNORM_LIBRARY, the
shared library; RUSTC, the compiler."""

import os
import subprocess
import sys
import tempfile

SKIPPED = 77  # Meson's word for it
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXPECTED = """\
norm: 0.8485 1.1314 0.8485 1.1314
rstd: 0.2828 0.1414
add_norm: 3 4 3f59 3f91
refused: options: eps is -1; it must be finite and not negative
"""


def main():
    if "RMSNORM_LIBRARY" not in os.environ:
        print("There is no shared library for this machine")
        sys.exit(SKIPPED)
    folder = os.path.dirname(os.environ["RMSNORM_LIBRARY"])
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program")
        subprocess.run(
            (os.environ["RUSTC"], "--edition", "2021", "-D", "warnings", "-o", program)
            + ("-L", f"native={folder}", "-l", "rmsnorm", "-C", f"link-arg=-Wl,-rpath,{folder}")
            + (os.path.join(ROOT, "examples", "rust", "rmsnorm.rs"),),
            check=True,
        )
        output = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True).stdout
    if output != EXPECTED:
        sys.exit(f"The program printed\n{output}instead of\n{EXPECTED}")


if __name__ == "__main__":
    main()

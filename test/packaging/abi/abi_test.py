# SPDX-License-Identifier: Apache-2.0
"""Compares the binary interface of the library with the recorded one, using libabigail. The arguments
are the library, with debug information; the folder of the public headers; the record; and --record
to write the record."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77  # tells Meson that the test is skipped
CHANGED = 4  # a bit of abidiff's status; additions set it, too


def record(library, headers, dump):
    """Writes a record without private types, and without machine, folders and lines. It omits the
    architecture, too: types are the same on all 64-bit ones. Names of source files have to stay."""
    subprocess.run(
        ("abidw", "--headers-dir", headers, "--drop-private-types", "--exported-interfaces-only")
        + ("--no-architecture", "--no-corpus-path", "--no-comp-dir-path", "--no-show-locs")
        + ("--no-elf-needed", "--no-parameter-names", "--out-file", dump, library),
        check=True,
    )
    with open(dump, encoding="utf-8") as file:
        text = file.read()
    with open(dump, "w", encoding="utf-8") as file:
        file.write(re.sub(r" path='[^']*/", " path='", text))


def compare(library, headers, dump):
    """Returns the exit status. This compares two records: if one side has the names of headers and
    the other lacks them, abidiff 2.2 ignores every change of a struct."""
    with tempfile.TemporaryDirectory() as directory:
        present = os.path.join(directory, "present.abi")
        record(library, headers, present)
        status = subprocess.run(("abidiff", dump, present), check=False).returncode
    if status > 0 and status & CHANGED:
        print(
            'The binary interface is not the recorded one. doc/releasing.md says when it\n'
            f"may change; then `meson compile -C build record_abi` writes {dump}"
        )
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("library", "headers", "dump"):
        parser.add_argument(name)
    parser.add_argument("--record", action="store_true")
    arguments = vars(parser.parse_args())
    recording = arguments.pop("record")
    if not shutil.which("abidiff"):
        print("libabigail's abidw and abidiff are not installed (Debian: abigail-tools)")
        sys.exit(SKIPPED)
    sys.exit((record if recording else compare)(**arguments))


if __name__ == "__main__":
    main()

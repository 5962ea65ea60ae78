# SPDX-License-Identifier: Apache-2.0
"""Compares the binary interface of the library with the recorded one, by libabigail. Named on the
command line: the library, with debug information; the folder of the public headers; the record; and
--record to write that instead."""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

SKIPPED = 77  # Meson's word for it
CHANGED = 4  # a bit of abidiff's status, set for additions, too


def record(library, headers, dump):
    """Without what is private, and without what differs by machine, folder or line. The architecture
    does: on those of 64 bits the types are the same. Names of source files have to stay."""
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
    """The status to end with. Two records are compared: where one side has the names of headers and
    the other has not, abidiff 2.2 drops every change of a struct."""
    with tempfile.TemporaryDirectory() as directory:
        present = os.path.join(directory, "present.abi")
        record(library, headers, present)
        status = subprocess.run(("abidiff", dump, present), check=False).returncode
    if status > 0 and status & CHANGED:
        print(
            'The binary interface is not the recorded one. CONTRIBUTING.md, "Releases", says when it\n'
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

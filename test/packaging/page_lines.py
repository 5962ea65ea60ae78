# SPDX-License-Identifier: Apache-2.0
"""Prints what a page tells a reader to type, in its order, as one script of the shell:
`page_lines.py PAGE [HEADING...]`, of all sections or of those named. It has the lines `apt-get ...` in
the text, the shell's blocks, and each other block below a name such as `app.cc`: as that file."""

import re
import sys

WHAT = re.compile(
    r"`(?P<install>apt-get [^`]*)`"
    r"|`(?P<file>[\w./-]+)`:\n\n```\w+\n(?P<text>.*?)^```$"
    r"|^```sh\n(?P<lines>.*?)^```$",
    re.M | re.S,
)


def page_lines(page, headings=(), *, installs=True):
    with open(page, encoding="utf-8") as file:
        sections = re.split(r"^##+ (.*)\n", "## \n" + file.read(), flags=re.M)[1:]
    found = dict(zip(sections[::2], sections[1::2]))
    script = ""
    for heading in headings or found:
        for match in WHAT.finditer(found[heading]):
            if match["file"]:
                script += f"cat >{match['file']} <<'END_OF_FILE'\n{match['text']}END_OF_FILE\n"
            elif match["lines"] or installs:
                script += match["lines"] or match["install"] + "\n"
    return script


if __name__ == "__main__":
    print(page_lines(sys.argv[1], sys.argv[2:]), end="")

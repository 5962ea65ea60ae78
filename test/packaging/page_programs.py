# SPDX-License-Identifier: Apache-2.0
"""Compiles and runs the C and C++ blocks of a Markdown page.

  page_programs.py write PAGE FRAME OUTPUT...   writes the page's programs
  page_programs.py run SOURCE COMMAND...        runs one, and compares its output

A block with a main() is a separate program: <page>_1.cc, <page>_2.c and so on. All other C++ blocks
go into the frame, one after the other, as <page>_fragments.cc. The comment behind a program's
printf(), or below it, is the expected output. A comment `// error: ...` below a call says in which words it is
refused."""

import os
import pathlib
import re
import subprocess
import sys


def blocks(page):
    """Yields language, number of the first line, and text of each block of C or C++."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    for match in re.finditer(r"^```(cpp|c)\n(.*?)^```$", text, re.M | re.S):
        yield match[1], text.count("\n", 0, match.start(2)) + 1, match[2]


def with_refusals(text):
    """Puts the lines above each `// error: ...` into a check that this error comes."""

    def check(match):
        message = " ".join(match[2].replace("// ", "").split())
        return f'refused([&] {{ {match[1]} }}, R"({message})");' + "\n" * match[2].count("\n")

    lines, message = r"((?:^(?!// error: ).+\n)+)", r"^// error: (.*\n(?:^// .*\n)*)"
    return re.sub(lines + message, check, text, flags=re.M)


def programs(page, frame):
    """Returns the programs of a page by file name."""
    stem = os.path.basename(page).rsplit(".", 1)[0].lower()
    found, fragments = {}, []
    for language, line, text in blocks(page):
        placed = f'#line {line} "{page}"\n{with_refusals(text)}'
        if "int main(" in text:
            found[f"{stem}_{len(found) + 1}.{language.replace('cpp', 'cc')}"] = placed
        elif language == "cpp":
            fragments.append("{\n" + placed + "}\n")
        else:
            sys.exit(f"{page}:{line}: a fragment in C, for which there is no frame")
    if fragments:
        text = pathlib.Path(frame).read_text(encoding="utf-8")
        found[stem + "_fragments.cc"] = text.replace("@fragments@", "".join(fragments))
    return found


def write(page, frame, *outputs):
    found = programs(page, frame)
    expected = sorted(map(os.path.basename, outputs))
    if sorted(found) != expected:
        sys.exit(f"{page} holds {sorted(found)}, but examples/meson.build names {expected}")
    for output in outputs:
        pathlib.Path(output).write_text(found[os.path.basename(output)], encoding="utf-8")


def run(source, *command):
    text = pathlib.Path(source).read_text(encoding="utf-8")
    expected = re.findall(r"\bprintf\(.*;\s+// (.*)$", text, re.M)
    wrapper = os.environ.get("RMSNORM_COMMAND_WRAPPER")
    command = ([wrapper] if wrapper else []) + list(command)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    printed, said = done.stdout.split(), " ".join(expected).split()
    if not said or printed != said:
        sys.exit(f"{source}: prints {printed}, but its comments say {said}")


if __name__ == "__main__":
    {"write": write, "run": run}[sys.argv[1]](*sys.argv[2:])

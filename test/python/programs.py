# SPDX-License-Identifier: Apache-2.0
"""Programs of Python: those in the README and in pages, and those of tests."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "doc/python.md", "doc/rotary.md")
# The blocks of other packages have these words.
OTHERS = ("torch", "kernels", "jax")


def run(program, *arguments):
    """Runs a program in another process, and returns what it prints. It must not write errors."""
    command = [sys.executable, "-c", program, *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def expected(block):
    """Returns what a block prints, as the comments say that begin its lines."""
    return "".join(re.findall(r"^# (.*\n)", block, re.MULTILINE))


def code(page):
    """Returns the blocks of Python in a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def blocks(word=None):
    """Returns the blocks that hold a word, or those for NumPy alone."""
    found = []
    for page in PAGES:
        for block in code(page):
            words = [other for other in OTHERS if f"rmsnorm.{other}" in block]
            if words == ([word] if word else []):
                found.append(block)
    assert found
    return found

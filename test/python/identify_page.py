# SPDX-License-Identifier: Apache-2.0
"""The tables of doc/identify.md: norms and what rmsnorm.identify() says of them.

The tests that hold the norms write the tables when they run as programs, and check them.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from programs import ROOT

import rmsnorm

PAGE = ROOT / "doc" / "identify.md"


class Norm(NamedTuple):
    """A norm of d elements.

    words: what the answer's sentence must hold, or "" if no known norm fits.
    arguments: those of identify().
    """

    f: Callable[..., Any]
    words: str
    arguments: dict[str, Any] = {}
    d: int = 100  # a multiple of 4 alone


class Norms:
    """Norms by their names, and the table of them under a heading.

    Whether rows depend on each other differs between CPUs, so only a table of norms in plain NumPy
    says it.
    """

    def __init__(self, heading, norms, says_depends=False):
        self._heading = heading
        self._norms = norms
        self._says_depends = says_depends

    @property
    def names(self):
        return list(self._norms)

    @functools.cache
    def answer(self, name):
        norm = self._norms[name]
        return rmsnorm.identify(norm.f, norm.d, **norm.arguments)

    def check(self, name):
        answer, words = self.answer(name), self._norms[name].words
        assert (answer.fit == "none") == (words == ""), str(answer)
        assert words in answer.sentence, str(answer)

    def table(self):
        rows = []
        for name, norm in self._norms.items():
            dtype = str(norm.arguments.get("dtype", "float32")).removeprefix("torch.")
            answer = self.answer(name)
            lines = str(answer).splitlines() if self._says_depends else []
            changes = [line for line in lines if line.startswith("A row's bits change")]
            rows.append([name, dtype, " ".join([said(answer), *changes])])
        return table([self._heading, "type of x", "what `identify` says"], rows)

    def tests(self):
        """Returns a test of each norm, and a test of the page."""

        @pytest.mark.parametrize("name", self.names)
        def test_norm(name):
            self.check(name)

        def test_page():
            assert read(self._heading) == self.table(), "run this file as a program to write it"

        return test_norm, test_page

    def write(self):
        write(self._heading, self.table())


def said(answer):
    """What an answer says, without figures that differ between CPUs."""
    if answer.fit == "none":
        return f"no norm that is known. {answer.special[-1]}"  # where the errors are
    norm, _, clauses = answer.sentence.partition(". ")[0].partition(": ")
    without = "no weight, " if norm.endswith("without a weight") else ""
    return f"{without}{clauses}."


def table(columns, rows):
    lines = [f"| {' | '.join(line)} |\n" for line in (columns, *rows)]
    lines.insert(1, "|---" * len(columns) + "|\n")
    return "".join(lines)


def _pattern(name):
    return re.compile(f"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->\n)", re.DOTALL)


def read(name):
    """Returns the part of the page between the comments with this name."""
    (part,) = _pattern(name).findall(PAGE.read_text(encoding="utf-8"))
    return part


def write(name, part):
    before = PAGE.read_text(encoding="utf-8")
    after, count = _pattern(name).subn(lambda _: part, before)
    assert count == 1, f"{PAGE} has {count} parts with the name {name}"
    PAGE.write_text(after, encoding="utf-8")

# SPDX-License-Identifier: Apache-2.0
"""The tables of doc/identify.md: norms and what rmsnorm.identify() says of them.

As a program it writes all of them. The tests that hold the norms check that the page has them.
"""

import functools
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from programs import ROOT

import rmsnorm

PAGE = ROOT / "doc" / "identify.md"
# What makes each table, by its name in the page.
TABLES: dict[str, Callable[[], str]] = {}


class Norm(NamedTuple):
    """A norm of 100 elements, a multiple of 4 alone.

    words: what the answer's sentence must hold, its name if None, or "" if no known norm fits.
    """

    f: Callable[..., Any]
    words: str | None
    dtype: Any
    arguments: dict[str, Any] = {}


class Norms:
    """Norms by their names, and the table of them under a heading.

    Whether rows depend on each other differs between CPUs, so only a table of norms in plain NumPy
    says it.
    """

    def __init__(self, heading, norms, says_depends=False):
        self._heading = heading
        self._norms = norms
        self._says_depends = says_depends
        TABLES[heading] = self._table

    @functools.cache
    def answer(self, name):
        norm = self._norms[name]
        return rmsnorm.identify(norm.f, 100, norm.dtype, **norm.arguments)

    def _table(self):
        rows = []
        for name, norm in self._norms.items():
            answer = self.answer(name)
            lines = str(answer).splitlines() if self._says_depends else []
            changes = [line for line in lines if line.startswith("A row's bits change")]
            dtype = str(norm.dtype).removeprefix("torch.")
            rows.append([name, dtype, " ".join([said(answer), *changes])])
        return table([self._heading, "type of x", "what `identify` says"], rows)

    def tests(self):
        """Returns a test of each norm, and a test of the page."""

        @pytest.mark.parametrize("name", self._norms)
        def test_norm(name):
            answer, words = self.answer(name), self._norms[name].words
            assert (answer.fit == "none") == (words == ""), str(answer)
            assert (name if words is None else words) in answer.sentence, str(answer)

        return test_norm, page_test(self._heading)


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


def _split(name):
    """Returns the page before a table, the table, and the page behind it."""
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    made, end, after = rest.partition(f"<!-- end of {name} -->\n")
    assert begin and end, f"{PAGE} has no table with the name {name}"
    return before + begin, made, end + after


def page_test(name):
    def test_page():
        assert _split(name)[1] == TABLES[name](), "run identify_page.py to write it"

    return test_page


if __name__ == "__main__":
    import identify_page
    import test_identify  # noqa: F401
    import test_identify_frameworks  # noqa: F401

    for each, make in identify_page.TABLES.items():
        begin, _, end = _split(each)
        PAGE.write_text(begin + make() + end, encoding="utf-8")

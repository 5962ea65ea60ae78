# SPDX-License-Identifier: Apache-2.0
"""The tables of doc/identify.md: norms and what rmsnorm.identify() says of them.

As a program it writes all of them. The tests that hold the norms compare the page with them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from pages import table, with_parts
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


def make_tests(heading, norms, says_depends=False, identify=rmsnorm.identify):
    """Returns a test of each of the norms, by their names, a test of their table in the page, and
    what gives the answer to a name.

    Whether rows depend on each other differs between CPUs, so only a table of norms in plain NumPy
    says it.
    """

    @functools.cache
    def answer_to(name):
        norm = norms[name]
        return identify(norm.f, 100, norm.dtype, **norm.arguments)

    def row(name):
        answer = answer_to(name)
        lines = str(answer).splitlines() if says_depends else []
        changes = [line for line in lines if line.startswith("A row's bits change")]
        dtype = str(norms[name].dtype).removeprefix("torch.")
        return [name, dtype, " ".join([said(answer), *changes])]

    @pytest.mark.parametrize("name", norms)
    def test_norm(name):
        answer, words = answer_to(name), norms[name].words
        assert (answer.fit == "none") == (words == ""), str(answer)
        assert (name if words is None else words) in answer.sentence, str(answer)

    columns = [heading, "type of x", "what `identify` says"]
    return test_norm, page_test(heading, lambda: table(columns, map(row, norms))), answer_to


def said(answer):
    """What an answer says, without figures that differ between CPUs."""
    if answer.fit == "none":
        return f"no norm that is known. {answer.special[-1]}"  # where the errors are
    norm, _, clauses = answer.sentence.partition(". ")[0].partition(": ")
    without = "no weight, " if norm.endswith("without a weight") else ""
    return f"{without}{clauses}."


def page_test(name, make):
    TABLES[name] = make

    def test_page():
        made = with_parts(PAGE, {name: make()})
        assert PAGE.read_text(encoding="utf-8") == made, "run identify_page.py to write it"

    return test_page


if __name__ == "__main__":
    import identify_page
    import test_identify  # noqa: F401
    import test_identify_frameworks  # noqa: F401
    import test_identify_rotary  # noqa: F401

    tables = {name: make() for name, make in identify_page.TABLES.items()}
    PAGE.write_text(with_parts(PAGE, tables), encoding="utf-8")

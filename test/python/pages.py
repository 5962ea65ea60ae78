# SPDX-License-Identifier: Apache-2.0
"""Parts of pages that programs write."""

import re


def table(columns, rows):
    """Returns a table of a page."""
    lines = [f"| {' | '.join(line)} |\n" for line in (columns, *rows)]
    lines.insert(1, "|---" * len(columns) + "|\n")
    return "".join(lines)


def with_parts(page, parts):
    """Returns the text of a page with these parts, by their names in the comments around them."""
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        pattern = f"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->\n)"
        text, count = re.subn(pattern, lambda _, part=part: part, text, flags=re.DOTALL)
        assert count == 1, f"{page} has {count} parts with the name {name}"
    return text

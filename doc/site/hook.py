# SPDX-License-Identifier: Apache-2.0
"""Lets mkdocs find the title of a page, which it expects before any comment."""

import re


def on_page_markdown(markdown, **_):
    return re.sub(r"\A(<!--.*?-->\s*)*", "", markdown, flags=re.S)

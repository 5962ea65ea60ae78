# SPDX-License-Identifier: Apache-2.0
"""Makes the site, and checks that its pages show what their sources say: `site_test.py DOXYGEN
MKDOCS BUILD`.

Doxygen makes the reference of the headers, and mkdocs the pages around it. Both refuse a broken link.
Where one misreads Markdown it gives no warning, and prints tags, commands or Markdown as text. So each
page must have the words of its source, and no page may show markup."""

import difflib
import glob
import html
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
SETTINGS = os.path.join("doc", "site")
TAGS = "a|b|br|code|em|h[1-6]|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|thead|tr|tt|ul"
# Outside of code, these are not text: Doxygen's commands, tags, and Markdown's links, code, bold
# text, headings, items and tables.
MARKUP = re.compile(
    rf"[@\\][a-z]+|</?({TAGS})[ />]|\]\(|`|\*\*|^#+ |^- (?!\w -$)|\|[-: |]+\|", re.M
)
# What a page of mkdocs-material or of Doxygen shows, what of it is no text of the source, and what is code.
SHOWN = r'<article class="md-content__inner.*?</article>|<div class="contents">.*<!-- contents -->'
HIDDEN = r'<a class="headerlink".*?</a>|<div class="(?:toc|ttc).*?</div>|<caption.*?</caption>'
CODE = (
    r'<(code|pre|tt)\b.*?</\1>|<div class="fragment">.*?<!-- fragment -->|<td class="memItem.*?</td>'
    r'|<div class="memproto">.*?<div class="memdoc">'
)


def shown_by(page, *left_out):
    """Returns the text of a page, without what matches."""
    text = "".join(re.findall(SHOWN, pathlib.Path(page).read_text(encoding="utf-8"), re.S))
    for hidden in (HIDDEN, *left_out, r"<!--.*?-->|<[^>]*>"):
        text = re.sub(hidden, "", text, flags=re.S)
    return html.unescape(text)


def words_of(source):
    """Returns the words that a Markdown file shows."""
    text = pathlib.Path(source).read_text(encoding="utf-8")
    for hidden in (
        r"<!--(?s:.*?)-->",
        r"^ *```\w*$",
        r"^\d+\.(?= )",  # the number of an item
        r"!\[[^]]*\]\([^)]*\)",  # an image
        r"(?<=\])\([^)\s]*\)",  # the address of a link
    ):
        text = re.sub(hidden, "", text, flags=re.M)
    return re.findall(r"\w+", text)


def check(site):
    """Returns what is wrong with the pages in a directory."""
    faults = []
    for path in sorted(glob.glob(os.path.join(site, "**", "*.html"), recursive=True)):
        prose = shown_by(path, CODE)
        for shown in MARKUP.finditer(prose):
            around = prose[max(0, shown.start() - 40) : shown.end() + 40]
            faults.append(f"{path} shows markup: {around!r}")
    for source in sorted(glob.glob("*.md", root_dir=ROOT) + glob.glob("doc/*.md", root_dir=ROOT)):
        page = os.path.join(site, source.replace("README.md", "index.md")[: -len("md")] + "html")
        words, shown = words_of(os.path.join(ROOT, source)), re.findall(r"\w+", shown_by(page))
        if shown != words:
            difference = list(difflib.unified_diff(words, shown, lineterm=""))[2:]
            faults.append(f"{source}: its page has other words: {' '.join(difference[:40])}")
    return faults + check_times()


def check_times():
    """Returns the sections of doc/speed.md whose tables lack the library's revision or compiler."""
    page = pathlib.Path(ROOT, "doc", "speed.md").read_text(encoding="utf-8")
    sections = [section for section in page.split("\n## ") if "\n|---" in section]
    names = (r"revision [0-9a-f]{7}|\| revision \|", r"(gcc|clang) \d")
    return [
        f"doc/speed.md, {section.splitlines()[0]}: nothing matches {name!r}"
        for section in sections
        for name in names
        if not re.search(name, section)
    ]


def repository():
    """Returns the address of the repository, which stands in CITATION.cff alone."""
    citation = pathlib.Path(ROOT, "CITATION.cff").read_text(encoding="utf-8")
    return re.search(r"^repository-code: (.*)$", citation, re.M)[1]


def make(doxygen, mkdocs, build):
    """Makes the site, and returns its directory. mkdocs takes its sources from one folder: there the pages
    are links, and Doxygen adds its own."""
    pages, site = (os.path.join(build, "doc", name) for name in ("pages", "html"))
    shutil.rmtree(pages, ignore_errors=True)
    os.makedirs(pages)
    for source in [*glob.glob("*.md", root_dir=ROOT), "doc"]:
        os.symlink(os.path.join(ROOT, source), os.path.join(pages, source))
    project = pathlib.Path(ROOT, "meson.build").read_text(encoding="utf-8")
    version = re.search(r"^  version: '(.*)',$", project, re.M)[1]
    environment = {
        **os.environ,
        "NO_MKDOCS_2_WARNING": "1",
        "RMSNORM_BUILD": build,
        "RMSNORM_PAGES": pages,
        "RMSNORM_REPOSITORY": repository(),
        "RMSNORM_SITE": site,
        "RMSNORM_SITE_NAME": "rmsnorm " + version,
    }
    doxyfile, config = (os.path.join(SETTINGS, name) for name in ("Doxyfile", "mkdocs.yml"))
    for command in ((doxygen, doxyfile), (mkdocs, "build", "--config-file", config)):
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode:
            sys.exit(f"{command[0]} found the mistakes above")
    return site


def main(doxygen, mkdocs, build):
    faults = check(make(doxygen, mkdocs, os.path.realpath(build)))
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])

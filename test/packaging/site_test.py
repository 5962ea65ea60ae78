# SPDX-License-Identifier: Apache-2.0
"""Makes the site, and checks that its pages show what their sources say: `site_test.py DOXYGEN
DOXYFILE`.

Doxygen misreads some Markdown without a warning, and then prints tags, commands or Markdown as
text. So each page must have the title and the words of its source, no page may show markup, and
every link within the site must lead somewhere."""

import difflib
import glob
import html.parser
import os
import re
import shutil
import subprocess
import sys

DOC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../doc")
TAGS = "a|b|br|code|em|h[1-6]|i|img|li|ol|p|pre|span|strong|table|tbody|td|th|thead|tr|tt|ul"
# Outside of code, these are not text: Doxygen's commands, tags, and Markdown's links, code, bold
# text, headings and tables.
MARKUP = re.compile(rf"[@\\][a-z]+|</?({TAGS})[ />]|\]\(|`|\*\*|^#+ |\|[-: |]+\|", re.M)
WITHOUT_END = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "wbr"}


class Page(html.parser.HTMLParser):
    """A page's title, its text below that, and the part of the text that is not code."""

    def __init__(self, path):
        super().__init__()
        self.title, self.text, self.prose, self.around = "", "", "", []
        self.links, self.anchors = [], set()
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.links += filter(None, map(attributes.get, ("href", "src")))
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag not in WITHOUT_END:
            self.around.append((tag, set((attributes.get("class") or "").split())))

    def handle_endtag(self, tag):
        while self.around and self.around.pop()[0] != tag:
            pass

    def handle_data(self, data):
        tags = {tag for tag, _ in self.around}
        classes = set().union(*(found for _, found in self.around))
        if "title" in classes:
            self.title += data
        if "contents" in classes and not classes & {"toc", "ttc", "caption"}:
            self.text += data
            if not (tags & {"code", "pre", "tt"} or "fragment" in classes):
                self.prose += data


def read_source(path):
    """Returns the title of a Markdown file, and the words that it shows below."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"<!--.*?-->", "", text, flags=re.S)
    title, text = re.fullmatch(r"\s*# ([^\n]*)\n(.*)", text, re.S).groups()
    for hidden in (
        r"^ *```\w*$",
        r"^\d+\.(?= )",  # the number of an item
        r"!\[[^]]*\]\([^)]*\)",  # an image
        r"(?<=\])\([^)\s]*\)",  # the address of a link
    ):
        text = re.sub(hidden, "", text, flags=re.M)
    return title, re.findall(r"\w+", text)


def check(site):
    """Returns what is wrong with the pages in a directory."""
    pages = {path: Page(path) for path in sorted(glob.glob(os.path.join(site, "*.html")))}
    faults = []
    for path, page in pages.items():
        for shown in MARKUP.finditer(page.prose):
            around = page.prose[max(0, shown.start() - 40) : shown.end() + 40]
            faults.append(f"{path} shows markup: {around!r}")
        for link in page.links:
            address, _, anchor = link.partition("#")
            target = os.path.join(site, address) if address else path
            if re.match(r"[a-z]+:", link):
                continue
            if not os.path.exists(target):
                faults.append(f"{path} has a link to {address}, which is no page")
            elif anchor and anchor not in pages[target].anchors:
                faults.append(f"{path} has a link to {link}, where nothing has that name")
    titled = {page.title.strip(): page for page in pages.values()}
    for source in sorted(glob.glob(os.path.join(DOC, "*.md"))):
        title, words = read_source(source)
        if title not in titled:
            faults.append(f"{source}: no page has its title, {title!r}")
            continue
        shown = re.findall(r"\w+", titled[title].text)
        if shown != words:
            difference = list(difflib.unified_diff(words, shown, lineterm=""))[2:]
            faults.append(f"{source}: its page has other words: {' '.join(difference[:40])}")
    return faults + check_times()


def check_times():
    """Returns the sections of doc/speed.md whose tables lack the library's revision or compiler."""
    with open(os.path.join(DOC, "speed.md"), encoding="utf-8") as file:
        sections = [section for section in file.read().split("\n## ") if "\n|---" in section]
    names = (r"revision [0-9a-f]{7}|\| revision \|", r"(gcc|clang) \d")
    return [
        f"doc/speed.md, {section.splitlines()[0]}: nothing matches {name!r}"
        for section in sections
        for name in names
        if not re.search(name, section)
    ]


def main(doxygen, doxyfile):
    # Doxygen leaves the pages of earlier runs.
    site = os.path.join(os.path.dirname(os.path.abspath(doxyfile)), "html")
    shutil.rmtree(site, ignore_errors=True)
    subprocess.run((doxygen, doxyfile), check=True)
    faults = check(site)
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main(*sys.argv[1:])

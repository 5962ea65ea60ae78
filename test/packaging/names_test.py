# SPDX-License-Identifier: Apache-2.0
"""Each function and each file that a page or a comment names exists.

A function is a name before empty parentheses, such as `rmsnorm_norm()`. Code must have it before a
parenthesis: the project defines it, or calls it in another library. A file is a path whose first
folder is in the project, or a name with the suffix of a source. The tree must have it, or a source
must include it."""

import fnmatch
import os
import re
import unittest

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))

# What belongs to other projects: functions by the beginning of the name, and files.
OTHERS_FUNCTIONS = tuple(
    "std:: torch. __builtin_ GetChosenTarget _fused_rms_norm_backward forward_native help source".split()
)
OTHERS_FILES = """
hwy/targets.h layernorm.py lib/x86_64-linux-gnu modeling_*.py pthread_impl.h sgl-kernel/csrc/cpu/vec.h
src/cpu/kernels.cc subprojects/rmsnorm vllm/ir/ops/layernorm.py vllm/model_executor/layers/layernorm.py
wasm_128-inl.h x86_128-inl.h
""".split()

FUNCTION = re.compile(r"(?<![\w./$-])((?:\w+(?:::|\.))*~?[A-Za-z_]\w*)\(\)")
PATH = re.compile(r"(?<![\w/.:$<>~+-])[\w*][\w*{},./+-]*[\w*}/]")
SUFFIXES = (".c", ".cc", ".h", ".hpp", ".md", ".py", ".ini", ".map", ".wrap")
C_LIKE = (".c", ".cc", ".h", ".hpp", ".rs", ".in")

# A comment, as the group "text", or a string, which may hold what looks like a comment. In Python, a long string
# that begins a line says what a module or a function does.
IN_C = re.compile(r"(?P<text>//[^\n]*|/\*.*?\*/)|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.S)
IN_SCRIPT = re.compile(
    r"(?P<text>^ *\"{3}.*?\"{3}|(?<!\S)#[^\n]*)|\"{3}.*?\"{3}|\"(?:\\.|[^\"\\])*\"|'[^']*'",
    re.M | re.S,
)


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
        return file.read()


def project_files():
    """Yields the paths of the project's files, without those that git, builds and pip make."""
    for folder, folders, files in os.walk(ROOT):
        if os.path.relpath(folder, ROOT) == "subprojects":
            folders[:] = ["packagefiles"]
        folders[:] = [
            name
            for name in folders
            if not name.startswith((".", "build", "__pycache__", "target"))
            and not os.path.exists(os.path.join(folder, name, "pyvenv.cfg"))
        ]
        for name in files:
            yield os.path.relpath(os.path.join(folder, name), ROOT)


def split(path, text):
    """Returns the code of a file without strings, and its comments with their lines."""
    comments = []

    def remove(match):
        if match["text"]:
            comments.append((text.count("\n", 0, match.start()) + 1, match[0]))
        return " "

    return (IN_C if path.endswith(C_LIKE) else IN_SCRIPT).sub(remove, text), comments


def without_programs(text):
    """Blanks the blocks of code of a page, with their names: they are built and run."""
    return re.sub(r"(?ms)(`[\w.]+`:\n\n)?^```.*?^```", lambda block: re.sub(r"[^\n]", " ", block[0]), text)


def alternatives(path):
    """Returns the paths that one with {a,b} stands for."""
    match = re.fullmatch(r"(.*)\{(.*)\}(.*)", path)
    return [match[1] + part + match[3] for part in match[2].split(",")] if match else [path]


class Tree:
    def __init__(self):
        self.words, self.functions, self.texts, self.included = set(), set(), [], []
        paths = sorted(project_files())
        for path in paths:
            try:
                text = read(path)
            except UnicodeDecodeError:
                continue
            if path.endswith((".md", ".1")):
                self.texts.append((path, [(1, without_programs(text))]))
            elif path.endswith((*C_LIKE, ".py", ".build")) or text.startswith("#!"):
                code, comments = split(path, text)
                self.words.update(re.findall(r"\w+", code))
                self.functions.update(re.findall(r"(\w+)\s*[(<]", code))
                self.included += re.findall(r"#include [<\"](.*)[>\"]", text)
                self.texts.append((path, comments))
        self.paths = set(paths)
        for path in paths:
            while path := os.path.dirname(path):
                self.paths.add(path)
        self.tops = {path.split("/")[0] for path in paths if "/" in path}

    def has_function(self, name):
        *classes, function = re.findall(r"\w+", name)
        ours = function in self.functions and self.words.issuperset(classes)
        return ours or name.startswith(OTHERS_FUNCTIONS)

    def has_file(self, path, beside):
        if path in OTHERS_FILES or any(("/" + n).endswith("/" + path) for n in self.included):
            return True
        places = (path, os.path.normpath(os.path.join(beside, path)), "*/" + path)
        return any(fnmatch.filter(self.paths, place) for place in places)

    def faults(self, path, texts):
        for line, text in texts:
            at = lambda match: f"{path}:{line + text.count(chr(10), 0, match.start())}"
            for match in FUNCTION.finditer(text):
                if not self.has_function(match[1]):
                    yield f"{at(match)}: there is no {match[0]}"
            for match in PATH.finditer(text):
                for name in alternatives(match[0]):
                    in_a_folder = "/" in name and name.split("/")[0] in self.tops
                    if not (in_a_folder or name.endswith(SUFFIXES)):
                        continue
                    if not self.has_file(name.rstrip("/"), os.path.dirname(path)):
                        yield f"{at(match)}: there is no {name}"


class Names(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tree = Tree()

    def test_pages_and_comments(self):
        faults = [
            fault for path, texts in self.tree.texts for fault in self.tree.faults(path, texts)
        ]
        self.assertFalse(faults, "\n" + "\n".join(faults))

    def test_table_of_layers(self):
        """It has every file of the library."""
        table = re.search(r"^\| layer .*?\n\n", read("doc", "design.md"), re.M | re.S)[0]
        named = {name for match in PATH.finditer(table) for name in alternatives(match[0])}
        files = {path[len("lib/") :] for path in self.tree.paths if path.startswith("lib/")}
        self.assertEqual([path for path in files - named if path.endswith((".h", ".cc"))], [])

    def test_fields_of_a_context(self):
        header = read("include/rmsnorm/rmsnorm.h")
        struct = re.search(r"^typedef struct rmsnorm_context \{.*?\}", header, re.M | re.S)
        fields = re.findall(r"^  [^/;]*?(\w+);", struct[0], re.M)
        self.assertEqual((fields.pop(0), fields.pop()), ("size", "reserved"))
        self.assertIn("parallel_context", fields)
        page = read("doc/threads_and_targets.md")
        self.assertEqual([field for field in fields if f"`{field}`" not in page], [])

    def test_headings_that_comments_point_to(self):
        pointers = set()
        for path, texts in self.tree.texts:
            text = re.sub(r"[\s/#]+", " ", " ".join(text for _, text in texts))
            for page, heading in re.findall(r"doc (\w+\.md|data changes\.csv), \"([^\"]+)\"", text):
                pointers.add((path, page.replace(" ", "/"), re.escape(heading)))
        self.assertGreater(len(pointers), 3)
        for path, page, heading in pointers:
            self.assertRegex(read("doc", page), rf"(?m)^(##+ {heading}$|\"?{heading}\"?,)", path)

    def test_version(self):
        """Each file that repeats the project's version has it."""
        version = re.search(r"^  version: '(.*)',$", read("meson.build"), re.M)[1]
        parts = dict(zip(("MAJOR", "MINOR", "PATCH"), version.split(".")))
        macros = "".join(f"#define RMSNORM_VERSION_{name} {part}\n" for name, part in parts.items())
        crate, rust = "packaging/rust/rmsnorm", f'version = "{version}"'
        for path, text in (
            ("include/rmsnorm/version.h", f'#define RMSNORM_VERSION "{version}"\n{macros}'),
            ("packaging/debian/changelog", f"rmsnorm ({version}-"),
            ("packaging/debian/librmsnorm0.symbols", f" (symver)RMSNORM_0 {version}\n"),
            (f"{crate}-sys/Cargo.toml", rust),
            (f"{crate}/Cargo.toml", rust),
            (f"{crate}/Cargo.toml", f"rmsnorm-sys = {{ {rust},"),
        ):
            self.assertIn(f"\n{text}", "\n" + read(path))

    def test_code_of_the_first_page(self):
        """A telephone, of 390 pixels, shows 39 characters of a line."""
        blocks = re.findall(r"^```\w+\n(.*?)^```$", read("README.md"), re.M | re.S)
        self.assertTrue(blocks)
        lines = "".join(blocks).splitlines()
        self.assertEqual([line for line in lines if len(line) > 39], [])

    def test_missing_names(self):
        text = "`rmsnorm_norm()` of `lib/plan.cc`,\n`Gone()` of `lib/gone.cc` and spread.{h,c}"
        gone = ["doc/page.md:2: there is no Gone()"]
        gone += [f"doc/page.md:2: there is no {name}" for name in ("lib/gone.cc", "spread.c")]
        self.assertEqual(list(self.tree.faults("doc/page.md", [(1, text)])), gone)


if __name__ == "__main__":
    unittest.main()

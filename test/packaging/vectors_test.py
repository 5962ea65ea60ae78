# SPDX-License-Identifier: Apache-2.0
"""The archive of golden vectors: it is reproducible, and its script tells right from wrong."""

import ast
import json
import os
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest

import numpy as np

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
FOLDER = os.path.join(ROOT, "tools", "vectors")
SCRIPT = os.path.join(FOLDER, "check_vectors.py")
PAGE = os.path.join(ROOT, "doc", "vectors.md")
LIST = os.path.join(FOLDER, "list.txt")
COMMAND = os.path.abspath(os.environ["RMSNORM_COMMAND"])
MAKER = os.path.abspath(os.environ["RMSNORM_MAKE_VECTORS"])
ARCHIVE = os.path.abspath(os.environ["RMSNORM_VECTORS_ARCHIVE"])
NAME = os.path.basename(ARCHIVE)[: -len(".tar.xz")]

sys.path.insert(0, FOLDER)
import check_vectors  # pylint: disable=wrong-import-position


def read(*path):
    with open(os.path.join(*path), "rb") as file:
        return file.read()


def unpack(folder):
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder)


def safetensors(tensors):
    """Returns the bytes of a file of (type, array) by name."""
    header, begin = {}, 0
    for name, (dtype, array) in tensors.items():
        end = begin + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    data = [array.tobytes() for _, array in tensors.values()]
    return b"".join((struct.pack("<Q", len(text)), text, *data))


class TestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda *names: os.path.join(folder.name, *names)

    def run_script(self, results, vectors=ARCHIVE, **variables):
        """Returns what the script prints for some results, and its status."""
        with open(self.path("results.safetensors"), "wb") as file:
            file.write(results if isinstance(results, bytes) else safetensors(results))
        command = (sys.executable, "-B", SCRIPT, vectors, self.path("results.safetensors"))
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            check=False,
            env={**os.environ, **variables},
        )
        return done.stdout + done.stderr, done.returncode


class Archive(TestCase):
    def test_has_the_same_bytes_on_another_path(self):
        vectors, archive = self.path("vectors.safetensors"), self.path(NAME + ".tar.xz")
        subprocess.run((MAKER, LIST, vectors), check=True, stdout=subprocess.DEVNULL)
        pages = ("doc/definition.md", "doc/vectors.md", "LICENSE")
        files = (SCRIPT, *(os.path.join(ROOT, page) for page in pages), vectors)
        pack = os.path.join(FOLDER, "pack.py")
        subprocess.run((sys.executable, "-B", pack, archive, *files), check=True, cwd=self.path())
        self.assertEqual(read(archive), read(ARCHIVE))
        self.assertLess(os.path.getsize(archive), 5e6)

    def test_holds_the_files_of_the_repository(self):
        sources = {"check_vectors.py": SCRIPT, "vectors.md": PAGE}
        sources["definition.md"] = os.path.join(ROOT, "doc", "definition.md")
        sources["LICENSE"] = os.path.join(ROOT, "LICENSE")
        with tarfile.open(ARCHIVE) as archive:
            held = {member.name: archive.extractfile(member).read() for member in archive}
        self.assertGreater(len(held.pop(f"{NAME}/vectors.safetensors")), 1e6)
        expected = {f"{NAME}/{name}": read(path) for name, path in sources.items()}
        self.assertEqual(held, expected)

    def test_has_the_groups_and_the_number_of_cases_of_its_page(self):
        cases = check_vectors.read_cases(ARCHIVE)
        page = read(PAGE).decode()
        table = page[page.index("| group | cases |") :]
        named = [
            name for row in re.findall(r"(?m)^\| (`.*?) \|", table) for name in row.split(", ")
        ]
        self.assertEqual(sorted(named), sorted({f"`{case.group}`" for case in cases}))
        number = int(re.search(r"some (\d,\d+) calls", page)[1].replace(",", ""))
        self.assertAlmostEqual(len(cases), number, delta=50)

    def test_has_every_word_of_its_page(self):
        """The options with their words, the operands, and the kinds of numbers."""
        page = read(PAGE).decode()
        words = set()
        for case in check_vectors.read_cases(ARCHIVE):
            words |= {part for word in case.words for part in word.split("=")}
        tables = page[page.index("| word |") : page.index("## What is right")]
        named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"(?m)^\|.*", tables))))
        named -= {"op"}  # its values are the words
        defaults = {value for value in check_vectors.OPTIONS.values() if isinstance(value, str)}
        self.assertEqual(named - words - defaults, set())


class Script(TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = check_vectors.read_cases(ARCHIVE)

    def results(self, groups=()):
        """Returns the right results of some groups, or of all, as (type, array) by name."""
        return {
            f"{case.name}.{name}": (tensor.dtype, tensor.array.copy())
            for case in self.cases
            if case.group in groups or not groups
            for name, tensor in case.wanted.items()
        }

    def test_needs_no_other_module_than_numpy(self):
        imported = set()
        for node in ast.walk(ast.parse(read(SCRIPT))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module.split(".")[0])
        imported.discard("rmsnorm")  # which may be missing, as a test below shows
        self.assertEqual(imported - sys.stdlib_module_names, {"numpy"})

    def test_accepts_right_results(self):
        """All of them, and those of one group, with other NaNs; from the archive and its folder."""
        text, status = self.run_script(self.results())
        self.assertEqual(status, 0, text)
        self.assertIn(f"cases: {len(self.cases)} exact, 0 within 1 ulp, 0 wrong", text)
        unpack(self.path())
        results = self.results(["special_rows"])
        nans = 0
        for dtype, array in results.values():
            if dtype == "F32":
                nans += int(np.isnan(array).sum())
                array[np.isnan(array)] = np.array(0xFFC12345, np.uint32).view(np.float32)
        self.assertGreater(nans, 100)
        text, status = self.run_script(results, self.path(NAME))
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"special_rows +\d+ +\d+ +0 +0 +0\n")
        self.assertRegex(text, r"(?m)^norm +\d+ +0 +0 +0 +\d+$")

    def test_names_the_option_that_is_wrong(self):
        """All results with a gate before the norm are."""
        results, spoilt = self.results(), 0
        for case in self.cases:
            if case.options["gate_placement"] == "before":
                spoilt += 1
                for name in case.wanted:
                    results[f"{case.name}.{name}"][1].view(np.uint8)[...] ^= 8
        text, status = self.run_script(results)
        self.assertEqual(status, 1)
        count = sum(case.group == "gate_before" for case in self.cases)
        self.assertRegex(text, rf"\ngate_before +{count} +0 +0 +[1-9]\d+ +0\n")
        self.assertRegex(
            text,
            r"\ngate_before\.64\.0: forward x=f32 gate=f32 weight=f32 y=f32 eps=1e-05 "
            r"gate_placement=before rows=2 d=64\n  y: 0 of 128 are 1 ulp away, 128 are wrong; ",
        )
        words = re.findall(r"(?m)^(.*) cases exact$", text)
        self.assertEqual(words, [f"gate_placement=before: 0 of {spoilt}"])
        exact = len(self.cases) - spoilt
        self.assertIn(f"\ncases: {exact} exact, 0 within 1 ulp, {spoilt} wrong\n", text)

    def test_counts_ulps(self):
        """1 ulp up, down, across zero, to infinity and in int8; 2 ulp; and NaN for a number."""
        wanted = [1.0, -1.0, 0.0, np.finfo(np.float32).max, 1.0, 1.0, np.nan, np.inf]
        given = [1 + 2**-23, -1 + 2**-24, -0.0, np.inf, 1 + 2**-22, np.nan, 1.0, -np.inf]
        counts = check_vectors.Counts()
        fault = check_vectors.compare(
            *(check_vectors.Tensor("F32", np.array(row, "<f4")) for row in (wanted, given)), counts
        )
        self.assertEqual((counts.equal, counts.near, counts.wrong), (0, 4, 4))
        self.assertIn("[4] is 0x3f800002, not 0x3f800000", fault)
        for dtype, rows in {
            "BF16": np.array([[0x3F80, 0x8000, 0x7FC0], [0x3F81, 0x0001, 0xFFFF]], "<u2"),
            "F16": np.array([[0x3C00, 0x8000, 0x7E00], [0x3C01, 0x0001, 0xFFFF]], "<u2").view(
                "<f2"
            ),
            "F64": np.array([[1.0, -0.0, np.nan], [1 + 2**-52, 5e-324, np.nan]], "<f8"),
            "I8": np.array([[1, 127, -5], [2, 126, -5]], "i1"),
        }.items():
            counts = check_vectors.Counts()
            check_vectors.compare(*(check_vectors.Tensor(dtype, row) for row in rows), counts)
            self.assertEqual((counts.equal, counts.near, counts.wrong), (1, 2, 0), dtype)

    def test_refuses_other_files(self):
        """Another type or shape is wrong. Unknown results and broken files are errors."""
        name, (_, array) = next(iter(self.results(["norm"]).items()))
        text, status = self.run_script({name: ("BF16", array.view(np.uint16))})
        self.assertEqual(status, 1)
        self.assertRegex(text, r"is bf16 \[2, \d+\], not f32 \[2, \d+\]")
        for results, problem in (
            ({"norm.64.9999.y": ("F32", array)}, "no case has the result 'norm.64.9999.y'"),
            ({name: ("I64", array)}, "is I64, which no result is"),
            (b"short", "a .safetensors file has 8 bytes or more"),
        ):
            text, status = self.run_script(results)
            self.assertEqual((status, text.count("\n")), (2, 1), text)
            self.assertIn(problem, text)
        self.assertEqual(self.run_script({}, self.path("none"))[1], 2)

    def test_converts_bfloat16(self):
        """All numbers of bfloat16, and the roundings between two of them."""
        bits = np.arange(1 << 16, dtype=np.uint16)
        values = check_vectors.from_bfloat16(bits)
        back = check_vectors.to_bfloat16(values)
        nan = np.isnan(values)
        self.assertTrue((back == bits)[~nan].all())
        self.assertTrue(np.isnan(check_vectors.from_bfloat16(back[nan])).all())
        even = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-23], np.float32)
        self.assertEqual(check_vectors.to_bfloat16(even).tolist(), [0x3F80, 0x3F82, 0x3F81])


class Function(TestCase):
    """check() calls functions of Python."""

    def test_that_returns_what_is_wanted_is_right(self):
        """Of each fifth case; the others are not compared."""
        asked = iter(range(10**6))

        def compute(case):
            if next(asked) % 5:
                return None
            return {name: tensor.array for name, tensor in case.wanted.items()}

        report = check_vectors.check(compute, ARCHIVE)
        self.assertTrue(report.is_exact, str(report))
        self.assertGreater(len(report.compared), 200)
        operations = {one.case.operation for one in report.compared}
        self.assertEqual(operations, {"forward", "backward"})

    def test_of_another_norm_is_identified(self):
        """By the command, if there is one; test/python/test_identify.py tries the package."""
        words = "forward x=bf16 weight=bf16 y=bf16 eps=1e-05 rows=2 d=128"
        case = next(
            case for case in check_vectors.read_cases(ARCHIVE) if " ".join(case.words) == words
        )
        x, weight = map(check_vectors.from_bfloat16, case.inputs.values())
        mean = np.mean(np.float64(x) ** 2, axis=-1, keepdims=True)
        norm = check_vectors.to_bfloat16(x * np.float32(1 / np.sqrt(mean + case.options["eps"])))
        y = check_vectors.to_bfloat16(check_vectors.from_bfloat16(norm) * weight)
        results = {f"{case.name}.y": ("BF16", y)}
        os.mkdir(self.path("bin"))
        os.symlink(COMMAND, self.path("bin", "rmsnorm"))
        text, _ = self.run_script(results, PATH=self.path("bin"))
        page = read(PAGE).decode()
        shown = next(part for part in page.split("```") if "identify: " in part)
        self.assertIn(shown.strip(), text)
        self.assertNotIn(check_vectors.HINT, text)

        with open(self.path("bin", "rmsnorm.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError\n")  # no package, on any machine
        text, status = self.run_script(results, PATH="", PYTHONPATH=self.path("bin"))
        self.assertNotIn("identify: ", text)
        self.assertTrue(text.endswith(f"wrong\n{check_vectors.HINT}\n"), text)
        self.assertEqual(status, 1)

    def test_that_returns_something_else_is_refused(self):
        with self.assertRaisesRegex(ValueError, "norm.5.0 has no result 'z'"):
            check_vectors.check(lambda case: {"z": np.zeros(3)}, ARCHIVE)
        with self.assertRaisesRegex(TypeError, "y: an array of int64"):
            check_vectors.check(lambda case: {"y": np.zeros(3, np.int64)}, ARCHIVE)

    def test_of_the_page_prints_what_it_says(self):
        unpack(self.path())
        page = read(PAGE).decode()
        program = re.search(r"(?ms)^```python\n(.*?)^```", page)[1]
        command = (sys.executable, "-B", "-c", program)
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", check=True, cwd=self.path(NAME)
        )
        shown = page[page.index(program) :].split("```")[2].strip()
        self.assertIn(shown, done.stdout)


if __name__ == "__main__":
    unittest.main()

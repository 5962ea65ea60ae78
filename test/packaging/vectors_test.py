# SPDX-License-Identifier: Apache-2.0
"""The archive of golden vectors: it is reproducible, and its script tells right from wrong."""

import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import unittest

import numpy as np

ROOT = os.path.realpath(os.path.join(os.path.dirname(__file__), "../.."))
FOLDER = os.path.join(ROOT, "tools", "vectors")
SCRIPT = os.path.join(FOLDER, "check_vectors.py")
MAKER = os.path.abspath(os.environ["RMSNORM_MAKE_VECTORS"])
ARCHIVE = os.path.abspath(os.environ["RMSNORM_VECTORS_ARCHIVE"])
NAME = os.path.basename(ARCHIVE)[: -len(".tar.xz")]

sys.path.insert(0, FOLDER)
import check_vectors  # pylint: disable=wrong-import-position


def read(*path):
    return pathlib.Path(ROOT, *path).read_bytes()


PAGE = read("doc", "vectors.md").decode()


class Vectors(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = staticmethod(lambda *names: os.path.join(folder.name, *names))
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder.name)
        cls.vectors = cls.path(NAME, "vectors.safetensors")
        cls.cases = check_vectors.read_cases(cls.vectors)

    # ------------------------------------------------------------------------------ the archive

    def test_archive_same_bytes_on_another_path(self):
        vectors, archive = self.path("vectors.safetensors"), self.path(NAME + ".tar.xz")
        command = (MAKER, os.path.join(FOLDER, "list.txt"), vectors)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        sources = {"LICENSE": "LICENSE", "definition.md": "doc/definition.md"}
        sources.update({"vectors.md": "doc/vectors.md"})
        sources.update({"check_vectors.py": "tools/vectors/check_vectors.py"})
        files = [os.path.join(ROOT, path) for path in sources.values()]
        pack = os.environ["RMSNORM_PACK_VECTORS"].split(" ")
        subprocess.run([*pack, "--file=" + archive, *files, vectors], check=True, cwd=self.path())
        self.assertEqual(read(archive), read(ARCHIVE))
        self.assertLess(os.path.getsize(archive), 5e6)
        held = {name: read(self.path(NAME, name)) for name in os.listdir(self.path(NAME))}
        self.assertEqual(held.pop("vectors.safetensors"), read(vectors))
        self.assertEqual(held, {name: read(path) for name, path in sources.items()})

    def test_page_names_groups_words_and_number_of_cases(self):
        table = PAGE[PAGE.index("| group | cases |") :]
        named = re.findall(r"`(\w+)`", " ".join(re.findall(r"(?m)^\| (`.*?) \|", table)))
        self.assertEqual(sorted(named), sorted({case.group for case in self.cases}))
        number = int(re.search(r"some (\d,\d+) calls", PAGE)[1].replace(",", ""))
        self.assertAlmostEqual(len(self.cases), number, delta=50)
        words = {word for case in self.cases for pair in case.words.items() for word in pair}
        words |= {case.operation for case in self.cases}
        words |= {value for value in check_vectors.OPTIONS.values() if isinstance(value, str)}
        tables = PAGE[PAGE.index("| word |") : PAGE.index("## What is right")]
        named = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"(?m)^\|.*", tables))))
        self.assertEqual(named - words, {"op"})  # its values are the words

    # ------------------------------------------------------------------------------- the script

    def results(self):
        """Returns the right results, by name."""
        return {
            f"{case.name}.{name}": array.copy()
            for case in self.cases
            for name, array in case.wanted.items()
        }

    def run_script(self, results):
        """Returns what the script prints for some results, and its status."""
        path = self.path("results.safetensors")
        if isinstance(results, bytes):
            pathlib.Path(path).write_bytes(results)
        else:
            check_vectors.write(path, results)
        command = (sys.executable, "-B", SCRIPT, self.vectors, path)
        done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
        return done.stdout + done.stderr, done.returncode

    def test_script_needs_numpy_alone(self):
        imported = set(re.findall(r"(?m)^ *(?:import|from) (\w+)", read(SCRIPT).decode()))
        self.assertEqual(imported - sys.stdlib_module_names, {"numpy"})

    def test_right_results_of_one_group(self):
        """With other NaNs."""
        results, nans = self.results(), 0
        results = {name: results[name] for name in results if name.startswith("special_rows.")}
        for array in results.values():
            if array.dtype == np.float32:
                nans += np.isnan(array).sum()
                array.view(np.uint32)[np.isnan(array)] = 0xFFC12345
        self.assertGreater(nans, 100)
        text, status = self.run_script(results)
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"(?m)^special_rows +0 +\d+ +0 +0$")
        self.assertRegex(text, r"(?m)^norm +\d+ +0 +0 +0$")

    def test_wrong_bit_of_each_group(self):
        results, spoilt = self.results(), {}
        for name, array in results.items():
            group = name.split(".")[0]
            numbers = check_vectors.from_bfloat16(array) if array.dtype == np.uint16 else array
            if group not in spoilt and not np.isnan(numbers).any():
                spoilt[group] = name
                array.reshape(-1).view(f"<u{array.itemsize}")[-1:] ^= 8
        text, status = self.run_script(results)
        self.assertEqual(status, 1)
        for group, name in spoilt.items():
            case, result = name.rsplit(".", 1)
            self.assertRegex(text, rf"(?m)^{group} +0 +\d+ +0 +1$")
            self.assertRegex(text, rf"(?m)^{case}: .*\n  {result}: 0 of \d+ are 1 ulp away, 1 are")
        self.assertEqual(len(spoilt), len({case.group for case in self.cases}))
        right = len(self.cases) - len(spoilt)
        self.assertRegex(text, rf"(?m)^all +0 +{right} +0 +{len(spoilt)}$")

    def test_ulps(self):
        """1 ulp up, down, across zero, to infinity and in int8; 2 ulp; and NaN for a number."""
        wanted = [1.0, -1.0, 0.0, np.finfo(np.float32).max, 1.0, 1.0, np.nan, np.inf]
        given = [1 + 2**-23, -1 + 2**-24, -0.0, np.inf, 1 + 2**-22, np.nan, 1.0, -np.inf]
        verdict, fault = check_vectors.compare(*(np.array(row, "<f4") for row in (wanted, given)))
        self.assertEqual(verdict, "wrong")
        self.assertEqual(
            fault, "4 of 8 are 1 ulp away, 4 are wrong; [4] is 0x3f800002, not 0x3f800000"
        )
        halves = np.array([[0x3C00, 0x8000, 0x7E00], [0x3C01, 0x0000, 0xFFFF]], "<u2")
        for rows in (
            np.array([[0x3F80, 0x8000, 0x7FC0], [0x3F81, 0x0000, 0xFFFF]], "<u2"),
            halves.view("<f2"),
            np.array([[1.0, -0.0, np.nan], [1 + 2**-52, 0.0, np.nan]], "<f8"),
            np.array([[1, 127, -5], [2, 126, -5]], "i1"),
        ):
            verdict, fault = check_vectors.compare(*rows)
            self.assertEqual(verdict, "near", rows.dtype)
            self.assertIn("2 of 3 are 1 ulp away, 0 are wrong; [0] is", fault)

    def test_other_files_are_refused(self):
        """Another type or shape is wrong. Unknown results and broken files are errors."""
        name, array = next((name, a) for name, a in self.results().items() if a.dtype == np.float32)
        text, status = self.run_script({name: array.view("<u2")})
        self.assertEqual(status, 1)
        self.assertRegex(text, r"is bf16 \[2, \d+\], not f32 \[2, \d+\]")
        for results, problem in (
            ({"norm.64.9999.y": array}, "there is no case 'norm.64.9999'"),
            ({"norm.5.0.z": array}, "norm.5.0 has no result 'z'"),
            (b'\x15\0\0\0\0\0\0\0{"y":{"dtype":"I64"}}', "y is I64, which no result is"),
            (b"short", "a .safetensors file has 8 bytes or more"),
        ):
            text, status = self.run_script(results)
            self.assertEqual((status, text.count("\n")), (2, 1), text)
            self.assertIn(problem, text)

    def test_bfloat16(self):
        """All numbers of bfloat16, and the roundings between two of them."""
        bits = np.arange(1 << 16, dtype=np.uint16)
        values = check_vectors.from_bfloat16(bits)
        back = check_vectors.to_bfloat16(values)
        nan = np.isnan(values)
        self.assertTrue((back == bits)[~nan].all())
        self.assertTrue(np.isnan(check_vectors.from_bfloat16(back[nan])).all())
        even = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-23], np.float32)
        self.assertEqual(check_vectors.to_bfloat16(even).tolist(), [0x3F80, 0x3F82, 0x3F81])

    def test_rotate(self):
        """With a norm in NumPy it gives the results of models, whose sums of squares are exact."""

        def norm(case):
            options, inputs, dtype = case.options, case.inputs, case.inputs["x"].dtype
            x = check_vectors.to_float32(inputs["x"])
            sums = inputs.get("sums", np.square(x, dtype=np.float64).sum(axis=-1))[..., None]
            r = 1 / np.sqrt(np.float32(sums / options["divisor"] + options["eps"]))
            is_rounded = options["rounding"] == "inverse"
            n = x * (check_vectors.rounded(r, dtype) if is_rounded else r)
            n = n if options["rounding"] == "after_weight" else check_vectors.rounded(n, dtype)
            weight = check_vectors.to_float32(inputs.get("weight", np.ones(1, "<f4")))
            m = n * (np.float32(options["weight_offset"]) + weight)
            tables = inputs["cos"], inputs["sin"]
            return {"y": check_vectors.rotate(m, *tables, case.wanted["y"].dtype, options)}

        report = check_vectors.check(norm, os.path.join(ROOT, "test", "data", "rotary.safetensors"))
        self.assertTrue(report.is_exact and not report.groups["all"]["missing"], report)

    def test_program_of_the_page(self):
        program, shown = re.search(r"(?ms)^```python\n(.*?)^```.*?^```\n(.*?)^```", PAGE).groups()
        command = (sys.executable, "-B", "-c", program)
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.path(NAME), check=True
        )
        self.assertIn(shown.strip(), done.stdout)


if __name__ == "__main__":
    unittest.main()

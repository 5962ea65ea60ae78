# SPDX-License-Identifier: Apache-2.0
"""tools/report: tables have the figures of the results, and pages those of doc/data."""

import csv
import glob
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
SPEED = os.path.join(ROOT, "doc", "speed.md")


def report(*arguments):
    return subprocess.run(
        [sys.executable, "-B", os.path.join(ROOT, "tools/report"), *arguments],
        capture_output=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        check=False,
        cwd=ROOT,
    )


def texts(picture):
    elements = xml.etree.ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return ["".join(element.itertext()) for element in elements]


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def test_csv_and_summary_have_the_figures_of_a_run(self):
        """The library in another way, `apart`, is no competitor. A failed cell is left out."""
        times = {"memcpy": 100, "library": 150, "apart": 90, "torch": 300, "plain": 125}
        run = {f"{name}{end}": ns for name, ns in times.items() for end in ("_ns", "_lower_ns")}
        run.update(name="norm/f32/2x64/threads:1/target:AVX2/manual_time", run_type="iteration")
        failed = {**run, "name": run["name"].replace("f32", "bf16"), "error_occurred": True}
        with open(self.path("run.json"), "w", encoding="utf-8") as file:
            json.dump({"context": {}, "benchmarks": [run, failed]}, file)
        table = report(self.path("run.json"), "--csv").stdout
        self.assertEqual(table.splitlines()[1:], ["norm,f32,2,64,1,100,1.5,0.9,3,1.25"])
        with open(self.path("run.csv"), "w", encoding="utf-8") as file:
            file.write(table)
        for name in ("run.json", "run.csv"):
            summary = report(self.path(name), "--summary").stdout
            self.assertIn("\n| 2 x 64 | 1.50 **1.25** |\n", summary)
            self.assertIn("norm, threads 1: ahead or level (2 %) in 0 of 1 cells", summary)

    def test_the_page_on_speed_has_the_figures_of_the_tables(self):
        summaries = {}
        for path in glob.glob(os.path.join(ROOT, "doc/data/*.csv")):
            with open(path, encoding="utf-8") as file:
                if "memcpy_ns" in file.readline():
                    name = os.path.basename(path).removesuffix(".csv")
                    summaries[name] = report(path, "--summary").stdout.splitlines()
        with open(SPEED, encoding="utf-8") as file:
            text = file.read()
        rows = re.findall(r"^\| \d+ x \d+ \|.*$", text, re.M)
        self.assertGreater(len(rows), 20)
        self.assertEqual([row for row in rows if row not in sum(summaries.values(), [])], [])
        shares = re.findall(r"^\| ([\w-]+) \|((?: (?:\d+ of \d+|-) \|){3})", text, re.M)
        self.assertEqual(len(shares), 8)
        for name, columns in shares:
            for operation, share in zip(("norm", "add_norm", "backward"), columns.split("|")):
                line = f"{operation}, threads 1: ahead or level (2 %) in {share.strip()} cells"
                self.assertTrue(share == " - " or line in summaries[name], (name, line))

    def test_the_means_in_the_readme_are_those_of_the_table(self):
        ratios = {}
        with open(os.path.join(ROOT, "doc/data/zen4.csv"), encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["threads"] == "1":
                    ratio = float(row["rmsnorm"]) / float(row["fastest"])
                    ratios.setdefault((row["operation"], row["type"]), []).append(ratio)
        operations = dict.fromkeys(operation for operation, _ in ratios)
        expected = [
            [f"{statistics.geometric_mean(ratios[name, t]):.2f}" for t in ("f32", "bf16", "f16")]
            for name in operations
        ]
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
            rows = re.findall(
                r"^\|.*\| (\d\.\d\d) \| (\d\.\d\d) \| (\d\.\d\d) \|$", file.read(), re.M
            )
        self.assertCountEqual([list(row) for row in rows], expected)

    def test_the_picture_has_the_figures_of_its_table(self):
        with open(SPEED, encoding="utf-8") as file:
            line = re.search(r"^tools/report (.* --picture (?:.*\\\n)*.*)$", file.read(), re.M)[1]
        arguments = shlex.split(line.replace("\\\n", " "))
        drawn = self.path("speed.svg")
        outcome = report(*(drawn if word == "doc/speed.svg" else word for word in arguments))
        self.assertEqual((outcome.returncode, outcome.stdout), (0, ""), outcome.stderr)
        found = texts(drawn)
        self.assertIn("revision af5715a", " ".join(found))
        self.assertEqual(sorted(found), sorted(texts(os.path.join(ROOT, "doc/speed.svg"))))

    def test_a_file_without_cells_is_refused(self):
        with open(self.path("run.json"), "w", encoding="utf-8") as file:
            json.dump({"benchmarks": [{"name": "x", "run_type": "aggregate"}]}, file)
        outcome = report(self.path("run.json"), "--summary")
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("run.json holds no cell of `rmsnorm bench`", outcome.stderr)

    @unittest.skipUnless("RMSNORM_COMMAND" in os.environ, "the command is not built")
    def test_what_the_command_writes_is_read(self):
        words = [os.environ.get(name) for name in ("RMSNORM_COMMAND_WRAPPER", "RMSNORM_COMMAND")]
        options = "--shapes 3x64 --types bf16 --threads 1 --targets reference".split()
        line = [*filter(None, words), "bench", *options, "--benchmark_out=" + self.path("out.json")]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        outcome = report(self.path("out.json"), "--summary")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("| 3 x 64 | ", outcome.stdout)


if __name__ == "__main__":
    unittest.main()

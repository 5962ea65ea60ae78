# SPDX-License-Identifier: Apache-2.0
"""tools/report: tables have the figures of the results, and pages those of doc/data."""

import csv
import glob
import importlib.util
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


def report(*arguments, status=0):
    line = [sys.executable, "-B", os.path.join(ROOT, "tools/report"), *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    outcome = subprocess.run(
        line, capture_output=True, encoding="utf-8", env=environment, check=False, cwd=ROOT
    )
    assert outcome.returncode == status, outcome.stderr
    return outcome.stdout


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def texts(picture):
    elements = xml.etree.ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return sorted("".join(element.itertext()) for element in elements)


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def test_csv_and_summary_of_a_run(self):
        """The library in another way, `apart`, is no competitor. A failed cell is left out."""
        times = {"memcpy": 100, "library": 150, "apart": 90, "torch": 300, "plain": 125}
        run = {f"{name}{end}": ns for name, ns in times.items() for end in ("_ns", "_lower_ns")}
        run.update(name="norm/f32/2x64/threads:1/target:AVX2/manual_time", run_type="iteration")
        failed = {**run, "name": run["name"].replace("f32", "bf16"), "error_occurred": True}
        for name, cells in {"run.json": [run, failed], "none.json": [failed]}.items():
            with open(self.path(name), "w", encoding="utf-8") as file:
                json.dump({"context": {}, "benchmarks": cells}, file)
        table = report(self.path("run.json"), "--csv")
        self.assertEqual(table.splitlines()[1:], ["norm,f32,2,64,1,100,1.5,0.9,3,1.25"])
        with open(self.path("run.csv"), "w", encoding="utf-8") as file:
            file.write(table)
        for name in ("run.json", "run.csv"):
            summary = report(self.path(name), "--summary")
            self.assertIn("\n| 2 x 64 | 1.50 **1.25** |\n", summary)
            self.assertIn("norm, threads 1: ahead or level (2 %) in 0 of 1 cells", summary)
        report(self.path("none.json"), "--summary", status=1)

    def test_the_page_on_speed(self):
        summaries = {}
        for path in glob.glob(os.path.join(ROOT, "doc/data/*.csv")):
            if "memcpy_ns" in read(path).splitlines()[0]:
                name = os.path.basename(path).removesuffix(".csv")
                summaries[name] = report(path, "--summary").splitlines()
        text = read("doc/speed.md")
        rows = re.findall(r"^\| \d+ x \d+ \|.*$", text, re.M)
        self.assertGreater(len(rows), 20)
        self.assertEqual([row for row in rows if row not in sum(summaries.values(), [])], [])
        shares = re.findall(r"^\| ([\w-]+) \|((?: (?:\d+ of \d+|-) \|){3})", text, re.M)
        self.assertEqual(len(shares), 8)
        for name, columns in shares:
            for operation, share in zip(("norm", "add_norm", "backward"), columns.split("|")):
                line = f"{operation}, threads 1: ahead or level (2 %) in {share.strip()} cells"
                self.assertTrue(share == " - " or line in summaries[name], (name, line))

    def test_the_means_in_the_readme(self):
        ratios = {}
        for row in csv.DictReader(read("doc/data/zen4.csv").splitlines()):
            if row["threads"] == "1":
                ratio = float(row["rmsnorm"]) / float(row["fastest"])
                ratios.setdefault((row["operation"], row["type"]), []).append(ratio)
        means = {key: f"{statistics.geometric_mean(found):.2f}" for key, found in ratios.items()}
        operations = dict.fromkeys(operation for operation, _ in means)
        expected = [tuple(means[o, t] for t in ("f32", "bf16", "f16")) for o in operations]
        figures = r"^\|.*\| (\d\.\d\d) \| (\d\.\d\d) \| (\d\.\d\d) \|$"
        self.assertCountEqual(re.findall(figures, read("README.md"), re.M), expected)

    @unittest.skipUnless(importlib.util.find_spec("matplotlib"), "no matplotlib here")
    def test_the_picture(self):
        line = re.search(r"^tools/report (.* --picture (?:.*\\\n)*.*)$", read("doc/speed.md"), re.M)
        words = shlex.split(line[1].replace("\\\n", " "))
        drawn = self.path("speed.svg")
        report(*(drawn if word == "doc/speed.svg" else word for word in words))
        self.assertEqual(texts(drawn), texts(os.path.join(ROOT, "doc/speed.svg")))


if __name__ == "__main__":
    unittest.main()

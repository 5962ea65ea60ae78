# SPDX-License-Identifier: Apache-2.0
"""tools/report: pages have the figures of the tables in doc/data."""

import csv
import glob
import importlib.util
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


def report(*arguments):
    line = [sys.executable, "-B", os.path.join(ROOT, "tools/report"), *arguments]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    options = {"encoding": "utf-8", "env": environment, "check": True, "cwd": ROOT}
    return subprocess.run(line, stdout=subprocess.PIPE, **options).stdout


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def texts(picture):
    elements = xml.etree.ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")
    return sorted("".join(element.itertext()) for element in elements)


class Report(unittest.TestCase):
    def test_competitors(self):
        """The library in another way, `apart`, is no competitor."""
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write("operation,type,rows,d,threads,memcpy_ns,rmsnorm,apart,torch,plain\n")
            table.write("norm,f32,2,64,1,100,1.5,0.9,3,1.25\n")
            table.flush()
            summary = report(table.name, "--summary")
        self.assertIn("\n| 2 x 64 | 1.50 **1.25** |\n", summary)
        self.assertIn("norm, threads 1: ahead or level (2 %) in 0 of 1 cells", summary)

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
        with tempfile.NamedTemporaryFile(suffix=".svg") as drawn:
            report(*(drawn.name if word == "doc/speed.svg" else word for word in words))
            self.assertEqual(texts(drawn.name), texts(os.path.join(ROOT, "doc/speed.svg")))


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""tools/report: pages have the figures of a table in doc/data."""

import importlib.machinery
import os
import pathlib
import re
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
report = importlib.machinery.SourceFileLoader(
    "report", os.path.join(ROOT, "tools/report")
).load_module()


def read(name):
    return pathlib.Path(ROOT, name).read_text(encoding="utf-8")


class Report(unittest.TestCase):
    def test_competitors(self):
        """The library in another way or by another compiler is no competitor."""
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            names = "rmsnorm,prepared,apart,clang-19,torch,plain"
            table.write(f"operation,type,rows,d,threads,memcpy_ns,{names}\n")
            table.write("norm,f32,2,64,1,100,1.5,1,0.8,0.5,3,1.2\n")
            table.flush()
            (row,) = report.read([table.name])
        self.assertEqual(report.fastest(row), ("plain", 1.2))
        tables = "".join(report.cell_tables([row], {"rmsnorm": "", "prepared": ", prepared"}))
        self.assertIn("\n| 2 x 64 | **0.80** |\n| 2 x 64, prepared | 1.20 |", tables)
        self.assertIn("\n| norm | 0.80 | - | - |", report.means_table([row]))
        self.assertEqual(report.share([1.2, 1.01, 0.9]), "ahead in 1 of 3 cells and level (2 %) in 1")

    def test_the_median_of_several_runs(self):
        name = "norm/f32/2x64/threads:1/target:AVX2/iterations:1/manual_time"
        counters = {"memcpy_ratio": 2, "library_ratio": 1, "memcpy_ns": 10}
        runs = [{"name": name, **counters, "library_ns": ns} for ns in (30, 90, 20)]
        self.assertEqual(report.medians(runs)["rmsnorm"], "3")

    def test_the_pages(self):
        (table,) = re.findall("<!-- figures of (.*) -->", read("README.md"))
        for name, text in report.pages(os.path.join(ROOT, table)).items():
            self.assertEqual(text.splitlines(), read(name).splitlines(), name)


if __name__ == "__main__":
    unittest.main()

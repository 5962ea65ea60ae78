# SPDX-License-Identifier: Apache-2.0
"""tools/report: its tables match the results, and its picture has every contender and shape."""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

REPORT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../tools/report")


def cell(operation, dtype, shape, threads, library, **others):
    """Returns a benchmark with these multiples of memcpy's time, which is 100 ns."""
    run = {
        "name": f"{operation}/{dtype}/{shape}/threads:{threads}/target:AVX3_DL/iterations:1/manual_time",
        "run_type": "iteration",
        "rounds": 9.0,
    }
    for name, multiple in {"library": library, "memcpy": 1, **others}.items():
        name = name if name == "one_thread" else name.replace("_", "-")
        run.update({f"{name}_lower_ns": 90 * multiple, f"{name}_ns": 100 * multiple})
        run.update({f"{name}_upper_ns": 110 * multiple, f"{name}_ratio": library / multiple})
    return run


def results(*runs):
    context = {
        "date": "2026-01-02T03:04:05+00:00",
        "cpu": "Example",
        "rmsnorm": "0.1.0",
        "highway": "1.0.3",
    }
    return {"context": context, "benchmarks": list(runs)}


PLAIN = {"plain": 12, "plain_gcc_256": 1.25, "plain_clang_512": 1.75}

RESULTS = results(
    *(
        cell("norm", dtype, shape, threads, 1.5 / threads, torch=3, **ways, **PLAIN)
        for dtype in ("f32", "bf16", "f16")
        for shape in ("1x64", "1x4096", "32x4096")
        for threads, ways in ((1, {}), (2, {"one_thread": 1.2}))
    ),
    cell("layernorm", "f32", "1x64", 1, 1.5, plain=18, plain_gcc_256=2.5),
    {
        "name": "backward/f32/1x64/threads:1/target:AVX3_DL",
        "run_type": "iteration",
        "error_occurred": True,
    },
)


class Report(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def report(self, content, *options):
        with open(self.path("run.json"), "w", encoding="utf-8") as file:
            json.dump(content, file)
        line = [sys.executable, "-B", REPORT, self.path("run.json"), *options]
        environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(line, capture_output=True, encoding="utf-8", env=environment)

    def test_tables(self):
        outcome = self.report(RESULTS, "--markdown")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        lines = outcome.stdout.splitlines()
        self.assertEqual(lines[0], "rmsnorm 0.1.0, Example, Highway 1.0.3, 2026-01-02")
        one = lines.index("norm, 1 thread, multiples of memcpy:")
        self.assertEqual(
            lines[one + 2], "| type | rows x d | time | rmsnorm | torch | plain | plain, -ffast-math |"
        )
        self.assertEqual(
            lines[one + 4], "| f32 | 1 x 64 | 150 ns | 1.50 | 3.00 | 12.00 | **1.25** |"
        )
        two = lines.index("norm, 2 threads, multiples of memcpy:")
        self.assertEqual(
            lines[two + 4], "| f32 | 1 x 64 | 75 ns | **0.75** | 1.20 | 3.00 | 12.00 | 1.25 |"
        )
        # 1.2 / 0.75
        self.assertIn("| norm | 32 x 4096 | 1.60 | 1.60 | 1.60 |", lines)
        # 18 / 12 and 2.5 / 1.25
        self.assertEqual(lines[-1], "| f32 | 1 x 64 | 1.50 | 2.00 |")
        self.assertNotIn("backward", outcome.stdout)

    def test_summary(self):
        outcome = self.report(RESULTS, "--summary")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        lines = outcome.stdout.splitlines()
        heads = "| rows x d | norm f32 | norm bf16 | norm f16 | layernorm f32 |"
        self.assertIn(heads, lines)
        self.assertIn("| 1 x 64 | 1.50 **1.25** | 1.50 **1.25** | 1.50 **1.25** | **1.50** 2.50 |", lines)
        self.assertIn("| 32 x 4096 | 1.50 **1.25** | 1.50 **1.25** | 1.50 **1.25** | - |", lines)
        self.assertIn("norm: ahead or level (2 %) in 0 of 9 cells", lines)
        self.assertEqual(lines[-1], "layernorm: ahead or level (2 %) in 1 of 1 cells")

    def test_the_library_itself_is_no_other(self):
        """`apart` and `one_thread` have columns of their own and are never the best."""
        content = results(
            cell("post_norm", "f32", "1x64", 1, 2, apart=1, plain_gcc_256=2.03),
            cell("post_norm", "f32", "3x64", 1, 2, apart=3, plain_gcc_256=1.5),
        )
        lines = self.report(content, "--summary").stdout.splitlines()
        self.assertIn("| rows x d | post_norm f32 | post_norm f32 apart |", lines)
        self.assertIn("| 1 x 64 | **2.00** 2.03 | 1.00 |", lines)
        self.assertEqual(lines[-1], "post_norm: ahead or level (2 %) in 1 of 2 cells")
        lines = self.report(content, "--markdown").stdout.splitlines()
        self.assertIn("| type | rows x d | time | rmsnorm | apart | plain, -ffast-math |", lines)
        self.assertIn("| f32 | 1 x 64 | 200 ns | **2.00** | 1.00 | 2.03 |", lines)

    def test_summary_of_builds(self):
        """One number for each file."""
        builds = results(
            cell("norm", "f32", "1x64", 1, 1.5, older=1.8), cell("int8", "f32", "1x64", 1, 2.5)
        )
        with open(self.path("first.json"), "w", encoding="utf-8") as file:
            json.dump(results(cell("norm", "f32", "1x64", 1, 2, older=1.5)), file)
        outcome = self.report(builds, self.path("first.json"), "--summary")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual(outcome.stdout.splitlines()[-1], "| 1 x 64 | 1.20 0.75 | 2.50 |")

    def test_picture(self):
        for name in ("a.svg", "b.svg"):
            outcome = self.report(RESULTS, "-o", self.path(name))
            self.assertEqual((outcome.returncode, outcome.stdout), (0, ""), outcome.stderr)
        with open(self.path("a.svg"), encoding="utf-8") as first, open(
            self.path("b.svg"), encoding="utf-8"
        ) as second:
            text = first.read()
            self.assertEqual(text, second.read())  # the picture is kept in the repository
        xml.etree.ElementTree.fromstring(text)
        # Texts in the picture are comments beside their outlines.
        for word in (
            "rmsnorm",
            "plain, -ffast-math",
            "torch",
            "32 x 4096",
            "norm, f16, one thread",
            "gain of 2 threads",
        ):
            self.assertIn(f"<!-- {word} -->", text)
        self.assertNotIn("plain-gcc-256", text)

    def test_picture_names_a_contender_of_one_type(self):
        content = results(
            cell("norm", "f32", "1x64", 1, 1.5, torch=3),
            cell("norm", "bf16", "1x64", 1, 1.5, torch=3, short=2),
        )
        outcome = self.report(content, "-o", self.path("a.svg"))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        with open(self.path("a.svg"), encoding="utf-8") as file:
            self.assertIn("<!-- short -->", file.read())

    def test_of_the_fast_plain_loops_the_best_is_shown(self):
        loader = importlib.machinery.SourceFileLoader("report", REPORT)
        report = importlib.util.module_from_spec(importlib.util.spec_from_loader("report", loader))
        loader.exec_module(report)
        shown = report.shown(report.Cell(RESULTS["benchmarks"][0]))
        self.assertEqual(
            shown, {"rmsnorm": 1.5, "torch": 3, "plain": 12, "plain, -ffast-math": 1.25}
        )

    def test_no_cells(self):
        outcome = self.report(results({"name": "x", "run_type": "aggregate"}))
        self.assertEqual(outcome.returncode, 1)
        self.assertIn("holds no cell", outcome.stderr)

    @unittest.skipUnless("RMSNORM_COMMAND" in os.environ, "the command is not built")
    def test_takes_what_the_command_writes(self):
        words = [os.environ.get(name) for name in ("RMSNORM_COMMAND_WRAPPER", "RMSNORM_COMMAND")]
        options = "--shapes 3x64 --types bf16 --threads 1 --targets reference".split()
        line = [*filter(None, words), "bench", *options, "--benchmark_out=" + self.path("out.json")]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        with open(self.path("out.json"), encoding="utf-8") as file:
            outcome = self.report(json.load(file), "--markdown", "-o", self.path("out.svg"))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("| bf16 | 3 x 64 | ", outcome.stdout)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""What the tests of tools/report and tools/perf share: small results, as `rmsnorm bench --json`
writes them, and running a script."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools")


def benchmark(
    dtype, shape, multiple, *, operation="forward", threads=1, target="AVX3_DL", more="", **others
):
    """A cell with these multiples of memcpy's time, which is 100 ns. The quartiles are 10 % off."""
    name = f"{operation}/{dtype}/{shape}/threads:{threads}/target:{target}{more}"
    rows, d = (int(number) for number in shape.split("x"))
    run = {
        "name": name + "/iterations:1/manual_time",
        "run_name": name + "/iterations:1/manual_time",
        "run_type": "iteration",
        "bytes_per_second": 2 * rows * d * (4 if dtype == "f32" else 2) / (multiple * 100e-9),
        "rounds": 9.0,
        "threads_used": float(threads),
    }
    times = {"library": multiple, "memcpy": 1, "reference": 20 * multiple, **others}
    for contender, value in times.items():
        contender = contender.replace("_", "-")
        run[contender + "_lower_ns"] = 90 * value
        run[contender + "_ns"] = 100 * value
        run[contender + "_upper_ns"] = 110 * value
    return run


def failed_benchmark(dtype, shape, **options):
    run = benchmark(dtype, shape, 1, **options)
    kept = {key: run[key] for key in ("name", "run_name", "run_type")}
    return {**kept, "error_occurred": True, "error_message": "row 1 <differs>"}


def results(*benchmarks, **context):
    return {
        "context": {
            "date": "2026-01-02T03:04:05+00:00",
            "num_cpus": 2,
            "mhz_per_cpu": 3000,
            "caches": [
                {"type": "Data", "level": 1, "size": 49152},
                {"type": "Instruction", "level": 1, "size": 32768},
                {"type": "Unified", "level": 2, "size": 1048576},
            ],
            "load_avg": [0.5, 0.25, 0.1],
            "cpu": "Example <CPU>",
            "highway": "1.0.3",
            "openmp": "yes",
            "rmsnorm": "0.1.0",
            "threads": "2",
            **context,
        },
        "benchmarks": list(benchmarks),
    }


class ScriptTest(unittest.TestCase):
    """Each test has a directory of its own."""

    def setUp(self):
        with contextlib.ExitStack() as stack:
            self.directory = stack.enter_context(tempfile.TemporaryDirectory())
            self.addCleanup(stack.pop_all().close)

    def path(self, name):
        return os.path.join(self.directory, name)

    def write(self, name, content):
        """Text as it is, anything else as JSON. Returns the path."""
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8") as file:
            return file.read()

    def run_script(self, script, *arguments):
        return subprocess.run(
            [sys.executable, "-B", os.path.join(TOOLS, script), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            # The texts are UTF-8 in the locale C, too.
            env={**os.environ, "PYTHONIOENCODING": "utf-8"},
        )

    def expect_problem(self, outcome, script, *problems):
        """Status 2, and one line on standard error that names the problem."""
        self.assertEqual(outcome.returncode, 2, outcome.stderr)
        self.assertEqual(outcome.stderr.count("\n"), 1, outcome.stderr)
        self.assertTrue(outcome.stderr.startswith(f"tools/{script}: "), outcome.stderr)
        for problem in problems:
            self.assertIn(problem, outcome.stderr)

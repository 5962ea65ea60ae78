# SPDX-License-Identifier: Apache-2.0
"""`rmsnorm bench`: its table and tools/report have the figures of its file; wrong use is refused. No
test depends on times. RMSNORM_PEERS is the folder of the plug-ins, RMSNORM_LIBRARY the library if it
is shared."""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

COMMAND = [os.environ.get("RMSNORM_COMMAND_WRAPPER"), sys.argv.pop()]
LIBRARY = os.environ.get("RMSNORM_LIBRARY")
FIGURE = r"(?:[\d.]+ (?:ns|us|ms|s)|-|WRONG)"
ROW = re.compile(
    rf"(\w+) +(\w+) +(\d+) x (\d+) +(\d+) +({FIGURE}) +({FIGURE}) +({FIGURE}) +([\d.]+)"
    rf"((?: +{FIGURE})*) +([\d.]+|-)([ *]) reference"
)


def peer(name):
    return os.path.join(os.environ["RMSNORM_PEERS"], f"libtest_peer_{name}.so")


def bench(*options):
    line = [*filter(None, COMMAND), "bench", *options]
    return subprocess.run(line, capture_output=True, encoding="utf-8", check=False)


def digits(value):
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def duration(ns):
    power = next(p for p in range(4) if ns / 1000**p < 999.5 or p == 3)
    return f"{digits(ns / 1000**power)} {('ns', 'us', 'ms', 's')[power]}"


class Bench(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = lambda name: os.path.join(folder.name, name)

    def cells(self, *options, status=0):
        out = self.path("bench.json")
        few = "--threads 1 --targets reference --benchmark_out=".split()
        outcome = bench(*options, *few[:-1], few[-1] + out)
        self.assertEqual((outcome.returncode, outcome.stderr), (status, ""), outcome.stdout)
        with open(out, encoding="utf-8") as file:
            return json.load(file), outcome.stdout

    def test_the_table_has_the_figures_of_the_file(self):
        others = ["prepared", "apart", "test"]
        more = ["--prepared", "--peer", peer("good")]
        if LIBRARY:  # a copy: dlopen() would return the library that the command has loaded
            shutil.copy(LIBRARY, self.path("older.so"))
            more += ["--older", self.path("older.so")]
            others.insert(2, "older")
        for read, words in (
            ([], "--operations norm,post_norm,int8 --shapes 1x64,300x512 --types f32,bf16"),
            (["--read"], "--operations norm,post_norm --shapes 3x64 --types bf16"),
        ):
            result, text = self.cells(*words.split(), *more, *read)
            lines = text.splitlines()
            self.assertIn(result["context"]["cpu"], lines[0])
            self.assertEqual("results are read" in lines[0], bool(read))
            self.assertEqual(re.split(" {2,}", lines[1])[-len(others) - 2 : -2], others)
            factors = {}
            self.assertEqual(len(result["benchmarks"]), 2 if read else 12)
            for line, cell in zip(lines[2:], result["benchmarks"]):
                self.assertLessEqual(len(line) - 10 * len(others), 100)
                operation, dtype, rows, d, threads, *figures, mark = ROW.fullmatch(line).groups()
                name = f"{operation}/{dtype}/{rows}x{d}/threads:{threads}/target:reference"
                self.assertIn(name + ("/read/" if read else "/iter"), cell["name"])
                named = dict(zip(("memcpy", "plain", "library"), figures))
                named.update(zip(others, re.findall(FIGURE, figures[4])))
                for contender, figure in named.items():
                    ns = cell.get(contender + "_ns")
                    self.assertEqual(figure, "-" if ns is None else duration(ns), (name, contender))
                self.assertIn("plain_ns", cell)
                self.assertEqual("apart_ns" in cell, operation == "post_norm")
                self.assertIn("prepared_ns", cell)
                # int8 writes y as well.
                size = {"f32": 4, "bf16": 2}[dtype]
                row = {"norm": 2 * size, "post_norm": 4 * size, "int8": 2 * size + 1}[operation]
                rate = row * int(rows) * int(d) / cell["library_ns"]
                self.assertEqual(figures[3], digits(rate))
                self.assertAlmostEqual(cell["bytes_per_second"] / 1e9 / rate, 1, 5)
                self.assertAlmostEqual(cell["real_time"] / cell["library_ns"], 1, 5)
                self.assertEqual((cell["library_ratio"], cell["threads_used"]), (1, 1))
                self.assertGreater(cell["memcpy_ratio"], 1)
                self.assertGreaterEqual(cell["rounds"], 9)
                far = any(
                    cell[key] > 1.5 * cell[key.replace("upper", "lower")]
                    for key in cell
                    if key.endswith("_upper_ns")
                )
                self.assertEqual(mark, "*" if far else " ", line)
                if figures[5] != "-":
                    factor = cell["plain_ns"] / cell["library_ns"]
                    self.assertEqual(figures[5], digits(factor))
                    factors.setdefault(dtype, []).append(math.log(factor))
            for dtype, logs in factors.items():
                mean = digits(math.exp(sum(logs) / len(logs)))
                self.assertIn(f"{dtype}: {mean} times faster than plain loops on 1 thread (", text)

    def test_a_wrong_peer_has_no_time(self):
        words = ["--peer", peer("idle"), "--shapes", "3x64", "--types", "f32,bf16"]
        result, text = self.cells(*words, status=1)
        self.assertIn(" WRONG ", text)
        self.assertRegex(text, "\nnorm/f32/.*: idle is wrong: y\\[0, 0\\] is -?nan, not ")
        self.assertIn("\nidle: f32 only\n", text)
        cell = result["benchmarks"][0]
        self.assertNotIn("idle_ns", cell)
        report = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/report")
        line = [sys.executable, "-B", report, self.path("bench.json"), "--csv"]
        table = subprocess.run(line, stdout=subprocess.PIPE, encoding="utf-8", check=True).stdout
        row = dict(zip(*(line.split(",") for line in table.splitlines()[:2])))
        self.assertEqual(row["memcpy_ns"], f"{cell['memcpy_ns']:.4g}")
        self.assertEqual(row["rmsnorm"], f"{cell['library_ns'] / cell['memcpy_ns']:.6g}")

    def test_a_call_is_timed(self):
        line = "forward,x+y=$T,weight=f16,rows=$R,d=$D/2,call=module;forward,x=f16,y=f32,rows=3,d=5"
        _, text = self.cells("--call", line, "--shapes", "4x64", "--types", "f32,f16")
        rows = [ROW.fullmatch(row).groups()[:4] for row in text.splitlines()[2:4]]
        self.assertEqual(rows, [("call", "f32", "4", "32"), ("call", "f16", "4", "32")])

    def test_cells_have_distinct_names(self):
        words = "--operations latent --shapes 3x2112,3x2048 --types f16 --threads 1,1 --targets all"
        names = bench(*words.split(), "--benchmark_list_tests").stdout.splitlines()
        self.assertEqual(len(names), len(set(names)))
        self.assertTrue(names[0].startswith("latent/f16/3x2112/threads:1/target:"), names)

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full here")
    def test_a_full_disk(self):
        outcome = bench("--shapes=1x8", "--threads=1", "--benchmark_out=/dev/full")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("--benchmark_out: writing to /dev/full failed", outcome.stderr)

    def test_wrong_use_is_refused(self):
        for words, message in (
            ("--frobnicate", "'--frobnicate'"),
            ("--benchmark_frobnicate=1", "'--benchmark_frobnicate=1'"),
            ("--benchmark_out=/", "--benchmark_out: / cannot be written"),
            ("--benchmark_repetitions=0", "'0' is not a number from 1"),
            ("--benchmark_filter=none", "none"),
            ("--operations gate_before --shapes 4x100", "gate_before needs, in forward,"),
            ("--operations int8_128 --shapes 4x192", "int8_128 needs, in forward,"),
            ("--shapes 0x64", "--shapes: '0x64'"),
            ("--shapes 65536x65537", "2^28"),
            ("--threads two", "'two'"),
            ("--threads 4097", "'4097' is neither from 1 to 4096 nor 'all'"),
            ("--operations norm --call forward,rows=1,d=8", "--operations"),
            ("--call forward,x=f3,rows=1,d=8", "--call: 'f3' is no value for 'x'"),
            ("--call forward,rows=1,d=8,threads=1", "--call: 'threads' is for `rmsnorm check`"),
            ("--call forward,rows=$R/7,d=1 --shapes 1x64", "--shapes: none has the multiples"),
            ("--call forward,rows=1,d=$D/0", "'$D/0' has no value from 1 to 2^28"),
            ("--call forward,rows=1,d=$D*2*67108864", "'$D*2*67108864' has no value from 1 to"),
            (f"--peer {__file__}", "cannot be loaded: "),
            ("--peer " + peer("version"), "is made for version 1 of bench/peers/peer.h, not 5"),
            (f"--peer {peer('good')} --peer {peer('good')}", "the name 'test' is taken"),
            ("--older " + peer("good"), "has no function rmsnorm_"),
        ):
            outcome = bench(*words.split())
            self.assertEqual((outcome.returncode, outcome.stdout), (2, ""), words)
            self.assertIn(message, outcome.stderr)


if __name__ == "__main__":
    unittest.main()

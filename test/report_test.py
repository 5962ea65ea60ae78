# SPDX-License-Identifier: Apache-2.0
"""tools/report: the page says what the results do, is well-formed, and needs nothing else."""

import html.parser
import os
import re
import subprocess
import unittest
import xml.etree.ElementTree

from bench_json import ScriptTest, benchmark, failed_benchmark, results

VOID = {"meta", "br", "link", "hr", "img", "input"}


class Page(html.parser.HTMLParser):
    """Checks that the elements nest, and takes the page apart."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.elements = []  # name and attributes
        self.rows = []  # of all tables, as the texts of their cells
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if "style" in self.open:
            return
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.rows[-1][-1] += data

    def rows_with(self, *texts):
        return [row for row in self.rows if row[: len(texts)] == list(texts)]


def table_of_cells():
    cells = []
    for dtype, base in (("f32", 1.25), ("bf16", 2.5), ("f16", 3.5)):
        for shape in ("1x4096", "4096x128", "8192x4096"):
            for threads in (1, 2):
                others = {"plain": 4 * base, "torch_like": 1.5 * base, "ünï": 0.5 * base}
                cells.append(benchmark(dtype, shape, base, threads=threads, **others))
    return cells


class Report(ScriptTest):
    def report(self, *contents):
        files = [self.write(f"r{i}.json", content) for i, content in enumerate(contents)]
        outcome = self.run_script("report", *files, "-o", self.path("report.html"))
        self.assertEqual((outcome.returncode, outcome.stdout, outcome.stderr), (0, "", ""))
        text = self.read("report.html")
        page = Page(text)
        self.assertEqual(page.open, [])
        for name, attributes in page.elements:
            self.assertNotIn(name, ("script", "link", "img", "iframe", "object"))
            for attribute in ("src", "srcset", "xlink:href"):
                self.assertNotIn(attribute, attributes)
            self.assertTrue(attributes.get("href", "#").startswith("#"), attributes)
        self.assertIsNone(re.search(r"https?:|src=|url\(|@import", text))
        ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
        self.assertEqual(len(ids), len(set(ids)))
        for _, attributes in page.elements:
            if "href" in attributes:
                self.assertIn(attributes["href"][1:], ids)
        self.svgs = [
            xml.etree.ElementTree.fromstring(svg)
            for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL)
        ]
        self.assertEqual(len(self.svgs), text.count("<svg"))
        self.assertNotIn("nan", text)
        return page

    def marks(self):
        """The titles of all marks."""
        return [title.text for svg in self.svgs for title in svg.iter("title")]

    def test_the_table_has_every_cell(self):
        page = self.report(results(*table_of_cells()))
        for dtype, base in (("f32", 1.25), ("bf16", 2.5), ("f16", 3.5)):
            for shape in ("1 × 4096", "4096 × 128", "8192 × 4096"):
                rows = page.rows_with(dtype, shape, f"{base:.2f}")
                self.assertEqual(len(rows), 2, (dtype, shape))  # of 1 and 2 threads
                expected = f"{0.9 * base:.2f}–{1.1 * base:.2f}"
                self.assertEqual(rows[0][3:6], [expected, "▾ 0.50", f"{100 * base:.0f} ns"])
                # plain, the two others, and the reference
                values = [4 * base, 1.5 * base, 0.5 * base]
                self.assertEqual(rows[0][7:10], [f"{value:.2f}" for value in values])
                self.assertEqual(rows[0][10], f"{20 * base:.1f}")
        # x read and y written: 2 * 4096 * 4 bytes in 125 ns
        self.assertEqual(page.rows_with("f32", "1 × 4096")[0][6], "262")

    def test_says_what_was_measured_where_and_how(self):
        page = self.report(results(*table_of_cells()))
        for text in (
            "Example <CPU>",
            "L1d 48 KiB, L2 1 MiB",
            "3000 MHz",
            "2026-01-02 03:04 UTC, load 0.50 at the start",
            "0.1.0",
            "1.0.3",
            "(here 9)",
            "AVX3_DL",
        ):
            self.assertIn(text, page.text)

    def test_marks_say_their_numbers(self):
        self.report(results(*table_of_cells()))
        marks = self.marks()
        own = (
            "f32 1 × 4096, 1 thread, AVX3_DL\n"
            "library: 1.25 × memcpy (quartiles 1.12 to 1.38), 125 ns"
        )
        self.assertEqual(marks.count(own), 2)  # among the multiples and beside the others
        self.assertEqual(len([mark for mark in marks if "\ntorch-like: " in mark]), 18)
        self.assertEqual(
            len([mark for mark in marks if "times as fast with 2 threads" in mark]), 18
        )

    def test_speed_up_of_threads(self):
        page = self.report(
            results(
                benchmark("f32", "64x64", 3.0, threads=1),
                benchmark("f32", "64x64", 2.0, threads=2),
                benchmark("f32", "64x64", 1.6, threads=4),
            )
        )
        row = ["f32", "64 × 64", "300 ns", "160 ns", "4", "1.88", "1.70–2.08", "1.00"]
        self.assertIn(row, page.rows)

    def test_one_cell_with_nothing_to_compare(self):
        page = self.report(results(benchmark("bf16", "1x64", 1.0)))
        self.assertEqual(len(page.rows_with("bf16", "1 × 64")), 1)
        self.assertNotIn("Threads", [text for text in page.text.split("\n")])
        self.assertNotIn("lead", page.rows[0])

    def test_a_cell_without_memcpy_has_its_time(self):
        run = benchmark("f32", "1x64", 2.0)
        for counter in ("memcpy_ns", "memcpy_lower_ns", "memcpy_upper_ns"):
            del run[counter]
        page = self.report(results(run))
        self.assertEqual(page.rows_with("f32", "1 × 64")[0][2:5], ["–", "–", "200 ns"])

    def test_operations_and_variants_have_sections(self):
        page = self.report(
            results(
                benchmark("f32", "1x64", 1.0, operation="layernorm"),
                benchmark("f32", "1x64", 1.0, operation="some_thing"),
                benchmark("f32", "1x64", 1.0, more="/cold"),
                benchmark("f32", "1x64", 1.0),
            )
        )
        for title in ("LayerNorm", "Some thing", "Forward, cold", "Forward"):
            self.assertIn(title, page.text)
        self.assertIn("Cold.", page.text)
        self.assertEqual(len(page.rows_with("f32", "1 × 64")), 4)

    def test_layer_norm_has_rms_norm_beside_it(self):
        page = self.report(
            results(
                benchmark("f32", "1x64", 1.2, operation="layernorm", plain=3.6, rmsnorm=1.0),
                benchmark("f32", "1x64", 1.0, plain=2.0),
            )
        )
        heads = page.rows_with("type", "rows × d", "× memcpy", "quartiles", "lead")
        self.assertEqual(
            [row[5:] for row in heads],
            [
                ["time", "GB/s", "plain", "reference"],
                ["× RMSNorm", "time", "GB/s", "RMSNorm", "plain", "reference"],
            ],
        )
        row = page.rows_with("f32", "1 × 64", "1.20")[0]
        # The lead is over the loops: RMSNorm is no rival of LayerNorm.
        self.assertEqual(row[4:], ["3.00", "1.20", "120 ns", "4.27", "1.00", "3.60", "24.0"])
        marks = [mark for mark in self.marks() if "RMSNorm" in mark]
        self.assertEqual(len(marks), 1)
        self.assertIn("\nRMSNorm: 1.00 × memcpy", marks[0])
        self.assertNotIn("rmsnorm:", "".join(self.marks()))
        self.assertIn("× RMSNorm is", page.text)

    def test_several_targets(self):
        page = self.report(
            results(benchmark("f32", "1x64", 1.5, target="AVX2"), benchmark("f32", "1x64", 1.25))
        )
        self.assertEqual(page.rows_with("f32", "1 × 64", "AVX2")[0][3], "1.50")
        self.assertEqual(page.rows_with("f32", "1 × 64", "AVX3_DL")[0][3], "1.25")
        self.assertIn("AVX3_DL and AVX2", page.text)

    def test_a_failed_cell_says_why(self):
        page = self.report(results(failed_benchmark("f32", "1x64"), benchmark("bf16", "1x64", 1.0)))
        self.assertEqual(page.rows_with("f32"), [["f32", "1 × 64", "failed: row 1 <differs>"]])
        self.assertIn("of 2 cells failed", page.text)

    def test_all_cells_failed(self):
        page = self.report(results(failed_benchmark("f32", "1x64")))
        self.assertIn("failed: row 1 <differs>", page.text)

    def sweep(self, *ds):
        return [
            benchmark(dtype, f"{65536 // d}x{d}", 2.0, plain=3.0)
            for dtype in ("f32", "f16")
            for d in ds
        ]

    def test_a_sweep_is_drawn_as_curves(self):
        sweep = self.sweep(16, 64, 100, 256, 1000, 4096)
        page = self.report(results(benchmark("f32", "1x64", 1.0)), results(*sweep))
        self.assertIn("GB/s over d, 1 thread: about 65 000 elements", page.text)
        # type, target, d, rows, GB/s, quartiles, memcpy's, multiple, fastest other
        rate = 2 * 65536 * 4 / 200
        row = page.rows_with("f32", "AVX3_DL", "64", "1024")[0]
        self.assertEqual(float(row[4]), round(rate))
        self.assertEqual(float(row[6]), round(2 * rate))
        self.assertEqual(row[7:], ["2.00", f"{round(rate / 1.5)}", "plain"])
        points = [mark for mark in self.marks() if "GB/s" in mark]
        self.assertEqual(len(points), 2 * 6 * 3)  # library, memcpy, and the fastest other
        # Cells of a file of sweeps alone are in no other table.
        self.assertEqual(page.rows_with("f32", "1024 × 64"), [])

    def test_a_short_sweep_is_in_the_table_too(self):
        page = self.report(results(*self.sweep(16, 64, 256, 1024)))
        self.assertIn("GB/s over d", page.text)
        self.assertEqual(len(page.rows_with("f32", "1024 × 64")), 1)

    def test_the_first_file_wins(self):
        page = self.report(
            results(benchmark("f32", "1x64", 1.25)),
            results(benchmark("f32", "1x64", 7.0), benchmark("f16", "1x64", 1.5)),
        )
        self.assertEqual([row[2] for row in page.rows_with("f32", "1 × 64")], ["1.25"])
        self.assertEqual([row[2] for row in page.rows_with("f16", "1 × 64")], ["1.50"])

    def test_of_repetitions_the_middle_one_counts(self):
        runs = [benchmark("f32", "1x64", multiple) for multiple in (3.0, 1.0, 2.0)]
        median = {**benchmark("f32", "1x64", 9.0), "run_type": "aggregate"}
        median.update(aggregate_name="median", name=median["name"] + "_median")
        page = self.report(results(*runs, median))
        self.assertEqual([row[2] for row in page.rows_with("f32", "1 × 64")], ["2.00"])
        page = self.report(results(median, {**median, "aggregate_name": "mean"}))
        self.assertEqual([row[2] for row in page.rows_with("f32", "1 × 64")], ["9.00"])

    def test_names_what_it_leaves_out(self):
        page = self.report(
            results(benchmark("f32", "1x64", 1.0), {"name": "call_cost", "run_type": "iteration"})
        )
        self.assertIn("call_cost", page.text)

    def test_refuses_bad_input(self):
        good = benchmark("f32", "1x64", 1.0)
        wrong = [
            ("{", "not JSON"),
            ("\x00", "not JSON"),
            ("[]", "not a JSON object"),
            ({"benchmarks": []}, "'context'"),
            ({"context": {}}, "'benchmarks'"),
            ({"context": {}, "benchmarks": {}}, "'benchmarks'"),
            (results(), "no cell"),
            (results({"name": "something/else"}), "no cell"),
            (results("text"), "no name"),
            (results({}), "no name"),
            (results({**good, "library_ns": "fast"}), "library_ns is 'fast'"),
            (results({**good, "memcpy_ns": -1}), "memcpy_ns is -1"),
            (results({**good, "plain_lower_ns": 0, "plain_ns": 1, "plain_upper_ns": 2}), "plain"),
            (results({**good, "library_ns": float("nan")}), "library_ns is nan"),
            (results({**good, "library_upper_ns": 1}), "quartiles of library"),
        ]
        for content, problem in wrong:
            with self.subTest(problem):
                path = self.write("wrong.json", content)
                outcome = self.run_script("report", path, "-o", self.path("wrong.html"))
                self.expect_problem(outcome, "report", path, problem)
                self.assertEqual(os.listdir(self.directory), ["wrong.json"])

    def test_refuses_files_it_cannot_read_or_write(self):
        missing = self.path("missing.json")
        self.expect_problem(self.run_script("report", missing), "report", missing)
        path = self.write("good.json", results(benchmark("f32", "1x64", 1.0)))
        output = self.path("no/such/folder.html")
        self.expect_problem(self.run_script("report", path, "-o", output), "report", output)

    def test_refuses_two_machines(self):
        run = benchmark("f32", "1x64", 1.0)
        first = self.write("first.json", results(run))
        second = self.write("second.json", results(run, cpu="Another"))
        outcome = self.run_script("report", first, second, "-o", self.path("report.html"))
        self.expect_problem(outcome, "report", second, "'Another'", "'Example <CPU>'")

    def test_keeps_the_page_where_the_new_one_fails(self):
        page = self.write("report.html", "as it was")
        wrong = self.write("wrong.json", "{")
        self.assertEqual(self.run_script("report", wrong, "-o", page).returncode, 2)
        self.assertEqual(self.read("report.html"), "as it was")

    @unittest.skipUnless("RMSNORM_COMMAND" in os.environ, "the command is not built")
    def test_takes_what_the_command_writes(self):
        words = [os.environ.get(name) for name in ("RMSNORM_COMMAND_WRAPPER", "RMSNORM_COMMAND")]
        options = "--shapes 3x64 --types bf16 --threads 1 --targets reference --json".split()
        line = [*filter(None, words), "bench", *options, self.path("bench.json")]
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
        page = self.report(self.read("bench.json"))
        self.assertEqual(len(page.rows_with("bf16", "3 × 64")), 1)
        self.assertIn("plain", page.rows[0])


if __name__ == "__main__":
    unittest.main()

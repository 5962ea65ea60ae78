# SPDX-License-Identifier: Apache-2.0
"""tools/perf: what it prints and how it ends, over made-up results. A small program stands in for
the command where it has to measure."""

import json
import os
import re
import stat
import sys
import textwrap
import unittest

from bench_json import TOOLS, ScriptTest, benchmark, failed_benchmark, results

MACHINE = "Example <CPU>, L1d 48 KiB, L2 1 MiB"
TYPES = ("f32", "bf16")
SHAPES = ("1x64", "8x64")


def figures(value):
    return {dtype: {shape: value for shape in SHAPES} for dtype in TYPES}


def baseline(recorded=None):
    """Of forward: goals of 2 and 4, others at 3, and records of AVX-512 and AVX2 for the machine,
    if any."""
    content = {
        "about": "für den Test",
        "goals": {"forward": {"AVX-512": figures(2), "AVX2": figures(4)}},
        "best_other": {
            "source": "measured elsewhere",
            "class": "AVX-512",
            "multiples": {"forward": figures({"multiple": 3, "of": "another"})},
        },
        "recorded": {
            "Another machine": {"multiples": {"forward": {"AVX2": {"f32": {"1x64": 1.5}}}}}
        },
    }
    if recorded is not None:
        content["recorded"][MACHINE] = {
            "multiples": {
                "forward": {"AVX-512": figures(recorded[0]), "AVX2": figures(recorded[1])}
            }
        }
    return content


def with_backward(content):
    """The same with goals for backward, on AVX-512 and for one cell."""
    content["goals"]["backward"] = {"AVX-512": {"f32": {"2x64": 5}}}
    content["best_other"]["multiples"]["backward"] = {"f32": {"2x64": {"multiple": 8, "of": "it"}}}
    return content


def backward_cells(best, avx2):
    return [
        benchmark("f32", "2x64", multiple, operation="backward", target=target)
        for target, multiple in (("AVX3_DL", best), ("AVX2", avx2))
    ]


def all_cells(best=1.9, avx2=3.9, **exceptions):
    """Exceptions name a type, a shape, and AVX2 where it is that target's: f32_1x64_AVX2=5."""
    cells = []
    for target, multiple in (("AVX3_DL", best), ("AVX2", avx2)):
        for dtype in TYPES:
            for shape in SHAPES:
                name = f"{dtype}_{shape}" + ("_AVX2" if target == "AVX2" else "")
                value = exceptions.get(name, multiple)
                if value is not None:
                    cells.append(benchmark(dtype, shape, value, target=target))
    return cells


class Perf(ScriptTest):
    def perf(self, runs, *options, recorded=None):
        arguments = ["--results", self.write("results.json", results(*runs))]
        arguments += ["--baseline", self.write("baseline.json", baseline(recorded))]
        return self.run_script("perf", *arguments, *options)

    def line(self, outcome, dtype, shape, table=0):
        """The cell's line in the first table, or in the one after."""
        start = f"{dtype:<6}{shape.replace('x', ' x ')} "
        lines = [line for line in outcome.stdout.split("\n") if line.startswith(start)]
        self.assertEqual(len(lines), 2, outcome.stdout)
        return lines[table]

    def test_prints_all_figures_of_a_cell(self):
        outcome = self.perf(all_cells(f32_1x64=2.1, f32_8x64=3.25, avx2=3.8), recorded=(2, 4))
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        head = f"rmsnorm 0.1.0 · {MACHINE} · Highway 1.0.3 · 1 thread · 2026-01-02\n"
        self.assertTrue(outcome.stdout.startswith(head), outcome.stdout)
        self.assertIn("\nforward, AVX-512 (AVX3_DL)\n", outcome.stdout)
        self.assertIn("\nforward, AVX2\n", outcome.stdout)
        self.assertEqual(
            self.line(outcome, "f32", "1x64").split(maxsplit=12),
            ["f32", "1", "x", "64", "3.00", "2.00", "2.10", "1.89", "-", "2.31", "2.00", "+5"]
            + ["%  ahead of the best other, goal missed by 5 %"],
        )
        self.assertTrue(
            self.line(outcome, "f32", "8x64").endswith(
                "+62 %  BEHIND THE RECORD, behind the best other, goal missed by 62 %"
            )
        )
        self.assertTrue(
            self.line(outcome, "bf16", "8x64").endswith("-5 %  ahead of the best other, goal met")
        )
        self.assertEqual(
            self.line(outcome, "f32", "1x64", 1).split(),
            "f32 1 x 64 - 4.00 3.80 3.42 - 4.18 4.00 -5 % goal met".split(),
        )
        self.assertIn("\nAhead of the best other library in 3 of 4 cells.\n", outcome.stdout)
        self.assertIn("\nMet 6 of 8 goals.\n", outcome.stdout)
        self.assertIn("\n1 cell more than 15 % behind the record.\n", outcome.stdout)
        self.assertIn("\nBest other: measured elsewhere.\n", outcome.stdout)

    def test_14_percent_behind_is_not_behind(self):
        outcome = self.perf(all_cells(best=2.28, avx2=4.56), recorded=(2, 4))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("+14 %", self.line(outcome, "f32", "1x64"))
        self.assertNotIn("BEHIND", outcome.stdout)

    def test_16_percent_behind_is_behind(self):
        for exception in ({"bf16_8x64": 2.32}, {"bf16_8x64_AVX2": 4.64}):
            outcome = self.perf(all_cells(**exception), recorded=(2, 4))
            self.assertEqual(outcome.returncode, 1, outcome.stderr)
            self.assertEqual(outcome.stdout.count("+16 %  BEHIND THE RECORD"), 1, outcome.stdout)

    def test_goals_and_others_do_not_count(self):
        outcome = self.perf(all_cells(best=9, avx2=9), recorded=(9, 9))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("Ahead of the best other library in 0 of 4 cells.", outcome.stdout)
        self.assertIn("Met 0 of 8 goals.", outcome.stdout)

    def test_no_record(self):
        outcome = self.perf(all_cells(best=9))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("This machine has no record", outcome.stdout)
        self.assertIn("ahead of", self.perf(all_cells()).stdout)

    def test_other_caches_are_another_machine(self):
        content = results(*all_cells(best=9), caches=[])
        arguments = ["--results", self.write("results.json", content)]
        arguments += ["--baseline", self.write("baseline.json", baseline((2, 4)))]
        outcome = self.run_script("perf", *arguments)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("no record", outcome.stdout)

    def test_a_missing_cell(self):
        for missing in ("f32_1x64", "bf16_8x64_AVX2"):
            outcome = self.perf(all_cells(**{missing: None}), recorded=(2, 4))
            self.assertEqual(outcome.returncode, 1)
            self.assertEqual(outcome.stdout.count("NOT MEASURED"), 1, outcome.stdout)
            outcome = self.perf(all_cells(**{missing: None}))
            self.assertEqual(outcome.returncode, 0)
            self.assertEqual(outcome.stdout.count("NOT MEASURED"), 1, outcome.stdout)

    def test_all_of_a_target_missing(self):
        cells = [cell for cell in all_cells() if "AVX2" not in cell["name"]]
        outcome = self.perf(cells, recorded=(2, 4))
        self.assertEqual(outcome.returncode, 1)
        self.assertEqual(outcome.stdout.count("NOT MEASURED"), 4)
        outcome = self.perf(cells)
        self.assertEqual(outcome.returncode, 0)
        self.assertNotIn("AVX2", outcome.stdout)

    def test_a_failed_cell(self):
        cells = [*all_cells(f32_1x64=None), failed_benchmark("f32", "1x64")]
        for recorded in (None, (2, 4)):
            outcome = self.perf(cells, recorded=recorded)
            self.assertEqual(outcome.returncode, 1)
            self.assertTrue(self.line(outcome, "f32", "1x64").endswith("FAILED: row 1 <differs>"))

    def test_other_cells_do_not_count(self):
        others = [
            benchmark("f32", "1x64", 9, threads=2),
            benchmark("f32", "1x64", 9, more="/cold"),
            benchmark("f32", "1x64", 9, operation="layernorm"),
            benchmark("f32", "5x64", 9),
            benchmark("f16", "1x64", 9),
        ]
        outcome = self.perf([*others, *all_cells(), *others], recorded=(2, 4))
        self.assertEqual(outcome.returncode, 0, outcome.stdout)
        self.assertNotIn("9.00", outcome.stdout)
        outcome = self.perf(others)
        self.expect_problem(outcome, "perf", "results.json", "no cell of the goals' tables")

    def test_a_target_without_goals(self):
        cells = [benchmark(dtype, shape, 1.5, target="NEON") for dtype in TYPES for shape in SHAPES]
        outcome = self.perf(cells)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("\nforward, NEON\n", outcome.stdout)
        self.assertNotIn("goal met", outcome.stdout)
        self.assertNotIn("measured elsewhere", outcome.stdout)

    def test_markdown(self):
        cells = all_cells(f32_1x64=2.1, f32_8x64=None)
        outcome = self.perf(cells, "--markdown", recorded=(2, 4))
        lines = outcome.stdout.split("\n")
        columns = " | ".join(f"{dtype}: best other | goal | measured | recorded" for dtype in TYPES)
        self.assertIn(f"| rows x d | {columns} |", lines)
        self.assertIn("|---|" + "---:|" * 8, lines)
        end = "3.00 | 2.00 | **1.90** | 2.00 |"
        self.assertIn(f"| 1 x 64 | 3.00 | 2.00 | 2.10 | 2.00 | {end}", lines)
        self.assertIn(f"| 8 x 64 | 3.00 | 2.00 | - | 2.00 | {end}", lines)
        self.assertIn("| 1 x 64 | 4.00 | **3.90** | 4.00 | 4.00 | **3.90** | 4.00 |", lines)

    # ---------------------------------------------------------------------------- operations

    def perf_with_backward(self, cells, *options, recorded=None):
        arguments = ["--results", self.write("results.json", results(*cells))]
        content = with_backward(baseline(recorded))
        arguments += ["--baseline", self.write("baseline.json", content)]
        return self.run_script("perf", *arguments, *options)

    def test_each_operation_has_its_tables(self):
        outcome = self.perf_with_backward(all_cells() + backward_cells(4.5, 9.5))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        titles = [line for line in outcome.stdout.split("\n") if re.match(r"\w+, \w", line)]
        expected = ["forward, AVX-512 (AVX3_DL)", "forward, AVX2"]
        expected += ["backward, AVX-512 (AVX3_DL)", "backward, AVX2"]
        self.assertEqual(titles, expected)
        self.assertEqual(
            self.line(outcome, "f32", "2x64").split(maxsplit=12),
            ["f32", "2", "x", "64", "8.00", "5.00", "4.50", "4.05", "-", "4.95", "-", "-"]
            + ["ahead of the best other, goal met"],
        )
        # There are no goals of backward on AVX2.
        self.assertEqual(
            self.line(outcome, "f32", "2x64", 1).split(),
            "f32 2 x 64 - - 9.50 8.55 - 10.45 - -".split(),
        )
        self.assertIn("Ahead of the best other library in 5 of 5 cells.", outcome.stdout)
        self.assertIn("Met 9 of 9 goals.", outcome.stdout)

    def test_markdown_of_each_operation(self):
        cells = all_cells() + backward_cells(4.5, 9.5)
        lines = self.perf_with_backward(cells, "--markdown").stdout.split("\n")
        start = lines.index("backward, AVX3_DL:")
        self.assertEqual(lines[start + 2], "| rows x d | f32: best other | goal | measured |")
        self.assertEqual(lines[start + 4], "| 2 x 64 | 8.00 | 5.00 | **4.50** |")
        start = lines.index("backward, AVX2:")
        self.assertEqual(lines[start + 2], "| rows x d | f32: measured |")

    def test_an_operation_without_a_record_is_not_behind(self):
        cells = all_cells() + backward_cells(99, 99)
        outcome = self.perf_with_backward(cells, recorded=(2, 4))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("\nThis machine has no record of backward; --record", outcome.stdout)
        self.assertNotIn("BEHIND", outcome.stdout)

    def test_an_operation_that_was_not_measured_is_left_out(self):
        outcome = self.perf_with_backward(all_cells(), recorded=(2, 4))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertNotIn("backward", outcome.stdout)
        outcome = self.perf_with_backward(all_cells(), "--record")
        self.expect_problem(outcome, "perf", "not recorded", "backward AVX-512 f32 2x64")

    def test_each_operation_is_recorded_and_compared(self):
        cells = all_cells() + backward_cells(4.5, 9.5)
        outcome = self.perf_with_backward(cells, "--record", recorded=(2, 4))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        content = json.loads(self.read("baseline.json"))
        self.assertEqual(
            content["recorded"][MACHINE]["multiples"]["backward"],
            {"AVX-512": {"f32": {"2x64": 4.5}}, "AVX2": {"f32": {"2x64": 9.5}}},
        )
        for best, status in ((5.1, 0), (5.3, 1)):
            path = self.write("results.json", results(*all_cells(), *backward_cells(best, 9.5)))
            arguments = ["--results", path, "--baseline", self.path("baseline.json")]
            outcome = self.run_script("perf", *arguments)
            self.assertEqual(outcome.returncode, status, outcome.stdout)
            self.assertNotIn("no record", outcome.stdout)

    # -------------------------------------------------------------------------------- record

    def test_record_keeps_the_rest(self):
        outcome = self.perf(all_cells(f32_1x64=1.23456), "--record")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("Recorded in " + self.path("baseline.json"), outcome.stdout)
        text = self.read("baseline.json")
        content = json.loads(text)
        record = content["recorded"].pop(MACHINE)
        self.assertEqual(content, baseline())
        self.assertEqual(list(content), list(baseline()))
        self.assertIn("für den Test", text)
        expected = {"forward": {"AVX-512": figures(1.9), "AVX2": figures(3.9)}}
        expected["forward"]["AVX-512"]["f32"]["1x64"] = 1.235
        self.assertEqual(record.pop("multiples"), expected)
        self.assertEqual(
            record,
            {
                "date": "2026-01-02",
                "rmsnorm": "0.1.0",
                "highway": "1.0.3",
                "targets": {"AVX-512": "AVX3_DL", "AVX2": "AVX2"},
            },
        )
        # What was recorded is what the next run compares with.
        again = ["--results", self.path("results.json"), "--baseline", self.path("baseline.json")]
        outcome = self.run_script("perf", *again)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("+0 %", self.line(outcome, "bf16", "1x64"))

    def test_record_replaces_one(self):
        outcome = self.perf(all_cells(best=9), "--record", recorded=(2, 4))
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        record = json.loads(self.read("baseline.json"))["recorded"][MACHINE]
        self.assertEqual(record["multiples"]["forward"]["AVX-512"], figures(9))

    def test_record_takes_whole_tables_only(self):
        failed = [*all_cells(f32_1x64=None), failed_benchmark("f32", "1x64")]
        for cells in (all_cells(f32_1x64=None), failed):
            outcome = self.perf(cells, "--record")
            self.expect_problem(outcome, "perf", "not recorded", "forward AVX-512 f32 1x64")
            self.assertEqual(json.loads(self.read("baseline.json")), baseline())

    # ----------------------------------------------------------------------------- measuring

    def fake_command(self, answers, best="AVX3_DL", status=0):
        """A command whose times of 1x64 f32 on the best target are these, one a run; of others 1.9
        and 3.9. Notes its arguments."""
        program = f"""\
            #!{sys.executable} -B
            import json, os, sys
            sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r})
            from bench_json import benchmark, results
            print("the table")
            with open({self.path("calls")!r}, "a") as file:
                file.write(json.dumps([sys.argv[1:], os.environ.get("RMSNORM_TARGET")]) + "\\n")
            option = dict(zip(sys.argv[2::2], sys.argv[3::2]))
            target = option.get("--targets", {best!r})
            operation = option["--operations"]
            cells = []
            for dtype in option["--types"].split(","):
                for shape in option["--shapes"].split(","):
                    multiple = 3.9 if target == "AVX2" else 1.9
                    key = operation, dtype, shape, target
                    if key == ("forward", "f32", "1x64", {best!r}):
                        with open({self.path("answers")!r}) as file:
                            multiple, *rest = json.load(file)
                        with open({self.path("answers")!r}, "w") as file:
                            json.dump(rest, file)
                    options = {{"operation": operation, "target": target}}
                    cells.append(benchmark(dtype, shape, multiple, **options))
            with open(option["--json"], "w") as file:
                json.dump(results(*cells), file)
            sys.exit({status})
            """
        self.write("answers", answers)
        path = self.write("rmsnorm", textwrap.dedent(program))
        os.chmod(path, stat.S_IRWXU)
        return path

    def measure(self, answers, *options, recorded=(2, 4), **command):
        arguments = ["--command", self.fake_command(answers, **command)]
        arguments += ["--baseline", self.write("baseline.json", baseline(recorded))]
        return self.run_script("perf", *arguments, *options)

    def calls(self):
        return [json.loads(line) for line in self.read("calls").splitlines()]

    def test_measures_both_targets(self):
        os.environ["RMSNORM_TARGET"] = "reference"
        self.addCleanup(os.environ.pop, "RMSNORM_TARGET")
        outcome = self.measure([1.9])
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertNotIn("the table", outcome.stdout)
        table = "bench --threads 1 --operations forward --types f32,bf16 --shapes 1x64,8x64".split()
        calls = self.calls()
        self.assertEqual([call[1] for call in calls], [None, None])
        self.assertEqual([call[0][: len(table)] for call in calls], [table, table])
        self.assertNotIn("--targets", calls[0][0])
        self.assertEqual(calls[1][0][len(table) :][:2], ["--targets", "AVX2"])

    def test_measures_each_operation_on_both_targets(self):
        arguments = ["--command", self.fake_command([1.9])]
        content = with_backward(baseline((2, 4)))
        arguments += ["--baseline", self.write("baseline.json", content)]
        outcome = self.run_script("perf", *arguments)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("1.90", self.line(outcome, "f32", "2x64"))
        self.assertIn("3.90", self.line(outcome, "f32", "2x64", 1))
        calls = [call[0][3:9] for call in self.calls()]
        forward = "--operations forward --types f32,bf16 --shapes 1x64,8x64".split()
        backward = "--operations backward --types f32 --shapes 2x64".split()
        self.assertEqual(calls, [forward, backward, forward, backward])

    def test_where_avx2_is_the_best(self):
        outcome = self.measure([3.9], best="AVX2", recorded=None)
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual(len(self.calls()), 1)

    def test_what_seems_behind_is_measured_again(self):
        outcome = self.measure([9, 2.1])
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertIn("2.10", self.line(outcome, "f32", "1x64"))
        self.assertIn("best of 2 measurements", self.line(outcome, "f32", "1x64"))
        self.assertIn(
            "forward f32 1x64 on AVX3_DL: 9.00, recorded 2.00; measuring it again",
            outcome.stderr,
        )
        again = "--operations forward --types f32 --shapes 1x64 --targets AVX3_DL".split()
        self.assertEqual(self.calls()[2][0][3 : 3 + len(again)], again)

    def test_what_stays_behind_is_behind(self):
        outcome = self.measure([9, 2.5, 3.5, 1])
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        self.assertEqual(len(self.calls()), 4)
        line = self.line(outcome, "f32", "1x64")
        self.assertIn("2.50", line)
        self.assertIn("BEHIND THE RECORD", line)
        self.assertIn("best of 3 measurements", line)

    def test_nothing_is_measured_again_for_a_record(self):
        outcome = self.measure([9], "--record")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        self.assertEqual(len(self.calls()), 2)

    def test_a_command_that_fails(self):
        outcome = self.measure([1.9], status=2)
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("status 2", outcome.stderr)
        outcome = self.run_script("perf", "--command", self.path("missing"))
        self.assertEqual(outcome.returncode, 2)
        self.assertIn(self.path("missing"), outcome.stderr)

    # ------------------------------------------------------------------------------- compilers

    def fake_tools(self, meson=0, ninja=0):
        """Programs in the places of Meson and Ninja that end with these statuses and note their
        arguments and the compilers; Ninja's makes a command. Returns the folder."""
        command = self.fake_command([1.9] * 3)
        folder = self.path("bin")
        os.makedirs(folder, exist_ok=True)
        for name, status in (("meson", meson), ("ninja", ninja)):
            program = f"""\
                #!{sys.executable} -B
                import json, os, shutil, sys
                with open({self.path("built")!r}, "a") as file:
                    file.write(json.dumps([{name!r}, *sys.argv[1:], os.environ["CC"],
                                           os.environ["CXX"]]) + "\\n")
                if {name!r} == "ninja":
                    os.makedirs(os.path.join(sys.argv[2], "tools"), exist_ok=True)
                    shutil.copy2({command!r}, os.path.join(sys.argv[2], "tools"))
                    open(os.path.join(sys.argv[2], "build.ninja"), "w").close()
                print("building")
                sys.exit({status})
                """
            path = self.write(os.path.join("bin", name), textwrap.dedent(program))
            os.chmod(path, stat.S_IRWXU)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = folder + os.pathsep + path
        return folder

    def perf_with(self, compiler, *options):
        arguments = ["--compiler", compiler, "--build-dir", self.path("build")]
        arguments += ["--baseline", self.write("baseline.json", baseline((2, 4)))]
        return self.run_script("perf", *arguments, *options)

    def test_builds_with_a_compiler(self):
        self.fake_tools()
        root = os.path.normpath(os.path.join(TOOLS, ".."))
        setup = ["meson", "setup", self.path("build"), root]
        for name, c, cpp in (
            ("clang-19", "clang-19", "clang++-19"),
            ("g++-14", "gcc-14", "g++-14"),
            ("gcc", "gcc", "g++"),
        ):
            outcome = self.perf_with(name)
            self.assertEqual(outcome.returncode, 0, outcome.stderr)
            self.assertIn(f" · Highway 1.0.3 · {name} · 1 thread · ", outcome.stdout)
            self.assertIn("1.90", self.line(outcome, "f32", "1x64"))
            self.assertNotIn("building", outcome.stdout)
            built = [json.loads(line) for line in self.read("built").splitlines()][-2:]
            self.assertEqual(built[0][:4], setup)
            self.assertIn("-Dbuildtype=release", built[0])
            self.assertEqual(built[1][:4], ["ninja", "-C", self.path("build"), "tools/rmsnorm"])
            self.assertEqual([line[-2:] for line in built], [[c, cpp]] * 2)
            # All but the first configure what is there.
            self.assertEqual("--reconfigure" in built[0], name != "clang-19")

    def test_a_build_that_fails(self):
        for statuses, problem in (({"meson": 1}, "`meson setup "), ({"ninja": 1}, "`ninja -C ")):
            self.fake_tools(**statuses)
            outcome = self.perf_with("clang-19")
            self.assertEqual(outcome.returncode, 2)
            self.assertIn(problem, outcome.stderr)
            self.assertIn("failed with status 1\n", outcome.stderr)

    def test_refuses_a_compiler(self):
        self.expect_problem(self.perf_with("icc"), "perf", "unknown compiler 'icc'")
        outcome = self.perf_with("clang-19", "--record")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("a record is of one compiler", outcome.stderr)

    # --------------------------------------------------------------------------------- errors

    def test_refuses_bad_results(self):
        wrong = self.write("wrong.json", "[1")
        base = self.write("baseline.json", baseline())
        outcome = self.run_script("perf", "--results", wrong, "--baseline", base)
        self.expect_problem(outcome, "perf", wrong, "not JSON")
        run = benchmark("f32", "1x64", 1.0)
        del run["memcpy_ns"]
        self.expect_problem(self.perf([run]), "perf", "forward f32 1x64 has no time of memcpy")
        two = [benchmark("f32", "1x64", 1.0, target=target) for target in ("AVX3", "AVX3_DL")]
        self.expect_problem(self.perf(two), "perf", "both AVX3 and AVX3_DL")

    def test_refuses_a_bad_baseline(self):
        run = self.write("results.json", results(*all_cells()))
        good = baseline()
        wrong = [
            ("{", "not JSON"),
            ({}, "'goals'"),
            ({**good, "goals": {}}, "no goals"),
            ({**good, "goals": {"forward": {"AVX2": 1}}}, "goals: not figures"),
            ({**good, "goals": {"forward": {"AVX2": {"f32": 1}}}}, "goals: not figures"),
            (
                {**good, "goals": {"forward": {"AVX2": {"f32": {"1x64": "fast"}}}}},
                "goals: forward AVX2 f32 1x64",
            ),
            ({**good, "best_other": None}, "'best_other'"),
            ({**good, "best_other": {"class": "AVX2"}}, "'multiples'"),
            ({**good, "recorded": []}, "'recorded'"),
            ({**good, "recorded": {MACHINE: 1}}, "recorded"),
            ({**good, "recorded": {MACHINE: {}}}, "'multiples'"),
        ]
        for content, problem in wrong:
            with self.subTest(problem):
                path = self.write("baseline.json", content)
                outcome = self.run_script("perf", "--results", run, "--baseline", path)
                self.expect_problem(outcome, "perf", path, problem)

    def test_the_baseline_that_is_kept(self):
        """It holds the whole table, and stands as --record writes it."""
        path = os.path.join(TOOLS, "..", "bench", "baseline.json")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        content = json.loads(text)
        shapes = ["1x4096", "4096x128", "32x4096", "512x4096", "64x16384", "8192x4096"]
        forward = [(dtype, shape) for dtype in ("f32", "bf16", "f16") for shape in shapes]
        shapes.remove("64x16384")
        training = [(dtype, shape) for dtype in ("f32", "bf16") for shape in shapes]
        operations = {"forward": forward, "add_forward": training, "backward": training}
        others = content["best_other"]["multiples"]
        for tables in (content["goals"], others):
            self.assertEqual(list(tables), list(operations))
        runs = []
        for operation, cells in operations.items():
            for table in (*content["goals"][operation].values(), others[operation]):
                found = [(dtype, shape) for dtype in table for shape in table[dtype]]
                self.assertEqual(found, cells)
            runs += [
                benchmark(*cell, 1.5, operation=operation, target=target)
                for target in ("AVX3_DL", "AVX2")
                for cell in cells
            ]
        arguments = ["--results", self.write("results.json", results(*runs))]
        arguments += ["--baseline", self.write("baseline.json", text)]
        outcome = self.run_script("perf", *arguments, "--record")
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        written = self.read("baseline.json").split("\n")
        kept = [line for line in text.split("\n") if line.strip(" ,{}") and "recorded" not in line]
        self.assertEqual([line for line in kept if line not in written], [])


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""tools/perf: its builds, output and exit status. Small programs stand in for git and Meson, and for the
command that Meson makes."""

import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

# Each run takes the next element of `answers`: lists of ratios by shape.
COMMAND = """\
#!{python}
import json, sys
log, answers = {log!r}, {answers!r}
with open(log, "a") as file:
    file.write(json.dumps(["rmsnorm", *sys.argv[1:]]) + "\\n")
with open(answers) as file:
    cells, *rest = json.load(file)
with open(answers, "w") as file:
    json.dump(rest, file)
runs = []
for shape, ratios in cells.items():
    run = {{"name": f"norm/f32/{{shape}}/threads:1/target:AVX2/iterations:1/manual_time"}}
    if isinstance(ratios, str):
        run["error_message"] = ratios
    else:
        run.update(library_ns=100 * ratios[1], older_ns=100, older_ratio=ratios[1])
        run.update(older_ratio_lower=ratios[0], older_ratio_upper=ratios[2])
    runs.append(run)
out = [word for word in sys.argv if word.startswith("--benchmark_out=")][0]
with open(out.split("=")[1], "w") as file:
    json.dump({{"benchmarks": runs}}, file)
print("the table")
sys.exit({status})
"""

TOOL = """\
#!{python}
import json, os, shutil, sys
with open({log!r}, "a") as file:
    words = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
    file.write(json.dumps([*words, os.environ.get("CXX")]) + "\\n")
if sys.argv[-1] == "rmsnorm:executable":
    os.makedirs(os.path.join(sys.argv[3], "tools"), exist_ok=True)
    shutil.copy2({command!r}, os.path.join(sys.argv[3], "tools"))
sys.exit({status} if {failing!r} in words[:2] else 0)
"""

WELL = {"1x64": [0.9, 1.0, 1.1], "2x64": [1.04, 1.2, 1.3]}
BEHIND = {"1x64": [0.9, 1.0, 1.1], "2x64": [1.06, 1.2, 1.3]}


class Perf(unittest.TestCase):
    def perf(self, answers, *options, failing="", status=0):
        """Runs the script, and stores the programs that it called in self.calls."""
        with tempfile.TemporaryDirectory() as folder:
            path = lambda name: os.path.join(folder, name)
            values = {"python": sys.executable, "log": path("log"), "answers": path("answers")}
            values.update(command=path("rmsnorm"), failing=failing, status=status)
            with open(path("answers"), "w", encoding="utf-8") as file:
                json.dump(answers, file)
            for name in ("rmsnorm", "git", "meson"):
                with open(path(name), "w", encoding="utf-8") as file:
                    file.write((COMMAND if name == "rmsnorm" else TOOL).format(**values))
                os.chmod(path(name), stat.S_IRWXU)
            self.build = path("build")
            line = [sys.executable, "-B", os.path.join(ROOT, "tools/perf"), "--against", "HEAD~3"]
            outcome = subprocess.run(
                [*line, "--build-dir", self.build, *options],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                env={**os.environ, "PATH": folder + os.pathsep + os.environ["PATH"]},
            )
            with open(path("log"), encoding="utf-8") as file:
                self.calls = [json.loads(call) for call in file]
        return outcome

    def test_as_fast_as_before(self):
        outcome = self.perf([WELL])
        self.assertEqual(outcome.returncode, 0, outcome.stderr)
        lines = outcome.stdout.splitlines()
        self.assertEqual(lines[0], "gcc, against HEAD~3")
        self.assertEqual(
            lines[3].split(),
            "norm f32 2x64 100.0 120.0 1.200 1.040 - 1.300".split(),
        )
        self.assertEqual(lines[-1], "2 cells, 0 more than 5 % behind, 0 failed")

    def test_behind_twice_is_behind(self):
        outcome = self.perf([BEHIND, {"2x64": [1.06, 1.1, 1.2]}])
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        self.assertTrue(outcome.stdout.splitlines()[3].endswith("1.060 - 1.200   BEHIND"))
        again = [call for call in self.calls if call[0] == "rmsnorm"][1]
        self.assertEqual(again[-6:], "--operations norm --types f32 --shapes 2x64".split())

    def test_behind_once_is_not(self):
        outcome = self.perf([BEHIND, {"2x64": [1.0, 1.1, 1.2]}])
        self.assertEqual(outcome.returncode, 0, outcome.stderr)

    def test_a_wrong_result_fails(self):
        outcome = self.perf([{"1x64": "row 1 differs"}], status=1)
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        self.assertIn("1x64        FAILED: row 1 differs", outcome.stdout)

    def test_builds_both_with_each_compiler(self):
        outcome = self.perf(
            [BEHIND, BEHIND, WELL], "--compiler", "g++-14", "--compiler", "clang-19"
        )
        self.assertEqual(outcome.returncode, 1, outcome.stderr)
        older = os.path.join(self.build, "older-source")
        trees = [call[4:-1] for call in self.calls if call[0] == "git"]
        self.assertIn(["add", "--quiet", "--detach", older, "HEAD~3"], trees)
        setups = [call for call in self.calls if call[1] == "setup"]
        self.assertEqual([call[3] for call in setups], [older, ROOT] * 2)
        self.assertEqual([call[-1] for call in setups], ["g++-14"] * 2 + ["clang++-19"] * 2)
        self.assertTrue(all("-Dbuildtype=release" in call for call in setups))
        benches = [call for call in self.calls if call[0] == "rmsnorm"]
        libraries = [
            os.path.join(self.build, f"{name}-older/lib/librmsnorm.so")
            for name in ("g++-14", "g++-14", "clang-19")
        ]
        self.assertEqual([call[3] for call in benches], libraries)
        for operation in ("norm", "add_norm", "backward"):
            self.assertIn(operation, benches[0][benches[0].index("--operations") + 1].split(","))

    def test_what_cannot_be_done_has_another_status(self):
        for name in ("git", "setup", "compile"):
            outcome = self.perf([WELL], failing=name, status=1)
            self.assertEqual(outcome.returncode, 2, name)
            self.assertRegex(outcome.stderr, f"tools/perf: `.*{name}.*` failed with status 1")
        outcome = self.perf([WELL], status=3)
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("failed with status 3", outcome.stderr)
        self.assertEqual(self.perf([WELL], "--compiler", "icc").returncode, 2)


if __name__ == "__main__":
    unittest.main()

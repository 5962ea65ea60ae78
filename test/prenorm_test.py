# SPDX-License-Identifier: Apache-2.0
"""examples/prenorm: built as a project of its own against the installed library, it learns, to the
same bits for any number of threads, and its check of gradients sees a wrong one."""

import os
import re
import shutil
import tempfile
import unittest

from installed import MESON, ROOT, install, run, succeed, variables_for


class Prenorm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.build_dir = os.path.join(directory.name, "build")
        cls.source = os.path.join(directory.name, "prenorm")
        shutil.copytree(os.path.join(ROOT, "examples", "prenorm"), cls.source)

        cls.variables = {
            **variables_for(install(directory.name)),
            "OMP_WAIT_POLICY": "passive",  # a busy machine's other work goes first
        }
        options = os.environ["RMSNORM_OPTIONS"].split()
        succeed(MESON, "setup", cls.build_dir, cls.source, *options, **cls.variables)
        cls.program = cls.build("prenorm")

    @classmethod
    def build(cls, name):
        """The path of the program, which a later build leaves alone."""
        succeed(MESON, "compile", "-C", cls.build_dir, **cls.variables)
        built = os.path.join(cls.build_dir, "prenorm")
        return shutil.copy2(built, os.path.join(os.path.dirname(cls.source), name + ".exe"))

    def prenorm(self, *options, program=None, status=0, **variables):
        done = run(program or self.program, *options, **self.variables, **variables)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stderr

    def test_loss_falls_to_the_same_bits(self):
        one_thread = self.prenorm("--threads", "1")
        first = float(re.search(r"^step +0  loss (\S+)$", one_thread, re.M)[1])
        final = float.fromhex(re.search(r"^final loss (\S+)$", one_thread, re.M)[1])
        self.assertGreater(final, 0)
        self.assertLessEqual(final, first / 10)
        self.assertEqual(self.prenorm("--threads", "2"), one_thread)
        self.assertEqual(self.prenorm(RMSNORM_TARGET="reference"), one_thread)
        with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as readme:
            self.assertIn("```\n" + one_thread + "```\n", readme.read())

    def test_too_few_steps(self):
        self.assertIn("not by ten times", self.prenorm("--steps", "3", status=1))

    def test_wrong_arguments(self):
        self.assertIn("usage", self.prenorm("--no-such-option", status=2))
        for value in (["-1"], ["two"], [""], []):
            self.assertIn("--threads takes", self.prenorm("--threads", *value, status=2))

    def test_library_error(self):
        printed = self.prenorm(status=1, RMSNORM_TARGET="none_such")
        self.assertIn("RMSNORM_TARGET: 'none_such'", printed)

    def test_gradients(self):
        self.assertIn("gradients: ", self.prenorm("--check-gradients"))

    def test_wrong_gradients(self):
        # The gradient of the residual stream overwritten by what comes through a norm.
        file = os.path.join(self.source, "prenorm.cc")
        with open(file, encoding="utf-8") as program:
            right = program.read()
        wrong = right.replace("add_to_dx = true;", "add_to_dx = false;")
        self.assertNotEqual(wrong, right)
        with open(file, "w", encoding="utf-8") as program:
            program.write(wrong)
        printed = self.prenorm("--check-gradients", program=self.build("wrong"), status=1)
        self.assertIn("wrong gradients", printed)


if __name__ == "__main__":
    unittest.main()

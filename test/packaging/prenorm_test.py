# SPDX-License-Identifier: Apache-2.0
"""examples/prenorm as a separate project with the installed library: it learns as doc/learning.md
says, with the same bits for any number of threads, with either norm in either place; and its check
of gradients detects a wrong one. Without RMSNORM_ALL_TESTS, as the page says and no more."""

import os
import re
import shutil
import unittest

from installed import MESON, OPTIONS, ROOT, install, read, replace_in, run, succeed
from installed import temporary_directory, variables_for

SLOW = unittest.skipUnless(
    os.environ.get("RMSNORM_ALL_TESTS"), "a run of `tools/dev test --all-tests`"
)


class Prenorm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = temporary_directory(cls.addClassCleanup)
        cls.build_dir = os.path.join(directory, "build")
        cls.source = os.path.join(directory, "prenorm")
        shutil.copytree(os.path.join(ROOT, "examples", "prenorm"), cls.source)

        cls.variables = {
            **variables_for(install(directory)),
            "OMP_WAIT_POLICY": "passive",  # leaves a busy machine's CPUs to other work
        }
        werror = "-Dwerror=" + str(OPTIONS["werror"]).lower()
        succeed(MESON, "setup", cls.build_dir, cls.source, werror, **cls.variables)
        cls.program = cls.build("prenorm")

    @classmethod
    def build(cls, name):
        """Builds the program and returns its path; a later build leaves it unchanged."""
        succeed(MESON, "compile", "-C", cls.build_dir, **cls.variables)
        built = os.path.join(cls.build_dir, "prenorm")
        return shutil.copy2(built, os.path.join(os.path.dirname(cls.source), name + ".exe"))

    def prenorm(self, *options, program=None, status=0, **variables):
        done = run(program or self.program, *options, **self.variables, **variables)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stderr if status else done.stdout

    def losses(self, *options, **variables):
        """Returns the output of a run without the time."""
        printed = self.prenorm(*options, **variables)
        self.assertRegex(printed, r"norms took \d+\.\d % of \d+\.\d s\n$")
        return printed[: printed.index("norms took")]

    def test_loss_falls(self):
        page = read(ROOT, "doc", "learning.md")
        shown = re.search(r"^```\n(step.*?)norms took.*?^```$", page, re.M | re.S)[1]
        self.assertEqual(self.losses(), shown)
        start = "".join(shown.splitlines(keepends=True)[:2])
        printed = self.losses("--steps", "30", "--threads", "2", status=None)
        self.assertEqual(printed[: len(start)], start)

    @SLOW
    def test_loss_falls_to_half_with_other_norms(self):
        for options in (("--placement", "post"), ("--norm", "layernorm")):
            self.losses("--steps", "90", *options)

    @SLOW
    def test_same_bits(self):
        short = ("--steps", "30", "--rate", "0.01")
        one_thread = self.losses(*short, "--threads", "1", status=None)
        self.assertIn("0x1.", one_thread)
        self.assertEqual(self.losses(*short, "--threads", "2", status=None), one_thread)
        reference = self.losses(*short, status=None, RMSNORM_TARGET="reference")
        self.assertEqual(reference, one_thread)
        for other in (("--seed", "2"), ("--norm", "layernorm"), ("--placement", "post")):
            self.assertNotEqual(self.losses(*short, *other, status=None), one_thread)

    def test_too_few_steps(self):
        self.prenorm("--steps", "3", status=1)

    def test_wrong_arguments(self):
        for option, values in {
            "--threads": ("-1", "two", "1.5", "", None),
            "--steps": ("0", "1e9", "3x"),
            "--blocks": ("0", "nan"),
            "--rate": ("0", "-1", "fast", "inf"),
            "--seed": ("-1", "0.5"),
            "--placement": ("middle", "", None),
            "--norm": ("batchnorm", None),
            "--no-such-option": ("1", None),
        }.items():
            for value in values:
                given = [option] if value is None else [option, value]
                self.assertIn("usage: prenorm", self.prenorm(*given, status=2))

    def test_library_error(self):
        printed = self.prenorm(status=1, RMSNORM_TARGET="none_such")
        self.assertIn("RMSNORM_TARGET: 'none_such'", printed)

    @SLOW
    def test_gradients(self):
        self.assertIn("gradients: ", self.prenorm("--check-gradients"))
        for placement, norm in (("post", "rmsnorm"), ("pre", "layernorm"), ("post", "layernorm")):
            options = ("--blocks", "1", "--placement", placement, "--norm", norm)
            self.assertIn("gradients: ", self.prenorm("--check-gradients", *options))

    @SLOW
    def test_wrong_gradients(self):
        # The gradient through a norm overwrites the gradient of the residual stream.
        program = os.path.join(self.source, "prenorm.cc")
        replace_in(program, "add_to_dx = true;", "add_to_dx = false;")
        options = ("--check-gradients", "--blocks", "1")
        printed = self.prenorm(*options, program=self.build("wrong"), status=1)
        self.assertIn("wrong gradients", printed)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""The kernels of AVX3_DL round to bf16 with the native instruction, which no result shows. Those of the
other targets, whose CPUs may lack it, do not."""

import os
import re
import subprocess
import unittest


class NativeBF16(unittest.TestCase):
    def test_is_for_one_target(self):
        disassembled = subprocess.run(
            ["objdump", "--disassemble", "--demangle", os.environ["RMSNORM_PROGRAM"]],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        targets = set()
        with_native = set()
        for line in disassembled.splitlines():
            if re.match(r"[0-9a-f]+ <.*>:$", line):  # a function begins
                found = re.search(r"\bN_(\w+)::", line)
                target = found[1] if found else "baseline"
                targets.add(target)
            elif re.search(r"\bvcvtne2?ps2bf16\b", line):
                with_native.add(target)
        self.assertLessEqual({"AVX2", "AVX3", "AVX3_DL"}, targets)
        self.assertEqual(with_native, {"AVX3_DL"})


if __name__ == "__main__":
    unittest.main()

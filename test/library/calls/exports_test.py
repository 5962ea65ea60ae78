# SPDX-License-Identifier: Apache-2.0
"""The DLL exports the functions of the header, and nothing else. Arguments: objdump, the DLL, the header."""

import re
import subprocess
import sys
import unittest

OBJDUMP, LIBRARY, HEADER = sys.argv[1:]


class Exports(unittest.TestCase):
    def test_are_the_interface(self):
        with open(HEADER, encoding="utf-8") as file:
            declared = re.findall(r"^RMSNORM_API [^;(]*?(\w+)\(", file.read(), re.M)
        self.assertGreater(len(declared), 20)
        printed = subprocess.run(
            [OBJDUMP, "-p", LIBRARY], capture_output=True, text=True, check=True
        ).stdout
        table = printed.split("[Ordinal/Name Pointer] Table")[1].split("\n\n")[0]
        exported = [line.split()[-1] for line in table.splitlines() if line.startswith("\t[")]
        self.assertEqual(sorted(exported), sorted(declared))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

# SPDX-License-Identifier: Apache-2.0
"""tools/dev: --help after any verb prints the help, and does nothing else."""

import os
import re
import subprocess
import unittest

DEV = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools", "dev")


def dev(*arguments):
    result = subprocess.run(
        (DEV, *arguments), capture_output=True, text=True, check=False, timeout=30
    )
    return result.returncode, result.stdout, result.stderr


class Help(unittest.TestCase):
    def test_every_verb(self):
        status, text, errors = dev("help")
        self.assertEqual((status, errors), (0, ""))
        verbs = re.findall(r"^  (\w+)(?:$|  )", text, re.M)
        self.assertIn("test", verbs)
        self.assertIn("debian", verbs)
        for verb in verbs:
            for arguments in (["--help"], ["-h"], ["-Dwerror=true", "--help", "threads"]):
                with self.subTest(verb=verb, arguments=arguments):
                    self.assertEqual(dev(verb, *arguments), (0, text, ""))


if __name__ == "__main__":
    unittest.main()

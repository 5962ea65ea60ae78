# SPDX-License-Identifier: Apache-2.0
"""tools/dev and the scripts beside it: what --help prints, and what is refused."""

import os
import re
import subprocess
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def run(script, *arguments):
    result = subprocess.run(
        (os.path.join(ROOT, script), *arguments),
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    return result.returncode, result.stdout, result.stderr


class Help(unittest.TestCase):
    """Each verb and each script prints its help, and does nothing else."""

    def test_of_every_verb(self):
        status, text, errors = run("tools/dev", "help")
        self.assertEqual((status, errors), (0, ""))
        verbs = re.findall(r"^  (\w+)(?:$|  )", text, re.M)
        self.assertIn("test", verbs)
        self.assertIn("format", verbs)
        for verb in verbs:
            for arguments in (["--help"], ["-h"], ["-Dwerror=true", "--help", "threads"]):
                with self.subTest(verb=verb, arguments=arguments):
                    self.assertEqual(run("tools/dev", verb, *arguments), (0, text, ""))

    def test_of_every_script(self):
        listed = re.findall(r"^  (tools/\S+)", run("tools/dev", "--help")[1], re.M)
        scripts = [
            f"{folder}/{name}"
            for folder in ("tools/platforms", "tools/release")
            for name in os.listdir(os.path.join(ROOT, folder))
            if not name.endswith(".sh")
        ]
        self.assertEqual(sorted(listed), sorted(scripts))
        for script in listed:
            with self.subTest(script=script):
                status, text, errors = run(script, "--anything", "--help")
                self.assertEqual((status, errors), (0, ""))
                self.assertTrue(text.startswith(f"usage: {script}"), text)


class Refusals(unittest.TestCase):
    def test_name_what_is_wrong(self):
        cross = "tools/platforms/cross"
        for line, message in (
            (["tools/dev", "tset"], "tools/dev: unknown verb 'tset'; `tools/dev help` lists them"),
            ([cross, "--arch", "arm46"], "no platform 'linux arm46'; there are linux arm64 gcc, "),
            ([cross, "threads"], "need a platform: --system or --arch"),
            (["tools/platforms/debian", "11"], "the version is 12 or 13, not '11'"),
            (["tools/platforms/cpus", "Nehalme"], "'Nehalme' is none of the CPUs here (Nehalem, "),
            (["tools/release/proofs", "lagre"], "'lagre' is no proof; --help lists them"),
            (["tools/platforms/highway", "0.9"], "'0.9' is none of the versions of Highway here"),
            (["tools/release/debian", "12"], "this takes --autopkgtest or nothing, not '12'"),
            (["tools/release/packages", "--locla"], "unknown option '--locla'; --help lists them"),
            (["tools/release/vectors", "f32"], "this takes no argument, not 'f32'"),
            (["tools/release/wheels", "arm64"], "this takes no argument, not 'arm64'"),
        ):
            with self.subTest(line=line):
                status, text, errors = run(*line)
                self.assertEqual((status, text), (2, ""))
                self.assertIn(message, errors)
                self.assertEqual(errors.count("\n"), 1)


if __name__ == "__main__":
    unittest.main()

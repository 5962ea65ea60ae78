# SPDX-License-Identifier: Apache-2.0
"""tools/dev and the scripts beside it: what --help prints, and what is refused."""

import json
import os
import re
import subprocess
import tempfile
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


class Functions(unittest.TestCase):
    """Functions of tools/dev, with other programs in place of Debian's."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def call(self, line):
        """Returns the status of a line and what it says."""
        dev = os.path.join(ROOT, "tools", "dev")
        done = subprocess.run(
            ("bash", "-c", f'. "{dev}"; {line}', "dev_test"),
            env={**os.environ, "PATH": self.directory + os.pathsep + os.environ["PATH"]},
            **{"capture_output": True, "text": True, "check": False},
        )
        return done.returncode, done.stdout + done.stderr

    def test_apt_is_quiet_unless_it_fails(self):
        self.write("dpkg", "#!/bin/sh\necho amd64\n")
        self.write("dpkg-query", "#!/bin/sh\nexit 1\n")
        self.write("sudo", '#!/bin/sh\nexec "$@"\n')
        sizes = "*--print-uris*) echo a b 2000000; echo c d 1000000;;"
        apt = "#!/bin/sh\ncase $* in " + sizes + " *) echo noise; exit {};; esac\n"
        said = "dev_test: installing one two: 2 packages, 3 MB to download\n"
        self.write("apt-get", apt.format(0))
        self.assertEqual(self.call("program=dev_test; require one two"), (0, said))
        self.write("apt-get", apt.format(1))
        status, printed = self.call("program=dev_test; require one two")
        self.assertEqual(status, 1)
        self.assertEqual(
            printed, said + "noise\nnoise\ndev_test: apt-get cannot install one two\n"
        )

    def test_skipped_tests_are_named(self):
        os.mkdir(os.path.join(self.directory, "meson-logs"))
        tests = (
            ("rmsnorm / golden", "", "OK"),
            ("rmsnorm:consumers / consumer_c", "skipped: no make here\n", "SKIP"),
            ("rmsnorm / rust", "skipped: no Cargo here\n", "SKIP"),
            ("rmsnorm / consumer_pkg_config", "skipped: no make here\n", "SKIP"),
        )
        lines = [json.dumps(dict(zip(("name", "stdout", "result"), test))) for test in tests]
        self.write("meson-logs/testlog.json", "\n".join(lines))
        line = f"program=dev_test; build={self.directory}; say_skipped"
        said = (
            "dev_test: skipped 3 tests: consumer_c, consumer_pkg_config (no make here);"
            " rust (no Cargo here)"
        )
        switch = ". `tools/dev test --all-tests` installs what they lack, except Cargo"
        self.assertEqual(self.call(line), (0, said + switch + "\n"))
        self.assertEqual(self.call("all_tests=--all-tests; " + line), (0, said + "\n"))


if __name__ == "__main__":
    unittest.main()

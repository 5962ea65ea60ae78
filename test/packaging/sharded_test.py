# SPDX-License-Identifier: Apache-2.0
"""examples/sharded on 1 to 4 ranks compares itself with the whole norm, and prints a hash of its
results."""

import os
import re
import subprocess
import unittest


def sharded(ranks, *options, program=(os.environ["RMSNORM_SHARDED"],)):
    """Runs the program and returns the finished process. mpirun ends all ranks after a minute; if
    that fails, the timeout here ends the test."""
    return subprocess.run(
        [
            *(os.environ["RMSNORM_MPIRUN"], "--allow-run-as-root", "--oversubscribe"),
            *("--timeout", "60", "-n", str(ranks), *program, *options),
        ],
        # Ranks on one machine exchange data through shared memory: containers may forbid ptrace, the
        # faster way.
        env={**os.environ, "OMPI_MCA_btl_vader_single_copy_mechanism": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


class Sharded(unittest.TestCase):
    def numbers(self, ranks, rows, d, repeats):
        """Returns the largest differences by name, and the hash."""
        sizes = ("--rows", str(rows), "--d", str(d), "--repeats", str(repeats))
        done = sharded(ranks, *sizes)
        self.assertEqual(done.returncode, 0, f"{ranks} ranks, {sizes}:\n{done.stdout}{done.stderr}")
        self.assertTrue(done.stdout.startswith(f"{ranks} ranks, {rows} x {d}, {repeats} repeats\n"))
        shares = re.findall(r"(?:for|back)ward: [\d.]+ us, ([\d.]+) % of", done.stdout)
        self.assertEqual(len(shares), 2, done.stdout)
        self.assertTrue(all(0 <= float(share) <= 100 for share in shares), done.stdout)
        differences = dict(re.findall(r" (r|y|dx|dw) ([^,\s]+)", done.stdout))
        return (
            {name: float(differences[name]) for name in ("r", "y", "dx", "dw")},
            re.search(r"^bits: ([0-9a-f]{16})$", done.stdout, re.M)[1],
        )

    def test_like_the_whole_norm(self):
        for d in (1000, 4097):  # 3 divides neither; 4097 is more than a block
            hashes = set()
            for ranks in (1, 2, 3, 4):
                with self.subTest(ranks=ranks, d=d):
                    differences, bits = self.numbers(ranks, 33, d, 1)
                    self.assertTrue(all(0 <= part <= 1 for part in differences.values()))
                    # On one rank, the two phases give the whole norm. Only dx is the example's own.
                    if ranks == 1:
                        self.assertEqual((differences["y"], differences["dw"]), (0, 0))
                    self.assertEqual(self.numbers(ranks, 33, d, 3)[1], bits, "another run's bits")
                    hashes.add(bits)
            self.assertGreater(len(hashes), 1, "the hash does not see the results")

    def test_a_column_for_each_rank(self):
        self.numbers(3, 1, 3, 1)

    def test_wrong_arguments(self):
        for options in (
            ("--d", "2"),  # too few columns for three ranks
            ("--rows", "0"),
            ("--rows", "1x"),
            ("--repeats",),
            ("--columns", "4"),
        ):
            done = sharded(3, *options)
            self.assertEqual(done.returncode, 2, options)
            self.assertIn("usage: mpirun", done.stderr)
            self.assertEqual(done.stdout, "")

    def test_error_on_one_rank(self):
        """If one rank fails, the others do not wait for it."""
        script = (
            'test "$OMPI_COMM_WORLD_RANK" != 1 || export RMSNORM_TARGET=none_such; '
            + 'exec "$RMSNORM_SHARDED"'
        )
        done = sharded(3, program=("sh", "-c", script))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("RMSNORM_TARGET: 'none_such'", done.stderr)
        self.assertNotIn("timeout", done.stderr.lower())


if __name__ == "__main__":
    unittest.main()

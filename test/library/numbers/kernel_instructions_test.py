# SPDX-License-Identifier: Apache-2.0
"""Checks the instructions of the library, which results do not show: if a compiler takes vectors apart, the
kernels have the same bits but are many times slower."""

import json
import os
import re
import shlex
import subprocess
import tempfile
import unittest

# A move of a single 16-bit element: between a vector and another register, or between memory and a
# general register.
ELEMENT_MOVE = re.compile(r"vp(extr|insr)[bw] |movzwl .*\(|mov +%(ax|bx|cx|dx|si|di|bp|r\d+w),.*\(")

# The limit in one function. A half vector of AVX2, taken apart, has 8 moves. Correct kernels have up to
# 2: they store the end of a row in halves, and copy the padding of a struct. clang 19's test for zeros
# had at least 28, clang 14's tails of f16 had at least 14, and gcc 12's loops over the elements of a tail
# had up to 104. clang turns such loops into calls of memcpy.
MANY_ELEMENT_MOVES = 8

# Arithmetic, comparison or conversion of a single f32 or f64. Divisions and roots are separate: a loop
# with one of them goes over rows, which have a few such numbers each.
SCALAR = re.compile(
    r"v(f?n?m(add|sub)(132|213|231)?|mul|add|sub|max|min|u?comi|cmp[a-z]*|cvt\w*)s[sd](2\w+)? "
)
DIVISION = re.compile(r"v(div|sqrt)[ps][sd] ")
WIDE_VECTOR = re.compile(r"v.*%[yz]mm")
# vzeroupper clears the upper halves of these. A function that returns a vector cannot end with it.
CLEARED_VECTOR = re.compile(r"v.*%[yz]mm(\d|1[0-5])\b")
RETURNS_A_VECTOR = re.compile(r"::(LoadTail<|ActivateByFactors\()")

# The limit in one loop, unless it has three times as many instructions on wide vectors. One such
# instruction, taken apart, makes 8 scalar ones on AVX2 and 16 on AVX-512. Correct kernels have up to 8,
# next to 61 vectors.
MANY_SCALARS = 9


class Kernel:
    """A function of one target, with the address and text of each instruction."""

    def __init__(self, name, target):
        self.name = name
        self.target = target
        self.instructions = []

    def count(self, pattern):
        return sum(1 for _, text in self.instructions if pattern.match(text))

    def innermost_loops(self):
        """Yields the instructions from the target of each backward jump to the jump, unless another such
        range lies within."""
        index = {address: i for i, (address, _) in enumerate(self.instructions)}
        last_begin = -1
        for end, (address, text) in enumerate(self.instructions):
            jump = re.match(r"j\w+ +([0-9a-f]+)", text)
            begin = index.get(int(jump[1], 16), end + 1) if jump else end + 1
            # Ranges are ordered by their ends: the previous range lies within this one if it begins
            # later.
            if last_begin < begin <= end:
                last_begin = begin
                yield [text for _, text in self.instructions[begin : end + 1]]


def read_kernels(program):
    disassembled = subprocess.run(
        ["objdump", "--disassemble", "--demangle", "--no-show-raw-insn", program],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    kernels = []
    for line in disassembled.splitlines():
        if begin := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            target = re.search(r"\bN_(\w+)::", begin[1])
            kernels.append(Kernel(begin[1], target[1] if target else "baseline"))
        elif instruction := re.match(r" *([0-9a-f]+):\t(.*)", line):
            kernels[-1].instructions.append((int(instruction[1], 16), instruction[2]))
    return kernels


def leave_upper_halves_used(functions):
    """Returns those that use wide vectors, and of these the names of those without vzeroupper."""
    users = [f for f in functions if f.count(CLEARED_VECTOR) and not RETURNS_A_VECTOR.search(f.name)]
    return users, [f.name for f in users if not f.count(re.compile("vzeroupper"))]


class KernelInstructions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        functions = read_kernels(os.environ["RMSNORM_PROGRAM"])
        cls.rounding = {f.target for f in functions if f.count(re.compile("vcvtne2?ps2bf16 "))}
        cls.kernels = [f for f in functions if f.target != "baseline"]

    def test_every_target_is_there(self):
        self.assertLessEqual({"AVX2", "AVX3", "AVX3_DL"}, {k.target for k in self.kernels})

    def test_one_target_rounds_to_bf16_natively(self):
        """CPUs of the other targets may lack the instruction."""
        self.assertEqual(self.rounding, {"AVX3_DL"})

    def test_elements_move_in_vectors(self):
        moves = {k.name: k.count(ELEMENT_MOVE) for k in self.kernels}
        self.assertEqual({k: n for k, n in moves.items() if n >= MANY_ELEMENT_MOVES}, {})

    def test_no_kernel_copies_elements_by_a_call(self):
        copy = re.compile(r"call .*<mem(cpy|move)")
        self.assertEqual([k.name for k in self.kernels if k.count(copy)], [])

    def test_kernels_keep_to_their_target(self):
        """Calls of the reference's scalar loops made rows in binary64 14 to 77 times slower."""
        other = set()
        for kernel in self.kernels:
            for _, text in kernel.instructions:
                callee = re.match(r"(?:call|jmp) +[0-9a-f]+ <(rmsnorm::.*|\w+ rmsnorm::.*)>", text)
                if callee and f"::N_{kernel.target}::" not in callee[1]:
                    other.add((kernel.name, callee[1]))
        self.assertEqual(other, set())

    def test_kernels_leave_upper_halves_unused(self):
        """The caller's calls of libm would take 35 times as long on Intel: see cases/float_control.h."""
        users, wrong = leave_upper_halves_used(self.kernels)
        self.assertGreater(len(users), 100)
        self.assertEqual(wrong, [])

    def test_loops_over_elements_work_on_vectors(self):
        found = []
        loops_of_vectors = 0
        for kernel in self.kernels:
            for loop in kernel.innermost_loops():
                vectors = sum(1 for text in loop if WIDE_VECTOR.match(text))
                scalars = sum(1 for text in loop if SCALAR.match(text))
                loops_of_vectors += vectors > 0
                if any(DIVISION.match(text) for text in loop):
                    continue
                if scalars >= MANY_SCALARS and vectors < 3 * scalars:
                    found.append((kernel.name, scalars, vectors))
        self.assertGreater(loops_of_vectors, 0)
        self.assertEqual(found, [])


# Stands for a kernel, which takes 20 s to compile.
SMALL_KERNEL = """
#include <immintrin.h>
__attribute__((target("avx2"))) void Copy(const float* x, float* y) {
  _mm256_storeu_ps(y, _mm256_loadu_ps(x));
}
"""


class UsersOptions(unittest.TestCase):
    """Compiles with a level of optimization in CXXFLAGS, as packagers do."""

    LEVELS = ("-O0", "-O1", "-O2", "-Os", "-Og -ffast-math", "-Os -ftree-vectorize -mno-vzeroupper")

    def users(self, name, cxxflags, source=None):
        """Compiles the file, or another source by its command. Returns how many functions use wide
        vectors, and the names of those without vzeroupper."""
        with open(os.environ["RMSNORM_COMPILE_COMMANDS"], encoding="utf-8") as file:
            commands = json.load(file)
        of_library = re.compile(r"librmsnorm_(core|kernels)\.a\.p/")
        (found,) = [
            line
            for line in commands
            if line["file"].endswith(name) and of_library.search(line["command"])
        ]
        words = shlex.split(found["command"])
        words = words[: words.index("-MD")]
        own = words.index("-ffp-contract=off")  # the first of the library's own options
        with tempfile.NamedTemporaryFile(suffix=".o") as object_file:
            subprocess.run(
                [*words[:own], *cxxflags.split(), *words[own:]]
                + ["-o", object_file.name, "-x", "c++", "-c", "-" if source else found["file"]],
                **{"cwd": found["directory"], "input": source, "text": True, "check": True},
            )
            users, wrong = leave_upper_halves_used(read_kernels(object_file.name))
        return len(users), wrong

    def test_of_the_kernels(self):
        for level in self.LEVELS:
            with self.subTest(level):
                self.assertEqual(self.users("lib/kernels/forward.cc", level, SMALL_KERNEL), (1, []))

    def test_of_the_other_files(self):
        """The options also allow AVX in all files."""
        for level in self.LEVELS:
            with self.subTest(level):
                self.assertEqual(self.users("lib/plan.cc", level + " -march=x86-64-v4")[1], [])


if __name__ == "__main__":
    unittest.main()

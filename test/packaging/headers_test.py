# SPDX-License-Identifier: Apache-2.0
"""What the compilers CC and CXX say of the headers: no warning about programs that call every function, in each
language and at any level of optimization, and errors that say what to do."""

import os
import pathlib
import re
import shlex
import shutil
import subprocess
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.normpath(os.path.join(HERE, "../../include"))
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror"
LEVELS = ("-O0", "-O1", "-O2", "-O3", "-Os")
CALLS_IN_C = os.path.join(HERE, "header", "every_function.c")
CALLS_IN_CPP = os.path.join(HERE, "header", "every_function.cc")

SPECIALISATION = """
template <>
struct rmsnorm::DtypeOf<std::uint16_t> {
  static constexpr rmsnorm::Dtype value = rmsnorm::Dtype::bf16;
};
"""
CALL = "void norm(const std::uint16_t* x, std::uint16_t* y) { rmsnorm::norm({x, 2, 8}, {}, {y, 2, 8}); }"
IN_PLACE = "void use(rmsnorm::ForwardOperands& o) { o.%s = o.%s; }"
# The standard, the header, a program, and what the first error says, if there is one.
ERRORS = (
    ("c++98", "rmsnorm.h", "", r"rmsnorm\.h needs .*C\+\+11"),
    ("c++11", "rmsnorm.h", "", ""),
    ("c++11", "rmsnorm.hpp", "", r"rmsnorm\.hpp needs .*C\+\+17"),
    ("c++14", "rmsnorm.hpp", "", r"rmsnorm\.hpp needs .*C\+\+17"),
    ("c++17", "rmsnorm.hpp", "", ""),
    ("c++17", "rmsnorm.hpp", CALL, "rmsnorm has no Dtype for .*struct rmsnorm::DtypeOf<T>"),
    ("c++17", "rmsnorm.hpp", SPECIALISATION + CALL, ""),
    ("c++17", "rmsnorm.hpp", IN_PLACE % ("residual_out", "residual"), "deleted"),
    ("c++17", "rmsnorm.hpp", IN_PLACE % ("residual", "residual_out"), ""),
)


def compile_with(compiler, options, *files, text=None):
    source = files or ("-x", "c++", "-")
    return subprocess.run(
        (*shlex.split(compiler), *shlex.split(options), "-I" + INCLUDE, *source),
        **{"input": text, "capture_output": True, "text": True, "check": False},
        env={**os.environ, "LC_ALL": "C"},
    )


class Headers(unittest.TestCase):
    def check(self, compiler, options, file):
        with self.subTest(file, options=options):
            done = compile_with(compiler, f"{STRICT} {options}", file)
            self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_warnings(self):
        """They depend on the level of optimization."""
        output = f"-S -o {os.devnull}"
        for level in LEVELS:
            self.check(os.environ["CC"], f"-std=c99 -pedantic-errors {level} {output}", CALLS_IN_C)
            self.check(os.environ["CXX"], f"-std=c++17 {level} {output}", CALLS_IN_CPP)
        for standard in ("c++17 -fno-exceptions -fno-rtti", "c++20 -Wold-style-cast"):
            self.check(os.environ["CXX"], f"-std={standard} -O2 {output}", CALLS_IN_CPP)

    @unittest.skipUnless(shutil.which("clang"), "no clang")
    def test_visual_c(self):
        """As far as clang knows Visual C++ and clang-cl: it has no headers of Windows."""
        target = "-std=c99 --target=x86_64-pc-windows-msvc -ffreestanding -fsyntax-only"
        for macro in ("RMSNORM_DLL", "RMSNORM_EXPORTS"):
            self.check("clang", f"{target} -D{macro}", CALLS_IN_C)

    def test_every_function_is_called(self):
        """Looks at the functions that the header declares in C."""
        header = pathlib.Path(INCLUDE, "rmsnorm", "rmsnorm.h").read_text(encoding="utf-8")
        declared = set(re.findall(r"^(?:RMSNORM_API|static inline) [^;(]*?(\w+)\(", header, re.M))
        self.assertGreater(len(declared), 40)
        calls = pathlib.Path(CALLS_IN_C).read_text(encoding="utf-8")
        self.assertEqual(declared - set(re.findall(r"(\w+)\(", calls)), set())

    def test_errors(self):
        for standard, header, program, expected in ERRORS:
            with self.subTest(header, standard=standard, program=program):
                text = f"#include <rmsnorm/{header}>\n{program}\n"
                options = f"-std={standard} -Werror -fsyntax-only"
                done = compile_with(os.environ["CXX"], options, text=text)
                errors = re.findall(r"error: (.*)", done.stderr)
                self.assertEqual(len(errors) > 0, done.returncode != 0, done.stderr)
                self.assertRegex("".join(errors[:1]), expected or "^$")

    def test_errors_of_options_that_change_results(self):
        """They stop the library."""
        compiler = os.environ["CXX"]
        macros = compile_with(compiler, "-dM -E", text="//").stdout
        of_gcc = () if "__clang__" in macros else ("-freciprocal-math", "-fno-signed-zeros")
        refused = ("-ffast-math", "-ffinite-math-only", *of_gcc)
        for options in (*refused, "-ffast-math -fno-fast-math"):
            for source in ("reference.cc", "options.cc", "kernels/leaves.h"):
                with self.subTest(source, options=options):
                    text = f'#include "{INCLUDE}/../lib/{source}"'
                    done = compile_with(compiler, f"-std=c++17 -fsyntax-only {options}", text=text)
                    said = "-ffast-math, or a part of it, changes results" in done.stderr
                    self.assertEqual(said, options in refused, done.stderr)
                    self.assertEqual(said, done.returncode != 0, done.stderr)


if __name__ == "__main__":
    unittest.main()

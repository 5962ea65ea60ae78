# SPDX-License-Identifier: Apache-2.0
"""What the compilers CC and CXX say of the headers: no warning about a program that calls every function,
at any level of optimization, and an error in words for an older C++ or an unknown element type."""

import os
import re
import shlex
import subprocess
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
INCLUDE = os.path.normpath(os.path.join(HERE, "../../../include"))
STRICT = "-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Werror".split()
LEVELS = ("-O0", "-O1", "-O2", "-O3", "-Os")


def compile_with(compiler, *options, text=None):
    source = ("-x", "c++", "-") if text else ()
    return subprocess.run(
        (*shlex.split(os.environ[compiler]), *options) + ("-I" + INCLUDE, *source),
        input=text,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


class Warnings(unittest.TestCase):
    def check(self, compiler, standard, file):
        for level in LEVELS:
            with self.subTest(file, level=level):
                output = ("-S", "-o", os.devnull)
                path = os.path.join(HERE, file)
                done = compile_with(compiler, *STRICT, "-std=" + standard, level, *output, path)
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_c(self):
        self.check("CC", "c99", "every_function.c")

    def test_cpp(self):
        self.check("CXX", "c++17", "every_function.cc")

    def test_every_function_is_called(self):
        """Looks at the functions that the headers declare in C."""
        with open(os.path.join(INCLUDE, "rmsnorm", "rmsnorm.h"), encoding="utf-8") as file:
            header = file.read()
        declared = set(re.findall(r"^RMSNORM_API [^;(]*?(\w+)\(", header, re.M))
        declared |= set(re.findall(r"^static inline [^;(]*?(\w+)\(", header, re.M))
        self.assertGreater(len(declared), 30)
        with open(os.path.join(HERE, "every_function.c"), encoding="utf-8") as file:
            called = set(re.findall(r"(\w+)\(", file.read()))
        self.assertEqual(declared - called, set())


SPECIALISATION = """
template <>
struct rmsnorm::DtypeOf<std::uint16_t> {
  static constexpr rmsnorm::Dtype value = rmsnorm::Dtype::bf16;
};
"""
CALL = "void norm(const std::uint16_t* x, std::uint16_t* y) { rmsnorm::norm({x, 2, 8}, {}, {y, 2, 8}); }\n"


class Errors(unittest.TestCase):
    def errors(self, standard, header, more=""):
        text = f"#include <rmsnorm/{header}>\n{more}"
        done = compile_with("CXX", "-std=" + standard, "-Werror", "-fsyntax-only", text=text)
        self.assertEqual("error: " in done.stderr, done.returncode != 0, done.stderr)
        return done.stderr

    def test_of_an_older_standard_says_which_one_the_header_needs(self):
        for standard, header, needed in (
            ("c++11", "rmsnorm.hpp", "C++17"),
            ("c++14", "rmsnorm.hpp", "C++17"),
            ("c++17", "rmsnorm.hpp", None),
            ("c++98", "rmsnorm.h", "C++11"),
            ("c++11", "rmsnorm.h", None),
        ):
            with self.subTest(header, standard=standard):
                first = re.findall(r"error: (.*)", self.errors(standard, header))[:1]
                if needed:
                    self.assertRegex(first[0], f"{re.escape(header)} needs .*{re.escape(needed)}")
                else:
                    self.assertEqual(first, [])

    def test_of_options_that_change_results_stops_the_library(self):
        macros = compile_with("CXX", "-dM", "-E", text="//").stdout
        of_gcc = [] if "__clang__" in macros else ["-freciprocal-math", "-fno-signed-zeros"]
        options = (["-ffast-math"], ["-ffinite-math-only"], *([option] for option in of_gcc))
        for option in (*options, ["-ffast-math", "-fno-fast-math"]):
            for source in ("reference.cc", "options.cc", "kernels/leaves.h"):
                with self.subTest(source, option=option):
                    text = f'#include "{INCLUDE}/../lib/{source}"'
                    done = compile_with("CXX", "-std=c++17", "-fsyntax-only", *option, text=text)
                    refused = "-ffast-math, or a part of it, changes results" in done.stderr
                    self.assertEqual(refused, len(option) == 1, done.stderr)
                    self.assertEqual(refused, done.returncode != 0, done.stderr)

    def test_of_an_unknown_element_type_says_how_to_add_it(self):
        printed = self.errors("c++17", "rmsnorm.hpp", CALL)
        self.assertIn("rmsnorm has no Dtype for this element type", printed)
        self.assertIn("struct rmsnorm::DtypeOf<T>", printed)
        self.assertEqual(self.errors("c++17", "rmsnorm.hpp", SPECIALISATION + CALL), "")

    def test_of_an_input_as_an_output_says_that_it_is_deleted(self):
        call = "void use(rmsnorm::ForwardOperands& o) { o.residual_out = o.residual; }"
        found = self.errors("c++17", "rmsnorm.hpp", call)
        self.assertEqual(found.count("error: "), 1, found)
        self.assertIn("deleted", found)
        reverse = "void use(rmsnorm::ForwardOperands& o) { o.residual = o.residual_out; }"
        self.assertEqual(self.errors("c++17", "rmsnorm.hpp", reverse), "")


if __name__ == "__main__":
    unittest.main()

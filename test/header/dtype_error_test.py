# SPDX-License-Identifier: Apache-2.0
"""The error for an element type unknown to rmsnorm.hpp names the specialisation to write, and with it
the program compiles. The argument is a C++ compiler; RMSNORM_INCLUDE names folders of headers."""

import os
import subprocess
import sys

SPECIALISATION = """
template <>
struct rmsnorm::DtypeOf<std::uint16_t> {
  static constexpr rmsnorm::Dtype value = rmsnorm::Dtype::bf16;
};
"""
PROGRAM = """
#include <rmsnorm/rmsnorm.hpp>
%s
void norm(const std::uint16_t* x, std::uint16_t* y) { rmsnorm::norm({x, 2, 8}, {}, {y, 2, 8}); }
"""


def compile_text(text):
    folders = os.environ["RMSNORM_INCLUDE"].split(":")
    return subprocess.run(
        (*sys.argv[1:], "-std=c++17", "-Werror", "-fsyntax-only", "-x", "c++", "-")
        + tuple(f"-I{folder}" for folder in folders),
        input=text,
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C"},
    )


def main():
    refused = compile_text(PROGRAM % "")
    assert refused.returncode != 0
    for part in ("rmsnorm has no Dtype for this element type", "struct rmsnorm::DtypeOf<T>"):
        assert part in refused.stderr, refused.stderr
    accepted = compile_text(PROGRAM % SPECIALISATION)
    assert accepted.returncode == 0, accepted.stderr


if __name__ == "__main__":
    main()

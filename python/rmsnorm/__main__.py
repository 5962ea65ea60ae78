# SPDX-License-Identifier: Apache-2.0
"""The command `rmsnorm-identify`, or `python -m rmsnorm`: identify() of tensors in files.

`probe` writes tensors on which norms differ, and `identify` tells which norm gave a tensor. The exit
status is 0 for a norm that is right, 1 if no norm fits or the one that fits has a mistake, and 2 for
an error.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from . import __version__
from ._hypotheses import NAMES
from ._identify import identify_files
from ._probe import probe
from ._tensors import write_safetensors

# The flags of the operands, by their names in messages.
_FILES = {
    "x": ("input", "what the implementation was given: float32, float16 or bfloat16, of any shape"),
    "weight": ("weight", "its weight, of any shape that a weight may have"),
    "bias": ("bias", "its bias"),
    "post_norm_weight": ("post-norm-weight", "the weight of a norm of x before the sum"),
    "gate": ("gate", "its gate, of the shape of x"),
    "cos": ("cos", "its cosines for rotary positions, a number for each pair of elements"),
    "sin": ("sin", "its sines"),
    "residual": ("residual", "the residual that it adds to x, of the shape of x"),
    "y": ("output", "what it gave back, of the shape of x"),
    "residual_out": ("residual-output", "its sum of the residual and x"),
}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"rmsnorm-identify: {message}\n")


def _all_eps(text: str) -> list[float]:
    numbers = []
    for each in text.split(","):
        try:
            with np.errstate(over="ignore"):
                number = float(np.float32(each))
        except ValueError:
            number = math.nan
        is_lost = number == 0 and re.search("[1-9]", each.split("e")[0])
        if is_lost or not 0 <= number < math.inf:
            problem = f"{each!r} is not a finite 32-bit number from 0 up"
            raise argparse.ArgumentTypeError(problem)
        numbers.append(number)
    return numbers


def _one_of(numbers: range, name: str) -> Callable[[str], int]:
    """Returns a type of arguments, which are integers of a range."""

    def read(text: str) -> int:
        if not re.fullmatch("[0-9]{1,7}", text) or int(text) not in numbers:
            words = f"{text!r} is not {name} from {numbers[0]} to {numbers[-1]}"
            raise argparse.ArgumentTypeError(words)
        return int(text)

    return read


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        "rmsnorm-identify", description="Tells which RMSNorm another program computes."
    )
    parser.add_argument("--version", action="version", version=f"rmsnorm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    identify = commands.add_parser(
        "identify",
        help="tell which norm computed a tensor in a file",
        epilog="The exit status is 1 if no norm fits, or if the one that fits has a mistake.",
    )
    for name, (flag, words) in _FILES.items():
        is_required = name in ("x", "y")
        identify.add_argument(f"--{flag}", metavar="FILE", required=is_required, help=words)
    identify.add_argument(
        "--eps",
        type=_all_eps,
        action="extend",
        default=[],
        metavar="NUMBER,...",
        help="values to try beside the usual ones",
    )
    made = commands.add_parser("probe", help="write tensors on which norms differ, for identify")
    made.add_argument(
        "--output",
        metavar="FILE",
        required=True,
        help="the .safetensors file to make or replace, with x, residual, gate and weight",
    )
    made.add_argument(
        "--rotated",
        type=_one_of(range(2, 4097, 2), "an even integer"),
        metavar="R",
        help="write x, weight, cos and sin to rotate R elements of a row, an even number up to d",
    )
    length = _one_of(range(16, 2**20 + 1), "an integer")
    made.add_argument("--d", type=length, default=4096, help="elements of a row")
    made.add_argument(
        "--dtype", choices=list(NAMES.values()), default="f32", help="the type of all tensors"
    )
    return parser


def _run(arguments: argparse.Namespace) -> int:
    given = vars(arguments)
    if given.pop("command") == "probe":
        if not given["output"].endswith(".safetensors"):
            raise ValueError("--output: the file of several tensors must end in .safetensors")
        (dtype,) = (code for code, name in NAMES.items() if name == given["dtype"])
        d, rotated = given["d"], given["rotated"]
        if rotated is not None and not rotated <= d <= 4096:
            raise ValueError(f"--rotated: {rotated} of {d} elements; d is from R to 4096")
        write_safetensors(given["output"], probe(d, dtype, rotated))
        return 0
    answer = identify_files(**given)
    print(answer)
    return 0 if answer.options is not None else 1


def _with_flags(message: str) -> str:
    """Returns the library's message on an operand with the flags of operands."""
    names = "|".join(_FILES)
    if not re.match(f"({names}): ", message):
        return message
    return re.sub(rf"\b({names})\b", lambda match: f"--{_FILES[match[1]][0]}", message)


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command with these words, or those of the process."""
    try:
        return _run(_parser().parse_args(words))
    except OSError as error:
        # Without a name it is what the answer is written to.
        message = f"{error.filename or 'standard output'}: {error.strerror}"
    except (MemoryError, ValueError) as error:
        message = _with_flags(str(error))
    # Names of tensors may hold control characters.
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in message)
    print(f"rmsnorm-identify: {shown}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

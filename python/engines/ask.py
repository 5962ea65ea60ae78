# SPDX-License-Identifier: Apache-2.0
"""Asks rmsnorm.identify() which norms an engine computes, in the engine's environment.

    ask.py ENGINE FILE SKIP [--digests]

ENGINE is a module beside this file. It has NORMS, functions by their names, which take x, residual
and weight, as far as they have parameters of these names, and return y or (y, residual_out). A
function of dtype alone says what it found. FRAMEWORK is whose arrays they take: NumPy's if it
is missing. An engine that does not read OMP_NUM_THREADS takes the number of threads from there.

Each norm and type is a line of JSON that is added to FILE, which has SKIP lines already. With
--digests a line has the digests alone, to be compared with those of another number of threads.
"""

import hashlib
import importlib
import inspect
import json
import sys
import time
from pathlib import Path

import ml_dtypes
import numpy as np

import rmsnorm
from rmsnorm._arrays import DTYPES
from rmsnorm._tensors import Tensor, framework_of

D = 1536
LONG = 2**16
BITS = {"float32": np.uint32, "bfloat16": np.uint16, "float16": np.uint16}


def call(f, names, framework, dtype, x):
    """Returns y as an array of NumPy. The residual is 0, and the weight 1."""
    values = {"x": x, "residual": np.zeros_like(x), "weight": np.ones(x.shape[-1])}
    arrays = [
        framework.array(Tensor(values[name].astype(dtype).view(BITS[dtype]), DTYPES[dtype]))
        for name in names
    ]
    returned = f(*arrays)
    y = framework.tensor(returned[0] if isinstance(returned, tuple) else returned)
    return y.bits.view(np.float32 if y.bits.itemsize == 4 else dtype)


def chain(*function):
    """Returns how many squares are added one after another in f32, of a row of LONG.

    One square is 2^24 and the others are 1. In f32 2^24 + 1 is 2^24, so each square that is added
    to the large one alone is lost. y tells how many are left.
    """
    places = (0, LONG // 2, LONG - 1)
    x = np.ones((len(places), LONG), np.float32)
    for row, place in zip(x, places, strict=True):
        row[place] = 4096
    y = call(*function, "float32", x).astype(np.float64)
    total = LONG / np.median(y, axis=1) ** 2
    return max(0, round(float((2**24 + LONG - 1 - total).max())))


def digest(*function):
    """Returns digests of y for many rows, and for a long row, which an engine may split."""
    draws = np.random.RandomState(2)
    rows = [draws.standard_normal(shape).astype(np.float32) for shape in ((512, 4096), (1, 2**20))]
    return [hashlib.sha256(call(*function, x).tobytes()).hexdigest()[:12] for x in rows]


def said(answer):
    """What an answer says, without the subject and the number of equal elements."""
    if answer.fit == "none":
        return answer.special[-1] if answer.special else "no norm that is known"
    norm, _, clauses = answer.sentence.partition(". ")[0].partition(": ")
    return ("no weight, " if norm.endswith("without a weight") else "") + clauses.removesuffix(".")


def ask(f, names, dtype, framework):
    answer = rmsnorm.identify(
        f,
        D,
        dtype,
        weight="weight" in names,
        residual="residual" in names,
        framework=framework,
    )
    return {
        "fit": answer.fit,
        "says": said(answer),
        "equal": round(answer.equal, 5),
        "worst": answer.worst,
        "open": "; ".join(each.values for each in answer.ambiguous),
        "depends": " ".join(cause for cause, count in answer.depends.items() if count),
        "writes": " ".join(answer.writes),
    }


def main(name, file, skip, mode=""):
    engine = importlib.import_module(name)
    framework = getattr(engine, "FRAMEWORK", "numpy")
    adapter = framework_of(framework, None)
    jobs = [(norm, dtype) for norm in engine.NORMS for dtype in BITS]
    for norm, dtype in jobs[int(skip) :]:
        f = engine.NORMS[norm]
        parameters = inspect.signature(f).parameters
        names = [each for each in ("x", "residual", "weight") if each in parameters]
        line = {"norm": norm, "dtype": dtype}
        # What run.py says of a norm that ends the process.
        Path(file).with_name(f"{name.removeprefix('in_')}.begun").write_text(json.dumps(line))
        start = time.monotonic()
        try:
            if "dtype" in parameters:
                line |= {"fit": "exact", "equal": 1, "says": f(dtype)}
            elif mode != "--digests":
                line |= ask(f, names, dtype, framework)
                line["chain"] = chain(f, names, adapter) if dtype == "float32" else ""
            if names:
                line["digests"] = digest(f, names, adapter, dtype)
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        if mode != "--digests":
            text = line.get("error") or f"{line['fit']}, {line['says']}"
            print(f"  {norm}, {dtype}: {text} ({time.monotonic() - start:.0f} s)", flush=True)
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])

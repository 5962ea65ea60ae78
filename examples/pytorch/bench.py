# SPDX-License-Identifier: Apache-2.0
"""Compares the operators with PyTorch's own, as tables in Markdown: the time per call, and the
distance of the results from the exact ones.

    python3 examples/pytorch/bench.py build/examples/pytorch/rmsnorm_torch.so

The contenders take turns, and each figure is the median of 51 rounds of some milliseconds.
"""

import argparse
import itertools
import platform
import statistics
import time

import torch

D = 4096
EPS = 1e-5
ROUNDS = 51
ROUND_SECONDS = 2e-3


def operations(x, weight):
    """Computes the formula in f32, as models do that do not call rms_norm."""
    wide = x.float()
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS)
    return (wide * scale * weight).to(x.dtype)


def own(x, weight):
    return torch.ops.rmsnorm.rms_norm(x, weight, EPS)


def contenders(with_compile):
    """Returns the name and function of each contender, the operator first."""
    result = {"rmsnorm": own}
    if hasattr(torch.nn.functional, "rms_norm"):
        result["F.rms_norm"] = lambda x, weight: torch.nn.functional.rms_norm(x, (D,), weight, EPS)
    result["operations"] = operations
    if with_compile:
        torch.compiler.reset()  # otherwise it reaches its limit of variants
        result["torch.compile"] = torch.compile(operations)
    return result


def forward(norm, x, weight, _):
    return lambda: norm(x, weight)


def add_norm(norm, x, weight, residual):
    if norm is own:
        return lambda: torch.ops.rmsnorm.add_rms_norm(x, residual, weight, EPS)
    return lambda: norm(residual.add_(x), weight)


def training(norm, x, weight, dy):
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    return lambda: torch.autograd.grad(norm(x, weight), (x, weight), dy)


def medians(calls):
    """Returns the seconds per call of each contender."""
    counts = []
    for call in calls:
        for _ in range(3):
            call()
        begin = time.perf_counter()
        for _ in range(10):
            call()
        counts.append(max(1, int(ROUND_SECONDS * 10 / (time.perf_counter() - begin))))
    times = [[] for _ in calls]
    for _ in range(ROUNDS):
        for call, count, taken in zip(calls, counts, times):
            call()  # puts the heap into this contender's usual state
            begin = time.perf_counter()
            for _ in range(count):
                call()
            taken.append((time.perf_counter() - begin) / count)
    return [statistics.median(taken) for taken in times]


def largest_error(y, x, weight):
    """Returns the largest error in units in the last place of the exact result."""
    x = x.double()
    exact = x / (x.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    precision = {torch.float32: 24, torch.bfloat16: 8}[y.dtype]
    unit = torch.exp2(torch.floor(torch.log2(exact.abs())) + 1 - precision)
    return ((y.double() - exact).abs() / unit).max().item()


def cpu():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":")[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("module", help="rmsnorm_torch.so")
    parser.add_argument("--compile", action="store_true", help="beside torch.compile, too")
    arguments = parser.parse_args()
    torch.ops.load_library(arguments.module)

    dtypes = {"f32": torch.float32, "bf16": torch.bfloat16}
    columns = [f"{dtype}: {norm}" for dtype in dtypes for norm in contenders(arguments.compile)]
    head = f"| {' | '.join(columns)} |\n|---{'|---:' * len(columns)}|"
    print(f"PyTorch {torch.__version__}, {cpu()}: microseconds per call\n\n| {head}")
    calls = {"norm": forward, "add_norm": add_norm, "norm, gradients": training}
    errors = []
    for call, (rows, threads) in itertools.product(calls, ((1, 1), (512, 1), (512, 2))):
        torch.set_num_threads(threads)
        row, error_row = [], [f"{rows} x {D}"]
        for dtype in dtypes.values():
            torch.manual_seed(1)
            x, other = (torch.randn(rows, D).to(dtype) for _ in range(2))
            weight = torch.randn(D).to(dtype)
            norms = contenders(arguments.compile)
            with torch.inference_mode(call != "norm, gradients"):
                found = medians([calls[call](norm, x, weight, other) for norm in norms.values()])
            row += [f"{t * 1e6:.{1 if t < 1e-4 else 0}f}" for t in found]
            error_row += [f"{largest_error(f(x, weight), x, weight):.2f}" for f in norms.values()]
        where = f"{call}, {rows} x {D}" + (f", {threads} threads" if threads > 1 else "")
        print(f"| {where} | {' | '.join(row)} |", flush=True)
        if call == "norm" and threads == 1:
            errors.append(f"| {' | '.join(error_row)} |")
    print(f"\nLargest error of the norm, in units in the last place\n\n| {head}")
    print("\n".join(errors))


if __name__ == "__main__":
    main()

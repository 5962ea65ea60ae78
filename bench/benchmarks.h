// SPDX-License-Identifier: Apache-2.0
// Cells as Google Benchmark's benchmarks.
#ifndef RMSNORM_BENCH_BENCHMARKS_H_
#define RMSNORM_BENCH_BENCHMARKS_H_

#include <functional>
#include <string>

#include "cell.h"

namespace rmsnorm::bench {

// The counters that hold ratios of medians. Beside them, each contender has its quartiles:
// memcpy_ns, memcpy_lower_ns, memcpy_upper_ns, and so on.
constexpr char kTimesMemcpy[] = "x_memcpy";          // the library's time in multiples of memcpy's
constexpr char kVersusPlain[] = "vs_plain";          // how many times faster than plain loops
constexpr char kVersusReference[] = "vs_reference";  // and than the reference

// Called after each round of the named benchmark.
using Progress = std::function<void(const std::string& name, size_t done, size_t rounds)>;

// Registers a benchmark of the cell's name. Its time is the library's median over the rounds.
void Register(const Cell& cell, const Progress& progress);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BENCHMARKS_H_

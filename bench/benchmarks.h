// SPDX-License-Identifier: Apache-2.0
// Cells as Google Benchmark's benchmarks.
#ifndef RMSNORM_BENCH_BENCHMARKS_H_
#define RMSNORM_BENCH_BENCHMARKS_H_

#include "case.h"
#include "cell.h"

namespace rmsnorm::bench {

// Registers a benchmark of the cell's name. Its time is the library's median over the rounds. Each
// contender NAME has counters: the quartiles of its times, NAME_lower_ns, NAME_ns, NAME_upper_ns,
// and those of the library's time in multiples of its, by rounds, NAME_ratio_lower, NAME_ratio,
// NAME_ratio_upper. One that is not timed has none: the label says why, as "NAME: why" or "NAME is
// wrong: why", with "; " between two. The contenders, as in case.h, must outlive the benchmark.
void Register(const Cell& cell, const Contenders& contenders);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BENCHMARKS_H_

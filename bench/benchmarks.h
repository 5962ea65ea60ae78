// SPDX-License-Identifier: Apache-2.0
// Registers cells with Google Benchmark.
#ifndef RMSNORM_BENCH_BENCHMARKS_H_
#define RMSNORM_BENCH_BENCHMARKS_H_

#include "contest.h"

namespace rmsnorm::bench {

// Registers a benchmark with the cell's name. Its time is the library's median over the rounds.
// Each contender NAME has counters: NAME_lower_ns, NAME_ns and NAME_upper_ns are the quartiles of
// its times over the rounds. NAME_ratio_lower, NAME_ratio and NAME_ratio_upper are the quartiles of
// the library's time divided by the contender's in the same round. Of several contenders with one
// name, the fastest counts. A contender without a time has
// no counters: the label gives the reason, as "NAME: reason" or "NAME is wrong: reason", joined by
// "; ". The contenders, as in contest.h, must outlive the benchmark.
void Register(const Cell& cell, const Contenders& contenders);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BENCHMARKS_H_

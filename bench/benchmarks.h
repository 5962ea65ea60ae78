// SPDX-License-Identifier: Apache-2.0
// Cells as Google Benchmark's benchmarks.
#ifndef RMSNORM_BENCH_BENCHMARKS_H_
#define RMSNORM_BENCH_BENCHMARKS_H_

#include <string>
#include <vector>

#include "cell.h"
#include "job.h"
#include "peer.h"

namespace rmsnorm::bench {

// The counters that hold ratios of medians. Beside them, each contender has its quartiles:
// memcpy_ns, memcpy_lower_ns, memcpy_upper_ns, and so on; a peer that is not timed has none, and
// the benchmark's label says why.
constexpr char kTimesMemcpy[] = "x_memcpy";          // the library's time in multiples of memcpy's
constexpr char kVersusPlain[] = "vs_plain";          // how many times faster than plain loops
constexpr char kVersusReference[] = "vs_reference";  // and than the reference
constexpr char kTimesRmsNorm[] = "x_rmsnorm";  // another norm's time in multiples of RMSNorm's

// What a run tells as it goes on.
class Observer {
 public:
  virtual ~Observer() = default;
  // After each round of the named benchmark.
  virtual void RoundDone(const std::string& name, size_t done, size_t rounds) = 0;
  virtual void PeerNotTimed(const std::string& name, const PeerProblem& problem) = 0;
};

// Registers a benchmark of the cell's name. Its time is the library's median over the rounds. The
// peers and the observer must outlive it.
void Register(const Cell& cell, const std::vector<Peer>& peers, Observer& observer);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BENCHMARKS_H_

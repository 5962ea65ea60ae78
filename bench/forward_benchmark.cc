// SPDX-License-Identifier: Apache-2.0
#include "forward_benchmark.h"

#include <benchmark/benchmark.h>

#include <exception>
#include <memory>
#include <vector>

#include "forward_job.h"
#include "rounds.h"

namespace rmsnorm::bench {
namespace {

// A small cell is timed in many places in memory, one after another: in some, 1 x 4096 in f32 takes
// half as long again, round after round. Larger cells (by the bytes of x) meet all sorts of places
// anyway.
constexpr size_t kPlaces = 32;
constexpr size_t kMaxBytesInPlaces = 512 * 1024;

// Checks and times a cell. The rounds come before Google Benchmark's loop, whose one iteration then
// gets the median: a mean over iterations would follow the outliers of a busy machine.
void RunForward(benchmark::State& state, const Cell& cell, const Progress& progress) {
  std::vector<std::unique_ptr<ForwardJob>> jobs;
  for (size_t i = 0; i < (cell.bytes() <= kMaxBytesInPlaces ? kPlaces : 1); ++i) {
    jobs.push_back(std::make_unique<ForwardJob>(cell));
    const std::string difference = jobs.back()->FindDifference();
    if (!difference.empty()) {
      state.SkipWithError(difference.c_str());
      return;
    }
  }

  ForwardJob* job = jobs.front().get();
  const std::vector<Contender> contenders = {
      MakeContender("library", [&job] { job->RunLibrary(); }),
      MakeContender("memcpy", [&job] { job->RunMemcpy(); }),
      MakeContender("reference", [&job] { job->RunReference(); }),
      MakeContender("plain", [&job] { job->RunPlainLoops(); }),
  };
  const std::string name = ForwardName(cell);
  const Timings timings = TimeInRounds(contenders, [&](size_t done, size_t rounds) {
    progress(name, done, rounds);
    job = jobs[done % jobs.size()].get();
  });

  for (size_t i = 0; i < contenders.size(); ++i) {
    const Spread& spread = timings.spreads[i];
    const std::string& contender = contenders[i].name;
    state.counters[contender + "_lower_ns"] = spread.lower_quartile * 1e9;
    state.counters[contender + "_ns"] = spread.median * 1e9;
    state.counters[contender + "_upper_ns"] = spread.upper_quartile * 1e9;
  }
  const auto median = [&](size_t contender) { return timings.spreads[contender].median; };
  state.counters[kTimesMemcpy] = median(0) / median(1);
  state.counters[kVersusReference] = median(2) / median(0);
  state.counters[kVersusPlain] = median(3) / median(0);
  state.counters["rounds"] = static_cast<double>(timings.rounds);
  state.counters["threads_used"] = static_cast<double>(job->parts());
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(median(0));
  state.SetBytesProcessed(static_cast<int64_t>(2 * cell.bytes()));  // x read and y written
}

}  // namespace

std::string ForwardName(const Cell& cell) {
  return std::string("forward/") + cell.type_name() + "/" + std::to_string(cell.rows) + "x" +
         std::to_string(cell.d) + "/threads:" + std::to_string(cell.threads) +
         "/target:" + cell.target;
}

void RegisterForward(const Cell& cell, const Progress& progress) {
  const auto run = [cell, progress](benchmark::State& state) {
    try {
      RunForward(state, cell, progress);
    } catch (const std::exception& error) {  // such as too little memory for the cell
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(ForwardName(cell).c_str(), run)->Iterations(1)->UseManualTime();
}

}  // namespace rmsnorm::bench

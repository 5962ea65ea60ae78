// SPDX-License-Identifier: Apache-2.0
#include "benchmarks.h"

#include <benchmark/benchmark.h>

#include <exception>

#include "threads.h"

namespace rmsnorm::bench {
namespace {

void Count(benchmark::State& state, const std::string& name, const std::string& unit,
           const Spread& spread) {
  state.counters[name + "_lower" + unit] = spread.lower_quartile;
  state.counters[name + unit] = spread.median;
  state.counters[name + "_upper" + unit] = spread.upper_quartile;
}

// Checks and times a cell. The rounds run before the loop of Google Benchmark. Its one iteration
// gets the median: a mean over iterations would follow the outliers of a busy machine.
void Run(benchmark::State& state, const Cell& cell, const Contenders& contenders) {
  Contest contest(cell, contenders);
  std::string label;
  for (const Untimed& one : contest.untimed()) {
    if (one.name == contenders.front()->name()) {
      state.SkipWithError(one.reason.c_str());
      return;
    }
    label +=
        (label.empty() ? "" : "; ") + one.name + (one.is_wrong ? " is wrong: " : ": ") + one.reason;
  }
  state.SetLabel(label);

  const std::vector<Turn> turns = contest.Turns();
  // This comes after the peers have run: threads inherit the binding of the thread that starts
  // them.
  const BoundThreads bound(cell.threads);
  const std::vector<std::vector<double>> seconds = TimeInRounds(turns, [&] { contest.MoveOn(); });
  const std::vector<double>& library = seconds.front();
  for (size_t i = 0; i < turns.size(); ++i) {
    std::vector<double> nanoseconds;
    std::vector<double> ratios;
    for (size_t round = 0; round < library.size(); ++round) {
      nanoseconds.push_back(seconds[i][round] * 1e9);
      ratios.push_back(library[round] / seconds[i][round]);
    }
    // Of plain loops, which share a name, the fastest count.
    const Spread spread = SpreadOf(nanoseconds);
    const auto other = state.counters.find(turns[i].name + "_ns");
    if (other != state.counters.end() && other->second <= spread.median) continue;
    Count(state, turns[i].name, "_ns", spread);
    Count(state, turns[i].name + "_ratio", "", SpreadOf(ratios));
  }
  state.counters["rounds"] = static_cast<double>(library.size());
  state.counters["threads_used"] = static_cast<double>(contest.parts());
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(SpreadOf(library).median);
  state.SetBytesProcessed(static_cast<int64_t>(cell.moved_bytes()));
}

}  // namespace

void Register(const Cell& cell, const Contenders& contenders) {
  const auto run = [cell, &contenders](benchmark::State& state) {
    try {
      Run(state, cell, contenders);
    } catch (const std::exception& error) {  // such as too little memory for the cell
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(cell.name.c_str(), run)->Iterations(1)->UseManualTime();
}

}  // namespace rmsnorm::bench

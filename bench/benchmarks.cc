// SPDX-License-Identifier: Apache-2.0
#include "benchmarks.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "operations.h"
#include "threads.h"

namespace rmsnorm::bench {
namespace {

// A small cell is timed in many places in memory, one after another: in some, 1 x 4096 in f32 takes
// half as long again, round after round. Larger cells (by the bytes of x) meet all sorts of places
// anyway, and so do cold ones.
constexpr size_t kPlaces = 32;
constexpr size_t kMaxBytesInPlaces = 512 * 1024;

// Checks and times a cell. The rounds come before Google Benchmark's loop, whose one iteration then
// gets the median: a mean over iterations would follow the outliers of a busy machine.
void Run(benchmark::State& state, const Cell& cell, const std::vector<Peer>& peers,
         Observer& observer) {
  const bool in_places = !cell.cold && cell.bytes() <= kMaxBytesInPlaces;
  std::vector<std::unique_ptr<Job>> jobs;
  for (size_t i = 0; i < (in_places ? kPlaces : 1); ++i) {
    jobs.push_back(MakeJob(cell));
    const std::string fault = jobs.back()->FindFault();
    if (!fault.empty()) {
      state.SkipWithError(fault.c_str());
      return;
    }
  }

  std::set<std::string> not_timed;
  std::string label;
  for (const Peer& peer : peers) {
    PeerProblem problem;
    if (std::all_of(jobs.begin(), jobs.end(), [&](const std::unique_ptr<Job>& job) {
          return job->AddPeer(peer, &problem);
        })) {
      continue;
    }
    not_timed.insert(problem.peer);
    label += (label.empty() ? "" : "; ") + problem.peer + (problem.wrong ? " is wrong: " : ": ") +
             problem.text;
    observer.PeerNotTimed(cell.name(), problem);
  }
  state.SetLabel(label);

  std::vector<std::vector<Contender>> contenders_of;  // by place
  for (const std::unique_ptr<Job>& job : jobs) {
    contenders_of.emplace_back();
    for (Contender& contender : job->Contenders()) {
      if (not_timed.count(contender.name) == 0) {
        contenders_of.back().push_back(std::move(contender));
      }
    }
  }
  size_t place = 0;
  std::vector<Contender> contenders = contenders_of.front();
  for (size_t i = 0; i < contenders.size(); ++i) {
    contenders[i].repeat = [&, i](size_t times) { contenders_of[place][i].repeat(times); };
  }
  // Not before the peers have run: threads that they start are bound as the one that starts them.
  const BoundThreads bound(cell.threads);
  const Timings timings = TimeInRounds(contenders, [&](size_t done, size_t rounds) {
    observer.RoundDone(cell.name(), done, rounds);
    place = done % jobs.size();
  });

  std::map<std::string, double> median;
  for (size_t i = 0; i < contenders.size(); ++i) {
    const Spread& spread = timings.spreads[i];
    const std::string& contender = contenders[i].name;
    state.counters[contender + "_lower_ns"] = spread.lower_quartile * 1e9;
    state.counters[contender + "_ns"] = spread.median * 1e9;
    state.counters[contender + "_upper_ns"] = spread.upper_quartile * 1e9;
    median[contender] = spread.median;
  }
  const double library = median.at(kLibrary);
  state.counters[kTimesMemcpy] = library / median.at(kMemcpy);
  if (median.count(kReference) != 0) {
    state.counters[kVersusReference] = median.at(kReference) / library;
  }
  if (median.count(kRmsNorm) != 0) state.counters[kTimesRmsNorm] = library / median.at(kRmsNorm);
  if (median.count(kPlain) != 0) state.counters[kVersusPlain] = median.at(kPlain) / library;
  state.counters["rounds"] = static_cast<double>(timings.rounds);
  const Job& job = *jobs.front();
  state.counters["threads_used"] = static_cast<double>(job.parts());
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(library);
  state.SetBytesProcessed(job.passes() * static_cast<int64_t>(cell.bytes()));
}

}  // namespace

void Register(const Cell& cell, const std::vector<Peer>& peers, Observer& observer) {
  const auto run = [cell, &peers, &observer](benchmark::State& state) {
    try {
      Run(state, cell, peers, observer);
    } catch (const std::exception& error) {  // such as too little memory for the cell
      state.SkipWithError(error.what());
    }
  };
  benchmark::RegisterBenchmark(cell.name().c_str(), run)->Iterations(1)->UseManualTime();
}

}  // namespace rmsnorm::bench

// SPDX-License-Identifier: Apache-2.0
#include "bench_table.h"

#include <algorithm>
#include <cstdio>
#include <ostream>

#include "benchmarks.h"
#include "cpu.h"

namespace rmsnorm::tools {

using bench::Cell;

namespace {

const std::string kOperation = "operation";  // a column's header

std::string Right(const std::string& text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string Left(const std::string& text, size_t width) {
  return text + std::string(width - std::min(width, text.size()), ' ');
}

std::string Fixed(double value, int decimals) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string ThreeDigits(double value) {
  return Fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

// Such as "2.5x" or "31x".
std::string Times(double ratio) { return Fixed(ratio, ratio < 9.95 ? 1 : 0) + "x"; }

size_t PeerWidth(const std::string& peer) { return std::max<size_t>(peer.size(), 5) + 3; }

// From 1.8 on Google Benchmark has other names for a benchmark that failed.
template <class Run>
auto FailureOf(const Run& run, int /*preferred*/) -> decltype(run.error_message) {
  return run.error_occurred ? run.error_message : std::string();
}
template <class Run>
std::string FailureOf(const Run& run, long /*otherwise*/) {
  return run.skipped ? run.skip_message : std::string();
}

}  // namespace

std::string FailureOf(const benchmark::BenchmarkReporter::Run& run) { return FailureOf(run, 0); }

std::string TimeText(double seconds) {
  double value = seconds * 1e9;
  const char* unit = "ns";
  for (const char* larger : {"us", "ms", "s"}) {
    if (value < 999.5) break;
    value /= 1000;
    unit = larger;
  }
  return ThreeDigits(value) + " " + unit;
}

BenchTable::BenchTable(const std::vector<Cell>& cells, const std::vector<std::string>& peers)
    : peers_(peers) {
  std::vector<std::string> targets;
  for (const Cell& cell : cells) {
    cells_.emplace(cell.name(), cell);
    rows_width_ = std::max(rows_width_, std::to_string(cell.rows).size());
    d_width_ = std::max(d_width_, std::to_string(cell.d).size());
    if (std::find(targets.begin(), targets.end(), cell.target) == targets.end()) {
      targets.push_back(cell.target);
      targets_ += (targets_.empty() ? "" : ", ") + cell.target;
    }
  }
  has_target_column_ = targets.size() > 1;
  has_rmsnorm_column_ = std::any_of(cells.begin(), cells.end(),
                                    [](const Cell& cell) { return cell.operation == "layernorm"; });
  cold_ = !cells.empty() && cells.front().cold;
  const bool only_forward = std::all_of(
      cells.begin(), cells.end(), [](const Cell& cell) { return cell.operation == "forward"; });
  if (!only_forward) {
    for (const Cell& cell : cells) {
      operation_width_ = std::max({operation_width_, cell.operation.size(), kOperation.size()});
    }
    operation_width_ += 2;
  }
}

void BenchTable::PeerNotTimed(const std::string& cell_name, const bench::PeerProblem& problem) {
  if (problem.wrong) wrong_peers_[cell_name].insert(problem.peer);
  AddNote((problem.wrong ? "WRONG: " + problem.peer + " in " + cell_name : "-: " + problem.peer) +
          ": " + problem.text);
}

void BenchTable::AddNote(const std::string& note) {
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
}

std::string BenchTable::Start(const std::string& operation, const std::string& type,
                              const std::string& rows, const std::string& d,
                              const std::string& threads) const {
  return (operation_width_ > 0 ? Left(operation, operation_width_) : "") + Left(type, 6) +
         Right(rows, rows_width_) + " x " + Left(d, d_width_) + Right(threads, 8);
}

bool BenchTable::ReportContext(const Context& /*context*/) {
  const int threads = rmsnorm_max_threads();
  GetOutputStream() << "rmsnorm " << rmsnorm_version() << " · " << CpuModel() << " · " << threads
                    << (threads == 1 ? " thread" : " threads")
                    << (has_target_column_ ? " · targets " : " · target ") << targets_
                    << " · Highway " << rmsnorm_highway_version() << " · "
                    << (rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP")
                    << (cold_ ? " · cold caches" : "") << "\n"
                    << Start(kOperation, "type", "rows", "d", "threads")
                    << "       time      GB/s   x memcpy"
                    << (has_rmsnorm_column_ ? "   x rmsnorm" : "");
  for (const std::string& peer : peers_) GetOutputStream() << Right(peer, PeerWidth(peer));
  GetOutputStream() << "   vs loops   vs reference" << (has_target_column_ ? "   target" : "")
                    << std::endl;
  return true;
}

void BenchTable::ReportRuns(const std::vector<Run>& runs) {
  // Repetitions may come as their statistics alone.
  const bool all = std::any_of(runs.begin(), runs.end(),
                               [](const Run& run) { return run.run_type == Run::RT_Iteration; });
  for (const Run& run : runs) {
    if (all ? run.run_type == Run::RT_Iteration : run.aggregate_name == "median") PrintRun(run);
  }
}

void BenchTable::PrintRun(const Run& run) {
  std::ostream& out = GetOutputStream();
  const Cell& cell = cells_.at(run.run_name.function_name);
  out << Start(cell.operation, cell.type_name(), std::to_string(cell.rows), std::to_string(cell.d),
               std::to_string(cell.threads));
  const std::string failure = FailureOf(run);
  if (!failure.empty()) {
    out << "  FAILED on " << cell.target << ": " << failure << std::endl;
    return;
  }
  const auto counter = [&run](const char* name) -> double { return run.counters.at(name); };
  const auto times_faster_than = [&](const char* name) {
    return run.counters.count(name) != 0 ? Times(counter(name)) : "-";
  };
  const double seconds =
      run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
  out << Right(TimeText(seconds), 11) << Right(ThreeDigits(counter("bytes_per_second") / 1e9), 10)
      << Right(Fixed(counter(bench::kTimesMemcpy), 2), 11);
  if (has_rmsnorm_column_) {
    const bool timed = run.counters.count(bench::kTimesRmsNorm) != 0;
    out << Right(timed ? Fixed(counter(bench::kTimesRmsNorm), 2) : "-", 12);
  }
  for (const std::string& peer : peers_) out << Right(PeerText(run, peer), PeerWidth(peer));
  out << Right(times_faster_than(bench::kVersusPlain), 11)
      << Right(times_faster_than(bench::kVersusReference), 15)
      << (has_target_column_ ? "   " + cell.target : "") << std::endl;
}

std::string BenchTable::PeerText(const Run& run, const std::string& peer) const {
  const auto time = run.counters.find(peer + "_ns");
  if (time != run.counters.end()) {
    return Fixed(time->second / run.counters.at(std::string(bench::kMemcpy) + "_ns"), 2);
  }
  const auto wrong = wrong_peers_.find(run.run_name.function_name);
  return wrong != wrong_peers_.end() && wrong->second.count(peer) != 0 ? "WRONG" : "-";
}

void BenchTable::Finalize() {
  for (const std::string& note : notes_) GetOutputStream() << note << "\n";
  GetOutputStream().flush();
}

}  // namespace rmsnorm::tools

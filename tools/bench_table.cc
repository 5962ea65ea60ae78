// SPDX-License-Identifier: Apache-2.0
#include "bench_table.h"

#include <algorithm>
#include <cstdio>
#include <ostream>
#include <sstream>

#include "cpu.h"

namespace rmsnorm::tools {

using bench::Cell;

namespace {

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

size_t WidthOf(const std::string& other) { return std::max<size_t>(other.size(), 5) + 3; }

// Google Benchmark renames the field of a failed benchmark in 1.8.
template <class Run>
auto FailureOf(const Run& run, int /*preferred*/) -> decltype(run.error_message) {
  return run.error_occurred ? run.error_message : std::string();
}
template <class Run>
std::string FailureOf(const Run& run, long /*otherwise*/) {
  return run.skipped ? run.skip_message : std::string();
}

}  // namespace

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

BenchTable::BenchTable(const std::vector<Cell>& cells, const bench::Contenders& contenders) {
  for (const Cell& cell : cells) cells_.emplace(cell.name(), cell);
  for (size_t i = 1; i < contenders.size(); ++i) others_.push_back(contenders[i]->name());
}

bool BenchTable::ReportContext(const Context& /*context*/) {
  GetOutputStream() << "rmsnorm " << rmsnorm_version() << " · " << CpuModel() << " · Highway "
                    << rmsnorm_highway_version() << " · "
                    << (rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP") << "\n"
                    << "operation    type   rows x d      threads       time      GB/s   x memcpy";
  for (const std::string& other : others_) GetOutputStream() << Right(other, WidthOf(other));
  GetOutputStream() << "   target" << std::endl;
  return true;
}

void BenchTable::ReportRuns(const std::vector<Run>& runs) {
  // The statistics may come without their repetitions.
  const bool all = std::any_of(runs.begin(), runs.end(),
                               [](const Run& run) { return run.run_type == Run::RT_Iteration; });
  for (const Run& run : runs) {
    if (all ? run.run_type == Run::RT_Iteration : run.aggregate_name == "median") PrintRun(run);
  }
}

void BenchTable::PrintRun(const Run& run) {
  std::ostream& out = GetOutputStream();
  const Cell& cell = cells_.at(run.run_name.function_name);
  out << Left(cell.operation->name, 13) << Left(cell.type_name(), 6)
      << Left(Right(std::to_string(cell.rows), 5) + " x " + std::to_string(cell.d), 14)
      << Right(std::to_string(cell.threads), 8);
  const std::string failure = FailureOf(run, 0);
  if (!failure.empty()) {
    found_fault_ = true;
    out << "  FAILED on " << cell.target << ": " << failure << std::endl;
    return;
  }
  const auto counter = [&run](const std::string& name) -> double { return run.counters.at(name); };
  const double seconds =
      run.GetAdjustedRealTime() / benchmark::GetTimeUnitMultiplier(run.time_unit);
  out << Right(TimeText(seconds), 11) << Right(ThreeDigits(counter("bytes_per_second") / 1e9), 10)
      << Right(Fixed(counter("memcpy_ratio"), 2), 11);
  for (const std::string& other : others_) {
    const bool wrong = run.report_label.find(other + " is wrong: ") != std::string::npos;
    found_fault_ |= wrong;
    const bool timed = run.counters.count(other + "_ns") != 0;
    out << Right(timed   ? Fixed(counter(other + "_ns") / counter("memcpy_ns"), 2)
                 : wrong ? "WRONG"
                         : "-",
                 WidthOf(other));
  }
  out << "   " << cell.target << std::endl;
  if (cell.operation->code == RMSNORM_PEER_LAYERNORM) {
    Note("layernorm: the library has none, and its figures are of norm");
  }
  std::istringstream problems(run.report_label);
  for (std::string problem; std::getline(problems, problem, ';');) {
    problem.erase(0, problem.find_first_not_of(' '));
    const bool wrong = problem.find(" is wrong: ") != std::string::npos;
    Note(wrong ? cell.name() + ": " + problem : problem);
  }
}

void BenchTable::Note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

void BenchTable::Finalize() {
  for (const std::string& note : notes_) GetOutputStream() << note << "\n";
  GetOutputStream().flush();
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
#include "bench_table.h"

#include <algorithm>
#include <cmath>
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

// The width of a column of times.
size_t WidthOf(const std::string& name) { return std::max<size_t>(name.size(), 7) + 3; }

// Whether the quartiles of a contender's time are far apart.
bool IsDisturbed(const benchmark::UserCounters& counters) {
  constexpr double kMostApart = 1.5;
  const std::string end = "_lower_ns";
  return std::any_of(counters.begin(), counters.end(), [&](const auto& counter) {
    const auto& [name, lower] = counter;
    if (name.size() < end.size() || name.substr(name.size() - end.size()) != end) return false;
    return counters.at(name.substr(0, name.size() - end.size()) + "_upper_ns") > kMostApart * lower;
  });
}

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
  for (const Cell& cell : cells) {
    cells_.emplace(cell.name, cell);
    has_targets_ |= cell.target != cells.front().target;
  }
  for (size_t i = 1; i < contenders.size(); ++i) {
    if (contenders[i].kind != bench::Kind::kPlain) others_.push_back(contenders[i].name);
  }
}

bool BenchTable::ReportContext(const Context& /*context*/) {
  GetOutputStream() << "rmsnorm " << rmsnorm_version() << " · " << CpuModel() << " · Highway "
                    << rmsnorm_highway_version() << " · "
                    << (rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP")
                    << (cells_.begin()->second.reads ? " · results are read" : "") << "\n"
                    << "operation   type  rows x d     threads    memcpy     plain   rmsnorm  GB/s";
  for (const std::string& other : others_) GetOutputStream() << Right(other, WidthOf(other));
  GetOutputStream() << "  times faster  target" << std::endl;
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
  out << Left(cell.operation, 12) << Left(cell.type, 6)
      << Left(Right(std::to_string(cell.shape.rows), 4) + " x " + std::to_string(cell.shape.d), 13)
      << Right(std::to_string(cell.threads), 7);
  const std::string failure = FailureOf(run, 0);
  if (!failure.empty()) {
    found_fault_ = true;
    out << "  FAILED on " << cell.target << ": " << failure << std::endl;
    return;
  }
  const auto counter = [&run](const std::string& name) -> double { return run.counters.at(name); };
  const auto print_time = [&](const std::string& name, size_t width) {
    const bool is_wrong = run.report_label.find(name + " is wrong: ") != std::string::npos;
    found_fault_ |= is_wrong;
    const bool is_timed = run.counters.count(name + "_ns") != 0;
    out << Right(is_timed   ? TimeText(counter(name + "_ns") * 1e-9)
                 : is_wrong ? "WRONG"
                            : "-",
                 width);
  };
  for (const char* const name : {bench::kMemcpy, bench::kPlain, "library"}) print_time(name, 10);
  out << Right(ThreeDigits(counter("bytes_per_second") / 1e9), 6);
  for (const std::string& other : others_) print_time(other, WidthOf(other));
  std::string factor = "-";
  if (run.counters.count("plain_ns") != 0) {
    const double times = counter("plain_ns") / counter("library_ns");
    factor = ThreeDigits(times);
    AddToMean(cell, times);
  }
  const bool is_disturbed = IsDisturbed(run.counters);
  has_marks_ |= is_disturbed;
  out << Right(factor, 14) << (is_disturbed ? "* " : "  ") << cell.target << std::endl;
  std::istringstream problems(run.report_label);
  for (std::string problem; std::getline(problems, problem, ';');) {
    problem.erase(0, problem.find_first_not_of(' '));
    const bool wrong = problem.find(" is wrong: ") != std::string::npos;
    Note(wrong ? cell.name + ": " + problem : problem);
  }
}

void BenchTable::Note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

void BenchTable::AddToMean(const Cell& cell, double times_faster) {
  const std::string name = cell.type + (has_targets_ ? " on " + cell.target : "");
  auto found = std::find_if(means_.begin(), means_.end(),
                            [&name](const Means& means) { return means.name == name; });
  if (found == means_.end()) found = means_.insert(found, {name, {}});
  Means::Mean& mean = found->by_threads[cell.threads];
  mean.logarithms += std::log(times_faster);
  ++mean.rows;
}

void BenchTable::Finalize() {
  std::ostream& out = GetOutputStream();
  for (const std::string& note : notes_) out << note << "\n";
  if (has_marks_) {
    out << "* Measure again on a quiet machine: the quartiles of a time are more than 1.5 apart.\n";
  }
  for (const Means& means : means_) {
    out << means.name << ": ";
    const char* text = " times faster than plain loops on ";
    for (const auto& [threads, mean] : means.by_threads) {
      if (threads != means.by_threads.begin()->first) out << ", ";
      out << ThreeDigits(std::exp(mean.logarithms / mean.rows)) << text << threads
          << (threads == 1 ? " thread" : " threads");
      text = " times on ";
    }
    out << " (geometric mean of the rows)\n";
  }
  out.flush();
}

}  // namespace rmsnorm::tools

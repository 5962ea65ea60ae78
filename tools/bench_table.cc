// SPDX-License-Identifier: Apache-2.0
#include "bench_table.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

#include "command.h"

namespace rmsnorm::tools {

using bench::Cell;

namespace {

std::string ThreeDigits(double value) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(value < 9.995 ? 2 : value < 99.95 ? 1 : 0) << value;
  return text.str();
}

// Three significant digits and a unit, such as "142 ns" or "5.30 us".
std::string TimeText(double nanoseconds) {
  const char* unit = "ns";
  for (const char* larger : {"us", "ms", "s"}) {
    if (nanoseconds < 999.5) break;
    nanoseconds /= 1000;
    unit = larger;
  }
  return ThreeDigits(nanoseconds) + " " + unit;
}

// The width of a column of times.
int WidthOf(const std::string& name) { return std::max(static_cast<int>(name.size()), 7) + 3; }

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
  for (const std::string& other : others_) {
    GetOutputStream() << std::setw(WidthOf(other)) << other;
  }
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
  out << std::left << std::setw(12) << cell.operation << std::setw(6) << cell.type << std::right
      << std::setw(4) << cell.shape.rows << " x " << std::left << std::setw(6) << cell.shape.d
      << std::right << std::setw(7) << cell.threads;
  const std::string failure = FailureOf(run, 0);
  if (!failure.empty()) {
    found_fault_ = true;
    out << "  FAILED on " << cell.target << ": " << failure << std::endl;
    return;
  }
  const auto counter = [&run](const std::string& name) -> double { return run.counters.at(name); };
  bool is_disturbed = false;
  const auto print_time = [&](const std::string& name, int width) {
    std::string text = "-";
    if (run.counters.count(name + "_ns") != 0) {
      text = TimeText(counter(name + "_ns"));
      constexpr double kMostApart = 1.5;
      is_disturbed |= counter(name + "_upper_ns") > kMostApart * counter(name + "_lower_ns");
    } else if (run.report_label.find(name + " is wrong: ") != std::string::npos) {
      text = "WRONG";
      found_fault_ = true;
    }
    out << std::setw(width) << text;
  };
  for (const char* const name : {bench::kMemcpy, bench::kPlain, "library"}) print_time(name, 10);
  out << std::setw(6) << ThreeDigits(counter("bytes_per_second") / 1e9);
  for (const std::string& other : others_) print_time(other, WidthOf(other));
  std::string factor = "-";
  if (run.counters.count("plain_ns") != 0) {
    const double times = counter("plain_ns") / counter("library_ns");
    factor = ThreeDigits(times);
    AddToMean(cell, times);
  }
  has_marks_ |= is_disturbed;
  out << std::setw(14) << factor << (is_disturbed ? "* " : "  ") << cell.target << std::endl;
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

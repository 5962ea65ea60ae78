// SPDX-License-Identifier: Apache-2.0
// rmsnorm bench: times every cell of a table. Google Benchmark reads its flags and writes its
// files, and times nothing: each cell is one iteration, whose time is the library's median over the
// rounds.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>

#include "cases/run.h"
#include "cases/text.h"
#include "command.h"
#include "contest.h"

namespace rmsnorm::tools {
namespace {

using bench::Cell;
using bench::Shape;
using bench::Spread;

// The number if the whole text is a positive number, else 0.
size_t ParseNumber(const std::string& text) {
  size_t number;
  return cases::ReadNumber(text, number) ? number : 0;
}

Shape ParseShape(const std::string& text) {
  const size_t x = std::min(text.find('x'), text.size() - 1);
  const Shape shape = {ParseNumber(text.substr(0, x)), ParseNumber(text.substr(x + 1))};
  if (shape.rows == 0 || shape.d == 0) {
    throw cases::UserError("--shapes: '" + text + "' is not ROWSxD, such as 32x4096");
  }
  constexpr size_t kMaxElements = size_t{1} << 28;
  if (shape.d > kMaxElements / shape.rows) {
    throw cases::UserError("--shapes: '" + text + "' is more than 2^28 elements");
  }
  return shape;
}

int ParseThreads(const std::string& text) {
  if (text == "all") return rmsnorm_max_threads();
  constexpr size_t kMaxThreads = 4096;
  const size_t threads = ParseNumber(text);
  if (threads == 0 || threads > kMaxThreads) {
    throw cases::UserError("--threads: '" + text + "' is neither from 1 to 4096 nor 'all'");
  }
  if (threads > 1 && rmsnorm_has_openmp() == 0) {
    throw cases::UserError("--threads: this build has no OpenMP, and so 1 thread only");
  }
  return static_cast<int>(threads);
}

std::vector<std::string> ChooseTargets(const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), "all") != names.end()) return cases::SupportedTargets();
  if (!names.empty()) return names;
  const char* active;
  check(rmsnorm_find_target(nullptr, &active));
  return {active};
}

// The lines, or else the operations with a name.
std::vector<bench::Operation> ChooseOperations(const BenchOptions& options) {
  std::vector<bench::Operation> operations;
  for (const std::string& line : options.calls) operations.push_back({bench::kCall, "", line});
  if (!operations.empty()) return operations;
  for (const std::string& name : options.operations) {
    for (const bench::Operation& operation : bench::Operations()) {
      if (operation.name == name) operations.push_back(operation);
    }
  }
  return operations;
}

// The cells without duplicates: two thread counts or two target names can mean the same, and a line
// may leave out a name.
std::vector<Cell> Cells(const BenchOptions& options) {
  std::vector<Cell> cells;
  std::set<std::string> names;
  const std::vector<std::string> targets = ChooseTargets(options.targets);
  const std::vector<bench::Operation> operations = ChooseOperations(options);
  for (const bench::Operation& operation : operations) {
    for (const std::string& shape : options.shapes) {
      for (const std::string& type : options.types) {
        for (const std::string& threads : options.threads) {
          for (const std::string& target : targets) {
            const std::optional<Cell> cell = bench::MakeCell(
                operation, type, ParseShape(shape), ParseThreads(threads), target, options.reads);
            if (cell && names.insert(cell->name).second) cells.push_back(*cell);
          }
        }
      }
    }
  }
  if (cells.empty()) {
    throw cases::UserError("--shapes: none has the multiples that " + operations.front().name +
                           " needs, in " + operations.front().line);
  }
  return cells;
}

bench::Contenders MakeContenders(const BenchOptions& options, const std::vector<Cell>& cells) {
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  for (const auto& loops : bench::PlainLoops()) contenders.push_back(loops);
  if (options.prepared) contenders.push_back(bench::Prepared());
  const auto has_apart = [](const Cell& cell) { return !cell.apart.empty(); };
  if (std::any_of(cells.begin(), cells.end(), has_apart)) contenders.push_back(bench::Apart());
  if (!options.older.empty()) contenders.push_back(bench::Older(options.older));
  std::set<std::string> taken = {bench::kMemcpy, bench::kPlain, "library",
                                 "prepared",     "apart",       "older"};
  for (const std::string& file : options.peers) {
    contenders.push_back(bench::LoadPeer(file));
    const std::string& name = contenders.back().name;
    if (!taken.insert(name).second) {
      throw cases::UserError("--peer " + file + ": the name '" + name + "' is taken");
    }
  }
  return contenders;
}

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

// Prints a line for each cell and, below the table, the missing times, what the marks mean, and how
// much faster than plain loops the library is.
class Table : public benchmark::BenchmarkReporter {
 public:
  Table(const std::vector<Cell>& cells, const bench::Contenders& contenders) {
    reads_ = cells.front().reads;
    for (const Cell& cell : cells) has_targets_ |= cell.target != cells.front().target;
    for (size_t i = 1; i < contenders.size(); ++i) {
      if (contenders[i].kind != bench::Kind::kPlain) others_.push_back(contenders[i].name);
    }
  }

  bool ReportContext(const Context& /*context*/) override {
    std::cout << "rmsnorm " << rmsnorm_version() << " · " << CpuModel() << " · Highway "
              << rmsnorm_highway_version() << " · "
              << (rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP")
              << (reads_ ? " · results are read" : "") << "\n"
              << "operation   type  rows x d     threads    memcpy     plain   rmsnorm  GB/s";
    for (const std::string& other : others_) std::cout << std::setw(WidthOf(other)) << other;
    std::cout << "  times faster  target" << std::endl;
    return true;
  }

  void ReportRuns(const std::vector<Run>& /*runs*/) override {}  // RunCell() prints each cell

  void Finalize() override {
    for (const std::string& note : notes_) std::cout << note << "\n";
    if (has_marks_) {
      std::cout << "* Measure again on a quiet machine: the quartiles of a time are more than 1.5 "
                   "apart.\n";
    }
    for (const auto& [rows, by_threads] : times_faster_) {
      std::cout << rows << ": ";
      const char* text = " times faster than plain loops on ";
      for (const auto& [threads, times] : by_threads) {
        if (threads != by_threads.begin()->first) std::cout << ", ";
        double logarithms = 0;
        for (const double factor : times) logarithms += std::log(factor);
        std::cout << ThreeDigits(std::exp(logarithms / static_cast<double>(times.size()))) << text
                  << threads << (threads == 1 ? " thread" : " threads");
        text = " times on ";
      }
      std::cout << " (geometric mean of the rows)\n";
    }
    std::cout.flush();
  }

  // Whether a cell failed or a contender was wrong.
  bool found_fault() const { return found_fault_; }

  void PrintFailure(const Cell& cell, const std::string& problem) {
    found_fault_ = true;
    PrintName(cell);
    std::cout << "  FAILED on " << cell.target << ": " << problem << std::endl;
  }

  // `times` are in nanoseconds, by contender.
  void Print(const Cell& cell, const std::map<std::string, Spread>& times,
             const std::vector<bench::Untimed>& untimed) {
    PrintName(cell);
    bool is_disturbed = false;
    const auto print_time = [&](const std::string& name, int width) {
      std::string text = "-";
      if (const auto time = times.find(name); time != times.end()) {
        text = TimeText(time->second.median);
        constexpr double kMostApart = 1.5;
        is_disturbed |= time->second.upper_quartile > kMostApart * time->second.lower_quartile;
      }
      for (const bench::Untimed& one : untimed) {
        if (one.is_wrong && one.name == name) text = "WRONG";
      }
      std::cout << std::setw(width) << text;
    };
    const double library = times.at("library").median;
    for (const char* const name : {bench::kMemcpy, bench::kPlain, "library"}) print_time(name, 10);
    std::cout << std::setw(6) << ThreeDigits(static_cast<double>(cell.moved_bytes()) / library);
    for (const std::string& other : others_) print_time(other, WidthOf(other));
    std::string factor = "-";
    if (const auto plain = times.find(bench::kPlain); plain != times.end()) {
      const double times_faster = plain->second.median / library;
      factor = ThreeDigits(times_faster);
      const std::string rows = cell.type + (has_targets_ ? " on " + cell.target : "");
      times_faster_[rows][cell.threads].push_back(times_faster);
    }
    has_marks_ |= is_disturbed;
    std::cout << std::setw(14) << factor << (is_disturbed ? "* " : "  ") << cell.target
              << std::endl;
    for (const bench::Untimed& one : untimed) {
      found_fault_ |= one.is_wrong;
      const std::string note = one.is_wrong
                                   ? cell.name + ": " + one.name + " is wrong: " + one.reason
                                   : one.name + ": " + one.reason;
      if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
    }
  }

 private:
  static void PrintName(const Cell& cell) {
    std::cout << std::left << std::setw(12) << cell.operation << std::setw(6) << cell.type
              << std::right << std::setw(4) << cell.shape.rows << " x " << std::left << std::setw(6)
              << cell.shape.d << std::right << std::setw(7) << cell.threads;
  }

  std::vector<std::string> others_;  // contenders with separate columns
  std::vector<std::string> notes_;   // below the table; without duplicates
  bool reads_ = false;               // whether results are read in the time
  bool has_marks_ = false;
  bool has_targets_ = false;  // whether there are several
  // Than plain loops, by the type of the rows, or by the type and the target, and by threads.
  std::map<std::string, std::map<int, std::vector<double>>> times_faster_;
  bool found_fault_ = false;
};

// A cell has these counters for each contender NAME. NAME_lower_ns, NAME_ns and NAME_upper_ns are
// the quartiles of its times over the rounds. NAME_ratio_lower, NAME_ratio and NAME_ratio_upper are
// the quartiles of the library's time divided by the contender's in the same round. Where several
// contenders have one name, the counters are the fastest one's. A contender without a time has no
// counters: the table has the reason.
void Count(benchmark::State& state, const std::string& name, const std::string& unit,
           const Spread& spread) {
  state.counters[name + "_lower" + unit] = spread.lower_quartile;
  state.counters[name + unit] = spread.median;
  state.counters[name + "_upper" + unit] = spread.upper_quartile;
}

// Checks and times a cell.
void RunCell(benchmark::State& state, const Cell& cell, const bench::Contenders& contenders,
             Table& table) {
  bench::Contest contest(cell, contenders);
  for (const bench::Untimed& one : contest.untimed()) {
    if (one.name == contenders.front().name) throw bench::Refusal(one.reason);
  }
  const std::vector<bench::Turn> turns = contest.Turns();
  // This comes after the peers have run: threads inherit the binding of the thread that starts
  // them.
  const bench::BoundThreads bound(cell.threads);
  const auto seconds = bench::TimeInRounds(turns, [&] { contest.MoveOn(); });
  const std::vector<double>& library = seconds.front();
  std::map<std::string, Spread> times;
  for (size_t i = 0; i < turns.size(); ++i) {
    std::vector<double> nanoseconds;
    std::vector<double> ratios;
    for (size_t round = 0; round < library.size(); ++round) {
      nanoseconds.push_back(seconds[i][round] * 1e9);
      ratios.push_back(library[round] / seconds[i][round]);
    }
    const Spread spread = bench::SpreadOf(nanoseconds);
    const auto [time, is_first] = times.emplace(turns[i].name, spread);
    if (!is_first && time->second.median <= spread.median) continue;
    time->second = spread;
    Count(state, turns[i].name, "_ns", spread);
    Count(state, turns[i].name + "_ratio", "", bench::SpreadOf(ratios));
  }
  state.counters["rounds"] = static_cast<double>(library.size());
  state.counters["threads_used"] = static_cast<double>(contest.parts());
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(bench::SpreadOf(library).median);
  state.SetBytesProcessed(static_cast<int64_t>(cell.moved_bytes()));
  table.Print(cell, times, contest.untimed());
}

}  // namespace

std::vector<std::string> TakeHarnessFlags(const std::vector<std::string>& flags,
                                          BenchOptions& options) {
  for (const std::string& flag : flags) {
    const std::string name = flag.substr(0, flag.find('='));
    const std::string value = flag.substr(std::min(name.size() + 1, flag.size()));
    if (name == "--benchmark_out") options.results = value;
    if (name == "--benchmark_repetitions" && ParseNumber(value) == 0) {
      throw cases::UserError(name + ": '" + value + "' is not a number from 1");
    }
  }
  static std::vector<std::string> words;  // Google Benchmark keeps pointers to them
  words = {"rmsnorm bench"};
  words.insert(words.end(), flags.begin(), flags.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  return {arguments.begin() + 1, arguments.begin() + count};
}

int RunBench(const BenchOptions& options) {
  const std::vector<Cell> cells = Cells(options);
  const bench::Contenders contenders = MakeContenders(options, cells);
  benchmark::AddCustomContext("rmsnorm", rmsnorm_version());
  benchmark::AddCustomContext("cpu", CpuModel());
  benchmark::AddCustomContext("highway", rmsnorm_highway_version());
  benchmark::ClearRegisteredBenchmarks();
  Table table(cells, contenders);
  for (const Cell& cell : cells) {
    const auto run = [&](benchmark::State& state) {
      try {
        RunCell(state, cell, contenders, table);
      } catch (const std::exception& error) {  // such as too little memory for the cell
        state.SkipWithError(error.what());
        table.PrintFailure(cell, error.what());
      }
    };
    benchmark::RegisterBenchmark(cell.name.c_str(), run)->Iterations(1)->UseManualTime();
  }
  if (!options.results.empty() && !std::ofstream(options.results, std::ios::app)) {
    throw cases::UserError("--benchmark_out: " + options.results + " cannot be written");
  }
  // Google Benchmark itself reports that its filter matches nothing.
  if (benchmark::RunSpecifiedBenchmarks(&table) == 0) return kUserError;
  // It does not notice that a disk is full, where not even a line break can be added.
  if (!options.results.empty() && !(std::ofstream(options.results, std::ios::app) << std::endl)) {
    throw cases::UserError("--benchmark_out: writing to " + options.results + " failed");
  }
  return table.found_fault() ? kCheckFailed : kSuccess;
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
// rmsnorm bench: times every cell of a table with Google Benchmark.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <set>

#include "bench_table.h"
#include "cases/number_text.h"
#include "cases/targets.h"
#include "cases/user_error.h"
#include "command.h"

namespace rmsnorm::tools {
namespace {

using bench::Cell;
using bench::Shape;

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
    throw cases::UserError("--threads: '" + text + "' is neither a number of threads nor 'all'");
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
  const auto has_apart = [](const Cell& cell) { return !cell.apart.empty(); };
  if (std::any_of(cells.begin(), cells.end(), has_apart)) contenders.push_back(bench::Apart());
  if (!options.older.empty()) contenders.push_back(bench::Older(options.older));
  std::set<std::string> taken = {bench::kMemcpy, bench::kPlain, "library", "apart", "older"};
  for (const std::string& file : options.peers) {
    contenders.push_back(bench::LoadPeer(file));
    const std::string& name = contenders.back().name;
    if (!taken.insert(name).second) {
      throw cases::UserError("--peer " + file + ": the name '" + name + "' is taken");
    }
  }
  return contenders;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> OperationsToTime() {
  std::vector<std::pair<std::string, std::string>> operations;
  for (const bench::Operation& operation : bench::Operations()) {
    operations.emplace_back(operation.name, operation.help);
  }
  return operations;
}

std::vector<std::string> TakeHarnessFlags(const std::vector<std::string>& flags) {
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
  for (const Cell& cell : cells) bench::Register(cell, contenders);
  BenchTable table(cells, contenders);
  // Google Benchmark itself reports that its filter matches nothing.
  if (benchmark::RunSpecifiedBenchmarks(&table) == 0) return kUserError;
  return table.found_fault() ? kCheckFailed : kSuccess;
}

}  // namespace rmsnorm::tools

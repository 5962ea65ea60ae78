// SPDX-License-Identifier: Apache-2.0
// rmsnorm bench: times every cell of a table with Google Benchmark.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>

#include "bench_table.h"
#include "cases/number_text.h"
#include "cases/targets.h"
#include "cases/user_error.h"
#include "command.h"
#include "cpu.h"
#include "tensor.h"
#include "words.h"

namespace rmsnorm::tools {
namespace {

using bench::Cell;
using bench::Shape;

struct BenchOptions {
  std::vector<std::string> operations = {"norm"};
  std::vector<std::string> calls;  // lines, in place of named operations
  // Shapes of decoding and of prompts, through all cache levels; the length of an attention head;
  // and a length that is no multiple of a vector. 7168 is the length in Kimi-K2 and DeepSeek-V3.
  std::vector<std::string> shapes = {"1x64",     "1x1000",   "1x2048",   "1x4096",   "1x7168",
                                     "1x8192",   "8x4096",   "32x4096",  "32x7168",  "512x4096",
                                     "64x16384", "4096x128", "512x2880", "8192x4096"};
  std::vector<std::string> types = {"f32", "bf16", "f16"};
  std::vector<std::string> threads = {"1", "all"};
  std::vector<std::string> targets;  // empty: the default target
  std::vector<std::string> peers;    // paths of libraries
  std::string older;                 // path of a library
  bool reads = false;
};

std::vector<std::string> OperationNames() {
  std::vector<std::string> names;
  for (const bench::Operation& operation : bench::Operations()) names.push_back(operation.name);
  return names;
}

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

// The operations of the options: those with a name, and lines.
std::vector<bench::Operation> ChooseOperations(const BenchOptions& options) {
  std::vector<bench::Operation> operations;
  for (const std::string& name : options.operations) {
    for (const bench::Operation& operation : bench::Operations()) {
      if (operation.name == name) operations.push_back(operation);
    }
  }
  for (const std::string& line : options.calls) operations.push_back({bench::kCall, "", line});
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

// Passes Google Benchmark its own flags.
void ParseHarnessFlags(const CLI::App& command) {
  static std::vector<std::string> words;  // Google Benchmark keeps pointers to them
  words = {"rmsnorm bench"};
  for (const std::string& flag : command.remaining()) words.push_back(flag);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (count > 1) throw cases::UserError(UnknownWord(command, arguments[1]));
}

int RunBench(BenchOptions options, const CLI::App& command) {
  if (!options.calls.empty()) options.operations.clear();
  const std::vector<Cell> cells = Cells(options);
  const bench::Contenders contenders = MakeContenders(options, cells);
  ParseHarnessFlags(command);
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

}  // namespace

void AddBench(CLI::App& app, int& status) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* const command =
      app.add_subcommand("bench", "Time the library beside memcpy and others");
  const auto add_list = [command](const char* name, std::vector<std::string>& list,
                                  const std::string& help, const char* type) {
    return command->add_option(name, list, help)
        ->type_name(type)
        ->delimiter(',')
        ->capture_default_str();
  };
  CLI::Option* const operations =
      add_list("--operations", options->operations, "What to time", "NAME,...")
          ->check(OneOf(OperationNames()));
  command
      ->add_option("--call", options->calls,
                   "A case of `rmsnorm check --case` to time instead, or several with ';' between "
                   "them, made at once; repeatable")
      ->type_name("CASE")
      ->allow_extra_args(false)
      ->excludes(operations);
  add_list("--shapes", options->shapes, "Rows and their length", "ROWSxD,...");
  add_list("--types", options->types, "Types of x, weight and y", "TYPE,...")
      ->check(OneOf(kDtypes));
  add_list("--threads", options->threads, "Numbers of threads; all: as many as OpenMP would use",
           "N,...");
  add_list("--targets", options->targets, "Targets by name; all: each that this CPU runs",
           "TARGET,...")
      ->transform(Target(true));
  command
      ->add_option("--peer", options->peers,
                   "A plug-in for another library, as bench/peers/peer.h describes; repeatable")
      ->type_name("FILE")
      ->check(FileName())
      ->allow_extra_args(false);
  command->add_option("--older", options->older, "Another build of librmsnorm.so to be timed, too")
      ->type_name("FILE")
      ->check(FileName());
  command->add_flag("--read", options->reads,
                    "Read the results after each call, as the next operation would, and time both");
  std::string operation_help;
  for (const bench::Operation& operation : bench::Operations()) {
    operation_help +=
        "\n  " + operation.name + std::string(13 - operation.name.size(), ' ') + operation.help;
  }
  command->footer(
      "All contenders have the same threads, each bound to a CPU, and are timed in turn in each of "
      "many rounds; the table has the medians. memcpy copies as many bytes as x has; plain is the "
      "fastest of some plain loops, compiled for several CPUs with and without -ffast-math; GB/s "
      "counts all rows that are read or written; \"times faster\" is plain's time in multiples of "
      "rmsnorm's. apart is the library with a call for each step, older an older build, and "
      "others are peers. A row is marked with * where the quartiles of one of its times are more "
      "than 1.5 apart. The last lines have the geometric mean of \"times faster\" for each type.\n"
      "Each result is checked before it is timed, the library's against the reference's bits and "
      "others to within a few roundings; exits with 1 where one is wrong.\n"
      "Operations:" +
      operation_help +
      "\nIn a CASE, $T, $R and $D are the type, the rows and d of --types and --shapes.\n"
      "Google Benchmark's flags work, too: --benchmark_out=FILE writes all figures as JSON, with "
      "quartiles, --benchmark_filter=REGEX takes some of the cells, --benchmark_repetitions=N "
      "repeats them.");
  command->allow_extras();
  command->callback([options, command, &status] { status = RunBench(*options, *command); });
}

}  // namespace rmsnorm::tools

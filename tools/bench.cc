// SPDX-License-Identifier: Apache-2.0
// rmsnorm bench: times every cell of a table with Google Benchmark.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>

#include "bench_table.h"
#include "benchmarks.h"
#include "command.h"
#include "cpu.h"
#include "targets.h"
#include "tensor.h"
#include "user_error.h"
#include "words.h"

namespace rmsnorm::tools {
namespace {

using bench::Cell;

struct BenchOptions {
  std::vector<std::string> operations = {"norm"};
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
};

std::vector<std::string> OperationNames() {
  std::vector<std::string> names;
  for (const bench::Operation& operation : bench::kOperations) names.emplace_back(operation.name);
  return names;
}

const bench::Operation& FindOperation(const std::string& name) {
  return *std::find_if(std::begin(bench::kOperations), std::end(bench::kOperations),
                       [&name](const auto& operation) { return name == operation.name; });
}

// The number if the whole text is a positive number, else 0.
size_t ParseNumber(const std::string& text) {
  size_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [parsed_to, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && parsed_to == end ? number : 0;
}

struct Shape {
  size_t rows;
  size_t d;
};

Shape ParseShape(const std::string& text) {
  const size_t x = std::min(text.find('x'), text.size() - 1);
  const Shape shape = {ParseNumber(text.substr(0, x)), ParseNumber(text.substr(x + 1))};
  if (shape.rows == 0 || shape.d == 0) {
    throw UserError("--shapes: '" + text + "' is not ROWSxD, such as 32x4096");
  }
  constexpr size_t kMaxElements = size_t{1} << 32;
  if (shape.d > kMaxElements / shape.rows) {
    throw UserError("--shapes: '" + text + "' is more than 2^32 elements");
  }
  return shape;
}

int ParseThreads(const std::string& text) {
  if (text == "all") return rmsnorm_max_threads();
  constexpr size_t kMaxThreads = 4096;
  const size_t threads = ParseNumber(text);
  if (threads == 0 || threads > kMaxThreads) {
    throw UserError("--threads: '" + text + "' is neither a number of threads nor 'all'");
  }
  if (threads > 1 && rmsnorm_has_openmp() == 0) {
    throw UserError("--threads: this build has no OpenMP, and so 1 thread only");
  }
  return static_cast<int>(threads);
}

std::vector<std::string> ChooseTargets(const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), "all") != names.end()) return SupportedTargets();
  if (!names.empty()) return names;
  const char* active;
  check(rmsnorm_find_target(nullptr, &active));
  return {active};
}

// The cells without duplicates: two thread counts or two target names can mean the same.
std::vector<Cell> Cells(const BenchOptions& options) {
  std::vector<Cell> cells;
  std::set<std::string> names;
  const std::vector<std::string> targets = ChooseTargets(options.targets);
  for (const std::string& operation_name : options.operations) {
    const bench::Operation& operation = FindOperation(operation_name);
    if (operation.code == RMSNORM_PEER_LAYERNORM && options.peers.empty()) {
      throw UserError("--operations: the library has no LayerNorm; --peer adds one that has");
    }
    for (const std::string& shape_text : options.shapes) {
      const Shape shape = ParseShape(shape_text);
      if (shape.d % operation.row != 0) continue;
      for (const std::string& type : options.types) {
        for (const std::string& threads : options.threads) {
          for (const std::string& target : targets) {
            const Cell cell = {&operation, kDtypes.at(type),      shape.rows,
                               shape.d,    ParseThreads(threads), target};
            if (names.insert(cell.name()).second) cells.push_back(cell);
          }
        }
      }
    }
  }
  if (cells.empty()) {
    const bench::Operation& operation = FindOperation(options.operations.front());
    throw UserError("--shapes: " + options.operations.front() + " is of rows of " +
                    std::to_string(operation.row) + " elements, or of a multiple");
  }
  return cells;
}

bench::Contenders MakeContenders(const BenchOptions& options, const std::vector<Cell>& cells) {
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  const auto has_steps = [](const Cell& cell) {
    return bench::WhyNotApart(cell.operation->code) == nullptr;
  };
  if (std::any_of(cells.begin(), cells.end(), has_steps)) contenders.push_back(bench::Apart());
  const auto has_threads = [](const Cell& cell) { return cell.threads > 1; };
  if (std::any_of(cells.begin(), cells.end(), has_threads)) {
    contenders.push_back(bench::OneThread());
  }
  if (!options.older.empty()) contenders.push_back(bench::Older(options.older));
  for (const std::string& file : options.peers) {
    contenders.push_back(bench::LoadPeer(file));
    const std::string& name = contenders.back()->name();
    const auto has_name = [&](const auto& other) { return other->name() == name; };
    if (name == bench::kMemcpy || name == bench::kApart || name == bench::kOneThread ||
        std::count_if(contenders.begin(), contenders.end(), has_name) > 1) {
      throw UserError("--peer " + file + ": the name '" + name + "' is taken");
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
  if (count > 1) throw UserError(UnknownWord(command, arguments[1]));
}

int RunBench(const BenchOptions& options, const CLI::App& command) {
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
  add_list("--operations", options->operations, "What to time", "NAME,...")
      ->check(OneOf(OperationNames()));
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
      ->allow_extra_args(false);
  command->add_option("--older", options->older, "Another build of librmsnorm.so to be timed, too")
      ->type_name("FILE");
  command->footer(
      "Time, GB/s (of what is read and written), multiple of the time memcpy takes from x to y, "
      "and the same multiple for the other contenders, all with the same threads, each bound to a "
      "CPU: apart is the library with a call for each step, one_thread the library on one thread, "
      "older an older build, and the rest are peers. All are timed in turn in each of many rounds; "
      "the table has the medians.\n"
      "Each result is first checked, the library's against the reference's bits and a peer's to "
      "within a few roundings; exits with 1 where one is wrong.\n"
      "Operations: norm is a module's; add_norm is a module's with the residual updated in "
      "place; backward is a module's from a saved inverse RMS, dx of the type of x and dw in f32; "
      "norm_call prepares the weight in each call; sum_squares and scale are the two phases; "
      "latent is two norms in one call, of 1536 and of 512 elements of a row of 2112, as in "
      "Kimi-K2; q_and_k is two as well, of the 32 heads of q and the 8 of k in a row of 48 heads "
      "(d 3072, 6144 or 12288); post_norm is r += norm(x), y = norm(r), and post_add the first "
      "half alone; gate_after is norm(x) * silu(z), and gate_before is norm(x * silu(z)) in groups "
      "of 512; int8 is norm with a quantised output beside y, and int8_alone without y; layernorm "
      "is the LayerNorm of peers beside the library's norm. Peers do not compute norm_call, "
      "sum_squares and scale.\n"
      "Google Benchmark's flags work, too: --benchmark_out=FILE writes all figures as JSON, with "
      "quartiles, --benchmark_filter=REGEX takes some of the cells, --benchmark_repetitions=N "
      "repeats them.");
  command->allow_extras();
  command->callback([options, command, &status] { status = RunBench(*options, *command); });
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
// rmsnorm bench: the speed of every cell of a table, on Google Benchmark.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <set>
#include <sstream>

#include "bench_table.h"
#include "benchmarks.h"
#include "command.h"
#include "cpu.h"
#include "operations.h"
#include "output_file.h"
#include "targets.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

using bench::Cell;

struct BenchOptions {
  std::vector<std::string> operations = {"forward"};
  // Of decoding and of prompts, through all caches; a head's worth; and sizes that fit no vector.
  // 1x1 is the fixed cost of a call.
  std::vector<std::string> shapes = {"1x4096",    "4096x128", "32x4096", "512x4096",
                                     "8192x4096", "64x16384", "1x64",    "1x1",
                                     "256x1000",  "4096x63",  "512x2880"};
  std::vector<std::string> types = {"f32", "bf16", "f16"};
  std::vector<std::string> threads = {"1", "all"};
  std::vector<std::string> targets;  // none: the one a call without a target uses
  bool cold = false;
  std::vector<std::string> peers;  // files
  std::string json;
};

// ------------------------------------------------------------------------------------- cells

std::string OperationNames() {
  std::string names;
  for (const bench::Operation& operation : bench::Operations()) {
    names += (names.empty() ? "" : ", ") + operation.name;
  }
  return names;
}

const bench::Operation& FindOperation(const std::string& name) {
  for (const bench::Operation& operation : bench::Operations()) {
    if (operation.name == name) return operation;
  }
  throw UserError("--operations: '" + name + "' is none of " + OperationNames());
}

// Reads a positive number and moves `text` past it. Returns 0 if there is none.
size_t ReadNumber(const char*& text, const char* end) {
  size_t number = 0;
  const auto [parsed_to, error] = std::from_chars(text, end, number);
  if (error != std::errc()) return 0;
  text = parsed_to;
  return number;
}

struct Shape {
  size_t rows;
  size_t d;
};

Shape ParseShape(const std::string& text) {
  const char* position = text.data();
  const char* const end = position + text.size();
  const size_t rows = ReadNumber(position, end);
  const bool has_x = position != end && *position == 'x';
  if (has_x) ++position;
  const size_t d = has_x ? ReadNumber(position, end) : 0;
  if (rows == 0 || d == 0 || position != end) {
    throw UserError("--shapes: '" + text + "' is not ROWSxD, such as 32x4096");
  }
  constexpr size_t kMaxElements = size_t{1} << 32;
  if (d > kMaxElements / rows)
    throw UserError("--shapes: '" + text + "' is more than 2^32 elements");
  return {rows, d};
}

Dtype ParseType(const std::string& text) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    if (text == rmsnorm_dtype_name(static_cast<rmsnorm_dtype>(dtype))) return dtype;
  }
  throw UserError("--types: '" + text + "' is none of f32, bf16, f16");
}

int ParseThreads(const std::string& text) {
  if (text == "all") return rmsnorm_max_threads();
  constexpr size_t kMaxThreads = 4096;
  const char* position = text.data();
  const char* const end = position + text.size();
  const size_t threads = ReadNumber(position, end);
  if (threads == 0 || threads > kMaxThreads || position != end) {
    throw UserError("--threads: '" + text + "' is neither a number of threads nor 'all'");
  }
  if (threads > 1 && rmsnorm_has_openmp() == 0) {
    throw UserError("--threads: this build has no OpenMP, and so 1 thread only");
  }
  return static_cast<int>(threads);
}

std::vector<std::string> ChooseTargets(const std::vector<std::string>& names) {
  if (names == std::vector<std::string>{"all"}) return SupportedTargets();
  if (!names.empty()) return FindTargets(names);
  const char* active;
  check(rmsnorm_find_target(nullptr, &active));
  return {active};
}

// The cells without repetition: two numbers of threads or names of targets can mean the same. The
// notes say what is left out.
std::vector<Cell> Cells(const BenchOptions& options, std::set<std::string>& notes) {
  std::vector<Shape> shapes;
  for (const std::string& text : options.shapes) shapes.push_back(ParseShape(text));
  std::vector<Dtype> types;
  for (const std::string& text : options.types) types.push_back(ParseType(text));
  std::vector<int> thread_counts;
  for (const std::string& text : options.threads) thread_counts.push_back(ParseThreads(text));
  const std::vector<std::string> targets = ChooseTargets(options.targets);

  std::vector<Cell> cells;
  std::set<std::string> names;
  for (const std::string& name : options.operations) {
    const bench::Operation& operation = FindOperation(name);
    for (const Shape& shape : shapes) {
      for (const Dtype type : types) {
        if (type == Dtype::f16 && !operation.takes_f16) {
          notes.insert(name + " is timed in f32 and bf16 only");
          continue;
        }
        for (const int threads : thread_counts) {
          for (const std::string& target : targets) {
            const Cell cell = {name, type, shape.rows, shape.d, threads, target, options.cold};
            if (names.insert(cell.name()).second) cells.push_back(cell);
          }
        }
      }
    }
  }
  if (cells.empty() && !notes.empty()) throw UserError("--types: " + *notes.begin());
  return cells;
}

std::vector<bench::Peer> LoadPeers(const std::vector<std::string>& files) {
  std::vector<bench::Peer> peers;
  for (const std::string& file : files) {
    bench::Peer peer(file);
    for (const bench::Peer& other : peers) {
      if (other.name() == peer.name()) {
        throw UserError("--peer " + file + ": the name '" + peer.name() + "' is taken");
      }
    }
    peers.push_back(std::move(peer));
  }
  return peers;
}

// -------------------------------------------------------------------------------- the harness

bool BeginsWith(const std::string& text, const std::string& beginning) {
  return text.rfind(beginning, 0) == 0;
}

// Hands its own flags to Google Benchmark, which prints what it dislikes about one, or exits.
void ParseHarnessFlags(const std::vector<std::string>& flags) {
  static std::vector<std::string> words;  // Google Benchmark keeps pointers to them
  words = {"rmsnorm bench"};
  for (const std::string& flag : flags) {
    if (!BeginsWith(flag, "--benchmark_")) {
      throw UserError("unknown " + std::string(BeginsWith(flag, "-") ? "option" : "argument") +
                      " '" + flag + "'; see rmsnorm bench --help");
    }
    words.push_back(flag);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);

  // What it prints is thrown away: the flag that is left over says enough.
  std::ostringstream printed;
  std::streambuf* const terminal = std::cerr.rdbuf(printed.rdbuf());
  try {
    benchmark::Initialize(&count, arguments.data(), [] {
      throw UserError("--benchmark_format and --benchmark_out_format take console, json or csv");
    });
  } catch (...) {
    std::cerr.rdbuf(terminal);
    throw;
  }
  std::cerr.rdbuf(terminal);
  if (count > 1)
    throw UserError(std::string("Google Benchmark does not take '") + arguments[1] + "'");
}

// The value of one of the harness's flags; null where it is not given.
const char* FlagValue(const std::vector<std::string>& flags, const std::string& name) {
  for (const std::string& flag : flags) {
    if (BeginsWith(flag, name + "=")) return flag.c_str() + name.size() + 1;
  }
  return nullptr;
}

// Passes what Google Benchmark reports on, to standard output and to JSON for a file, and remembers
// whether a cell failed.
class Reporter : public benchmark::BenchmarkReporter {
 public:
  explicit Reporter(benchmark::BenchmarkReporter& display) : display_(display) {
    SetErrorStream(&complaints_);
    json_reporter_.SetOutputStream(&json_);
  }

  bool ReportContext(const Context& context) override {
    return json_reporter_.ReportContext(context) && display_.ReportContext(context);
  }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) failed_ |= !FailureOf(run).empty();
    json_reporter_.ReportRuns(runs);
    display_.ReportRuns(runs);
  }
  void Finalize() override {
    json_reporter_.Finalize();
    display_.Finalize();
  }

  bool failed() const { return failed_; }
  std::string json() const { return json_.str(); }
  // What Google Benchmark says when it finds nothing to run.
  std::string complaints() const { return complaints_.str(); }

 private:
  benchmark::BenchmarkReporter& display_;
  benchmark::JSONReporter json_reporter_;
  std::ostringstream json_;
  std::ostringstream complaints_;
  bool failed_ = false;
};

// Shows what is being timed as a line on a terminal, and hands the peers' problems on.
class Watcher : public bench::Observer {
 public:
  explicit Watcher(BenchTable& table) : table_(table) {}

  void RoundDone(const std::string& name, size_t done, size_t rounds) override {
    if (!terminal_) return;
    std::fprintf(stderr, "\r\033[K%s: round %zu of %zu", name.c_str(), done, rounds);
    if (done == rounds) std::fputs("\r\033[K", stderr);
  }
  void PeerNotTimed(const std::string& name, const bench::PeerProblem& problem) override {
    peer_was_wrong_ |= problem.wrong;
    table_.PeerNotTimed(name, problem);
  }

  bool peer_was_wrong() const { return peer_was_wrong_; }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  BenchTable& table_;
  bool peer_was_wrong_ = false;
};

void DescribeRun() {
  benchmark::AddCustomContext("rmsnorm", rmsnorm_version());
  benchmark::AddCustomContext("cpu", CpuModel());
  benchmark::AddCustomContext("highway", rmsnorm_highway_version());
  benchmark::AddCustomContext("openmp", rmsnorm_has_openmp() != 0 ? "yes" : "no");
  benchmark::AddCustomContext("threads", std::to_string(rmsnorm_max_threads()));
}

int RunBench(const BenchOptions& options, const std::vector<std::string>& harness_flags) {
  std::set<std::string> notes;
  const std::vector<Cell> cells = Cells(options, notes);
  ParseHarnessFlags(harness_flags);
  const std::vector<bench::Peer> peers = LoadPeers(options.peers);
  const char* const out = FlagValue(harness_flags, "--benchmark_out");
  if (out != nullptr && !std::ofstream(out, std::ios::app)) {  // Google Benchmark would exit
    throw UserError(std::string("--benchmark_out: cannot write ") + out);
  }
  std::optional<OutputFile> json;
  if (!options.json.empty()) json.emplace(options.json);

  DescribeRun();
  std::vector<std::string> peer_names;
  for (const bench::Peer& peer : peers) peer_names.push_back(peer.name());
  BenchTable table(cells, peer_names);
  for (const std::string& note : notes) table.AddNote(note);
  Watcher watcher(table);
  benchmark::ClearRegisteredBenchmarks();
  for (const Cell& cell : cells) bench::Register(cell, peers, watcher);

  const bool other_format = FlagValue(harness_flags, "--benchmark_format") != nullptr;
  // Google Benchmark keeps the reporter that it creates.
  Reporter reporter(other_format ? *benchmark::CreateDefaultDisplayReporter() : table);
  if (benchmark::RunSpecifiedBenchmarks(&reporter) == 0) {
    const std::string complaints = reporter.complaints();
    throw UserError(complaints.substr(0, complaints.find('\n')));
  }
  if (json && !reporter.json().empty()) {  // empty where a list of the cells was asked for
    json->Write(reporter.json());
    json->Commit();
  }
  return reporter.failed() || watcher.peer_was_wrong() ? kCheckFailed : kSuccess;
}

}  // namespace

void AddBench(CLI::App& app, int& status) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* const command =
      app.add_subcommand("bench", "Time the library beside memcpy, plain loops and the reference");
  const auto add_list = [command](const char* name, std::vector<std::string>& list,
                                  const char* help, const char* type) {
    command->add_option(name, list, help)->type_name(type)->delimiter(',')->capture_default_str();
  };
  add_list("--operations", options->operations, ("Any of " + OperationNames()).c_str(), "NAME,...");
  add_list("--shapes", options->shapes, "Rows and their length", "ROWSxD,...");
  add_list("--types", options->types, "Types of x, weight and y", "TYPE,...");
  add_list("--threads", options->threads, "Numbers of threads; all: as many as OpenMP would use",
           "N,...");
  add_list("--targets", options->targets, "Targets by name; all: each that this CPU runs",
           "NAME,...");
  command->add_flag(
      "--cold", options->cold,
      "Find x and y in memory: walk more copies of them than the last-level cache holds");
  command
      ->add_option("--peer", options->peers,
                   "A plug-in for another library, as bench/peers/peer.h describes; repeatable")
      ->type_name("FILE")
      ->allow_extra_args(false);
  command
      ->add_option("--json", options->json, "Write the results in Google Benchmark's JSON as well")
      ->type_name("FILE");
  command->footer(
      "Time, GB/s (of what is read and written), multiple of the time memcpy takes from x to y, "
      "the "
      "same multiple for each peer, and times faster than plain loops compiled with -O3 and than "
      "the reference, all with the same threads, each bound to a CPU. All are timed in turn in "
      "each "
      "of many rounds; the table has the medians, and JSON the quartiles as well.\n"
      "Each result is first checked, the library's against the reference's bits and a peer's to "
      "within a few roundings, as LayerNorm's to its loops in binary64; exits with 1 where one is "
      "wrong.\n"
      "Operations: forward is a module's; forward_call prepares the weight in each call; "
      "sum_squares and scale are the two phases; add_forward is a module's with the residual "
      "updated in place; backward is a module's from a saved inverse RMS, dx of the type of x and "
      "dw in f32; layernorm is a LayerNorm of f32 and bf16 that only this command has, with the "
      "library's RMSNorm timed beside it in another column. Peers compute forward, add_forward and "
      "backward.\n"
      "--cold takes twice the last-level cache, and 1 GiB of copies of x and y at the most. All "
      "copies share one weight and one dw, and have a residual or dy of their own.\n"
      "Google Benchmark's flags work too, such as --benchmark_filter=REGEX, --benchmark_list_tests "
      "and --benchmark_format=json.");
  command->allow_extras();
  command->callback(
      [options, command, &status] { status = RunBench(*options, command->remaining()); });
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench`: what it prints and writes, and what it refuses. No test looks at how long
// something took.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "bench_table.h"
#include "run_command.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

using nlohmann::json;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Bench, PrintsATable) {
  const Outcome outcome = RunCommand({"bench", "--shapes", "1x64,3x100", "--types", "f32,bf16",
                                      "--threads", "1", "--targets", "reference"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_EQ(lines[0].rfind(std::string("rmsnorm ") + rmsnorm_version() + " · ", 0), 0u) << lines[0];
  const std::string openmp = rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP";
  const std::string end =
      " · target reference · Highway " + std::string(rmsnorm_highway_version()) + " · " + openmp;
  EXPECT_NE(lines[0].find(end), std::string::npos) << lines[0];
  EXPECT_EQ(
      lines[1],
      "type  rows x d       threads       time      GB/s   x memcpy   vs loops   vs reference");
  const char* const starts[] = {"f32      1 x 64            1 ", "bf16     1 x 64            1 ",
                                "f32      3 x 100           1 ", "bf16     3 x 100           1 "};
  // Time with a unit, GB/s, a multiple, and two ratios, each in its column.
  const std::regex numbers(" +[0-9.]+ (ns|us|ms|s) +[0-9.]+ +[0-9.]+ +[0-9.]+x +[0-9.]+x");
  for (size_t i = 0; i < 4; ++i) {
    const std::string& line = lines[i + 2];
    EXPECT_EQ(line.rfind(starts[i], 0), 0u) << line;
    EXPECT_EQ(line.size(), lines[1].size()) << line;
    EXPECT_TRUE(std::regex_match(line.substr(28), numbers)) << line;
  }
}

TEST(Bench, NamesTheTargetsWhereThereAreMore) {
  const Outcome outcome = RunCommand(
      {"bench", "--shapes", "1x64", "--types", "f16", "--threads", "1", "--targets", "all"});
  ExpectSuccess(outcome);
  const std::vector<std::string> targets = SupportedTargets();
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2 + targets.size()) << outcome.out;
  if (targets.size() == 1) return;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string& line = lines[i + 2];
    EXPECT_EQ(line.substr(line.size() - std::min(line.size(), targets[i].size() + 1)),
              " " + targets[i]);
  }
}

TEST(Bench, TheDefaultTableHasTheCellsItShould) {
  const Outcome outcome =
      RunCommand({"bench", "--benchmark_list_tests"}, {{"RMSNORM_TARGET", "reference"}});
  ExpectSuccess(outcome);
  std::vector<std::string> expected;
  const int all = rmsnorm_max_threads();
  for (const char* shape : {"1x4096", "4096x128", "32x4096", "512x4096", "8192x4096", "64x16384",
                            "1x64", "1x1", "256x1000", "4096x63", "512x2880"}) {
    for (const char* type : {"f32", "bf16", "f16"}) {
      for (int threads = 1; threads <= all; threads += std::max(1, all - 1)) {
        expected.push_back(std::string("forward/") + type + "/" + shape + "/threads:" +
                           std::to_string(threads) + "/target:reference/iterations:1/manual_time");
      }
    }
  }
  EXPECT_EQ(Lines(outcome.out), expected);
}

TEST(Bench, WritesJson) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome = RunCommand({"bench", "--shapes", "3x64", "--types", "bf16", "--threads",
                                      "1", "--targets", "reference", "--json", file});
  ExpectSuccess(outcome);
  const json result = json::parse(ReadFile(file));
  EXPECT_EQ(result.at("context").at("rmsnorm"), rmsnorm_version());
  ASSERT_EQ(result.at("benchmarks").size(), 1u);
  const json& cell = result.at("benchmarks").at(0);
  EXPECT_EQ(cell.at("name"),
            "forward/bf16/3x64/threads:1/target:reference/iterations:1/manual_time");
  const auto number = [&cell](const std::string& name) { return cell.at(name).get<double>(); };
  for (const std::string contender : {"library", "memcpy", "plain", "reference"}) {
    EXPECT_GT(number(contender + "_lower_ns"), 0) << contender;
    EXPECT_LE(number(contender + "_lower_ns"), number(contender + "_ns")) << contender;
    EXPECT_LE(number(contender + "_ns"), number(contender + "_upper_ns")) << contender;
  }
  const double time = number("library_ns");
  EXPECT_NEAR(number("real_time") / time, 1, 1e-6);
  EXPECT_NEAR(number("bytes_per_second") * time * 1e-9 / (2 * 3 * 64 * 2), 1, 1e-6);
  EXPECT_NEAR(number("x_memcpy") * number("memcpy_ns") / time, 1, 1e-6);
  EXPECT_NEAR(number("vs_plain") * time / number("plain_ns"), 1, 1e-6);
  EXPECT_NEAR(number("vs_reference") * time / number("reference_ns"), 1, 1e-6);
  EXPECT_GE(number("rounds"), 9);
  EXPECT_EQ(number("threads_used"), 1);
}

TEST(Bench, ColdCellsAreNamedSo) {
  const Outcome outcome = RunCommand({"bench", "--cold", "--shapes", "64x4096", "--types", "f32",
                                      "--threads", "1", "--targets", "reference"});
  ExpectSuccess(outcome);
  EXPECT_NE(Lines(outcome.out).at(0).find(" · cold caches"), std::string::npos) << outcome.out;
  const Outcome list =
      RunCommand({"bench", "--cold", "--shapes", "1x64", "--types", "f32", "--threads", "1",
                  "--targets", "reference", "--benchmark_list_tests"});
  EXPECT_EQ(list.out,
            "forward/f32/1x64/threads:1/target:reference/cold/iterations:1/manual_time\n");
}

TEST(Bench, NamesTheOperationsWhereThereAreOthersThanForward) {
  const Outcome outcome =
      RunCommand({"bench", "--operations", "forward,sum_squares,forward_call,scale", "--shapes",
                  "2x64", "--types", "f32", "--threads", "1", "--targets", "reference"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_EQ(lines[1].rfind("operation     type  rows x d ", 0), 0u) << lines[1];
  EXPECT_EQ(lines[2].rfind("forward       f32      2 x 64 ", 0), 0u) << lines[2];
  EXPECT_EQ(lines[3].rfind("sum_squares   f32      2 x 64 ", 0), 0u) << lines[3];
  EXPECT_EQ(lines[4].rfind("forward_call  f32      2 x 64 ", 0), 0u) << lines[4];
  EXPECT_EQ(lines[5].rfind("scale         f32      2 x 64 ", 0), 0u) << lines[5];
  // The phases have no plain loops beside them.
  EXPECT_TRUE(std::regex_search(lines[3], std::regex(" -  +[0-9.]+x$"))) << lines[3];
  EXPECT_TRUE(std::regex_search(lines[4], std::regex(" [0-9.]+x +[0-9.]+x$"))) << lines[4];
}

// Each reads and writes as many bytes as it says.
TEST(Bench, BytesAreThoseOfTheOperation) {
  for (const auto& [operation, passes] : {std::pair<const char*, int>{"sum_squares", 1},
                                          {"scale", 2},
                                          {"forward_call", 2},
                                          {"add_forward", 4},
                                          {"backward", 3},
                                          {"layernorm", 2}}) {
    const Outcome outcome =
        RunCommand({"bench", "--operations", operation, "--shapes", "3x64", "--types", "f32",
                    "--threads", "1", "--targets", "reference", "--benchmark_format=json"});
    const json cell = json::parse(outcome.out).at("benchmarks").at(0);
    EXPECT_EQ(cell.at("name").get<std::string>().rfind(std::string(operation) + "/f32/3x64/", 0),
              0u);
    const double bytes =
        cell.at("bytes_per_second").get<double>() * cell.at("library_ns").get<double>() * 1e-9;
    EXPECT_NEAR(bytes / (passes * 3 * 64 * 4), 1, 1e-6) << operation;
  }
}

TEST(Bench, LayerNormHasRmsNormBesideIt) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome =
      RunCommand({"bench", "--operations", "layernorm,forward", "--shapes", "2x64", "--threads",
                  "1", "--targets", "reference", "--json", file});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2 + 2 + 3 + 1u) << outcome.out;
  EXPECT_EQ(lines[1],
            "operation  type  rows x d       threads       time      GB/s   x memcpy   x rmsnorm   "
            "vs loops   vs reference");
  const std::regex layer_norm("layernorm  (f32|bf16) .* [0-9.]+ +[0-9.]+ +[0-9.]+x +-");
  const std::regex forward("forward    (f32|bf16|f16) .* [0-9.]+ +- +[0-9.]+x +[0-9.]+x");
  for (size_t i = 2; i < 7; ++i) {
    EXPECT_TRUE(std::regex_match(lines[i], i < 4 ? layer_norm : forward)) << lines[i];
    EXPECT_EQ(lines[i].size(), lines[1].size()) << lines[i];
  }
  EXPECT_EQ(lines[7], "layernorm is timed in f32 and bf16 only");

  const json results = json::parse(ReadFile(file));
  for (const json& cell : results.at("benchmarks")) {
    const bool is_layer_norm = cell.at("name").get<std::string>().rfind("layernorm/", 0) == 0;
    EXPECT_EQ(cell.contains("rmsnorm_ns"), is_layer_norm);
    EXPECT_EQ(cell.contains("x_rmsnorm"), is_layer_norm);
    if (!is_layer_norm) continue;
    const auto number = [&cell](const std::string& name) { return cell.at(name).get<double>(); };
    EXPECT_LE(number("rmsnorm_lower_ns"), number("rmsnorm_ns"));
    EXPECT_LE(number("rmsnorm_ns"), number("rmsnorm_upper_ns"));
    EXPECT_NEAR(number("x_rmsnorm") * number("rmsnorm_ns") / number("library_ns"), 1, 1e-6);
  }
}

std::vector<std::string> SmallBench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench",     "--shapes", "1x64,2x64", "--types",  "f32",
                                        "--threads", "1",        "--targets", "reference"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Bench, TakesGoogleBenchmarksFlags) {
  const Outcome filtered = RunCommand(SmallBench({"--benchmark_filter=2x64"}));
  ExpectSuccess(filtered);
  EXPECT_EQ(Lines(filtered.out).size(), 3u) << filtered.out;

  const Outcome as_json = RunCommand(SmallBench({"--benchmark_format=json"}));
  EXPECT_EQ(as_json.status, 0);
  EXPECT_EQ(json::parse(as_json.out).at("benchmarks").size(), 2u);

  const Outcome repeated = RunCommand(
      SmallBench({"--benchmark_repetitions=3", "--benchmark_report_aggregates_only=true"}));
  ExpectSuccess(repeated);
  EXPECT_EQ(Lines(repeated.out).size(), 4u) << repeated.out;

  const TemporaryDirectory directory;
  const std::string file = directory.File("out.csv");
  ExpectSuccess(RunCommand(SmallBench({"--benchmark_out=" + file, "--benchmark_out_format=csv"})));
  EXPECT_NE(ReadFile(file).find("\"forward/f32/2x64/threads:1"), std::string::npos);
}

TEST(Bench, TimesHaveThreeDigits) {
  EXPECT_EQ(tools::TimeText(1.234e-9), "1.23 ns");
  EXPECT_EQ(tools::TimeText(9.9949e-9), "9.99 ns");
  EXPECT_EQ(tools::TimeText(9.996e-9), "10.0 ns");
  EXPECT_EQ(tools::TimeText(99.94e-9), "99.9 ns");
  EXPECT_EQ(tools::TimeText(99.96e-9), "100 ns");
  EXPECT_EQ(tools::TimeText(142e-9), "142 ns");
  EXPECT_EQ(tools::TimeText(999.4e-9), "999 ns");
  EXPECT_EQ(tools::TimeText(999.6e-9), "1.00 us");
  EXPECT_EQ(tools::TimeText(5.3e-6), "5.30 us");
  EXPECT_EQ(tools::TimeText(7.3e-3), "7.30 ms");
  EXPECT_EQ(tools::TimeText(2.0), "2.00 s");
  EXPECT_EQ(tools::TimeText(1234.0), "1234 s");
}

TEST(Bench, RefusesWrongUseInOneLine) {
  const TemporaryDirectory directory;
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--frobnicate"}, "'--frobnicate'"},
      {{"frobnicate"}, "'frobnicate'"},
      {{"--benchmark_frobnicate=1"}, "'--benchmark_frobnicate=1'"},
      {{"--benchmark_repetitions=many"}, "'--benchmark_repetitions=many'"},
      {{"--benchmark_format=xml"}, "--benchmark_format"},
      {{"--benchmark_filter=no such cell"}, "no such cell"},
      {{"--benchmark_filter=("}, "regular expression"},
      {{"--benchmark_out=" + directory.File("no/file")}, "--benchmark_out"},
      {{"--json", directory.File("no/file")}, "no/file"},
      {{"--json"}, "--json"},
      {{"--operations", "frobnicate"}, "'frobnicate'"},
      {{"--shapes", "1"}, "'1'"},
      {{"--shapes", "1x"}, "'1x'"},
      {{"--shapes", "x64"}, "'x64'"},
      {{"--shapes", "0x64"}, "'0x64'"},
      {{"--shapes", "1x64x2"}, "'1x64x2'"},
      {{"--shapes", "-1x64"}, "'-1x64'"},
      {{"--shapes", "1x64,2*64"}, "'2*64'"},
      {{"--shapes", "65536x65537"}, "2^32"},
      {{"--shapes", "99999999999999999999x1"}, "--shapes"},
      {{"--types", "f64"}, "'f64'"},
      {{"--operations", "layernorm", "--types", "f16"}, "f32 and bf16 only"},
      {{"--threads", "0"}, "'0'"},
      {{"--threads", "two"}, "'two'"},
      {{"--targets", "frobnicate"}, "'frobnicate'"},
  };
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"bench"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    SCOPED_TRACE(all.back());
    ExpectUserError(RunCommand(all), problem);
  }
  EXPECT_EQ(directory.Names(), std::vector<std::string>());
}

TEST(Bench, WithoutOpenMpThereIsOneThread) {
  const Outcome outcome = RunCommand({"bench", "--threads", "2", "--benchmark_list_tests"});
  if (rmsnorm_has_openmp() != 0) {
    ExpectSuccess(outcome);
  } else {
    ExpectUserError(outcome, "OpenMP");
  }
}

}  // namespace
}  // namespace rmsnorm::test

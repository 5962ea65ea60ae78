// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench`: its output, files and errors. No test depends on timings, except that the
// reference is slower than memcpy.
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

// A few cells, on the reference.
Outcome SmallBench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "--threads", "1", "--targets", "reference"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunCommand(arguments);
}

TEST(Bench, PrintsATable) {
  const Outcome outcome = SmallBench(
      {"--operations", "norm,sum_squares", "--shapes", "1x64,3x100", "--types", "f32,bf16"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 10u) << outcome.out;
  EXPECT_EQ(lines[0].rfind(std::string("rmsnorm ") + rmsnorm_version() + " · ", 0), 0u) << lines[0];
  const std::string end = " · Highway " + std::string(rmsnorm_highway_version()) + " · " +
                          (rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP");
  EXPECT_EQ(lines[0].find(end), lines[0].size() - end.size()) << lines[0];
  EXPECT_EQ(lines[1],
            "operation    type   rows x d      threads       time      GB/s   x memcpy   target");
  const char* const starts[] = {
      "norm         f32       1 x 64           1 ", "norm         bf16      1 x 64           1 ",
      "norm         f32       3 x 100          1 ", "norm         bf16      3 x 100          1 ",
      "sum_squares  f32       1 x 64           1 ", "sum_squares  bf16      1 x 64           1 ",
      "sum_squares  f32       3 x 100          1 ", "sum_squares  bf16      3 x 100          1 "};
  // Time with a unit, GB/s and a multiple, each in a column.
  const std::regex numbers(" +[0-9.]+ (ns|us|ms|s) +[0-9.]+ +[0-9.]+   reference");
  for (size_t i = 0; i < 8; ++i) {
    const std::string& line = lines[i + 2];
    EXPECT_EQ(line.rfind(starts[i], 0), 0u) << line;
    EXPECT_EQ(line.size(), lines[1].size() + 3) << line;
    EXPECT_TRUE(std::regex_match(line.substr(41), numbers)) << line;
  }
}

TEST(Bench, TheDefaultTableHasTheCellsItShould) {
  const Outcome outcome =
      RunCommand({"bench", "--benchmark_list_tests"}, {{"RMSNORM_TARGET", "reference"}});
  ExpectSuccess(outcome);
  std::vector<std::string> expected;
  const int all = rmsnorm_max_threads();
  for (const char* shape :
       {"1x64", "1x1000", "1x2048", "1x4096", "1x7168", "1x8192", "8x4096", "32x4096", "32x7168",
        "512x4096", "64x16384", "4096x128", "512x2880", "8192x4096"}) {
    for (const char* type : {"f32", "bf16", "f16"}) {
      for (int threads = 1; threads <= all; threads += std::max(1, all - 1)) {
        expected.push_back(std::string("norm/") + type + "/" + shape + "/threads:" +
                           std::to_string(threads) + "/target:reference/iterations:1/manual_time");
      }
    }
  }
  EXPECT_EQ(Lines(outcome.out), expected);
}

TEST(Bench, TakesTargetsAndThreads) {
  std::string expected;
  for (const std::string& target : SupportedTargets()) {
    expected += "latent/f16/3x2112/threads:1/target:" + target + "/iterations:1/manual_time\n";
  }
  // Two names of the same number of threads, and shapes that the operation lacks.
  const Outcome outcome =
      RunCommand({"bench", "--operations", "latent", "--shapes", "3x2112,3x2048", "--types", "f16",
                  "--threads", "1,1", "--targets", "all", "--benchmark_list_tests"});
  ExpectSuccess(outcome);
  EXPECT_EQ(outcome.out, expected);
}

// Each operation reads and writes the expected number of bytes in the library's median time, which
// is a multiple of memcpy's.
TEST(Bench, FiguresAreThoseOfTheOperation) {
  const struct {
    const char* operation;
    double tensors;  // in bf16
    size_t d = 2112;
  } operations[] = {{"norm", 2},      {"add_norm", 4},      {"backward", 3},
                    {"norm_call", 2}, {"sum_squares", 1},   {"scale", 2},
                    {"latent", 2},    {"q_and_k", 2, 3072}, {"post_norm", 4},
                    {"post_add", 3},  {"gate_after", 3},    {"gate_before", 3, 1024},
                    {"int8", 2.5},    {"int8_alone", 1.5}};
  for (const auto& [operation, tensors, d] : operations) {
    SCOPED_TRACE(operation);
    const TemporaryDirectory directory;
    const std::string file = directory.File("bench.json");
    const std::string shape = "3x" + std::to_string(d);
    ExpectSuccess(SmallBench({"--operations", operation, "--shapes", shape, "--types", "bf16",
                              "--benchmark_out=" + file}));
    const json result = json::parse(ReadFile(file));
    EXPECT_EQ(result.at("context").at("rmsnorm"), rmsnorm_version());
    EXPECT_TRUE(result.at("context").at("cpu").is_string());
    ASSERT_EQ(result.at("benchmarks").size(), 1u);
    const json& cell = result.at("benchmarks").at(0);
    EXPECT_EQ(cell.at("name").get<std::string>(),
              std::string(operation) + "/bf16/" + shape +
                  "/threads:1/target:reference/iterations:1/manual_time");
    const auto number = [&cell](const std::string& name) { return cell.at(name).get<double>(); };
    const double time = number("library_ns");
    EXPECT_NEAR(number("real_time") / time, 1, 1e-6);
    EXPECT_NEAR(
        number("bytes_per_second") * time * 1e-9 / (tensors * 3 * static_cast<double>(d) * 2), 1,
        1e-6);
    EXPECT_EQ(number("library_ratio"), 1);
    EXPECT_GT(number("memcpy_ratio"), 2);
    EXPECT_GT(time / number("memcpy_ns"), 2);
    EXPECT_GE(number("rounds"), 9);
    EXPECT_EQ(number("threads_used"), 1);
  }
}

TEST(Bench, TheStepsApartHaveAColumn) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome = SmallBench({"--operations", "norm,post_norm", "--shapes", "3x64",
                                      "--types", "f32", "--benchmark_out=" + file});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 5u) << outcome.out;
  EXPECT_EQ(lines[1],
            "operation    type   rows x d      threads       time      GB/s   x memcpy   apart   "
            "target");
  EXPECT_TRUE(std::regex_match(lines[2], std::regex("norm .*[0-9] +-   reference"))) << lines[2];
  EXPECT_TRUE(std::regex_match(lines[3], std::regex("post_norm .*( +[0-9.]+){3}   reference")))
      << lines[3];
  EXPECT_EQ(lines[4], "apart: one step already");
  const json cells = json::parse(ReadFile(file)).at("benchmarks");
  EXPECT_FALSE(cells.at(0).contains("apart_ns"));
  EXPECT_GT(cells.at(1).at("apart_ns"), 0);
}

TEST(Bench, OneThreadHasAColumnBesideSeveral) {
  if (rmsnorm_has_openmp() == 0) GTEST_SKIP() << "no OpenMP";
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome =
      RunCommand({"bench", "--threads", "1,2", "--targets", "reference", "--shapes", "3x64",
                  "--types", "f32", "--benchmark_out=" + file});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 4u) << outcome.out;
  EXPECT_NE(lines[1].find("x memcpy   one_thread   target"), std::string::npos) << lines[1];
  EXPECT_TRUE(std::regex_match(lines[2], std::regex(".* 1 .*[0-9] +-   reference"))) << lines[2];
  EXPECT_TRUE(std::regex_match(lines[3], std::regex(".* 2 .*( +[0-9.]+){3}   reference")))
      << lines[3];
  const json cells = json::parse(ReadFile(file)).at("benchmarks");
  EXPECT_FALSE(cells.at(0).contains("one_thread_ns"));
  EXPECT_FALSE(cells.at(0).contains("label"));
  EXPECT_GT(cells.at(1).at("one_thread_ns"), 0);
}

TEST(Bench, TakesGoogleBenchmarksFlags) {
  const Outcome filtered =
      SmallBench({"--shapes", "1x64,2x64", "--types", "f32", "--benchmark_filter=2x64",
                  "--benchmark_repetitions=3", "--benchmark_report_aggregates_only=true"});
  ExpectSuccess(filtered);
  EXPECT_EQ(Lines(filtered.out).size(), 3u) << filtered.out;
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
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--frobnicate"}, "'--frobnicate'"},
      {{"frobnicate"}, "'frobnicate'"},
      {{"--benchmark_frobnicate=1"}, "'--benchmark_frobnicate=1'"},
      {{"--operations", "frobnicate"}, "--operations: 'frobnicate' is not norm, "},
      {{"--operations", "norm,post_nrom"}, "'post_nrom' is not "},
      {{"--operations", "norm,post_nrom"}, "; did you mean post_norm?"},
      {{"--operations", "norm,layernorm"}, "the library has no LayerNorm; --peer"},
      {{"--shpaes", "1x64"}, "did you mean --shapes?"},
      {{"--types", "fp16"}, "did you mean f16?"},
      {{"--operations", "latent"}, "2112"},
      {{"--operations", "q_and_k"}, "3072"},
      {{"--operations", "gate_before", "--shapes", "4x100"}, "512"},
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
      {{"--threads", "0"}, "'0'"},
      {{"--threads", "two"}, "'two'"},
      {{"--targets", "frobnicate"}, "--targets: 'frobnicate'"},
      {{"--targets", "all,refrence"}, "did you mean reference?"},
  };
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"bench"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    SCOPED_TRACE(all.back());
    ExpectUserError(RunCommand(all), problem);
  }
  // These are Google Benchmark's own words.
  const Outcome none = RunCommand({"bench", "--benchmark_filter=no such cell"});
  EXPECT_EQ(none.status, 2);
  EXPECT_NE(none.err.find("no such cell"), std::string::npos) << none.err;
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

// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench`: its table, files and errors. No test depends on times.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "bench_table.h"
#include "on_target.h"
#include "run_command.h"

namespace rmsnorm::test {
namespace {

using nlohmann::json;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Without the line that says what marks mean: whether a row has a mark depends on its times.
std::vector<std::string> LinesWithoutMarks(const Outcome& outcome) {
  std::vector<std::string> lines = Lines(outcome.out);
  const auto is_of_marks = [](const std::string& line) { return line[0] == '*'; };
  lines.erase(std::remove_if(lines.begin(), lines.end(), is_of_marks), lines.end());
  return lines;
}

// A few cells, on the reference.
Outcome SmallBench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench", "--threads", "1", "--targets", "reference"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunCommand(arguments);
}

TEST(Bench, PrintsATableOf100Columns) {
  const Outcome outcome = SmallBench(
      {"--operations", "norm,gate_before", "--shapes", "1x64,3000x512", "--types", "f32,bf16"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = LinesWithoutMarks(outcome);
  ASSERT_EQ(lines.size(), 10u) << outcome.out;
  EXPECT_EQ(lines[0].rfind(std::string("rmsnorm ") + rmsnorm_version() + " · ", 0), 0u) << lines[0];
  EXPECT_EQ(lines[1],
            "operation   type  rows x d     threads    memcpy     plain   rmsnorm  GB/s  times "
            "faster  target");
  const char* const starts[] = {
      "norm        f32      1 x 64          1 ", "norm        bf16     1 x 64          1 ",
      "norm        f32   3000 x 512         1 ", "norm        bf16  3000 x 512         1 ",
      "gate_before f32   3000 x 512         1 ", "gate_before bf16  3000 x 512         1 "};
  // Three times with a unit, GB/s and a factor, each in a column.
  const std::regex figures("( +[0-9.]+ (ns|us|ms|s)){3} +[0-9.]+ +[0-9.]+[ *] reference");
  for (size_t i = 0; i < 6; ++i) {
    const std::string& line = lines[i + 2];
    EXPECT_EQ(line.rfind(starts[i], 0), 0u) << line;
    EXPECT_EQ(line.size(), lines[1].size() + 3) << line;
    EXPECT_LE(line.size(), 100u);
    EXPECT_TRUE(std::regex_match(line.substr(38), figures)) << line;
  }
  for (size_t i = 0; i < 2; ++i) {
    const std::regex mean(std::string(i == 0 ? "f32" : "bf16") +
                          ": [0-9.]+ times faster than plain loops on 1 thread "
                          "\\(geometric mean of the rows\\)");
    EXPECT_TRUE(std::regex_match(lines[8 + i], mean)) << lines[8 + i];
  }
}

// A row of a cell on some threads whose contenders have these quartiles, in nanoseconds.
struct Row {
  std::string type;
  int threads;
  bench::Spread library, plain;
};

// The lines of a table of rows, without its first two.
std::vector<std::string> TableOf(const std::vector<Row>& rows) {
  std::vector<bench::Cell> cells;
  for (size_t i = 0; i < rows.size(); ++i) {
    cells.push_back(*bench::MakeCell(bench::Operations().front(), rows[i].type, {i + 1, 64},
                                     rows[i].threads, "reference"));
  }
  const bench::Contenders contenders;
  tools::BenchTable table(cells, contenders);
  std::ostringstream out;
  table.SetOutputStream(&out);
  for (size_t i = 0; i < rows.size(); ++i) {
    benchmark::BenchmarkReporter::Run run;
    run.run_type = run.RT_Iteration;
    run.run_name.function_name = cells[i].name;
    run.counters["bytes_per_second"] = 1e9;
    for (const auto& [name, spread] :
         {std::pair("library", rows[i].library), std::pair("plain", rows[i].plain)}) {
      run.counters[name + std::string("_lower_ns")] = spread.lower_quartile;
      run.counters[name + std::string("_ns")] = spread.median;
      run.counters[name + std::string("_upper_ns")] = spread.upper_quartile;
    }
    table.ReportRuns({run});
  }
  table.Finalize();
  return Lines(out.str());
}

TEST(Bench, MarksRowsWhoseTimesAreFarApart) {
  const std::vector<std::string> lines = TableOf({{"f32", 1, {10, 12, 15}, {20, 24, 30}},
                                                  {"f32", 1, {10, 12, 15.1}, {20, 24, 30}},
                                                  {"f32", 1, {10, 12, 15}, {20, 24, 30.1}}});
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0].substr(lines[0].size() - 15), "2.00  reference");
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(lines[i].substr(lines[i].size() - 15), "2.00* reference");
  }
  EXPECT_EQ(lines[3],
            "* Measure again on a quiet machine: the quartiles of a time are more than 1.5 apart.");
}

TEST(Bench, EndsWithTheMeanOfEachType) {
  const std::vector<std::string> lines = TableOf({{"f32", 1, {10, 10, 10}, {20, 20, 20}},
                                                  {"f32", 2, {10, 10, 10}, {30, 30, 30}},
                                                  {"bf16", 1, {10, 10, 10}, {5, 5, 5}},
                                                  {"f32", 1, {10, 10, 10}, {80, 80, 80}}});
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_EQ(lines[4],
            "f32: 4.00 times faster than plain loops on 1 thread, 3.00 times on 2 threads "
            "(geometric mean of the rows)");
  EXPECT_EQ(lines[5],
            "bf16: 0.50 times faster than plain loops on 1 thread (geometric mean of the rows)");
}

TEST(Bench, TheDefaultTableTimesOneThreadAndAll) {
  const Outcome outcome =
      RunCommand({"bench", "--benchmark_list_tests"}, {{"RMSNORM_TARGET", "reference"}});
  ExpectSuccess(outcome);
  const int all = rmsnorm_max_threads();
  EXPECT_EQ(Lines(outcome.out).size(), all == 1 ? 42u : 84u) << outcome.out;
  for (const char* type : {"f32", "bf16", "f16"}) {
    for (const int threads : {1, all}) {
      EXPECT_NE(outcome.out.find(std::string("norm/") + type + "/1x4096/threads:" +
                                 std::to_string(threads) + "/target:reference/"),
                std::string::npos);
    }
  }
}

// Two names of the same number of threads, and shapes that the operation lacks.
TEST(Bench, CellsHaveNoDuplicates) {
  std::string expected;
  for (const std::string& target : SupportedTargets()) {
    expected += "latent/f16/3x2112/threads:1/target:" + target + "/iterations:1/manual_time\n";
  }
  const Outcome outcome =
      RunCommand({"bench", "--operations", "latent", "--shapes", "3x2112,3x2048", "--types", "f16",
                  "--threads", "1,1", "--targets", "all", "--benchmark_list_tests"});
  ExpectSuccess(outcome);
  EXPECT_EQ(outcome.out, expected);
}

// Each operation reads and writes the expected number of bytes in the library's median time.
TEST(Bench, FiguresBelongToTheOperation) {
  const struct {
    const char* operation;
    double elements;  // of two bytes, in a row
    size_t d = 2112;
  } operations[] = {{"norm", 2 * 2112},          {"add_norm", 4 * 2112},
                    {"backward", 3 * 2112},      {"latent", 2 * 2048},
                    {"q_and_k", 2 * 2560, 3072}, {"post_norm", 4 * 2112},
                    {"gate_after", 3 * 2112},    {"gate_before", 3 * 1024, 1024},
                    {"int8", 2.5 * 2112},        {"int8_alone", 1.5 * 2112}};
  for (const auto& [operation, elements, d] : operations) {
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
    EXPECT_NEAR(number("bytes_per_second") * time * 1e-9 / (elements * 3 * 2), 1, 1e-6);
    EXPECT_EQ(number("library_ratio"), 1);
    for (const char* const other : {"memcpy_ns", "plain_ns"}) EXPECT_GT(number(other), 0);
    EXPECT_GE(number("rounds"), 9);
    EXPECT_EQ(number("threads_used"), 1);
    EXPECT_EQ(cell.contains("apart_ns"), operation == std::string("latent") ||
                                             operation == std::string("q_and_k") ||
                                             operation == std::string("post_norm"));
  }
}

TEST(Bench, TimesACase) {
  const Outcome outcome = SmallBench(
      {"--call", "forward,x+y=bf16,weight=f32,rows=2x3,d=100,x_gap=7", "--call",
       "forward,x+y=$T,weight=f16,rows=$R,d=$D/2,call=module;forward,x=f16,y=f32,rows=3,d=5",
       "--shapes", "4x64", "--types", "f32,f16"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = LinesWithoutMarks(outcome);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_EQ(lines[2].rfind("call        bf16     6 x 100         1 ", 0), 0u) << lines[2];
  EXPECT_EQ(lines[3].rfind("call        f32      4 x 32          1 ", 0), 0u) << lines[3];
  EXPECT_EQ(lines[4].rfind("call        f16      4 x 32          1 ", 0), 0u) << lines[4];
  EXPECT_EQ(lines[5], "plain: they have one type");
}

TEST(Bench, ReadsTheResults) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome =
      SmallBench({"--read", "--operations", "norm,post_norm,latent,int8_alone", "--shapes",
                  "3x2112", "--types", "f32", "--benchmark_out=" + file});
  ExpectSuccess(outcome);
  EXPECT_NE(Lines(outcome.out)[0].find(" · results are read"), std::string::npos) << outcome.out;
  const json cells = json::parse(ReadFile(file)).at("benchmarks");
  ASSERT_EQ(cells.size(), 4u);
  EXPECT_EQ(cells[0].at("name").get<std::string>(),
            "norm/f32/3x2112/threads:1/target:reference/read/iterations:1/manual_time");
  for (const json& cell : cells) EXPECT_GT(cell.at("library_ns").get<double>(), 0);
}

TEST(Bench, TimesHaveThreeDigits) {
  const std::pair<double, const char*> times[] = {{1.234e-9, "1.23 ns"}, {9.996e-9, "10.0 ns"},
                                                  {99.96e-9, "100 ns"},  {999.6e-9, "1.00 us"},
                                                  {7.3e-3, "7.30 ms"},   {1234.0, "1234 s"}};
  for (const auto& [seconds, text] : times) EXPECT_EQ(tools::TimeText(seconds), text);
}

TEST(Bench, RefusesWrongUseInOneLine) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--frobnicate"}, "'--frobnicate'"},
      {{"--benchmark_frobnicate=1"}, "'--benchmark_frobnicate=1'"},
      {{"--operations", "norm,post_nrom"}, "; did you mean post_norm?"},
      {{"--shpaes", "1x64"}, "did you mean --shapes?"},
      {{"--types", "f64"}, "'f64'"},
      {{"--operations", "latent"}, "2112"},
      {{"--operations", "gate_before", "--shapes", "4x100"}, "512"},
      {{"--shapes", "1"}, "'1'"},
      {{"--shapes", "x64"}, "'x64'"},
      {{"--shapes", "0x64"}, "'0x64'"},
      {{"--shapes", "1x64x2"}, "'1x64x2'"},
      {{"--shapes", "65536x65537"}, "2^28"},
      {{"--shapes", "99999999999999999999x1"}, "--shapes"},
      {{"--threads", "two"}, "'two'"},
      {{"--targets", "frobnicate"}, "--targets: 'frobnicate'"},
      {{"--operations", "norm", "--call", "forward,rows=1,d=8"}, "--operations"},
      {{"--call", ""}, "--call: "},
      {{"--call", "forward,x=f3,rows=1,d=8"}, "--call: 'f3' is no value for 'x'"},
      {{"--call", "forward,rows=1,d=8,guard=after"}, "--call: 'guard' is for `rmsnorm check`"},
      {{"--call", "forward,rows=1,d=8,threads=1"},
       "--call: 'threads' is for `rmsnorm check`; here it is --threads"},
      {{"--call", "forward,rows=1,d=8,weight=none,weight_offset=1"},
       "options: weight_offset is 1, but there is no weight"},
      {{"--call", "backward,rows=1,d=8;backward,rows=1,d=8"},
       "--call: calls made at once are forward calls"},
      {{"--call", "forward,rows=$R,d=$D/7", "--shapes", "1x64"}, "no d is a multiple of 7"},
      {{"--call", "forward,rows=$R/7,d=$D", "--shapes", "1x64"}, "no rows is a multiple of 7"},
      {{"--call", "forward,rows=1,d=$D*-1"}, "--call: '$D*' ends in no number from 1 to 2^28"},
      {{"--call", "forward,rows=1,d=$D/0"}, "--call: '$D/0' ends in no number from 1 to 2^28"},
      {{"--call", "forward,rows=1,d=$D*67108864*67108864/67108864"}, "is above 2^28"},
      {{"--older", ""}, "--older: ''"},
  };
  for (auto [arguments, problem] : wrong) {
    SCOPED_TRACE(arguments.back());
    arguments.insert(arguments.begin(), "bench");
    ExpectUserError(RunCommand(arguments), problem);
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

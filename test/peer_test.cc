// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench --peer` and `--older`: good and bad libraries. RMSNORM_PEERS is the folder of the
// plug-ins made from test_peer.c, RMSNORM_PLAIN_PEER the path of the plain loops, and
// RMSNORM_LIBRARY the path of the library if it is shared.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "case.h"
#include "run_command.h"

namespace rmsnorm::test {
namespace {

using nlohmann::json;

std::filesystem::path PeerFile(const std::string& kind) {
  const std::filesystem::path folder = std::getenv("RMSNORM_PEERS");
  return folder / ("libtest_peer_" + kind + ".so");
}

std::filesystem::path PlainFile() { return std::getenv("RMSNORM_PLAIN_PEER"); }

Outcome BenchWith(const std::vector<std::string>& files, std::vector<std::string> more = {}) {
  std::vector<std::string> arguments = {"bench", "--shapes",  "3x64",     "--threads",
                                        "1",     "--targets", "reference"};
  for (const std::string& file : files) arguments.insert(arguments.end(), {"--peer", file});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunCommand(arguments);
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// The problems of a peer's case; the library must have none.
std::vector<bench::Problem> Problems(const std::string& file, const char* operation, Dtype dtype,
                                     size_t rows, size_t d, int threads = 1) {
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  contenders.push_back(bench::LoadPeer(file));
  for (const bench::Operation& one : bench::kOperations) {
    if (one.name != std::string(operation)) continue;
    return bench::Case({&one, dtype, rows, d, threads, "reference"}, contenders).problems();
  }
  throw std::logic_error(operation);
}

// --------------------------------------------------------------------------------------- running

// A reason appears once below the table, even if it applies to many cells.
TEST(Peer, HasAColumn) {
  const Outcome outcome =
      BenchWith({PeerFile("good"), PlainFile(), PeerFile("silent")}, {"--types", "f32,bf16,f16"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 7u) << outcome.out;
  EXPECT_EQ(lines[1],
            "operation    type   rows x d      threads       time      GB/s   x memcpy    test   "
            "plain   silent   target");
  EXPECT_TRUE(std::regex_match(lines[2], std::regex(".*( +[0-9.]+){4}   reference"))) << lines[2];
  for (const size_t i : {size_t{3}, size_t{4}}) {
    EXPECT_TRUE(std::regex_match(lines[i], std::regex(".* - +[0-9.]+ +-   reference"))) << lines[i];
    EXPECT_EQ(lines[i].size(), lines[2].size());
  }
  EXPECT_EQ(lines[5], "test: f32 only");
  EXPECT_EQ(lines[6], "silent: it does not say why");
}

TEST(Peer, TheLibrarysFiguresBesideALayerNormAreOfItsNorm) {
  const Outcome outcome =
      BenchWith({PlainFile()}, {"--types", "f32,bf16", "--operations", "norm,layernorm"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 7u) << outcome.out;
  EXPECT_EQ(lines[6], "layernorm: the library has none, and its figures are of norm");
}

TEST(Peer, HasItsTimesInJson) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  ExpectSuccess(BenchWith({PeerFile("good"), PlainFile()},
                          {"--types", "f32,f16", "--benchmark_out=" + file}));
  const json result = json::parse(ReadFile(file));
  const json& f32 = result.at("benchmarks").at(0);
  const json& f16 = result.at("benchmarks").at(1);
  for (const std::string name : {"test", "plain", "library", "memcpy"}) {
    for (const std::string unit : {"_ns", ""}) {
      const std::string figure = unit.empty() ? name + "_ratio" : name;
      EXPECT_GT(f32.at(figure + "_lower" + unit), 0) << figure;
      EXPECT_LE(f32.at(figure + "_lower" + unit), f32.at(figure + unit)) << figure;
      EXPECT_LE(f32.at(figure + unit), f32.at(figure + "_upper" + unit)) << figure;
    }
  }
  EXPECT_FALSE(f32.contains("label"));
  EXPECT_FALSE(f16.contains("test_ns"));
  EXPECT_TRUE(f16.contains("plain_ns"));
  EXPECT_EQ(f16.at("label"), "test: f32 only");
  // The names of cells, which identify them over time, do not depend on peers.
  EXPECT_EQ(f32.at("name"), "norm/f32/3x64/threads:1/target:reference/iterations:1/manual_time");
}

TEST(Peer, PlainLoopsComputeAllTypesOnThreads) {
  for (const bench::Operation& operation : bench::kOperations) {
    if (operation.code >= RMSNORM_PEER_NORM_CALL && operation.code <= RMSNORM_PEER_SCALE) continue;
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      for (const auto& [rows, length] : {std::pair<size_t, size_t>{1, 1}, {3, 64}, {67, 4097}}) {
        const size_t d = operation.row == 1 ? length : (length / 3000 + 1) * operation.row;
        for (const int threads : {1, 2, 3}) {
          if (threads > 1 && rmsnorm_has_openmp() == 0) continue;
          for (const bench::Problem& problem :
               Problems(PlainFile(), operation.name, dtype, rows, d, threads)) {
            ADD_FAILURE() << operation.name << " " << rows << " x " << d << ": " << problem.text;
          }
        }
      }
    }
  }
  EXPECT_EQ(Problems(PlainFile(), "scale", Dtype::f32, 3, 64).at(0).text, "unknown operation");
}

// Each peer gets just one of the results wrong; the check finds it at each length.
TEST(Peer, AWrongOneIsFoundInEachOperation) {
  const struct {
    const char* kind;
    const char* operation;
    const char* result;
  } wrong[] = {
      {"wrong", "norm", "y: row 0, element "},
      {"idle", "norm", "y: row 0, element 0 is "},
      {"norm_of_x", "add_norm", "y: row 0, element "},
      {"lost_residual", "add_norm", "residual: row 0, element "},
      {"idle", "add_norm", "y: row 0, element 0 is "},
      {"lost_term", "backward", "dx: row 0, element "},
      {"mean_term", "backward", "dx: row 0, element "},
      {"lost_dw", "backward", "dw: row 0, element "},
      {"idle", "backward", "dx: row 0, element 0 is "},
  };
  for (const auto& [kind, operation, result] : wrong) {
    for (const size_t d : {size_t{64}, size_t{4096}, size_t{16384}}) {
      SCOPED_TRACE(std::string(kind) + " " + operation + " " + std::to_string(d));
      // A factor of 1.0001 is within the tolerance for longer sums.
      if (kind == std::string("wrong") && d > 64) continue;
      const std::vector<bench::Problem> problems =
          Problems(PeerFile(kind), operation, Dtype::f32, 3, d);
      ASSERT_EQ(problems.size(), 1u);
      EXPECT_TRUE(problems[0].wrong);
      EXPECT_EQ(problems[0].text.rfind(result, 0), 0u) << problems[0].text;
    }
    EXPECT_TRUE(Problems(PeerFile("good"), operation, Dtype::f32, 3, 64).empty());
  }
}

TEST(Peer, AWrongOneIsNotTimed) {
  for (const std::string kind : {"wrong", "no_eps", "idle"}) {
    const TemporaryDirectory directory;
    const std::string file = directory.File("bench.json");
    const Outcome outcome = BenchWith({PeerFile(kind), PeerFile("good")},
                                      {"--types", "f32", "--benchmark_out=" + file});
    EXPECT_EQ(outcome.status, 1) << kind;
    EXPECT_EQ(outcome.err, "");
    const std::vector<std::string> lines = Lines(outcome.out);
    ASSERT_EQ(lines.size(), 4u) << outcome.out;
    EXPECT_TRUE(std::regex_match(lines[2], std::regex(".*[0-9] +WRONG +[0-9.]+   reference")))
        << lines[2];
    const std::string problem = kind + " is wrong: y: row 0, element ";
    EXPECT_EQ(lines[3].rfind("norm/f32/3x64/threads:1/target:reference: " + problem, 0), 0u)
        << lines[3];
    const json cell = json::parse(ReadFile(file)).at("benchmarks").at(0);
    EXPECT_FALSE(cell.contains(kind + "_ns"));
    EXPECT_EQ(cell.at("label").get<std::string>().rfind(problem, 0), 0u);
  }
}

// ------------------------------------------------------------------------------------ older builds

TEST(Older, IsTimedBesideTheLibrary) {
  const char* const library = std::getenv("RMSNORM_LIBRARY");
  if (library == nullptr) GTEST_SKIP() << "the library is no shared one";
  // Without a copy, dlopen() would return the library that the command has loaded.
  const TemporaryDirectory directory;
  const std::string copy = directory.File("librmsnorm.so");
  std::filesystem::copy_file(library, copy);
  const std::string file = directory.File("bench.json");
  const Outcome outcome = RunCommand(
      {"bench", "--older", copy, "--operations",
       "norm,add_norm,backward,norm_call,sum_squares,scale,latent,post_norm,post_add", "--shapes",
       "3x2112", "--types", "f32,bf16", "--threads", "1", "--benchmark_out=" + file});
  ExpectSuccess(outcome);
  const json results = json::parse(ReadFile(file));
  EXPECT_EQ(results.at("benchmarks").size(), 18u);
  for (const json& cell : results.at("benchmarks")) {
    const double ratio = cell.at("library_ns").get<double>() / cell.at("older_ns").get<double>();
    // The code is the same; a busy machine moves medians by less than this.
    EXPECT_NEAR(std::log2(cell.at("older_ratio").get<double>()), std::log2(ratio), 1);
  }
}

TEST(Older, OneThatIsNoneIsRefusedInOneLine) {
  for (const auto& [file, problem] : {std::pair<std::string, std::string>{"none.so", "cannot be"},
                                      {PeerFile("good"), "has no function rmsnorm_"}}) {
    const Outcome outcome = BenchWith({}, {"--older", file});
    ExpectUserError(outcome, "--older " + file + ": " + problem);
  }
}

// ------------------------------------------------------------------------------------- plug-ins

TEST(Peer, OneThatIsNoneIsRefusedInOneLine) {
  const TemporaryDirectory directory;
  const std::string text = directory.File("text.so");
  WriteFile(text, "no library\n");
  const std::pair<std::string, std::string> bad[] = {
      {directory.File("none.so"), "cannot be loaded: cannot open shared object file"},
      {directory.File(""), "cannot be loaded: "},
      {text, "cannot be loaded: "},
      {"no_folder.so", "cannot be loaded: cannot open shared object file"},
      {PeerFile("no_function"), "has no function rmsnorm_peer_get()"},
      {PeerFile("null"), "rmsnorm_peer_get() returned null"},
      {PeerFile("version"), "is made for version 1 of bench/peers/peer.h, not 4"},
      {PeerFile("nameless"), "its name is not of letters"},
      {PeerFile("bad_name"), "its name is not of letters"},
      {PeerFile("taken_name"), "the name 'memcpy' is taken"},
      {PeerFile("apart"), "the name 'apart' is taken"},
      {PeerFile("one_thread"), "the name 'one_thread' is taken"},
      {PeerFile("no_run"), "prepare, run or release is null"},
  };
  for (const auto& [file, problem] : bad) {
    SCOPED_TRACE(file);
    const Outcome outcome = BenchWith({file});
    ExpectUserError(outcome, "--peer " + file + ": ");
    ExpectUserError(outcome, problem);
  }
  ExpectUserError(BenchWith({PeerFile("good"), PeerFile("silent"), PeerFile("good")}),
                  "the name 'test' is taken");
}

TEST(Peer, FilesWithoutAFolderAreOfThisOne) {
  const std::string file = PeerFile("good");
  const size_t slash = file.rfind('/');
  const std::string folder = file.substr(0, slash);
  const Outcome outcome = RunCommand({"bench", "--peer", file.substr(slash + 1), "--shapes", "1x64",
                                      "--types", "f32", "--threads", "1"},
                                     {}, [&] { ASSERT_EQ(chdir(folder.c_str()), 0); });
  ExpectSuccess(outcome);
}

TEST(Peer, LoadingLeavesTheRoundingModeAlone) {
  ASSERT_EQ(std::fegetround(), FE_TONEAREST);
  bench::LoadPeer(PeerFile("rounding"));
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

// Each place is prepared once, and all are released.
TEST(Peer, IsPreparedForEachPlace) {
  const std::string file = PeerFile("good");
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  contenders.push_back(bench::LoadPeer(file));
  void* const library = dlopen(file.c_str(), RTLD_NOW);
  const int* const prepared = static_cast<const int*>(dlsym(library, "prepared_cases"));
  ASSERT_NE(prepared, nullptr);
  {
    const bench::Case one({&bench::kOperations[0], Dtype::f32, 3, 64, 1, "reference"}, contenders);
    EXPECT_EQ(*prepared, 32);
  }
  EXPECT_EQ(*prepared, 0);
  dlclose(library);
}

}  // namespace
}  // namespace rmsnorm::test

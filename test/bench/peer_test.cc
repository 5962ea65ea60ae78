// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench --peer` and `--older`: good and bad libraries. RMSNORM_PEERS is the folder of the
// plug-ins made from test_peer.c, and RMSNORM_LIBRARY the path of the library if it is shared.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "contest.h"
#include "run_command.h"

namespace rmsnorm::test {
namespace {

using nlohmann::json;

std::string PeerFile(const std::string& kind) {
  return std::filesystem::path(std::getenv("RMSNORM_PEERS")) / ("libtest_peer_" + kind + ".so");
}

Outcome BenchWith(std::vector<std::string> more) {
  const std::vector<std::string> usual = {"bench", "--shapes",  "3x64",     "--threads",
                                          "1",     "--targets", "reference"};
  more.insert(more.begin(), usual.begin(), usual.end());
  return RunCommand(more);
}

// A reason appears once below the table, even if it applies to many cells.
TEST(Peer, HasAColumnAndItsTimesInJson) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome =
      BenchWith({"--peer", PeerFile("good"), "--peer", PeerFile("silent"), "--operations",
                 "norm,q_and_k", "--shapes", "3x3072", "--benchmark_out=" + file});
  ExpectSuccess(outcome);
  EXPECT_NE(outcome.out.find(" apart      test    silent  times faster  target\n"),
            std::string::npos)
      << outcome.out;
  const std::string notes =
      "\ntest: only norms of dense rows\nsilent: only norms of dense rows\n"
      "test: f32 only\nsilent: it does not say why\n";
  for (std::istringstream lines(notes); !lines.eof();) {
    std::string note;
    std::getline(lines, note);
    const size_t first = outcome.out.find(note + "\n");
    EXPECT_NE(first, std::string::npos) << outcome.out;
    EXPECT_TRUE(note.empty() || outcome.out.find(note, first + 1) == std::string::npos);
  }
  const json cells = json::parse(ReadFile(file)).at("benchmarks");
  ASSERT_EQ(cells.size(), 9u);
  const json& norm = cells.at(0);
  EXPECT_GT(norm.at("test_ns"), 0);
  EXPECT_LE(norm.at("test_lower_ns"), norm.at("test_ns"));
  EXPECT_GE(norm.at("test_upper_ns"), norm.at("test_ns"));
  EXPECT_GT(norm.at("test_ratio"), 0);
  EXPECT_FALSE(cells.at(1).contains("test_ns"));
  EXPECT_NE(cells.at(1).at("label").get<std::string>().find("test: f32 only"), std::string::npos);
}

TEST(Peer, WithAWrongResultIsNotTimed) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome = BenchWith({"--peer", PeerFile("wrong"), "--peer", PeerFile("good"),
                                     "--types", "f32", "--benchmark_out=" + file});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(outcome.err, "");
  EXPECT_NE(outcome.out.find(" WRONG "), std::string::npos) << outcome.out;
  const std::string problem = "wrong is wrong: y: row 0, element ";
  EXPECT_NE(outcome.out.find("\nnorm/f32/3x64/threads:1/target:reference: " + problem),
            std::string::npos)
      << outcome.out;
  const json cell = json::parse(ReadFile(file)).at("benchmarks").at(0);
  EXPECT_FALSE(cell.contains("wrong_ns"));
  EXPECT_TRUE(cell.contains("test_ns"));
  EXPECT_EQ(cell.at("label").get<std::string>().rfind(problem, 0), 0u);
}

TEST(Peer, WithAFaultIsRefusedInOneLine) {
  const TemporaryDirectory directory;
  const std::string text = directory.File("text.so");
  WriteFile(text, "no library\n");
  const std::string bad[][3] = {
      {"--peer", "no_folder.so", "cannot be loaded: cannot open shared object file"},
      {"--peer", text, "cannot be loaded: "},
      {"--peer", PeerFile("no_function"), "has no function rmsnorm_peer_get()"},
      {"--peer", PeerFile("null"), "rmsnorm_peer_get() returned null"},
      {"--peer", PeerFile("version"), "is made for version 1 of bench/peers/peer.h, not 5"},
      {"--peer", PeerFile("bad_name"), "its name is not of letters"},
      {"--peer", PeerFile("taken_name"), "the name 'plain' is taken"},
      {"--peer", PeerFile("no_run"), "prepare, run or release is null"},
      {"--older", "none.so", "cannot be loaded: "},
      {"--older", PeerFile("good"), "has no function rmsnorm_"},
  };
  for (const auto& [option, file, problem] : bad) {
    ExpectUserError(BenchWith({option, file}), option + " " + file + ": " + problem);
  }
  ExpectUserError(BenchWith({"--peer", PeerFile("good"), "--peer", PeerFile("good")}),
                  "the name 'test' is taken");
}

// Each place is prepared once, and all are released. Loading leaves the rounding mode alone.
TEST(Peer, IsPreparedForEachPlace) {
  const std::string file = PeerFile("good");
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  contenders.push_back(bench::LoadPeer(file));
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
  void* const library = dlopen(file.c_str(), RTLD_NOW);
  const int* const prepared = static_cast<const int*>(dlsym(library, "prepared_cases"));
  ASSERT_NE(prepared, nullptr);
  {
    const bench::Contest contest(
        *bench::MakeCell(bench::Operations()[0], "f32", {3, 64}, 1, "reference"), contenders);
    EXPECT_TRUE(contest.untimed().empty());
    EXPECT_EQ(*prepared, 32);
  }
  EXPECT_EQ(*prepared, 0);
  dlclose(library);
}

TEST(Older, IsTimedBesideTheLibrary) {
  const char* const library = std::getenv("RMSNORM_LIBRARY");
  if (library == nullptr) GTEST_SKIP() << "the library is no shared one";
  // Without a copy, dlopen() would return the library that the command has loaded.
  const TemporaryDirectory directory;
  const std::string copy = directory.File("librmsnorm.so");
  std::filesystem::copy_file(library, copy);
  const std::string file = directory.File("bench.json");
  ExpectSuccess(BenchWith({"--older", copy, "--operations",
                           "norm,add_norm,backward,latent,post_norm,gate_after,int8", "--shapes",
                           "3x2112", "--types", "f32", "--benchmark_out=" + file}));
  const json results = json::parse(ReadFile(file));
  EXPECT_EQ(results.at("benchmarks").size(), 13u);
  for (const json& cell : results.at("benchmarks")) EXPECT_GT(cell.at("older_ratio"), 0);
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench --peer`: good plug-ins, bad ones, and how far their results may be off.
// RMSNORM_PEERS is the folder of those made from test_peer.c, and RMSNORM_PLAIN_PEER the path of
// plain-native.
#include "peer.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>

#include "operations.h"
#include "plain_loops.h"
#include "run_command.h"
#include "tensors.h"
#include "tolerance.h"

namespace rmsnorm::test {
namespace {

using bench::Cell;
using bench::Job;
using nlohmann::json;

std::string PeerFile(const std::string& kind) {
  return std::string(std::getenv("RMSNORM_PEERS")) + "/libtest_peer_" + kind + ".so";
}

std::string PlainFile() { return std::getenv("RMSNORM_PLAIN_PEER"); }

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

// --------------------------------------------------------------------------------------- running

TEST(Peer, HasAColumn) {
  const Outcome outcome = BenchWith({PeerFile("good"), PlainFile()}, {"--types", "f32,bf16"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 5u) << outcome.out;
  EXPECT_EQ(lines[1],
            "type  rows x d       threads       time      GB/s   x memcpy    test   plain-native   "
            "vs loops   vs reference");
  const std::regex computed(".* +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+x +[0-9.]+x");
  EXPECT_TRUE(std::regex_match(lines[2], computed)) << lines[2];
  EXPECT_EQ(lines[2].size(), lines[1].size());
  const std::regex refused(".* +[0-9.]+ +- +[0-9.]+ +[0-9.]+x +[0-9.]+x");
  EXPECT_TRUE(std::regex_match(lines[3], refused)) << lines[3];
  EXPECT_EQ(lines[3].size(), lines[1].size());
  EXPECT_EQ(lines[4], "-: test: f32 only");
}

// One reason stands below the table once, however many cells it is for.
TEST(Peer, RefusalsAreNotRepeated) {
  const Outcome outcome =
      BenchWith({PeerFile("good"), PeerFile("silent")}, {"--types", "f16,bf16", "--cold"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_EQ(lines[4], "-: test: so small a cell has too many cold copies to prepare");
  EXPECT_EQ(lines[5], "-: silent: so small a cell has too many cold copies to prepare");

  const Outcome silent = BenchWith({PeerFile("silent")}, {"--types", "f16,bf16"});
  ExpectSuccess(silent);
  EXPECT_NE(silent.out.find("\n-: silent: it does not say why\n"), std::string::npos) << silent.out;
}

TEST(Peer, HasItsTimesInJson) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  ExpectSuccess(BenchWith({PeerFile("good"), PlainFile()}, {"--types", "f32,f16", "--json", file}));
  const json result = json::parse(ReadFile(file));
  const json& f32 = result.at("benchmarks").at(0);
  const json& f16 = result.at("benchmarks").at(1);
  for (const std::string name : {"test", "plain-native", "library", "memcpy"}) {
    EXPECT_GT(f32.at(name + "_lower_ns"), 0) << name;
    EXPECT_LE(f32.at(name + "_lower_ns"), f32.at(name + "_ns")) << name;
    EXPECT_LE(f32.at(name + "_ns"), f32.at(name + "_upper_ns")) << name;
  }
  EXPECT_FALSE(f32.contains("label"));
  EXPECT_FALSE(f16.contains("test_ns"));
  EXPECT_TRUE(f16.contains("plain-native_ns"));
  EXPECT_EQ(f16.at("label"), "test: f32 only");
  // What is compared over time has the same name with peers and without.
  EXPECT_EQ(f32.at("name"), "forward/f32/3x64/threads:1/target:reference/iterations:1/manual_time");
}

TEST(Peer, DoesNotComputeAllOperations) {
  const Outcome outcome =
      BenchWith({PeerFile("good")}, {"--types", "f32", "--operations", "forward,scale"});
  ExpectSuccess(outcome);
  EXPECT_EQ(Lines(outcome.out).back(), "-: test: peers do not compute scale");
}

const char* const kOperations[] = {"forward", "add_forward", "backward"};

TEST(Peer, HasATimeInEachOfItsOperations) {
  const Outcome outcome = BenchWith(
      {PeerFile("good")}, {"--types", "f32", "--operations", "forward,add_forward,backward"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 5u) << outcome.out;
  for (size_t i = 0; i < 3; ++i) {
    const std::regex computed(std::string(kOperations[i]) +
                              " .* +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+x +[0-9.]+x");
    EXPECT_TRUE(std::regex_match(lines[i + 2], computed)) << lines[i + 2];
  }
}

TEST(Peer, PlainNativeComputesAllTypesOnThreads) {
  const bench::Peer peer(PlainFile());
  for (const char* const operation : kOperations) {
    for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
      for (const auto& [rows, d] : {std::pair<size_t, size_t>{1, 1}, {3, 64}, {67, 4097}}) {
        for (const int threads : {1, 2, 3}) {
          const Cell cell = {operation, dtype, rows, d, threads, "reference"};
          bench::PeerProblem problem;
          EXPECT_TRUE(bench::MakeJob(cell)->AddPeer(peer, &problem))
              << cell.name() << ": " << problem.text;
        }
      }
    }
  }
}

// Each gets just one of the results wrong, and is found at each length.
TEST(Peer, AWrongOneIsFoundInEachOperation) {
  const struct {
    const char* kind;
    const char* operation;
    const char* result;
  } wrong[] = {
      {"norm_of_x", "add_forward", "row 0, element "},
      {"lost_residual", "add_forward", "residual: row 0, element "},
      {"idle", "add_forward", "row 0, element 0 is nan"},
      {"lost_term", "backward", "row 0, element "},
      {"mean_term", "backward", "row 0, element "},
      {"lost_dw", "backward", "dw: row 0, element "},
      {"idle", "backward", "row 0, element 0 is nan"},
  };
  for (const auto& [kind, operation, result] : wrong) {
    const bench::Peer peer(PeerFile(kind));
    for (const size_t d : {size_t{64}, size_t{4096}, size_t{16384}}) {
      SCOPED_TRACE(std::string(kind) + " " + operation + " " + std::to_string(d));
      bench::PeerProblem problem;
      const std::unique_ptr<Job> job =
          bench::MakeJob({operation, Dtype::f32, 3, d, 1, "reference"});
      EXPECT_FALSE(job->AddPeer(peer, &problem));
      EXPECT_TRUE(problem.wrong);
      std::string text = problem.text;
      if (text.rfind("row 0, element 0 is -nan", 0) == 0) text.erase(20, 1);
      EXPECT_EQ(text.rfind(result, 0), 0u) << text;
      EXPECT_EQ(job->Contenders().back().name, "plain");
    }
  }
}

// What a cold cell's copies share and what not: each case runs on buffers of its own, but for dw.
TEST(Peer, ComputesEachCopyOfEachOperation) {
  const bench::Peer peer(PeerFile("good"));
  for (const char* const operation : kOperations) {
    const std::unique_ptr<Job> job =
        bench::MakeJob({operation, Dtype::f32, 16, 4096, 1, "reference", true});
    EXPECT_GT(job->tensors().copies(), 1u);
    bench::PeerProblem problem;
    EXPECT_TRUE(job->AddPeer(peer, &problem)) << operation << ": " << problem.text;
  }
}

TEST(Peer, AWrongOneIsNotTimed) {
  for (const std::string kind : {"wrong", "no_eps", "idle"}) {
    const Outcome outcome = BenchWith({PeerFile(kind), PeerFile("good")}, {"--types", "f32"});
    EXPECT_EQ(outcome.status, 1) << kind;
    EXPECT_EQ(outcome.err, "");
    const std::vector<std::string> lines = Lines(outcome.out);
    ASSERT_EQ(lines.size(), 4u) << outcome.out;
    EXPECT_TRUE(
        std::regex_match(lines[2], std::regex(".* +[0-9.]+ +WRONG +[0-9.]+ +[0-9.]+x +[0-9.]+x")))
        << lines[2];
    EXPECT_EQ(lines[3].rfind("WRONG: " + kind +
                                 " in forward/f32/3x64/threads:1/target:reference: row 0, element ",
                             0),
              0u)
        << lines[3];
  }
  const Outcome outcome =
      BenchWith({PeerFile("wrong")}, {"--types", "f32", "--benchmark_format=json"});
  EXPECT_EQ(outcome.status, 1);
  const json cell = json::parse(outcome.out).at("benchmarks").at(0);
  EXPECT_FALSE(cell.contains("wrong_ns"));
  EXPECT_EQ(cell.at("label").get<std::string>().rfind("wrong is wrong: row 0, element 0 is ", 0),
            0u);
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
      {PeerFile("version"), "is made for version 1 of bench/peers/peer.h, not 2"},
      {PeerFile("nameless"), "its name is not of letters"},
      {PeerFile("bad_name"), "its name is not of letters"},
      {PeerFile("taken_name"), "the name 'memcpy' is taken"},
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
  const bench::Peer peer(PeerFile("rounding"));
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

// Each copy of a cold cell is prepared once, checked, run in its turn and released.
TEST(Peer, IsPreparedForEachCopy) {
  const std::string file = PeerFile("good");
  const bench::Peer peer(file);
  void* const library = dlopen(file.c_str(), RTLD_NOW);
  const int* const prepared = static_cast<const int*>(dlsym(library, "prepared_cases"));
  ASSERT_NE(prepared, nullptr);
  {
    const Cell cell = {"forward", Dtype::f32, 16, 4096, 1, "reference", true};
    const std::unique_ptr<Job> job = bench::MakeJob(cell);
    bench::PeerProblem problem;
    EXPECT_TRUE(job->AddPeer(peer, &problem)) << problem.text;
    EXPECT_EQ(*prepared, static_cast<int>(job->tensors().copies()));
    const std::vector<bench::Contender> contenders = job->Contenders();
    EXPECT_EQ(contenders.back().name, "test");
    EXPECT_EQ(contenders.back().pool, "");
    for (int i = 0; i < 3; ++i) {
      // memcpy moves on and leaves x in y; the peer then moves on and leaves that y alone.
      contenders.at(1).repeat(1);
      const size_t copy = job->tensors().copy();
      const float* const y = reinterpret_cast<const float*>(job->tensors().y());
      const float copied = *y;
      contenders.back().repeat(1);
      EXPECT_NE(job->tensors().copy(), copy);
      EXPECT_EQ(*y, copied);
    }
  }
  EXPECT_EQ(*prepared, 0);
  dlclose(library);
}

// Its threads and the others' do not wait for work at the same time.
TEST(Peer, ThatStartsThreadsHasAPoolOfItsOwn) {
  const bench::Peer peer(PeerFile("threaded"));
  const std::unique_ptr<Job> job = bench::MakeJob({"forward", Dtype::f32, 3, 64, 1, "reference"});
  bench::PeerProblem problem;
  EXPECT_TRUE(job->AddPeer(peer, &problem)) << problem.text;
  EXPECT_EQ(job->Contenders().back().pool, "threaded");
}

// ------------------------------------------------------------------------------------- tolerance

std::string Beyond(Dtype dtype, size_t d, const void* actual, const void* expected) {
  return bench::FindElementBeyondTolerance(dtype, 7, 1, d, static_cast<const uint8_t*>(actual),
                                           static_cast<const uint8_t*>(expected));
}

TEST(PeerTolerance, GrowsWithTheSumInF32) {
  for (const size_t d : {size_t{1}, size_t{64}, size_t{4096}, size_t{16384}}) {
    std::vector<float> expected(d, -1.0f);
    std::vector<float> actual = expected;
    // What it counts, and a tenth more.
    const double counted = (0.5 * static_cast<double>(d) + 19) * 0x1p-24;
    actual.back() = static_cast<float>(-1 - counted);
    EXPECT_EQ(Beyond(Dtype::f32, d, actual.data(), expected.data()), "") << d;
    actual.back() = static_cast<float>(-1 + 1.1 * (counted + 0x1p-24));
    EXPECT_EQ(Beyond(Dtype::f32, d, actual.data(), expected.data())
                  .rfind("row 7, element " + std::to_string(d - 1) + " is -0.99", 0),
              0u)
        << d;
  }
}

TEST(PeerTolerance, NothingButNumbers) {
  const float expected[2] = {1, 0};
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, 1e-30f}) {
    const float actual[2] = {1, wrong};
    EXPECT_EQ(Beyond(Dtype::f32, 2, actual, expected).rfind("row 7, element 1 is ", 0), 0u);
  }
}

// One and a half units in the last place are allowed, so one is, and two are not.
TEST(PeerTolerance, ThreeRoundingsOfTheType) {
  for (const auto& [dtype, one] :
       {std::pair<Dtype, int>{Dtype::f16, 0x3C00}, {Dtype::bf16, 0x3F80}}) {
    const uint16_t expected = static_cast<uint16_t>(one);
    for (const int off : {0, 1, 2, 3}) {
      const uint16_t actual = static_cast<uint16_t>(one + off);
      EXPECT_EQ(Beyond(dtype, 1, &actual, &expected).empty(), off < 2) << off;
      const auto is_within = [&, d = dtype](auto find) {
        return find(d, 0, 1, 1, reinterpret_cast<const uint8_t*>(&actual),
                    reinterpret_cast<const uint8_t*>(&expected))
            .empty();
      };
      // y after a residual add has two roundings more; a residual has two in all.
      EXPECT_EQ(is_within(bench::FindElementBeyondAddTolerance), off < 3) << off;
      EXPECT_EQ(is_within(bench::FindElementBeyondSumTolerance), off < 2) << off;
    }
  }
  // Subnormal f16: 2^-22 is four units.
  const uint16_t tiny = 10;
  for (const int off : {4, 5}) {
    const uint16_t actual = static_cast<uint16_t>(tiny + off);
    EXPECT_EQ(Beyond(Dtype::f16, 1, &actual, &tiny).empty(), off < 5) << off;
  }
}

TEST(PeerTolerance, OfAResidualInF32IsOneUnit) {
  const float expected = 1;
  for (const int off : {0, 1, 2}) {
    const float actual = 1 + static_cast<float>(off) * 0x1p-23f;
    EXPECT_EQ(bench::FindElementBeyondSumTolerance(Dtype::f32, 0, 1, 1,
                                                   reinterpret_cast<const uint8_t*>(&actual),
                                                   reinterpret_cast<const uint8_t*>(&expected))
                  .empty(),
              off < 2)
        << off;
  }
}

const uint8_t* Bytes(const std::vector<float>& numbers) {
  return reinterpret_cast<const uint8_t*>(numbers.data());
}

// With ones for all that goes in, both terms of dx are 1, and so is each of the rows' terms of dw.
TEST(PeerTolerance, OfGradientsGrowsWithTheirSumsInF32) {
  for (const size_t d : {size_t{1}, size_t{64}, size_t{4096}}) {
    const size_t rows = 5;
    const std::vector<float> ones(rows * d, 1.0f);
    const std::vector<float> zeros(rows * d);
    for (const double factor : {-0.99, 0.99, 1.1}) {
      bench::GradientTolerance tolerance(Dtype::f32, rows, d, Bytes(ones));
      const auto length = static_cast<double>(d);
      std::vector<float> dx = zeros;
      dx.back() = static_cast<float>(factor * (3.06 * length + 98) * 0x1p-24);
      const std::string fault = tolerance.FindDxBeyond(7, rows, Bytes(ones), Bytes(ones),
                                                       ones.data(), Bytes(dx), Bytes(zeros));
      const std::string element = "row 11, element " + std::to_string(d - 1) + " is ";
      EXPECT_EQ(fault.rfind(element, 0), factor < 1 ? std::string::npos : 0u) << d << fault;

      std::vector<float> dw(d);
      dw.back() = static_cast<float>(factor * (0.51 * length + 1.07 * rows + 36) * rows * 0x1p-24);
      EXPECT_EQ(tolerance.FindDwBeyond(dw.data(), zeros.data()).empty(), factor < 1) << d;
    }
  }
}

// dx of the numbers that are timed, in binary64 and rounded to the type, is within the tolerance;
// without its second term or with LayerNorm's it is not. So in each type, on rows of any length.
TEST(PeerTolerance, OfGradientsTellsALostTermInEachType) {
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    for (const size_t d : {size_t{16}, size_t{128}, size_t{4096}, size_t{16384}}) {
      const Cell cell = {"backward", dtype, 1, d, 1, "reference"};
      SCOPED_TRACE(cell.name());
      bench::Tensors tensors(cell, /*has_third=*/true);
      std::vector<float> x(d);
      std::vector<float> dy(d);
      std::vector<float> weight(d);
      bench::PlainWiden(dtype, tensors.x(), x.data(), d);
      bench::PlainWiden(dtype, tensors.third(), dy.data(), d);
      bench::PlainWiden(dtype, tensors.weight(), weight.data(), d);
      double squares = 0;
      double products = 0;
      double gradients = 0;
      for (size_t j = 0; j < d; ++j) {
        const double g = double{dy[j]} * double{weight[j]};
        squares += double{x[j]} * double{x[j]};
        products += g * double{x[j]};
        gradients += g;
      }
      const auto length = static_cast<double>(d);
      const auto rstd = static_cast<float>(1 / std::sqrt(squares / length + 1e-5));
      const double r = double{rstd};
      const auto make_dx = [&](double second_term, double mean_term) {
        std::vector<float> dx(d);
        for (size_t j = 0; j < d; ++j) {
          dx[j] = static_cast<float>(r * (double{dy[j]} * double{weight[j]} -
                                          second_term * double{x[j]} * r * r * products / length -
                                          mean_term * gradients / length));
        }
        std::vector<uint8_t> rounded(cell.bytes());
        bench::PlainConvert(dx.data(), dtype, rounded.data(), d);
        return rounded;
      };
      const std::vector<uint8_t> right = make_dx(1, 0);
      std::vector<uint8_t> reference(cell.bytes());
      RmsNorm module(d, Options(), dtype);
      module.set_weight(tensors.weight_view());
      BackwardOperands operands;
      operands.dy = {tensors.third(), dtype, {1, d}};
      operands.x = {tensors.x(), dtype, {1, d}};
      operands.rstd = {&rstd, 1};
      operands.dx = {reference.data(), dtype, {1, d}};
      module.backward(operands);
      bench::GradientTolerance tolerance(dtype, 1, d, tensors.weight());
      const auto find = [&](const std::vector<uint8_t>& dx) {
        return tolerance.FindDxBeyond(0, 1, tensors.third(), tensors.x(), &rstd, dx.data(),
                                      reference.data());
      };
      EXPECT_EQ(find(right), "");
      EXPECT_NE(find(make_dx(0, 0)), "");
      EXPECT_NE(find(make_dx(1, 1)), "");
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// The contenders of `rmsnorm bench`: none with a wrong result is timed, and each has its time.
// RMSNORM_PEERS is the folder of the plug-ins.
#include <gtest/gtest.h>

#include <cfenv>
#include <cstdlib>
#include <functional>
#include <map>

#include "contest.h"

namespace rmsnorm::test {
namespace {

using bench::Cell;
using bench::Contest;
using bench::Kind;
using internal::Operand;

// Rows of a length that the operation takes, on the reference.
Cell MakeCell(const std::string& name, const std::string& type, size_t rows = 3, int threads = 1) {
  const std::map<std::string, size_t> lengths = {
      {"latent", 2112}, {"q_and_k", 3072}, {"rotary", 3072}, {"gate_before", 1024},
      {"int8_32", 96},  {"int8_64", 128},  {"int8_128", 256}};
  const size_t d = lengths.count(name) != 0 ? lengths.at(name) : 100;
  for (const bench::Operation& operation : bench::Operations()) {
    if (operation.name == name) {
      return *bench::MakeCell(operation, type, {rows, d}, threads, "reference");
    }
  }
  throw std::logic_error(name);
}

// The library, whose results are changed after each run, in all places but the first ones.
bench::Contender Changed(Kind kind, const std::function<void(const bench::Tensors&)>& change,
                         int unchanged) {
  struct State {
    bench::TimedCall call;
    std::function<void()> change;
  };
  const auto prepare = bench::Library().prepare;
  return {"changed", kind,
          [=](const bench::Tensors& tensors, const char* target) mutable -> bench::TimedCall {
            const bool is_changed = unchanged-- <= 0;
            return {[](void* state) {
                      static_cast<State*>(state)->call.Run();
                      static_cast<State*>(state)->change();
                    },
                    new State{prepare(tensors, target),
                              [=, &tensors] {
                                if (is_changed) change(tensors);
                              }},
                    [](void* state) { delete static_cast<State*>(state); }};
          }};
}

// Changes an element of the last row of a result, and returns why it is not timed.
std::string Reason(const Cell& cell, Kind kind, size_t call, Operand o, size_t j,
                   const std::function<void(uint8_t*)>& write, int unchanged = 0) {
  const auto change = [&](const bench::Tensors& tensors) {
    const cases::Rows& rows = tensors.values().problems[call].after(o);
    write(tensors.row(call, o, rows.count() - 1) + j * internal::ElementSize(rows.dtype()));
  };
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  contenders.push_back(Changed(kind, change, unchanged));
  const Contest contest(cell, contenders);
  if (contest.untimed().empty()) return "";
  EXPECT_TRUE(contest.untimed()[0].is_wrong);
  return contest.untimed()[0].reason;
}

// Every operation with one type, and one with all types.
std::vector<Cell> Cells() {
  std::vector<Cell> cells = {MakeCell("norm", "f32"), MakeCell("norm", "f16")};
  for (const bench::Operation& operation : bench::Operations()) {
    cells.push_back(MakeCell(operation.name, "bf16"));
  }
  return cells;
}

// Also with enough rows for two threads.
TEST(BenchResults, LibraryAndPlainLoopsAreRight) {
  std::vector<Cell> cells = Cells();
  cells.push_back(MakeCell("add_norm", "bf16", 700, 2));
  cells.push_back(MakeCell("q_and_k", "f32", 30, 2));
  for (const Cell& cell : cells) {
    bench::Contenders contenders = bench::PlainLoops();
    contenders.insert(contenders.begin(), bench::Library());
    contenders.push_back(bench::Apart());
    Contest contest(cell, contenders);
    for (const bench::Untimed& one : contest.untimed()) {
      EXPECT_FALSE(one.is_wrong) << cell.name << one.reason;
    }
    const std::vector<bench::Turn> turns = contest.Turns();
    ASSERT_GE(turns.size(), 2u);
    EXPECT_EQ(turns[0].name, "library");
    EXPECT_EQ(turns[1].name, "memcpy");
    EXPECT_EQ(turns.back().name == "apart", !cell.apart.empty());
  }
}

// One bit of each result of the library, and a large error in each of another.
TEST(BenchResults, OneWrongElement) {
  for (const Cell& cell : Cells()) {
    for (size_t call = 0; call < cell.calls.size(); ++call) {
      const cases::Case& c = cell.calls[call];
      internal::ForEachOperand(c.Given(), [&](Operand o) {
        if (!c.IsOutput(o)) return;
        const size_t j = cases::RowLengthOf(c, o) - 1;
        const std::string wrong =
            (cell.calls.size() == 1 ? "" : "calls[" + std::to_string(call) + "].") +
            internal::kOperandRules[o].name + "[" + std::to_string(cases::RowsOf(c, o) - 1) + ", " +
            std::to_string(j) + "] is ";
        const size_t last_byte = internal::ElementSize(c.operand[o].dtype) - 1;
        const auto flip_first = [](uint8_t* element) { element[0] ^= 1; };
        const auto flip_last = [=](uint8_t* element) { element[last_byte] ^= 2; };
        const std::string exact = Reason(cell, Kind::kLibrary, call, o, j, flip_first);
        const std::string other = Reason(cell, Kind::kPeer, call, o, j, flip_last);
        EXPECT_EQ(exact.rfind(wrong + "0x", 0), 0u) << cell.name << exact;
        EXPECT_EQ(other.rfind(wrong, 0), 0u) << cell.name << other;
      });
    }
  }
}

// In the last of the places, and in the second of separate calls.
TEST(BenchResults, EveryPlaceAndCallIsChecked) {
  const auto flip = [](uint8_t* element) { *element ^= 1; };
  EXPECT_NE(Reason(MakeCell("norm", "f32"), Kind::kLibrary, 0, internal::kY, 5, flip, 31), "");
  EXPECT_EQ(Reason(MakeCell("norm", "f32"), Kind::kLibrary, 0, internal::kY, 5, flip, 32), "");
  EXPECT_NE(Reason(MakeCell("post_norm", "f32"), Kind::kApart, 1, internal::kY, 5, flip), "");
}

// Every word of what a call writes and nothing else, by each number of threads. Reset() fills
// results with ones, and a word of ones is -1.
TEST(BenchReader, ReadsResultsOnce) {
  for (const std::string name : {"norm", "q_and_k", "backward"}) {
    const Cell cell = MakeCell(name, "f32", 30);
    const bench::CallValues values(cell.calls);
    bench::Tensors tensors(values);
    tensors.Reset();
    uint64_t words = 0;
    for (size_t call = 0; call < cell.calls.size(); ++call) {
      const Operand o = cell.calls[call].backward ? internal::kDx : internal::kY;
      const cases::Rows& rows = values.problems[call].after(o);
      words += rows.count() * rows.row_bytes() / sizeof words;
    }
    for (const size_t threads : {size_t{1}, size_t{2}, size_t{7}}) {
      EXPECT_EQ(bench::Reader(tensors).Read(threads), -words) << name << " by " << threads;
    }
  }
}

// On a clock that only work moves on.
TEST(BenchRounds, EachContenderHasItsTime) {
  double now = 0;
  std::vector<bench::Turn> turns;
  for (const double time : {1e-6, 3e-3, 4e-3}) {
    turns.push_back({"", [&now, time](size_t times) { now += time * static_cast<double>(times); }});
  }
  size_t rounds = 0;
  const auto times = bench::TimeInRounds(
      turns, [&] { ++rounds; }, [&] { return now; });
  EXPECT_EQ(times[0].size(), rounds);
  EXPECT_NEAR(bench::SpreadOf(times[0]).median, 1e-6, 1e-12);
  EXPECT_NEAR(bench::SpreadOf(times[2]).median, 4e-3, 1e-9);
}

TEST(BenchPeer, LoadingKeepsTheRounding) {
  bench::LoadPeer(std::getenv("RMSNORM_PEERS") + std::string("/libtest_peer_idle.so"));
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// The contenders of `rmsnorm bench`: no wrong result is timed, and roundings of another library are
// allowed.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <thread>

#include "cases/prepared_call.h"
#include "contest.h"

namespace rmsnorm::test {
namespace {

using bench::Cell;
using bench::Contest;
using bench::Kind;
using internal::Operand;

// Three rows of a length that the operation takes, on the reference.
Cell MakeCell(const std::string& name, const std::string& type, size_t rows = 3, size_t d = 100,
              int threads = 1) {
  const std::map<std::string, size_t> lengths = {
      {"latent", 2112}, {"q_and_k", 3072}, {"gate_before", 1024}};
  if (lengths.count(name) != 0) d = lengths.at(name);
  for (const bench::Operation& operation : bench::Operations()) {
    if (operation.name == name) {
      return *bench::MakeCell(operation, type, {rows, d}, threads, "reference");
    }
  }
  throw std::logic_error(name);
}

// The library, with its cases changed before and its results changed after each run.
struct Change {
  std::function<void(std::vector<cases::Case>&)> before = [](auto&) {};
  std::function<void(const bench::Tensors&)> after = [](auto&) {};
};

Change OfField(const std::string& field, const std::string& value) {
  Change change;
  change.before = [=](std::vector<cases::Case>& calls) {
    for (cases::Case& c : calls) EXPECT_TRUE(cases::FindField(field).read(c, value)) << field;
  };
  return change;
}

// In the last row.
Change OfElement(size_t call, Operand o, size_t j, const std::function<void(uint8_t*)>& write) {
  Change change;
  change.after = [=](const bench::Tensors& tensors) {
    const cases::Rows& rows = tensors.values().problems[call].after(o);
    write(const_cast<uint8_t*>(tensors.row(call, o, rows.count() - 1)) +
          j * internal::ElementSize(rows.dtype()));
  };
  return change;
}

class Changed final : public bench::Contender {
 public:
  Changed(Kind kind, Change change, size_t unchanged = 0)
      : Contender("changed", kind), change_(std::move(change)), unchanged_(unchanged) {}

  bench::Prepared Prepare(const bench::Tensors& tensors, const char* target) const override {
    std::vector<cases::Case> calls = tensors.values().calls;
    change_.before(calls);
    struct State {
      cases::PreparedCall call;
      std::function<void()> change;
    };
    const bool is_changed = prepared++ >= unchanged_;
    const auto change = [this, is_changed, &tensors] {
      if (is_changed) change_.after(tensors);
    };
    const auto run = [](void* state) {
      const State& self = *static_cast<State*>(state);
      EXPECT_EQ(self.call.Run(), RMSNORM_OK) << rmsnorm_error_message();
      self.change();
    };
    return {run, new State{{calls, tensors.operands(), cases::ContextOf(calls[0], target)}, change},
            [](void* state) { delete static_cast<State*>(state); }};
  }

  mutable size_t prepared = 0;  // the number of places so far

 private:
  Change change_;
  size_t unchanged_;  // the number of places without a change
};

std::vector<bench::Untimed> UntimedOf(const Cell& cell, Kind kind, const Change& change) {
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  contenders.push_back(std::make_unique<Changed>(kind, change));
  return Contest(cell, contenders).untimed();
}

// Whether the library, with a change, counts as another library with right results.
bool IsRight(const Cell& cell, const Change& change) {
  const std::vector<bench::Untimed> untimed = UntimedOf(cell, Kind::kOther, change);
  EXPECT_TRUE(untimed.empty() || untimed[0].is_wrong) << untimed[0].reason;
  return untimed.empty();
}

const char* const kTypes[] = {"f32", "bf16", "f16"};
void Flip(uint8_t* element) { *element ^= 1; }

TEST(BenchResults, AreRightOfTheLibraryAndOfPlainLoops) {
  for (const bench::Operation& operation : bench::Operations()) {
    for (const std::string type : kTypes) {
      for (const size_t rows : {size_t{1}, size_t{3}, size_t{67}}) {
        const Cell cell = MakeCell(operation.name, type, rows, 1000, rows == 67 ? 2 : 1);
        bench::Contenders contenders = bench::PlainLoopContenders();
        contenders.insert(contenders.begin(), bench::Library());
        contenders.push_back(bench::Apart());
        Contest contest(cell, contenders);
        for (const bench::Untimed& one : contest.untimed()) {
          EXPECT_TRUE(!one.is_wrong && type == "f16") << cell.name << one.reason;
        }
        const std::vector<bench::Turn> turns = contest.Turns();
        ASSERT_GE(turns.size(), 2u);
        EXPECT_EQ(turns[0].name, "library");
        EXPECT_EQ(turns[1].name, "memcpy");
        EXPECT_EQ(turns.back().name == "apart", !cell.apart.empty());
      }
    }
  }
}

// One bit of each result of the library, and a large error in each of another.
TEST(BenchResults, AreWrongWithOneWrongElement) {
  for (const bench::Operation& operation : bench::Operations()) {
    for (const std::string type : kTypes) {
      const Cell cell = MakeCell(operation.name, type);
      for (size_t call = 0; call < cell.calls.size(); ++call) {
        const cases::Case& c = cell.calls[call];
        internal::ForEachOperand(c.Given(), [&](Operand o) {
          if (!c.IsOutput(o)) return;
          const size_t j = cases::RowLengthOf(c, o) - 1;
          const std::string result =
              (cell.calls.size() == 1 ? "" : "calls[" + std::to_string(call) + "].") +
              internal::kOperandRules[o].name + ": row " + std::to_string(cases::RowsOf(c, o) - 1) +
              ", element " + std::to_string(j);
          SCOPED_TRACE(cell.name + " " + result);
          const size_t last_byte = internal::ElementSize(c.operand[o].dtype) - 1;
          const auto flip_last = [=](uint8_t* element) { element[last_byte] ^= 2; };
          const auto exact = UntimedOf(cell, Kind::kLibrary, OfElement(call, o, j, Flip));
          const auto other = UntimedOf(cell, Kind::kOther, OfElement(call, o, j, flip_last));
          ASSERT_EQ(exact.size(), 1u);
          ASSERT_EQ(other.size(), 1u);
          EXPECT_TRUE(exact[0].is_wrong && other[0].is_wrong);
          EXPECT_EQ(exact[0].reason, result + " differs from the reference");
          EXPECT_EQ(other[0].reason.rfind(result + " is ", 0), 0u) << other[0].reason;
        });
      }
    }
  }
}

TEST(BenchResults, AreCheckedInEachPlaceAndOfCallsApart) {
  bench::Contenders contenders;
  contenders.push_back(
      std::make_unique<Changed>(Kind::kLibrary, OfElement(0, internal::kY, 5, Flip), 31));
  EXPECT_EQ(Contest(MakeCell("norm", "f32"), contenders).untimed().size(), 1u);
  EXPECT_EQ(static_cast<const Changed&>(*contenders[0]).prepared, 32u);
  const Change second = OfElement(1, internal::kY, 5, Flip);
  EXPECT_EQ(UntimedOf(MakeCell("post_norm", "f32"), Kind::kApart, second).at(0).reason,
            "calls[1].y: row 2, element 5 differs from the reference");
}

// By each number of threads, every word of what a call writes and nothing else.
TEST(BenchResults, AreReadOnce) {
  for (const std::string name : {"norm", "add_norm", "post_norm", "q_and_k", "backward"}) {
    const Cell cell = MakeCell(name, "f32");
    const bench::CallValues values(cell.calls);
    bench::Tensors tensors(values);
    tensors.Reset();
    uint64_t sum = 0;
    for (size_t call = 0; call < cell.calls.size(); ++call) {
      for (const Operand o : {internal::kY, internal::kResidualOut, internal::kDx}) {
        if (!cell.calls[call].Has(o)) continue;
        const cases::Rows& rows = values.problems[call].after(o);
        for (size_t row = 0; row < rows.count(); ++row) {
          std::memcpy(const_cast<uint8_t*>(tensors.row(call, o, row)), rows.row(row),
                      rows.row_bytes());
          for (size_t at = 0; at < rows.row_bytes(); at += sizeof sum) {
            uint64_t word;
            std::memcpy(&word, rows.row(row) + at, sizeof word);
            sum += word;
          }
        }
      }
    }
    for (const size_t threads : {size_t{1}, size_t{2}, size_t{7}}) {
      EXPECT_EQ(bench::Reader(tensors).Read(threads), sum) << name << " by " << threads;
    }
  }
}

// An error that grows with the sum is allowed up to the bound, and no more.
TEST(BenchResults, MayDifferByTheRoundingsOfASum) {
  for (const size_t d : {size_t{1}, size_t{64}, size_t{4096}}) {
    for (const double part : {-0.95, 0.95, 1.1}) {
      const double bound = (0.51 * static_cast<double>(d) + 18) * 0x1p-24;
      const auto scale = [=](uint8_t* element) {
        float y;
        std::memcpy(&y, element, sizeof y);
        y = static_cast<float>(double{y} * (1 + part * bound));
        std::memcpy(element, &y, sizeof y);
      };
      const Change change = OfElement(0, internal::kY, d - 1, scale);
      EXPECT_EQ(IsRight(MakeCell("norm", "f32", 2, d), change), part < 1) << d;
    }
  }
  const auto nan = [](uint8_t* element) { std::memset(element, 0xFF, 4); };
  EXPECT_FALSE(IsRight(MakeCell("norm", "f32"), OfElement(0, internal::kY, 0, nan)));
}

TEST(BenchResults, MayBeRoundedInBetweenButHaveOneFormula) {
  std::vector<std::string> all;
  for (const bench::Operation& operation : bench::Operations()) all.push_back(operation.name);
  const struct {
    std::vector<std::string> operations;
    const char *field, *value;
    bool is_right;
  } changes[] = {
      {{"norm", "add_norm", "post_norm", "latent"}, "rounding", "before_weight", true},
      {{"add_norm"}, "residual_rounding", "unrounded", true},
      {{"gate_after"}, "gate_rounding", "rounded", true},
      {all, "weight_offset", "0.5", false},
      // For a backward call with a given RMS, the divisor is of the second term of dx alone.
      {{"backward"}, "divisor", "1e9", false},
      {{"gate_after", "gate_before"}, "activation", "sigmoid", false},
      {{"gate_after"}, "gate_placement", "before", false},
  };
  for (const std::string type : kTypes) {
    for (const auto& [operations, field, value, is_right] : changes) {
      for (const std::string& operation : operations) {
        EXPECT_EQ(IsRight(MakeCell(operation, type), OfField(field, value)), is_right)
            << operation << " " << type << " " << field;
      }
    }
  }
  for (const char* const operation : {"norm", "add_norm", "post_norm", "gate_after", "int8"}) {
    EXPECT_FALSE(IsRight(MakeCell(operation, "f32", 3, 64), OfField("divisor", "63.5")))
        << operation;
  }
  EXPECT_FALSE(IsRight(MakeCell("norm", "f32", 3, 16), OfField("eps", "0")));
}

TEST(BenchResults, WithoutABoundAreNotTimed) {
  const bench::Operation line = {bench::kCall, "", "forward,x+y=$T,bias=f32,rows=$R,d=$D"};
  const auto untimed = UntimedOf(*bench::MakeCell(line, "f32", {3, 8}, 1, "reference"),
                                 Kind::kOther, OfField("eps", "1e-5"));
  ASSERT_EQ(untimed.size(), 1u);
  EXPECT_FALSE(untimed[0].is_wrong);
  EXPECT_EQ(untimed[0].reason, "there is no bound for its error");
}

// Threads of two pools do not wait for work at the same time.
TEST(BenchContest, AContenderThatStartsThreadsHasASeparatePool) {
  for (const bool starts_thread : {false, true}) {
    bench::Contenders contenders;
    contenders.push_back(bench::Library());
    Change change;
    change.after = [starts_thread](const bench::Tensors&) {
      if (starts_thread) std::thread(pause).detach();
    };
    contenders.push_back(std::make_unique<Changed>(Kind::kOther, change));
    Contest contest(MakeCell("norm", "f32"), contenders);
    EXPECT_EQ(contest.Turns().back().pool, starts_thread ? "changed" : "");
  }
}

// On a clock that only work moves on.
TEST(BenchRounds, TimeEachContender) {
  double now = 0;
  const auto turn = [&](const char* name, double seconds) {
    return bench::Turn{
        name, [&now, seconds](size_t times) { now += seconds * static_cast<double>(times); }};
  };
  size_t rounds = 0;
  const auto seconds = bench::TimeInRounds(
      {turn("a", 1e-6), turn("b", 3e-3), turn("c", 4e-3)}, [&] { ++rounds; }, [&] { return now; });
  const double expected[] = {1e-6, 3e-3, 4e-3};
  for (size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(seconds[i].size(), rounds);
    EXPECT_NEAR(bench::SpreadOf(seconds[i]).median / expected[i], 1, 1e-6);
  }
}

}  // namespace
}  // namespace rmsnorm::test

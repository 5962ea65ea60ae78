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

// The library, with its cases changed before and an element of a result changed after each run.
class Changed final : public bench::Contender {
 public:
  Changed(Kind kind, std::string field, std::string value)
      : Contender("changed", kind), field_(std::move(field)), value_(std::move(value)) {}
  Changed(Kind kind, size_t call, Operand o, size_t j, std::function<void(uint8_t*)> change)
      : Contender("changed", kind), call_(call), operand_(o), j_(j), change_(std::move(change)) {}

  bench::Prepared Prepare(const bench::Tensors& tensors, const char* target) const override {
    std::vector<cases::Case> calls = tensors.values().calls;
    for (cases::Case& c : calls) {
      if (!field_.empty() && !cases::FindField(field_).read(c, value_))
        throw std::logic_error(field_);
    }
    uint8_t* element = nullptr;
    if (change_ && prepared++ >= unchanged) {
      const cases::Rows& rows = tensors.values().problems[call_].after(operand_);
      element = const_cast<uint8_t*>(tensors.row(call_, operand_, rows.count() - 1)) +
                j_ * internal::ElementSize(rows.dtype());
    }
    struct State {
      cases::PreparedCall call;
      std::function<void()> change;
    };
    const auto run = [](void* state) {
      const State& self = *static_cast<State*>(state);
      EXPECT_EQ(self.call.Run(), RMSNORM_OK) << rmsnorm_error_message();
      self.change();
    };
    const auto change = [change = change_, element] {
      if (element != nullptr) change(element);
    };
    return {run, new State{{calls, tensors.operands(), cases::ContextOf(calls[0], target)}, change},
            [](void* state) { delete static_cast<State*>(state); }};
  }

  size_t unchanged = 0;         // the number of places without a change
  mutable size_t prepared = 0;  // the number of places so far

 private:
  std::string field_;
  std::string value_;
  size_t call_ = 0;
  Operand operand_ = internal::kX;
  size_t j_ = 0;
  std::function<void(uint8_t*)> change_;
};

template <class... Args>
std::vector<bench::Untimed> UntimedOf(const Cell& cell, Args&&... args) {
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  contenders.push_back(std::make_unique<Changed>(std::forward<Args>(args)...));
  return Contest(cell, contenders).untimed();
}

// Whether the library, with a changed field, counts as another library with right results.
bool IsRight(const Cell& cell, const std::string& field, const std::string& value) {
  const std::vector<bench::Untimed> untimed = UntimedOf(cell, Kind::kOther, field, value);
  EXPECT_TRUE(untimed.empty() || untimed[0].is_wrong) << untimed[0].reason;
  return untimed.empty();
}

TEST(BenchResults, OfTheLibraryAndOfPlainLoopsAreRight) {
  for (const bench::Operation& operation : bench::Operations()) {
    for (const char* const type : {"f32", "bf16", "f16"}) {
      for (const size_t rows : {size_t{1}, size_t{3}, size_t{67}}) {
        const Cell cell = MakeCell(operation.name, type, rows, 1000, rows == 67 ? 2 : 1);
        bench::Contenders contenders = bench::PlainLoopContenders();
        contenders.insert(contenders.begin(), bench::Library());
        contenders.push_back(bench::Apart());
        Contest contest(cell, contenders);
        for (const bench::Untimed& one : contest.untimed()) {
          EXPECT_TRUE(!one.is_wrong && type == std::string("f16")) << cell.name << one.reason;
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
TEST(BenchResults, OneWrongElementIsSeen) {
  for (const bench::Operation& operation : bench::Operations()) {
    for (const char* const type : {"f32", "bf16", "f16"}) {
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
          const auto exact =
              UntimedOf(cell, Kind::kLibrary, call, o, j, [](uint8_t* element) { *element ^= 1; });
          const auto other = UntimedOf(cell, Kind::kOther, call, o, j,
                                       [=](uint8_t* element) { element[last_byte] ^= 2; });
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

TEST(BenchResults, OfEachPlaceAndOfCallsApartAreChecked) {
  const auto flip = [](uint8_t* element) { *element ^= 1; };
  bench::Contenders contenders;
  auto changed =
      std::make_unique<Changed>(Kind::kLibrary, size_t{0}, internal::kY, size_t{5}, flip);
  changed->unchanged = 31;
  const Changed& last_place = *changed;
  contenders.push_back(std::move(changed));
  EXPECT_EQ(Contest(MakeCell("norm", "f32"), contenders).untimed().size(), 1u);
  EXPECT_EQ(last_place.prepared, 32u);
  EXPECT_EQ(UntimedOf(MakeCell("post_norm", "f32"), Kind::kApart, size_t{1}, internal::kY,
                      size_t{5}, flip)
                .at(0)
                .reason,
            "calls[1].y: row 2, element 5 differs from the reference");
}

// An error that grows with the sum is allowed up to the bound, and no more.
TEST(BenchResults, MayBeOffByTheRoundingsOfASum) {
  for (const size_t d : {size_t{1}, size_t{64}, size_t{4096}}) {
    for (const double part : {-0.95, 0.95, 1.1}) {
      const double bound = (0.51 * static_cast<double>(d) + 18) * 0x1p-24;
      const auto scale = [=](uint8_t* element) {
        float y;
        std::memcpy(&y, element, sizeof y);
        y = static_cast<float>(double{y} * (1 + part * bound));
        std::memcpy(element, &y, sizeof y);
      };
      const auto untimed = UntimedOf(MakeCell("norm", "f32", 2, d), Kind::kOther, size_t{0},
                                     internal::kY, d - 1, scale);
      EXPECT_EQ(untimed.size(), part > 1 ? 1u : 0u) << d;
    }
  }
  const auto nan = [](uint8_t* element) { std::memset(element, 0xFF, 4); };
  EXPECT_EQ(
      UntimedOf(MakeCell("norm", "f32"), Kind::kOther, size_t{0}, internal::kY, size_t{0}, nan)
          .size(),
      1u);
}

TEST(BenchResults, MayBeRoundedInBetween) {
  for (const char* const type : {"f32", "bf16", "f16"}) {
    for (const char* const operation : {"norm", "add_norm", "post_norm", "latent"}) {
      EXPECT_TRUE(IsRight(MakeCell(operation, type), "rounding", "before_weight")) << operation;
    }
    EXPECT_TRUE(IsRight(MakeCell("add_norm", type), "residual_rounding", "unrounded"));
    EXPECT_TRUE(IsRight(MakeCell("gate_after", type), "gate_rounding", "rounded"));
  }
}

TEST(BenchResults, OfAnotherFormulaAreWrong) {
  for (const char* const type : {"f32", "bf16", "f16"}) {
    for (const bench::Operation& operation : bench::Operations()) {
      const bool is_gradient = operation.name == "backward";
      const Cell cell = MakeCell(operation.name, type);
      // For a backward call with a given RMS, the divisor is of the second term of dx alone.
      EXPECT_FALSE(is_gradient && IsRight(cell, "divisor", "1e9"));
      EXPECT_FALSE(IsRight(cell, "weight_offset", "0.5")) << cell.name;
    }
    EXPECT_FALSE(IsRight(MakeCell("gate_after", type), "activation", "sigmoid"));
    EXPECT_FALSE(IsRight(MakeCell("gate_before", type), "activation", "sigmoid"));
    EXPECT_FALSE(IsRight(MakeCell("gate_after", type), "gate_placement", "before"));
  }
  for (const char* const operation : {"norm", "add_norm", "post_norm", "gate_after", "int8"}) {
    EXPECT_FALSE(IsRight(MakeCell(operation, "f32", 3, 64), "divisor", "63.5")) << operation;
  }
  EXPECT_FALSE(IsRight(MakeCell("norm", "f32", 3, 16), "eps", "0"));
}

TEST(BenchResults, WithoutABoundAreNotTimed) {
  const bench::Operation line = {bench::kCall, "", "forward,x+y=$T,bias=f32,rows=$R,d=$D"};
  const auto untimed =
      UntimedOf(*bench::MakeCell(line, "f32", {3, 8}, 1, "reference"), Kind::kOther, "eps", "1e-5");
  ASSERT_EQ(untimed.size(), 1u);
  EXPECT_FALSE(untimed[0].is_wrong);
  EXPECT_EQ(untimed[0].reason, "there is no bound for its error");
}

// Threads of two pools do not wait for work at the same time.
TEST(BenchContest, AContenderThatStartsThreadsHasASeparatePool) {
  for (const bool starts_thread : {false, true}) {
    bench::Contenders contenders;
    contenders.push_back(bench::Library());
    contenders.push_back(std::make_unique<Changed>(Kind::kOther, size_t{0}, internal::kY, size_t{0},
                                                   [starts_thread](uint8_t* /*element*/) {
                                                     if (starts_thread) std::thread(pause).detach();
                                                   }));
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

// SPDX-License-Identifier: Apache-2.0
// Several norms at once run in one parallel region; calls that are refused. `rmsnorm check`
// compares the bits of every form of call.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "executor.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

class SeveralTest : public testing::TestWithParam<std::string> {
 protected:
  // Normalises each matrix in place, in one call for all, and compares with separate calls. The
  // executor must be called once, with four parts, if the work is large, and not at all if not.
  void ExpectParts(std::vector<Rows> matrices, bool is_large) {
    const std::string target = GetParam();
    std::vector<Rows> expected = matrices;
    std::vector<Call> calls(matrices.size());
    for (size_t i = 0; i < calls.size(); ++i) {
      calls[i].operands = NormOperands(matrices[i], nullptr, matrices[i]);
      calls[i].options.eps = 0.01f * static_cast<float>(i);
      forward(NormOperands(expected[i], nullptr, expected[i]), calls[i].options,
              OnTarget(target, 1));
    }
    CountingExecutor executor;
    Context context = OnTarget(target, 4);
    executor.SetIn(context);
    forward_all(calls.data(), calls.size(), context);
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_TRUE(SameBits(expected[i], matrices[i])) << "matrix " << i;
    }
    // The reference is so slow that it splits even little work.
    if (!is_large && target == kReference) return;
    EXPECT_EQ(is_large ? 1 : 0, executor.calls);
    EXPECT_EQ(is_large ? 4u : 0u, executor.most_parts);
  }

  Rows Draw(rmsnorm_dtype dtype, size_t rows, size_t d) {
    return test::Draw(random_, Values::kMixed, dtype, rows, d);
  }

  Random random_{97};
};

TEST_P(SeveralTest, FewRowsStayOnTheThread) {
  ExpectParts({Draw(RMSNORM_BF16, 8, 128), Draw(RMSNORM_F32, 2, 128)}, false);
}

TEST_P(SeveralTest, ManyRowsAreSpreadTogether) {
  ExpectParts({Draw(RMSNORM_BF16, 2400, 128), Draw(RMSNORM_BF16, 600, 128)}, true);
}

// Each call alone is too short for a second thread.
TEST_P(SeveralTest, ManyShortCallsAreSpreadTogether) {
  std::vector<Rows> matrices;
  for (size_t i = 0; i < 50; ++i) matrices.push_back(Draw(kDtypes[i % 3], 20, 100 + 10 * i));
  ExpectParts(std::move(matrices), true);
}

TEST_P(SeveralTest, LongRowsAreSpreadBesideShortOnes) {
  ExpectParts(
      {Draw(RMSNORM_F32, 1, 200'000), Draw(RMSNORM_BF16, 2000, 64), Draw(RMSNORM_F16, 2, 100'000)},
      true);
}

INSTANTIATE_TEST_SUITE_P(Targets, SeveralTest, testing::ValuesIn(SupportedTargets()), Name);

// -------------------------------------------------------------------------------- refused calls

// Three correct calls; a test spoils one.
struct Calls {
  Calls() {
    for (size_t i = 0; i < 3; ++i) {
      x[i] = rmsnorm_rows(memory + 100 * i, RMSNORM_F32, 3, 8, 8);
      y[i] = rmsnorm_rows(memory + 100 * i + 50, RMSNORM_F32, 3, 8, 8);
      operands[i] = rmsnorm_no_operands();
      operands[i].x = &x[i];
      operands[i].y = &y[i];
      options[i] = rmsnorm_default_options();
      calls[i] = {nullptr, &operands[i], &options[i]};
    }
    std::fill(std::begin(memory), std::end(memory), 1.5f);
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  float memory[300];
  rmsnorm_view x[3];
  rmsnorm_view y[3];
  rmsnorm_operands operands[3];
  rmsnorm_options options[3];
  rmsnorm_context context = rmsnorm_default_context();
  rmsnorm_call calls[3];
};

// Expects an error whose message begins with one of these.
void ExpectRefused(rmsnorm_status status, const std::vector<std::string>& begins,
                   const std::function<void(Calls&)>& spoil) {
  Calls c;
  spoil(c);
  EXPECT_EQ(status, rmsnorm_forward_all(c.calls, 3, &c.context));
  const std::string message = rmsnorm_error_message();
  EXPECT_TRUE(std::any_of(begins.begin(), begins.end(),
                          [&](const std::string& begin) { return message.find(begin) == 0; }))
      << message << " does not begin with " << begins[0];
  for (const float number : c.memory) ASSERT_EQ(1.5f, number) << "something was written";
}

void ExpectAccepted(const std::function<void(Calls&)>& spoil) {
  Calls c;
  spoil(c);
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward_all(c.calls, 3, &c.context)) << rmsnorm_error_message();
}

TEST(SeveralRefused, SayWhichCallIsWrong) {
  ExpectAccepted([](Calls&) {});
  for (size_t i = 0; i < 3; ++i) {
    const std::string call = "calls[" + std::to_string(i) + "].";
    ExpectRefused(RMSNORM_ERROR_NULL, {call + "operands"},
                  [&](Calls& c) { c.calls[i].operands = nullptr; });
    ExpectRefused(RMSNORM_ERROR_NULL, {call + "x: "}, [&](Calls& c) { c.operands[i].x = nullptr; });
    ExpectRefused(RMSNORM_ERROR_SHAPE, {call + "y: 4 in dimension 0, but x has 3"},
                  [&](Calls& c) { c.y[i].shape[0] = 4; });
    ExpectRefused(RMSNORM_ERROR_OPERAND, {call + "dy: "},
                  [&](Calls& c) { c.operands[i].dy = &c.x[i]; });
    ExpectRefused(RMSNORM_ERROR_OPTION, {call + "options: eps "},
                  [&](Calls& c) { c.options[i].eps = -1; });
    ExpectRefused(RMSNORM_ERROR_OPTION, {call + "options: weight_offset "},
                  [&](Calls& c) { c.options[i].weight_offset = 1; });
    ExpectAccepted([&](Calls& c) { c.calls[i].options = nullptr; });
  }
}

TEST(SeveralRefused, TheCallAsAWhole) {
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward_all(nullptr, 0, nullptr));
  EXPECT_EQ(RMSNORM_ERROR_NULL, rmsnorm_forward_all(nullptr, 1, nullptr));
  EXPECT_EQ(0u, std::string(rmsnorm_error_message()).find("calls: ")) << rmsnorm_error_message();
  ExpectRefused(RMSNORM_ERROR_OPTION, {"context: threads "},
                [](Calls& c) { c.context.threads = -1; });
  ExpectRefused(RMSNORM_ERROR_TARGET, {"target: "}, [](Calls& c) { c.context.target = "PDP11"; });
}

// A module has options, a weight and a length of rows.
TEST(SeveralRefused, WhatAModuleHas) {
  const RmsNorm module(8);
  const RmsNorm other(9);
  const auto with_module = [&](Calls& c) {
    c.calls[1].module = module.get();
    c.calls[1].options = nullptr;
  };
  ExpectAccepted(with_module);
  ExpectRefused(RMSNORM_ERROR_OPERAND, {"calls[1].options: "}, [&](Calls& c) {
    with_module(c);
    c.calls[1].options = &c.options[1];
  });
  const rmsnorm_view weight = rmsnorm_vector(&module, RMSNORM_F32, 8);
  ExpectRefused(RMSNORM_ERROR_OPERAND, {"calls[1].weight: "}, [&](Calls& c) {
    with_module(c);
    c.operands[1].weight = &weight;
  });
  ExpectRefused(RMSNORM_ERROR_SHAPE, {"calls[1].x: "}, [&](Calls& c) {
    with_module(c);
    c.calls[1].module = other.get();
  });
}

// An output of one call overlaps an operand of another. In place applies only within one call.
TEST(SeveralRefused, OverlapsBetweenCalls) {
  const auto refused = [](const std::string& a, const std::string& b,
                          const std::function<void(Calls&)>& spoil) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, {a + ": overlaps " + b, b + ": overlaps " + a}, spoil);
  };
  for (const ptrdiff_t elements : {0, 1, -1, 23, -23}) {
    refused("calls[0].y", "calls[2].x",
            [&](Calls& c) { c.y[0].data = static_cast<const float*>(c.x[2].data) + elements; });
    refused("calls[0].y", "calls[2].y",
            [&](Calls& c) { c.y[0].data = static_cast<const float*>(c.y[2].data) + elements; });
    refused("calls[2].y", "calls[1].x",
            [&](Calls& c) { c.y[2].data = static_cast<const float*>(c.x[1].data) + elements; });
    ExpectAccepted(
        [&](Calls& c) { c.x[0].data = static_cast<const float*>(c.x[2].data) + elements; });
  }
  for (const ptrdiff_t elements : {24, -24}) {
    ExpectAccepted(
        [&](Calls& c) { c.y[0].data = static_cast<const float*>(c.y[2].data) + elements; });
  }
  // Slices of one buffer with rows of 20 elements: separate, and one element too close.
  for (const ptrdiff_t elements : {8, 12}) {
    const auto slices = [&](ptrdiff_t more) {
      return [=](Calls& c) {
        c.x[0].stride[0] = c.x[1].stride[0] = 20;
        c.x[1].data = c.memory + elements + more;
        c.y[0] = c.x[0];
        c.y[1] = c.x[1];
      };
    };
    ExpectAccepted(slices(0));
    ExpectRefused(RMSNORM_ERROR_OVERLAP,
                  {"calls[0].y: overlaps calls[1].", "calls[1].y: overlaps calls[0]."},
                  slices(elements == 8 ? -1 : 1));
  }
  // Two calls read the same tensor.
  ExpectAccepted([](Calls& c) { c.x[0] = c.x[1] = c.x[2]; });
  // Per-row operands, and a weight, which has no rows.
  for (const bool over_weight : {false, true}) {
    Calls c;
    const rmsnorm_view rstd = rmsnorm_vector(c.memory + 290, RMSNORM_F32, 3);
    const rmsnorm_view other =
        rmsnorm_vector(c.memory + (over_weight ? 285 : 292), RMSNORM_F32, over_weight ? 8 : 3);
    c.operands[0].rstd = &rstd;
    (over_weight ? c.operands[1].weight : c.operands[1].rstd) = &other;
    EXPECT_EQ(RMSNORM_ERROR_OVERLAP, rmsnorm_forward_all(c.calls, 3, nullptr));
  }
}

// Many calls are refused exactly where two of them are. The message names the first call that
// overlaps an earlier one, and the first of these.
TEST(SeveralRefused, ManyCallsAsEachPair) {
  constexpr size_t kCalls = 12;
  constexpr size_t kHead = 4;
  Random random(98);
  std::vector<float> memory(4000);
  rmsnorm_view x[kCalls];
  rmsnorm_view y[kCalls];
  rmsnorm_operands operands[kCalls];
  size_t accepted = 0;
  size_t refused = 0;
  for (int repeat = 0; repeat < 4000; ++repeat) {
    // The heads of a fused buffer, in two blocks of rows: in place, or from inputs that overlap.
    // Some are moved, or have another layout.
    const size_t shape[] = {2, 3, kHead};
    const auto row = static_cast<ptrdiff_t>(kHead * kCalls + random.Below(3));
    const ptrdiff_t stride[] = {row * 3 + static_cast<ptrdiff_t>(random.Below(2)), row, 1};
    for (size_t i = 0; i < kCalls; ++i) {
      const size_t block = random.Below(2) * 1000;
      float* const data = &memory[1000 + block + i * kHead];
      y[i] = rmsnorm_tensor(data, RMSNORM_F32, 3, shape, stride);
      if (random.OneIn(60)) y[i].data = data + random.Below(400);
      if (random.OneIn(60)) y[i].data = data + random.Below(2 * kHead) - kHead;
      if (random.OneIn(60)) y[i].shape[random.Below(2)] = 1;
      if (random.OneIn(60)) ++y[i].stride[0];
      const bool in_place = random.OneIn(2);
      if (in_place && random.OneIn(30)) y[i].data = &memory[3200 + random.Below(400)];
      x[i] = y[i];
      if (!in_place) {
        x[i].data = &memory[3200 + random.Below(400)];
        x[i].stride[0] = static_cast<ptrdiff_t>(random.Below(100));
        x[i].stride[1] = static_cast<ptrdiff_t>(random.Below(10));
      }
      operands[i] = rmsnorm_no_operands();
      operands[i].x = &x[i];
      operands[i].y = &y[i];
    }
    const auto run = [&](const std::vector<size_t>& chosen) {
      std::vector<rmsnorm_call> calls;
      for (const size_t i : chosen) calls.push_back({nullptr, &operands[i], nullptr});
      return rmsnorm_forward_all(calls.data(), calls.size(), nullptr);
    };
    std::string expected;
    for (size_t i = 0; i < kCalls && expected.empty(); ++i) {
      for (size_t j = 0; j < i && expected.empty(); ++j) {
        const rmsnorm_status of_two = run({j, i});
        ASSERT_TRUE(of_two == RMSNORM_OK || of_two == RMSNORM_ERROR_OVERLAP);
        if (of_two == RMSNORM_OK) continue;
        for (const char c : std::string(rmsnorm_error_message())) {
          expected += c == '0' ? std::to_string(j) : c == '1' ? std::to_string(i) : std::string{c};
        }
      }
    }
    std::vector<size_t> all(kCalls);
    std::iota(all.begin(), all.end(), size_t{0});
    const rmsnorm_status status = run(all);
    EXPECT_EQ(expected.empty() ? RMSNORM_OK : RMSNORM_ERROR_OVERLAP, status);
    if (status != RMSNORM_OK) {
      EXPECT_EQ(expected, rmsnorm_error_message());
    }
    ++(status == RMSNORM_OK ? accepted : refused);
  }
  EXPECT_GT(accepted, 500u);
  EXPECT_GT(refused, 500u);
}

}  // namespace
}  // namespace rmsnorm::test

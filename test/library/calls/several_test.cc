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

class SeveralParts : public testing::TestWithParam<std::string> {
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

TEST_P(SeveralParts, FewRows) {
  ExpectParts({Draw(RMSNORM_BF16, 8, 128), Draw(RMSNORM_F32, 2, 128)}, false);
}

TEST_P(SeveralParts, ManyRows) {
  ExpectParts({Draw(RMSNORM_BF16, 2400, 128), Draw(RMSNORM_BF16, 600, 128)}, true);
}

// Each call alone is too short for a second thread.
TEST_P(SeveralParts, ManyShortCalls) {
  std::vector<Rows> matrices;
  for (size_t i = 0; i < 50; ++i) matrices.push_back(Draw(kDtypes[i % 3], 20, 100 + 10 * i));
  ExpectParts(std::move(matrices), true);
}

TEST_P(SeveralParts, LongRowsBesideShortOnes) {
  ExpectParts(
      {Draw(RMSNORM_F32, 1, 200'000), Draw(RMSNORM_BF16, 2000, 64), Draw(RMSNORM_F16, 2, 100'000)},
      true);
}

INSTANTIATE_TEST_SUITE_P(Targets, SeveralParts, testing::ValuesIn(SupportedTargets()), Name);

// -------------------------------------------------------------------------------- refused calls
// Refusals.Table in arguments_test.cc has a call between two others.

// Three correct calls.
struct Calls {
  Calls() {
    std::fill(std::begin(memory), std::end(memory), 1.5f);
    for (size_t i = 0; i < 3; ++i) {
      x[i] = rmsnorm_rows(memory + 100 * i, RMSNORM_F32, 3, 8, 8);
      y[i] = rmsnorm_rows(memory + 100 * i + 50, RMSNORM_F32, 3, 8, 8);
      operands[i] = rmsnorm_no_operands();
      operands[i].x = &x[i];
      operands[i].y = &y[i];
      calls[i] = {nullptr, &operands[i], nullptr};
    }
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;

  float memory[300];
  rmsnorm_view x[3];
  rmsnorm_view y[3];
  rmsnorm_operands operands[3];
  rmsnorm_call calls[3];
};

using Spoil = std::function<void(Calls&)>;

void ExpectAccepted(const Spoil& spoil) {
  Calls c;
  spoil(c);
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward_all(c.calls, 3, nullptr)) << rmsnorm_error_message();
}

// The message begins with one of two texts.
void ExpectRefused(rmsnorm_status status, const std::string& begin, const std::string& other,
                   const Spoil& spoil) {
  Calls c;
  spoil(c);
  EXPECT_EQ(status, rmsnorm_forward_all(c.calls, 3, nullptr));
  const std::string message = rmsnorm_error_message();
  EXPECT_TRUE(message.find(begin) == 0 || message.find(other) == 0)
      << message << " does not begin with " << begin;
  for (const float number : c.memory) ASSERT_EQ(1.5f, number) << "something was written";
}

TEST(Several, OptionsBesideAModule) {
  const RmsNorm module(8);
  const rmsnorm_options options = rmsnorm_default_options();
  ExpectAccepted([&](Calls& c) { c.calls[1].module = module.get(); });
  ExpectRefused(RMSNORM_ERROR_OPERAND, "calls[1].options: ", "calls[1].options: ", [&](Calls& c) {
    c.calls[1].module = module.get();
    c.calls[1].options = &options;
  });
}

// An output of one call overlaps an operand of another. In place applies only within one call.
TEST(Several, OverlapsBetweenCalls) {
  const auto refused = [](const std::string& a, const std::string& b, const Spoil& spoil) {
    ExpectRefused(RMSNORM_ERROR_OVERLAP, a + ": overlaps " + b, b + ": overlaps " + a, spoil);
  };
  const auto move = [](rmsnorm_view& view, const rmsnorm_view& to, ptrdiff_t elements) {
    view.data = static_cast<const float*>(to.data) + elements;
  };
  for (const ptrdiff_t by : {0, 1, -1, 23, -23}) {
    refused("calls[0].y", "calls[2].x", [=](Calls& c) { move(c.y[0], c.x[2], by); });
    refused("calls[0].y", "calls[2].y", [=](Calls& c) { move(c.y[0], c.y[2], by); });
    refused("calls[2].y", "calls[1].x", [=](Calls& c) { move(c.y[2], c.x[1], by); });
    ExpectAccepted([=](Calls& c) { move(c.x[0], c.x[2], by); });
  }
  for (const ptrdiff_t by : {24, -24}) {
    ExpectAccepted([=](Calls& c) { move(c.y[0], c.y[2], by); });
  }
  // Slices of one buffer with rows of 20 elements: separate, and one element too close.
  for (const ptrdiff_t elements : {8, 12}) {
    const auto slices = [=](ptrdiff_t more) {
      return [=](Calls& c) {
        c.x[0].stride[0] = c.x[1].stride[0] = 20;
        c.x[1].data = c.memory + elements + more;
        c.y[0] = c.x[0];
        c.y[1] = c.x[1];
      };
    };
    ExpectAccepted(slices(0));
    ExpectRefused(RMSNORM_ERROR_OVERLAP, "calls[0].y: overlaps calls[1].",
                  "calls[1].y: overlaps calls[0].", slices(elements == 8 ? -1 : 1));
  }
  // Operands with one element per row, and a weight, which has no rows.
  for (const bool over_weight : {false, true}) {
    rmsnorm_view rstd;
    rmsnorm_view other;
    const std::string name = over_weight ? "weight" : "rstd";
    refused("calls[0].rstd", "calls[1]." + name, [&](Calls& c) {
      rstd = rmsnorm_vector(c.memory + 290, RMSNORM_F32, 3);
      other =
          rmsnorm_vector(c.memory + (over_weight ? 285 : 292), RMSNORM_F32, over_weight ? 8 : 3);
      c.operands[0].rstd = &rstd;
      (over_weight ? c.operands[1].weight : c.operands[1].rstd) = &other;
    });
  }
}

// Many calls are refused exactly where two of them are. The message names the first call that
// overlaps an earlier one, and the first of these.
TEST(Several, ManyCallsAsEachPair) {
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

// SPDX-License-Identifier: Apache-2.0
// Properties of the definition on every target. They can also find errors of the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "../lib/fma.h"  // which fma_test.cc tests
#include "gradients.h"
#include "norms.h"
#include "random_rows.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

constexpr Rounding kRoundings[] = {Rounding::after_weight, Rounding::before_weight,
                                   Rounding::inverse};
class NormTest : public testing::TestWithParam<std::string> {
 protected:
  Tensor DrawMixed(rmsnorm_dtype dtype, size_t rows, size_t d) {
    Tensor tensor(dtype, rows, d);
    FillMixed(random_, tensor);
    return tensor;
  }
  Tensor DrawWeight(rmsnorm_dtype dtype, size_t rows, size_t d) {
    Tensor weight(dtype, rows, d);
    FillWeight(random_, weight);
    return weight;
  }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_);
  Random random_{11};
};

TEST_P(NormTest, NoWeightIsAWeightOfOnes) {
  constexpr size_t kD = 1000;
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      for (const Rounding rounding : kRoundings) {
        for (const bool biased : {false, true}) {
          NormInputs inputs = {DrawMixed(x_dtype, kRowKinds * 2, kD)};
          inputs.y.emplace(y_dtype, inputs.x.rows(), kD);
          if (biased) inputs.bias = DrawWeight(RMSNORM_BF16, 1, kD);
          Options options;
          options.rounding = rounding;
          const NormResults without = ComputeNorm(inputs, options, context_);
          inputs.weight.emplace(RMSNORM_F32, 1, kD);
          for (size_t j = 0; j < kD; ++j) inputs.weight->set(0, j, 1);
          EXPECT_TRUE(SameBits(ComputeNorm(inputs, options, context_), without));
        }
      }
    }
  }
}

// Repeats the last steps in plain arithmetic, from the n of a call without them. The product of two
// f32 is exact in binary64.
TEST_P(NormTest, BiasIsAddedByFma) {
  constexpr size_t kD = 300;
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      for (const Rounding rounding : kRoundings) {
        NormInputs inputs = {DrawMixed(x_dtype, 2 * kRowKinds, kD)};
        inputs.y.emplace(RMSNORM_F32, inputs.x.rows(), kD);
        Options options;
        options.rounding = rounding;
        const NormResults plain = ComputeNorm(inputs, options, context_);
        inputs.weight = DrawWeight(RMSNORM_F32, 1, kD);
        inputs.bias = DrawWeight(RMSNORM_F32, 1, kD);
        inputs.y.emplace(y_dtype, inputs.x.rows(), kD);
        options.weight_offset = 1;
        const NormResults biased = ComputeNorm(inputs, options, context_);
        for (size_t row = 0; row < inputs.x.rows(); ++row) {
          for (size_t j = 0; j < kD; ++j) {
            const auto w = static_cast<float>(RoundTo(RMSNORM_F32, 1 + inputs.weight->get(0, j)));
            const float n = static_cast<float>(plain.y->get(row, j));
            const float y = internal::Fma(n, w, static_cast<float>(inputs.bias->get(0, j)));
            const double expected = RoundTo(y_dtype, y);
            const double actual = biased.y->get(row, j);
            ASSERT_TRUE(expected == actual || (std::isnan(expected) && std::isnan(actual)))
                << actual << " instead of " << expected;
          }
        }
      }
    }
  }
}

// n = x * cast_x(1 / RMS), and cast again, computed from the rstd of the same call.
TEST_P(NormTest, InverseIsRoundedToTheTypeOfX) {
  constexpr size_t kD = 300;
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const float eps : {1e-5f, 0.0f}) {
      NormInputs inputs = {DrawMixed(x_dtype, 2 * kRowKinds, kD)};
      inputs.y.emplace(RMSNORM_F32, inputs.x.rows(), kD);
      Options options;
      options.eps = eps;
      options.rounding = Rounding::inverse;
      const NormResults results = ComputeNorm(inputs, options, context_);
      for (size_t row = 0; row < inputs.x.rows(); ++row) {
        const double r = RoundTo(x_dtype, static_cast<double>(results.rstd[row]));
        for (size_t j = 0; j < kD; ++j) {
          const double n = RoundTo(RMSNORM_F32, inputs.x.get(row, j) * r);
          const double expected = RoundTo(x_dtype, n);
          const double actual = results.y->get(row, j);
          ASSERT_TRUE(expected == actual || (std::isnan(expected) && std::isnan(actual)))
              << actual << " instead of " << expected;
        }
      }
    }
  }
}

// A row is multiplied by 1 / max(RMS, eps); so is a row that would be cold without a floor.
TEST_P(NormTest, FloorIsTheLargerOfRmsAndEps) {
  for (const float magnitude :
       {0.0f, -0.0f, 1e-30f, 0.125f, 0x1.FFFFFEp-4f, 0x1.000002p-3f, 2.0f}) {
    for (const size_t d : SizeList{1, 4, 128, 300}) {
      const std::vector<float> x(d, magnitude);
      std::vector<float> y(d);
      float rstd;
      ForwardOperands operands;
      operands.x = {x.data(), d};
      operands.y = {y.data(), d};
      operands.rstd = {&rstd, 1};
      Options options;
      options.eps = 0.125f;
      options.eps_placement = EpsPlacement::floor;
      forward(operands, options, context_);
      // The sum of equal squares is exact for these d and magnitudes, or far below the floor.
      EXPECT_NEAR(1 / std::max(std::fabs(magnitude), 0.125f), rstd, 0x1p-20f);
      if (magnitude <= 0.125f) {
        EXPECT_EQ(8.0f, rstd);
      }
      for (size_t j = 0; j < d; ++j) ASSERT_EQ(x[j] * rstd, y[j]);
    }
  }
  const std::vector<float> nan = {1, std::numeric_limits<float>::quiet_NaN()};
  float rstd;
  ForwardOperands operands;
  operands.x = {nan.data(), 2};
  operands.rstd = {&rstd, 1};
  Options options;
  options.eps_placement = EpsPlacement::floor;
  forward(operands, options, context_);
  EXPECT_TRUE(std::isnan(rstd));
}

INSTANTIATE_TEST_SUITE_P(Targets, NormTest, testing::ValuesIn(SupportedTargets()), test::Name);

}  // namespace
}  // namespace rmsnorm::test

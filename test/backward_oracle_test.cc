// SPDX-License-Identifier: Apache-2.0
// The reference's gradients are within the bound of the closed form in binary64, and are the
// derivatives of the forward formula. The other targets have its bits: backward_bits_test.cc.
#include "backward_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "targets.h"

namespace rmsnorm::test {
namespace {

std::vector<Options> EveryOption() {
  std::vector<Options> all;
  for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
    for (const float eps : {1e-5f, 0.5f}) {
      for (const float divisor : {0.0f, 100.5f}) {
        for (const float offset : {0.0f, 1.0f}) {
          Options options;
          options.eps_placement = placement;
          options.eps = eps;
          options.divisor = divisor;
          options.weight_offset = offset;
          options.target = kReference;
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

std::string Text(const Options& options) {
  return "eps " + std::to_string(options.eps) +
         (options.eps_placement == RMSNORM_EPS_OUTSIDE ? " outside" : " inside") + ", divisor " +
         std::to_string(options.divisor) + ", offset " + std::to_string(options.weight_offset);
}

GradientInputs MakeInputs(rmsnorm_dtype x, rmsnorm_dtype dy, size_t rows, size_t d) {
  return {Tensor(x, rows, d),  Tensor(dy, rows, d),      Tensor(RMSNORM_F32, 1, d), {},
          Tensor(dy, rows, d), Tensor(RMSNORM_F32, 1, d)};
}

class BackwardOracleTest : public testing::TestWithParam<size_t> {};

TEST_P(BackwardOracleTest, EveryTypeAndOptionIsWithinTheBound) {
  const size_t d = GetParam();
  Random random(23);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype dy_dtype : kDtypes) {
      GradientInputs inputs = MakeInputs(x_dtype, dy_dtype, 20, d);
      FillNormal(random, inputs.x);
      FillRow(random, RowKind::kMassive, inputs.x, 3);
      FillRow(random, RowKind::kWide, inputs.x, 5);
      FillNormal(random, inputs.dy);
      FillRow(random, RowKind::kMassive, inputs.dy, 7);
      FillNormal(random, *inputs.weight);
      bool like_x = false;
      for (const Options& options : EveryOption()) {
        // Where x is f32, dx may be as dy or as x.
        like_x = x_dtype == RMSNORM_F32 && !like_x;
        inputs.dx.emplace(like_x ? x_dtype : dy_dtype, 20, d);
        SCOPED_TRACE(std::string(rmsnorm_dtype_name(x_dtype)) + " and " +
                     rmsnorm_dtype_name(dy_dtype) + ", " + Text(options));
        inputs.rstd.clear();
        inputs.flags = 0;
        ASSERT_TRUE(GradientsAreWithinBound(inputs, ComputeGradients(inputs, options), options));
        inputs.rstd = InverseRmsOf(inputs.x, options);
        inputs.flags = RMSNORM_ADD_TO_DX | RMSNORM_ADD_TO_DW;
        FillNormal(random, *inputs.dx);
        FillNormal(random, *inputs.dw);
        ASSERT_TRUE(GradientsAreWithinBound(inputs, ComputeGradients(inputs, options), options));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BackwardOracleTest,
                         testing::Values(1, 2, 3, 64, 127, 129, 300, 4097),
                         testing::PrintToStringParamName());

// Rows beyond f32, whose gradients are numbers of f32 all the same. The tiniest come with a dy such
// that every product of the two vanishes in f32.
TEST(Gradients, OfRowsInBinary64AreWithinTheBound) {
  Random random(29);
  for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
    for (const double magnitude : {0x1p-115, 0x1p-70, 0x1p-55, 0x1p66, 0x1p100, 0x1p120}) {
      for (const bool with_rstd : {false, true}) {
        GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_F32, 20, 200);
        FillNormal(random, *inputs.weight);
        const double dy_magnitude = magnitude == 0x1p-115 ? 0x1p-40 : 1;
        for (size_t row = 0; row < 20; ++row) {
          for (size_t j = 0; j < 200; ++j) {
            inputs.x.set(row, j, random.Normal() * magnitude);
            inputs.dy.set(row, j, random.Normal() * dy_magnitude);
          }
        }
        Options options;
        options.eps = 0;
        options.eps_placement = placement;
        options.target = kReference;
        if (with_rstd) inputs.rstd = InverseRmsOf(inputs.x, options);
        ASSERT_TRUE(GradientsAreWithinBound(inputs, ComputeGradients(inputs, options), options))
            << magnitude << (with_rstd ? " with rstd" : "");
      }
    }
  }
}

// c overflows in f32, where the gradients do not.
TEST(Gradients, OfAnOverflowingDotAreWithinTheBound) {
  Random random(31);
  for (const bool with_rstd : {false, true}) {
    GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_F32, 20, 200);
    FillNormal(random, *inputs.weight);
    for (size_t row = 0; row < 20; ++row) {
      for (size_t j = 0; j < 200; ++j) {
        // Each product is within the range of f32, and their sum is not.
        inputs.x.set(row, j, (1 + random.Uniform()) * 0x1p45);
        inputs.dy.set(row, j, (1 + random.Uniform()) * 0x1p80);
      }
    }
    Options options;
    options.target = kReference;
    if (with_rstd) inputs.rstd = InverseRmsOf(inputs.x, options);
    // The oracle takes such rows for ones in f32; the bound of those is the wider one.
    ASSERT_TRUE(GradientsAreWithinBound(inputs, ComputeGradients(inputs, options), options));
  }
}

// Thousands of rows, in blocks of more than 16.
TEST(Gradients, OfManyRowsAreWithinTheBound) {
  Random random(37);
  GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_F32, 5000, 7);
  FillNormal(random, inputs.x);
  FillNormal(random, inputs.dy);
  FillNormal(random, *inputs.weight);
  Options options;
  options.target = kReference;
  ASSERT_TRUE(GradientsAreWithinBound(inputs, ComputeGradients(inputs, options), options));
}

// A bf16 sum of a bf16 gradient would lose the small terms: dw adds up in f32.
TEST(Gradients, OfTheWeightDoNotAddUpInTheirType) {
  const size_t rows = 4096;
  const std::vector<float> x(rows, 1.0f);
  const std::vector<float> dy(rows, 1.0f);
  bf16 dw;
  Options options;
  options.eps = 0;
  backward({dy.data(), rows, 1}, {x.data(), rows, 1}, nullptr, {std::nullopt, View(&dw, 1)},
           options);
  EXPECT_EQ(Encode(FormatOf(RMSNORM_BF16), rows), dw.bits);
}

// ------------------------------------------------------------------ derivatives

// The loss sum(dy * y) of rows of binary64, from the formula for y alone.
double Loss(const std::vector<double>& x, const std::vector<double>& weight,
            const std::vector<double>& dy, size_t d, const Options& options) {
  const double divisor = options.divisor == 0 ? static_cast<double>(d) : options.divisor;
  double loss = 0;
  for (size_t begin = 0; begin < x.size(); begin += d) {
    double sum = 0;
    for (size_t j = 0; j < d; ++j) sum += x[begin + j] * x[begin + j];
    const double rms = options.eps_placement == RMSNORM_EPS_INSIDE
                           ? std::sqrt(sum / divisor + options.eps)
                           : std::sqrt(sum / divisor) + options.eps;
    for (size_t j = 0; j < d; ++j) {
      loss += dy[begin + j] * (x[begin + j] / rms * (options.weight_offset + weight[j]));
    }
  }
  return loss;
}

// The central difference of the loss by one of its arguments.
template <class LossFunction>
double Difference(double& argument, const LossFunction& loss) {
  constexpr double kStep = 1e-5;
  const double before = argument;
  argument = before + kStep;
  const double above = loss();
  argument = before - kStep;
  const double below = loss();
  argument = before;
  return (above - below) / (2 * kStep);
}

std::vector<double> Values(const Tensor& tensor) {
  std::vector<double> values;
  for (size_t row = 0; row < tensor.rows(); ++row) {
    for (size_t j = 0; j < tensor.d(); ++j) values.push_back(tensor.get(row, j));
  }
  return values;
}

TEST(Gradients, AreTheDerivativesOfTheFormula) {
  Random random(41);
  for (const size_t d : SizeList{1, 2, 5, 17}) {
    for (const Options& options : EveryOption()) {
      SCOPED_TRACE(testing::Message() << "d " << d << ", " << Text(options));
      GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_F32, 3, d);
      FillNormal(random, inputs.x);
      // Not near 0, where the root of a short row is too curved for the step.
      for (size_t row = 0; row < 3; ++row) inputs.x.set(row, 0, 1 + random.Uniform());
      FillNormal(random, inputs.dy);
      FillNormal(random, *inputs.weight);
      const GradientResults results = ComputeGradients(inputs, options);
      std::vector<double> x = Values(inputs.x);
      std::vector<double> weight = Values(*inputs.weight);
      const std::vector<double> dy = Values(inputs.dy);
      const auto loss = [&] { return Loss(x, weight, dy, d, options); };
      // The differences are good to 1e-8 or so, the gradients to some units of 2^-24 of the terms
      // that they are made of, which are a few units large.
      constexpr double kTolerance = 1e-5;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(Difference(x[i], loss), results.dx->get(i / d, i % d), kTolerance)
            << "dx " << i;
      }
      for (size_t j = 0; j < d; ++j) {
        ASSERT_NEAR(Difference(weight[j], loss), results.dw->get(0, j), kTolerance) << "dw " << j;
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

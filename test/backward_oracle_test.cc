// SPDX-License-Identifier: Apache-2.0
// The reference's gradients are within the bound of the closed form in binary64, and are the
// derivatives of the forward formula. The other targets have its bits: `rmsnorm check`.
#include "backward_oracle.h"

#include <gtest/gtest.h>

#include <cmath>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "targets.h"

namespace rmsnorm::test {
namespace {

constexpr EpsPlacement kPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                        EpsPlacement::floor};

std::vector<Options> EveryOption() {
  std::vector<Options> all;
  for (const EpsPlacement placement : kPlacements) {
    for (const float eps : {1e-5f, 0.5f}) {
      for (const float divisor : {0.0f, 100.5f}) {
        for (const float offset : {0.0f, 1.0f}) {
          Options options;
          options.eps_placement = placement;
          options.eps = eps;
          options.divisor = divisor;
          options.weight_offset = offset;
          all.push_back(options);
        }
      }
    }
  }
  return all;
}

std::string Text(const Options& options) {
  const char* const placements[] = {" inside", " outside", " as a floor"};
  return "eps " + std::to_string(options.eps) +
         placements[static_cast<int>(options.eps_placement)] + ", divisor " +
         std::to_string(options.divisor) + ", offset " + std::to_string(options.weight_offset);
}

const Context kOnReference = [] {
  Context context;
  context.target = kReference;
  return context;
}();

testing::AssertionResult IsWithinBound(const GradientInputs& inputs, const Options& options) {
  return GradientsAreWithinBound(inputs, ComputeGradients(inputs, options, kOnReference), options);
}

// A weight, and gradients by it and by a bias, with `rows` rows each.
GradientInputs MakeInputs(rmsnorm_dtype x, rmsnorm_dtype dy, size_t rows, size_t d,
                          size_t weights = 1, size_t biases = 1) {
  return {Tensor(x, rows, d),
          Tensor(dy, rows, d),
          Tensor(RMSNORM_F32, weights, d),
          {},
          Tensor(dy, rows, d),
          Tensor(RMSNORM_F32, weights, d),
          Tensor(RMSNORM_F32, biases, d)};
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
      size_t type = 0;
      for (const Options& options : EveryOption()) {
        // The types of the gradients alternate.
        inputs.dx.emplace(kDtypes[type % 3], 20, d);
        inputs.dw.emplace(kDtypes[type / 3 % 3], 1, d);
        inputs.db.emplace(kDtypes[(type++ + 1) % 3], 1, d);
        SCOPED_TRACE(std::string(rmsnorm_dtype_name(x_dtype)) + " and " +
                     rmsnorm_dtype_name(dy_dtype) + ", " + Text(options));
        inputs.rstd.clear();
        inputs.add_to = 0;
        ASSERT_TRUE(IsWithinBound(inputs, options));
        inputs.rstd = InverseRmsOf(inputs.x, options, kOnReference);
        inputs.add_to = RMSNORM_ADD_TO_DX | RMSNORM_ADD_TO_DW | RMSNORM_ADD_TO_DB;
        FillNormal(random, *inputs.dx);
        FillNormal(random, *inputs.dw);
        FillNormal(random, *inputs.db);
        ASSERT_TRUE(IsWithinBound(inputs, options));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, BackwardOracleTest,
                         testing::Values(1, 2, 3, 64, 127, 129, 300, 4097),
                         testing::PrintToStringParamName());

// Rows beyond f32 whose gradients fit f32. The tiniest rows have a dy that makes every product of
// the two vanish in f32.
TEST(Gradients, OfRowsInBinary64AreWithinTheBound) {
  Random random(29);
  for (const EpsPlacement placement : kPlacements) {
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
        if (with_rstd) inputs.rstd = InverseRmsOf(inputs.x, options, kOnReference);
        ASSERT_TRUE(IsWithinBound(inputs, options)) << magnitude << (with_rstd ? " with rstd" : "");
      }
    }
  }
}

// c overflows in f32, but the gradients do not.
TEST(Gradients, OfAnOverflowingDotAreWithinTheBound) {
  Random random(31);
  for (const bool with_rstd : {false, true}) {
    GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_F32, 20, 200);
    FillNormal(random, *inputs.weight);
    for (size_t row = 0; row < 20; ++row) {
      for (size_t j = 0; j < 200; ++j) {
        // Each product fits f32, and their sum does not.
        inputs.x.set(row, j, (1 + random.Uniform()) * 0x1p45);
        inputs.dy.set(row, j, (1 + random.Uniform()) * 0x1p80);
      }
    }
    if (with_rstd) inputs.rstd = InverseRmsOf(inputs.x, {}, kOnReference);
    // The oracle treats such rows as computed in f32, with the wider bound.
    ASSERT_TRUE(IsWithinBound(inputs, {}));
  }
}

// Thousands of rows, in blocks of more than 16.
TEST(Gradients, OfManyRowsAreWithinTheBound) {
  Random random(37);
  GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_F32, 5000, 7);
  FillNormal(random, inputs.x);
  FillNormal(random, inputs.dy);
  FillNormal(random, *inputs.weight);
  ASSERT_TRUE(IsWithinBound(inputs, {}));
}

// Weights and biases with one row for all rows of x, for some of them, and for each.
TEST(Gradients, OfWhatIsBroadcastAreWithinTheBound) {
  Random random(39);
  const SizeList leading = {5, 3, 20};
  const std::vector<SizeList> shapes = {{},        {20},      {3, 1},     {3, 20},
                                        {5, 1, 1}, {5, 3, 1}, {5, 1, 20}, {5, 3, 20}};
  for (const SizeList& weight_leading : shapes) {
    for (const SizeList& bias_leading : shapes) {
      GradientInputs inputs = MakeInputs(RMSNORM_F32, RMSNORM_BF16, 300, 33,
                                         Product(weight_leading), Product(bias_leading));
      inputs.leading = leading;
      inputs.weight_leading = weight_leading;
      inputs.bias_leading = bias_leading;
      FillNormal(random, inputs.x);
      FillNormal(random, inputs.dy);
      FillNormal(random, *inputs.weight);
      ASSERT_TRUE(IsWithinBound(inputs, {}))
          << testing::PrintToString(weight_leading) << testing::PrintToString(bias_leading);
    }
  }
}

// A bf16 sum of a bf16 gradient would lose the small terms; dw adds up in f32.
TEST(Gradients, OfTheWeightDoNotAddUpInTheirType) {
  const size_t rows = 4096;
  const std::vector<float> x(rows, 1.0f);
  const std::vector<float> dy(rows, 1.0f);
  bf16 dw;
  Options options;
  options.eps = 0;
  bf16 db;
  BackwardOperands operands;
  operands.dy = {dy.data(), rows, 1};
  operands.x = {x.data(), rows, 1};
  operands.dw = {&dw, 1};
  operands.db = {&db, 1};
  backward(operands, options);
  EXPECT_EQ(Encode(FormatOf(RMSNORM_BF16), rows), dw.bits);
  EXPECT_EQ(Encode(FormatOf(RMSNORM_BF16), rows), db.bits);
}

// ------------------------------------------------------------------ derivatives

// The loss sum(dy * y) of rows in binary64, from the formula for y alone.
double Loss(const std::vector<double>& x, const std::vector<double>& weight,
            const std::vector<double>& bias, const std::vector<double>& dy, size_t d,
            const Options& options) {
  const double divisor = options.divisor == 0 ? static_cast<double>(d) : options.divisor;
  double loss = 0;
  for (size_t begin = 0; begin < x.size(); begin += d) {
    double sum = 0;
    for (size_t j = 0; j < d; ++j) sum += x[begin + j] * x[begin + j];
    const double root = std::sqrt(sum / divisor);
    const double eps = options.eps;
    const double rms = options.eps_placement == EpsPlacement::inside
                           ? std::sqrt(sum / divisor + eps)
                       : options.eps_placement == EpsPlacement::outside ? root + eps
                                                                        : std::max(root, eps);
    for (size_t j = 0; j < d; ++j) {
      loss += dy[begin + j] * (x[begin + j] / rms * (options.weight_offset + weight[j]) + bias[j]);
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
      // Avoids values near 0, where the root of a short row is too curved for the step.
      for (size_t row = 0; row < 3; ++row) inputs.x.set(row, 0, 1 + random.Uniform());
      FillNormal(random, inputs.dy);
      FillNormal(random, *inputs.weight);
      const GradientResults results = ComputeGradients(inputs, options, kOnReference);
      std::vector<double> x = Values(inputs.x);
      std::vector<double> weight = Values(*inputs.weight);
      std::vector<double> bias(d, 0.25);
      const std::vector<double> dy = Values(inputs.dy);
      const auto loss = [&] { return Loss(x, weight, bias, dy, d, options); };
      // The differences are good to about 1e-8, the gradients to some units of 2^-24 of their
      // terms, which are a few units large.
      constexpr double kTolerance = 1e-5;
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(Difference(x[i], loss), results.dx->get(i / d, i % d), kTolerance)
            << "dx " << i;
      }
      for (size_t j = 0; j < d; ++j) {
        ASSERT_NEAR(Difference(weight[j], loss), results.dw->get(0, j), kTolerance) << "dw " << j;
        ASSERT_NEAR(Difference(bias[j], loss), results.db->get(0, j), kTolerance) << "db " << j;
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

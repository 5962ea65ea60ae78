// SPDX-License-Identifier: Apache-2.0
// The reference is within the proven bound of RMSNorm computed in binary64. The other targets have
// its bits: `rmsnorm check`.
#include "oracle.h"

#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "gradients.h"
#include "random_rows.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

// Rows whose roundings add up instead of cancelling.
enum class Adversary {
  kRandom,
  kConstant,        // every lane and fold rounds the same way for long stretches
  kDominatingUp,    // the first element of a block is 1; each later one adds just over half an ulp
  kDominatingDown,  // each later one adds just under half an ulp, and is lost
  kOneBlock,        // the first block is large; each later block's sum adds over half an ulp
  kGrowing,
  kFalling,
};
constexpr Adversary kAdversaries[] = {Adversary::kRandom,       Adversary::kConstant,
                                      Adversary::kDominatingUp, Adversary::kDominatingDown,
                                      Adversary::kOneBlock,     Adversary::kGrowing,
                                      Adversary::kFalling};

void FillAdversary(Random& random, Adversary adversary, Tensor& x, size_t row) {
  const double d = static_cast<double>(x.d());
  const double constant = 1 + random.Uniform();
  for (size_t j = 0; j < x.d(); ++j) {
    const double at = static_cast<double>(j) / d;
    double value = 0;
    switch (adversary) {
      case Adversary::kRandom:
        value = random.Normal();
        break;
      case Adversary::kConstant:
        value = constant;
        break;
      case Adversary::kDominatingUp:
        value = j % 4096 == 0 ? 1 : 0x1.001p-12;
        break;
      case Adversary::kDominatingDown:
        value = j % 4096 == 0 ? 1 : 0x1.FFEp-13;
        break;
      case Adversary::kOneBlock:
        // 4,096 squares of 2^-18 (1 + 2^-12) make 2^-24 (1 + 2^-11), slightly more than half an ulp
        // of 1.
        value = j == 0 ? 1 : j < 4096 ? 0 : 0x1.001p-18;
        break;
      case Adversary::kGrowing:
        value = std::exp2(20 * at);
        break;
      case Adversary::kFalling:
        value = std::exp2(-20 * at);
        break;
    }
    x.set(row, j, value);
  }
}

// Half an ulp of the type for its rounding, plus the bound of r with one rounding for each product.
double ElementBound(double exact, size_t d, rmsnorm_dtype y_dtype) {
  const Format format = FormatOf(y_dtype);
  const double relative = InverseRmsBound(d) + 2 * 0x1p-24;
  const double reached = std::fabs(exact) * (1 + relative) + std::ldexp(1.0, format.min_exponent());
  const double half_ulp = std::ldexp(1.0, std::ilogb(reached) - format.precision);
  return half_ulp + std::fabs(exact) * relative;
}

constexpr EpsPlacement kPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                        EpsPlacement::floor};

// Only the number of roundings depends on the length: long rows use the default divisor and offset,
// and no bias.
bool IsShort(size_t d) { return d <= 300; }

std::vector<Options> EveryOption(size_t d) {
  const std::vector<float> all_eps =
      IsShort(d) ? std::vector{0.0f, 1e-6f, 1e-5f, 0.5f} : std::vector{0.0f};
  const std::vector<float> divisors = IsShort(d) ? std::vector{0.0f, 100.5f} : std::vector{0.0f};
  const std::vector<float> offsets = IsShort(d) ? std::vector{0.0f, 1.0f} : std::vector{0.0f};
  std::vector<Options> all;
  for (const EpsPlacement placement : kPlacements) {
    for (const Rounding rounding :
         {Rounding::after_weight, Rounding::before_weight, Rounding::inverse}) {
      for (const float eps : all_eps) {
        for (const float divisor : divisors) {
          for (const float offset : offsets) {
            Options options;
            options.eps_placement = placement;
            options.rounding = rounding;
            options.eps = eps;
            options.divisor = divisor;
            options.weight_offset = offset;
            all.push_back(options);
          }
        }
      }
    }
  }
  return all;
}

std::string Text(const Options& options) {
  const char* const placements[] = {" inside", " outside", " as a floor"};
  const char* const roundings[] = {", after_weight", ", before_weight", ", inverse"};
  return "eps " + std::to_string(options.eps) +
         placements[static_cast<int>(options.eps_placement)] + ", divisor " +
         std::to_string(options.divisor) + ", offset " + std::to_string(options.weight_offset) +
         roundings[static_cast<int>(options.rounding)];
}

const Context kOnReference = [] {
  Context context;
  context.target = kReference;
  return context;
}();

class OracleTest : public testing::TestWithParam<size_t> {};

TEST_P(OracleTest, EveryAdversaryAndOptionIsWithinTheBound) {
  const size_t d = GetParam();
  Random random(3);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    Tensor x(x_dtype, std::size(kAdversaries), d);
    for (size_t row = 0; row < x.rows(); ++row) FillAdversary(random, kAdversaries[row], x, row);
    Tensor weight(RMSNORM_F32, 1, d);
    FillNormal(random, weight);
    Tensor bias(RMSNORM_F32, 1, d);
    FillNormal(random, bias);
    for (const Options& options : EveryOption(d)) {
      for (const rmsnorm_dtype y_dtype : kDtypes) {
        for (const bool biased : {false, true}) {
          if (biased && !IsShort(d)) continue;
          SCOPED_TRACE(std::string(rmsnorm_dtype_name(x_dtype)) + " to " +
                       rmsnorm_dtype_name(y_dtype) + ", " + Text(options) +
                       (biased ? ", bias" : ""));
          Tensor y(y_dtype, x.rows(), d);
          std::vector<float> rstd(x.rows());
          ForwardOperands operands = NormOperands(x, &weight, y, &rstd);
          if (biased) operands.bias = ConstView(bias.vector());
          forward(operands, options, kOnReference);
          for (size_t row = 0; row < x.rows(); ++row) {
            ASSERT_TRUE(RowIsWithinBound(x, &weight, y, rstd.data(), row, options,
                                         biased ? &bias : nullptr));
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, OracleTest,
                         testing::Values(1, 2, 3, 7, 64, 127, 128, 129, 255, 1000, 2880, 4095, 4096,
                                         4097, 8193, 16385),
                         testing::PrintToStringParamName());

// The bound is useful only if rows come near it.
TEST(Bound, IsNotMuchWiderThanWhatAdversariesReach) {
  Random random(3);
  const size_t d = 4096;
  Tensor x(RMSNORM_F32, 1, d);
  FillAdversary(random, Adversary::kDominatingUp, x, 0);
  Options options;
  options.eps = 0;
  const float rstd = InverseRmsOf(x, options, kOnReference)[0];
  const double exact = ExactInverseRms(ExactSumSquares(x, 0), d, options);
  EXPECT_GT(std::fabs(rstd / exact - 1), InverseRmsBound(d) / 2);
}

TEST(Bound, HoldsForManyBlocks) {
  Random random(3);
  const size_t d = 300'000;
  for (const Adversary adversary : kAdversaries) {
    Tensor x(RMSNORM_F32, 1, d);
    FillAdversary(random, adversary, x, 0);
    for (const EpsPlacement placement : kPlacements) {
      Options options;
      options.eps_placement = placement;
      const float rstd = InverseRmsOf(x, options, kOnReference)[0];
      const double exact = ExactInverseRms(ExactSumSquares(x, 0), d, options);
      EXPECT_NEAR(rstd / exact, 1, InverseRmsBound(d)) << static_cast<int>(adversary);
    }
  }
}

// The same in ulp: y is within half an ulp of its type plus the bound of the exact value.
TEST(Elements, AreWithinHalfAnUlpAndTheBound) {
  Random random(5);
  for (const size_t d : SizeList{1, 64, 1000, 4096, 16385}) {
    for (const rmsnorm_dtype x_dtype : kDtypes) {
      for (const rmsnorm_dtype y_dtype : kDtypes) {
        Tensor x(x_dtype, 2, d);
        FillRow(random, RowKind::kNormal, x, 0);
        FillRow(random, RowKind::kMassive, x, 1);
        Tensor weight(RMSNORM_F32, 1, d);
        FillNormal(random, weight);
        Tensor y(y_dtype, x.rows(), d);
        const Options options;
        forward(NormOperands(x, &weight, y), options, kOnReference);
        for (size_t row = 0; row < x.rows(); ++row) {
          const double r = ExactInverseRms(ExactSumSquares(x, row), d, options);
          for (size_t j = 0; j < d; ++j) {
            const double exact = x.get(row, j) * r * weight.get(0, j);
            ASSERT_NEAR(y.get(row, j), exact, ElementBound(exact, d, y_dtype)) << "d " << d;
          }
        }
      }
    }
  }
}

// The tolerance of the published exercise: f32 within atol = rtol = 1e-6 of the result in binary64.
TEST(Elements, OfF32AreWithinAMillionth) {
  Random random(9);
  for (const size_t d : SizeList{1, 2, 64, 128, 500, 768, 2048, 4096, 8192, 16384}) {
    const size_t rows = 8;
    Tensor x(RMSNORM_F32, rows, d);
    FillNormal(random, x);
    FillRow(random, RowKind::kMassive, x, 0);
    Tensor weight(RMSNORM_F32, 1, d);
    FillNormal(random, weight);
    for (const std::string& target : SupportedTargets()) {
      const Options options;
      Tensor y(RMSNORM_F32, rows, d);
      forward(NormOperands(x, &weight, y), options, OnTarget(target));
      for (size_t row = 0; row < rows; ++row) {
        const double r = ExactInverseRms(ExactSumSquares(x, row), d, options);
        for (size_t j = 0; j < d; ++j) {
          const double exact = x.get(row, j) * r * weight.get(0, j);
          ASSERT_NEAR(y.get(row, j), exact, 1e-6 + 1e-6 * std::fabs(exact)) << target << " d " << d;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// Rows at the limits of their type, on every target.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "oracle.h"
#include "random_rows.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Options WithEps(float eps) {
  Options options;
  options.eps = eps;
  return options;
}

constexpr EpsPlacement kPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                        EpsPlacement::floor};

class SpecialRowsTest : public testing::TestWithParam<std::string> {
 protected:
  // y of one f32 row without a weight, and its rstd.
  std::vector<float> Normalised(const std::vector<float>& x, const Options& options,
                                float* rstd = nullptr) const {
    std::vector<float> y(x.size());
    ForwardOperands operands;
    operands.x = {x.data(), x.size()};
    operands.y = {y.data(), y.size()};
    if (rstd != nullptr) operands.rstd = {rstd, 1};
    forward(operands, options, context_);
    return y;
  }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_);
};

TEST_P(SpecialRowsTest, PublishedExample) {
  const float x[] = {1, 2};
  const float ones[] = {1, 1};
  float y[2];
  ForwardOperands operands;
  operands.x = {x, 2};
  operands.weight = {ones, 2};
  operands.y = {y, 2};
  forward(operands, WithEps(1e-5f), context_);
  EXPECT_NEAR(0.6325f, y[0], 0.00005f);
  EXPECT_NEAR(1.2649f, y[1], 0.00005f);
}

TEST_P(SpecialRowsTest, EveryKindMeetsTheOracle) {
  Random random(21);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const size_t d : SizeList{1, 2, 31, 64, 129, 1000}) {
      Tensor x(x_dtype, 2 * kRowKinds, d);
      FillMixed(random, x);
      Tensor weight(RMSNORM_F32, 1, d);
      FillNormal(random, weight);
      for (const float eps : {0.0f, 1e-30f, 1e-5f}) {
        for (const EpsPlacement placement : kPlacements) {
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            SCOPED_TRACE(testing::Message() << rmsnorm_dtype_name(x_dtype) << " to "
                                            << rmsnorm_dtype_name(y_dtype) << " d " << d << " eps "
                                            << eps << " placement " << static_cast<int>(placement));
            Options options = WithEps(eps);
            options.eps_placement = placement;
            Tensor y(y_dtype, x.rows(), d);
            std::vector<float> rstd(x.rows());
            forward(NormOperands(x, &weight, y, &rstd), options, context_);
            for (size_t row = 0; row < x.rows(); ++row) {
              ASSERT_TRUE(RowIsWithinBound(x, &weight, y, rstd.data(), row, options));
            }
          }
        }
      }
    }
  }
}

// The limits between f32 and binary64 arithmetic: below, above and exactly on them.
TEST_P(SpecialRowsTest, AroundTheSafeRange) {
  for (const size_t d : SizeList{1, 4, 100, 200}) {
    for (const float magnitude :
         {0x1p-50f, 0x1.FFFFFEp-51f, 0x1.000002p-50f, 0x1p63f, 0x1.FFFFFEp63f, 0x1p64f, 0x1p61f}) {
      for (const rmsnorm_dtype x_dtype : {RMSNORM_F32, RMSNORM_BF16}) {
        Tensor x(x_dtype, 1, d);
        for (size_t j = 0; j < d; ++j) x.set(0, j, j % 2 == 0 ? magnitude : -magnitude);
        Tensor y(RMSNORM_F32, 1, d);
        std::vector<float> rstd(1);
        forward(NormOperands(x, nullptr, y, &rstd), WithEps(0), context_);
        ASSERT_TRUE(RowIsWithinBound(x, nullptr, y, rstd.data(), 0, WithEps(0)))
            << d << " " << magnitude;
        for (size_t j = 0; j < d; ++j) EXPECT_NEAR(y.get(0, j), j % 2 == 0 ? 1 : -1, 1e-6);
      }
    }
  }
}

TEST_P(SpecialRowsTest, LargestNumbersGiveOnes) {
  const float largest = std::numeric_limits<float>::max();
  for (const size_t d : SizeList{1, 3, 64, 300, 4097}) {
    for (const float y : Normalised(std::vector<float>(d, largest), WithEps(1e-5f))) {
      ASSERT_EQ(1.0f, y) << d;
    }
  }
}

TEST_P(SpecialRowsTest, SmallestNumbersGiveOnesWithoutEps) {
  const float smallest = std::numeric_limits<float>::denorm_min();
  for (const size_t d : SizeList{1, 3, 64, 300, 4097}) {
    float rstd;
    for (const float y : Normalised(std::vector<float>(d, smallest), WithEps(0), &rstd)) {
      ASSERT_EQ(1.0f, y) << d;
    }
    // 2^149 exceeds the range of f32.
    EXPECT_EQ(std::numeric_limits<float>::infinity(), rstd);
  }
}

TEST_P(SpecialRowsTest, ZerosGiveZerosWithEps) {
  float rstd;
  for (const float y : Normalised(std::vector<float>(100, -0.0f), WithEps(0.25f), &rstd)) {
    EXPECT_EQ(0.0f, y);
    EXPECT_TRUE(std::signbit(y));  // -0 times a positive number
  }
  EXPECT_EQ(2.0f, rstd);
}

TEST_P(SpecialRowsTest, ZerosGiveNanWithoutEps) {
  for (const EpsPlacement placement : kPlacements) {
    Options options = WithEps(0);
    options.eps_placement = placement;
    float rstd;
    for (const float y : Normalised(std::vector<float>(100), options, &rstd)) {
      EXPECT_TRUE(std::isnan(y));
    }
    EXPECT_EQ(kInfinity, rstd);
  }
}

TEST_P(SpecialRowsTest, NanSpreadsOverItsRowOnly) {
  const size_t d = 70;
  for (size_t at = 0; at < d; ++at) {
    std::vector<float> x(3 * d, 2.0f);
    x[d + at] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> y(3 * d);
    ForwardOperands operands;
    operands.x = {x.data(), 3, d};
    operands.y = {y.data(), 3, d};
    forward(operands, WithEps(0), context_);
    for (size_t j = 0; j < 3 * d; ++j) {
      if (j / d == 1) {
        ASSERT_TRUE(std::isnan(y[j]));
      } else {
        ASSERT_EQ(1.0f, y[j]);
      }
    }
  }
}

TEST_P(SpecialRowsTest, InfinityGivesZerosAndNan) {
  for (const float infinity : {HUGE_VALF, -HUGE_VALF}) {
    std::vector<float> x(70, 3.0f);
    x[2] = infinity;
    float rstd;
    const std::vector<float> y = Normalised(x, WithEps(1e-5f), &rstd);
    EXPECT_EQ(0.0f, rstd);
    for (size_t j = 0; j < x.size(); ++j) {
      if (j == 2) {
        EXPECT_TRUE(std::isnan(y[j]));  // infinity times 0
      } else {
        EXPECT_EQ(0.0f, y[j]);
      }
    }
  }
}

// A row whose RMS is below the floor is divided by the floor, any other row by its RMS; on the
// floor, both are equal.
TEST_P(SpecialRowsTest, AFloorUnderTheRms) {
  Options options = WithEps(0.5f);
  options.eps_placement = EpsPlacement::floor;
  for (const auto& [magnitude, expected_y, expected_rstd] :
       {std::array{0.25f, 0.5f, 2.0f}, std::array{0.5f, 1.0f, 2.0f}, std::array{4.0f, 1.0f, 0.25f},
        std::array{0x1p-80f, 0x1p-79f, 2.0f}, std::array{0.0f, 0.0f, 2.0f}}) {
    float rstd;
    for (const float y : Normalised(std::vector<float>(100, magnitude), options, &rstd)) {
      EXPECT_EQ(expected_y, y) << magnitude;
    }
    EXPECT_EQ(expected_rstd, rstd) << magnitude;
  }
  // A NaN is not below the floor.
  float rstd;
  const std::vector<float> x = {1, std::numeric_limits<float>::quiet_NaN()};
  for (const float y : Normalised(x, options, &rstd)) EXPECT_TRUE(std::isnan(y));
  EXPECT_TRUE(std::isnan(rstd));
}

// With a divisor of 1, the result is a vector of length 1: x divided by its length.
TEST_P(SpecialRowsTest, L2Norm) {
  Options options = WithEps(1e-12f);
  options.eps_placement = EpsPlacement::floor;
  options.divisor = 1;
  float rstd;
  const std::vector<float> y = Normalised({3, 0, -4}, options, &rstd);
  EXPECT_EQ(std::vector<float>({3 * 0.2f, 0, -4 * 0.2f}), y);
  EXPECT_EQ(0.2f, rstd);
}

// x times 1 / RMS, where 1 / RMS is rounded to the type of x: 1 / 3 in bf16 is 171 / 512.
TEST_P(SpecialRowsTest, TheInverseIsRounded) {
  Options options = WithEps(0);
  options.rounding = Rounding::inverse;
  Tensor x(RMSNORM_BF16, 1, 70);
  for (size_t j = 0; j < 70; ++j) x.set(0, j, j % 2 == 0 ? 3 : -3);
  Tensor y(RMSNORM_F32, 1, 70);
  std::vector<float> rstd(1);
  forward(NormOperands(x, nullptr, y, &rstd), options, context_);
  for (size_t j = 0; j < 70; ++j) {
    EXPECT_EQ(RoundTo(RMSNORM_BF16, 3 * 171.0 / 512) * (j % 2 == 0 ? 1 : -1), y.get(0, j));
  }
  EXPECT_EQ(1.0f / 3.0f, rstd[0]);
}

// An f32 weight may contain a NaN that plain rounding to 16 bits would turn into -0.
TEST_P(SpecialRowsTest, NanOfTheWeightStaysNan) {
  for (const uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u, 0x7FC00000u}) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      const size_t d = 100;
      Tensor x(RMSNORM_F32, 1, d);
      Tensor weight(RMSNORM_F32, 1, d);
      for (size_t j = 0; j < d; ++j) {
        x.set(0, j, 1);
        weight.set_bits(0, j, bits);
      }
      Tensor y(y_dtype, 1, d);
      ForwardOperands operands = NormOperands(x, &weight, y);
      forward(operands, WithEps(0), context_);
      for (size_t j = 0; j < d; ++j) ASSERT_TRUE(std::isnan(y.get(0, j))) << Hex(bits);
      // A bias may contain one, too.
      operands.bias = operands.weight;
      operands.weight = {};
      forward(operands, WithEps(0), context_);
      for (size_t j = 0; j < d; ++j) ASSERT_TRUE(std::isnan(y.get(0, j))) << Hex(bits);
    }
  }
}

// silu(-100) is subnormal or 0, and kernels have a shorter way for gates above that. A NaN must not
// hide such a gate in another vector.
TEST_P(SpecialRowsTest, NanOfTheGateStaysInItsElement) {
  const size_t d = 64;  // at least four vectors
  for (const rmsnorm_dtype dtype : kDtypes) {
    Tensor x(dtype, 1, d);
    Tensor gate(dtype, 1, d);
    Tensor y(dtype, 1, d);
    for (size_t j = 0; j < d; ++j) {
      x.set(0, j, 1);
      gate.set(0, j, 20);  // silu(20) rounds to 20
    }
    ForwardOperands operands = NormOperands(x, nullptr, y);
    operands.gate = ConstView(gate.view());
    for (size_t small = 0; small < d; ++small) {
      gate.set(0, small, -100);
      for (size_t nan = 0; nan < d; ++nan) {
        if (nan == small) continue;
        gate.set(0, nan, std::numeric_limits<double>::quiet_NaN());
        forward(operands, WithEps(0), context_);
        for (size_t j = 0; j < d; ++j) {
          if (j == nan) {
            ASSERT_TRUE(std::isnan(y.get(0, j)));
          } else {
            ASSERT_NEAR(j == small ? 0 : 20, y.get(0, j), 1e-6) << small << ", NaN " << nan;
          }
        }
        gate.set(0, nan, 20);
      }
      gate.set(0, small, 20);
    }
  }
}

// Results too large for the output's type become infinite, including the tie.
TEST_P(SpecialRowsTest, OverflowOfTheOutputIsInfinite) {
  for (const rmsnorm_dtype y_dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    const Format format = FormatOf(y_dtype);
    const double tie = std::ldexp(2.0 - std::ldexp(1.0, -format.precision), format.max_exponent);
    const size_t d = 40;
    Tensor x(RMSNORM_F32, 1, d);
    Tensor weight(RMSNORM_F32, 1, d);
    for (size_t j = 0; j < d; ++j) {
      x.set(0, j, j % 2 == 0 ? 1 : -1);
      weight.set(0, j, j % 4 < 2 ? tie : std::nextafter(static_cast<float>(tie), 0.0f));
    }
    Tensor y(y_dtype, 1, d);
    forward(NormOperands(x, &weight, y), WithEps(0), context_);
    for (size_t j = 0; j < d; ++j) {
      const double magnitude = j % 4 < 2 ? kInfinity : format.max();
      ASSERT_EQ(j % 2 == 0 ? magnitude : -magnitude, y.get(0, j));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SpecialRowsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// Results of doc/definition.md that can be written down by hand, on every target.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using Floats = std::vector<float>;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr EpsPlacement kPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                        EpsPlacement::floor};

Options WithEps(float eps, EpsPlacement placement = EpsPlacement::inside) {
  Options options;
  options.eps = eps;
  options.eps_placement = placement;
  return options;
}

class DefinitionTest : public testing::TestWithParam<std::string> {
 protected:
  // y of f32 rows; the inverse RMS is in rstd_. Operands may be added.
  Floats Normalised(const Floats& x, const Options& options, size_t rows = 1,
                    ForwardOperands operands = {}) {
    Floats y(x.size());
    rstd_.assign(rows, 0);
    operands.x = {x.data(), rows, x.size() / rows};
    operands.y = {y.data(), rows, x.size() / rows};
    operands.rstd = {rstd_.data(), rows};
    forward(operands, options, context_);
    return y;
  }

  double SumOf(const Floats& x, const Options& options = {}) const {
    double sum;
    ForwardOperands operands;
    operands.x = {x.data(), x.size()};
    operands.sums_out = {&sum, 1};
    forward(operands, options, context_);
    return sum;
  }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_);
  Floats rstd_;
};

TEST_P(DefinitionTest, PublishedExample) {
  const Floats ones = {1, 1};
  ForwardOperands operands;
  operands.weight = {ones.data(), 2};
  const Floats y = Normalised({1, 2}, WithEps(1e-5f), 1, operands);
  EXPECT_NEAR(0.6325f, y[0], 0.00005f);
  EXPECT_NEAR(1.2649f, y[1], 0.00005f);
}

// Rows of equal numbers are ones: at the limits of f32, on the limits between f32 and binary64
// (2^-50 and 2^64 with a divisor of d), and next to them.
TEST_P(DefinitionTest, EqualNumbersGiveOnes) {
  for (const float magnitude :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), 0x1p-50f,
        0x1.FFFFFEp-51f, 0x1.000002p-50f, 0x1p63f, 0x1.FFFFFEp63f, 0x1p64f, 0x1p61f}) {
    for (const size_t d : Sizes{1, 3, 4, 64, 300, 4097}) {
      Floats x(d, magnitude);
      for (size_t j = 1; j < d; j += 2) x[j] = -magnitude;
      const Floats y = Normalised(x, WithEps(0));
      for (size_t j = 0; j < d; ++j) ASSERT_NEAR(y[j], j % 2 == 0 ? 1 : -1, 1e-6) << magnitude;
    }
  }
  Normalised({std::numeric_limits<float>::denorm_min()}, WithEps(0));
  EXPECT_EQ(kInfinity, rstd_[0]);  // 2^149 exceeds f32
}

TEST_P(DefinitionTest, ZerosKeepTheirSignWithEps) {
  for (const float y : Normalised(Floats(100, -0.0f), WithEps(0.25f))) {
    EXPECT_EQ(0.0f, y);
    EXPECT_TRUE(std::signbit(y));
  }
  EXPECT_EQ(2.0f, rstd_[0]);
  EXPECT_FALSE(std::signbit(SumOf(Floats(70, -0.0f))));
}

TEST_P(DefinitionTest, ZerosGiveNanWithoutEps) {
  for (const EpsPlacement placement : kPlacements) {
    for (const float y : Normalised(Floats(100), WithEps(0, placement))) {
      EXPECT_TRUE(std::isnan(y));
    }
    EXPECT_EQ(kInfinity, rstd_[0]);
  }
}

TEST_P(DefinitionTest, NanSpreadsOverItsRowOnly) {
  const size_t d = 70;
  for (size_t at = 0; at < d; ++at) {
    Floats x(3 * d, 2.0f);
    x[d + at] = kNan;
    const Floats y = Normalised(x, WithEps(0), 3);
    for (size_t j = 0; j < 3 * d; ++j) {
      ASSERT_TRUE(j / d == 1 ? std::isnan(y[j]) : y[j] == 1) << at << " " << j;
    }
  }
}

TEST_P(DefinitionTest, InfinityGivesZerosAndNan) {
  for (const float infinity : {kInfinity, -kInfinity}) {
    Floats x(70, 3.0f);
    x[2] = infinity;
    const Floats y = Normalised(x, WithEps(1e-5f));
    EXPECT_EQ(0.0f, rstd_[0]);
    for (size_t j = 0; j < x.size(); ++j) ASSERT_TRUE(j == 2 ? std::isnan(y[j]) : y[j] == 0);
  }
}

// A row is multiplied by 1 / max(RMS, eps), also one that would be cold without a floor. The sums
// of these squares are exact, or far below the floor.
TEST_P(DefinitionTest, FloorIsTheLargerOfRmsAndEps) {
  const float eps = 0.125f;
  for (const float magnitude : {0.0f, -0.0f, 0x1p-80f, 0x1.FFFFFEp-4f, eps, 0x1.000002p-3f, 2.0f}) {
    for (const size_t d : Sizes{1, 4, 128, 300}) {
      const Floats y = Normalised(Floats(d, magnitude), WithEps(eps, EpsPlacement::floor));
      EXPECT_NEAR(1 / std::max(std::fabs(magnitude), eps), rstd_[0], 0x1p-20f);
      if (magnitude <= eps) {
        EXPECT_EQ(8.0f, rstd_[0]);
      }
      for (const float result : y) ASSERT_EQ(magnitude * rstd_[0], result);
    }
  }
  Normalised({1, kNan}, WithEps(eps, EpsPlacement::floor));
  EXPECT_TRUE(std::isnan(rstd_[0]));
}

TEST_P(DefinitionTest, L2NormDividesByTheLength) {
  Options options = WithEps(1e-12f, EpsPlacement::floor);
  options.divisor = 1;
  EXPECT_EQ(Floats({3 * 0.2f, 0, -4 * 0.2f}), Normalised({3, 0, -4}, options));
  EXPECT_EQ(0.2f, rstd_[0]);
}

// 1 / 3 in bf16 is 171 / 512.
TEST_P(DefinitionTest, InverseIsRoundedToTheTypeOfX) {
  const std::vector<bf16> x(70, bf16{0x4040});  // 3
  Floats y(70);
  float rstd;
  Options options = WithEps(0);
  options.rounding = Rounding::inverse;
  ForwardOperands operands;
  operands.x = {x.data(), 70};
  operands.y = {y.data(), 70};
  operands.rstd = {&rstd, 1};
  forward(operands, options, context_);
  for (const float result : y) EXPECT_EQ(RoundTo(RMSNORM_BF16, 3 * 171.0 / 512), double{result});
  EXPECT_EQ(1.0f / 3.0f, rstd);
}

// silu(-100) is subnormal or 0, and kernels have a shorter way for gates above that. A NaN must not
// hide such a gate in another vector.
TEST_P(DefinitionTest, NanOfTheGateStaysInItsElement) {
  const size_t d = 64;  // at least four vectors
  for (size_t small = 0; small < d; ++small) {
    for (size_t nan = 0; nan < d; ++nan) {
      if (nan == small) continue;
      Floats gate(d, 20);  // silu(20) rounds to 20
      gate[small] = -100;
      gate[nan] = kNan;
      ForwardOperands operands;
      operands.gate = {gate.data(), 1, d};
      const Floats y = Normalised(Floats(d, 1), WithEps(0), 1, operands);
      for (size_t j = 0; j < d; ++j) {
        ASSERT_TRUE(j == nan ? std::isnan(y[j]) : std::fabs(y[j] - (j == small ? 0 : 20)) < 1e-6f)
            << small << ", NaN " << nan << ", " << j;
      }
    }
  }
}

TEST_P(DefinitionTest, NoWeightIsAWeightOfOnes) {
  constexpr size_t kD = 300;
  Random random(11);
  const Floats ones(kD, 1);
  const Rows bias = Draw(random, Values::kSpecial, RMSNORM_BF16, 1, kD);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype y_dtype : kDtypes) {
      for (const Rounding rounding :
           {Rounding::after_weight, Rounding::before_weight, Rounding::inverse}) {
        for (const bool has_bias : {false, true}) {
          const Rows x = Draw(random, Values::kMixed, x_dtype, 13, kD);
          Rows y[] = {Rows(y_dtype, 13, kD), Rows(y_dtype, 13, kD)};
          Options options;
          options.rounding = rounding;
          for (const bool has_weight : {false, true}) {
            ForwardOperands operands;
            operands.x = ConstView(ViewOf(x));
            if (has_weight) operands.weight = {ones.data(), kD};
            if (has_bias) operands.bias = ConstView(VectorOf(bias));
            operands.y = View(ViewOf(y[has_weight]));
            forward(operands, options, context_);
          }
          ASSERT_TRUE(SameBits(y[1], y[0]));
        }
      }
    }
  }
}

// --------------------------------------------------------------------------------- sums of squares

// The widened f32 sum of a row: 1 + 2^-24 + ... is 1 in f32.
TEST_P(DefinitionTest, SumIsTheF32SumWidened) {
  Floats x(129);
  x[0] = 1;
  x[128] = 0x1.8p-13f;  // in the lane of x[0]; the square, 1.125 * 2^-25, is less than half an ulp
  EXPECT_EQ(1.0, SumOf(x));
}

TEST_P(DefinitionTest, SumIsInBinary64BelowTheSafeRange) {
  // 2^-100 D is the limit; the two sums differ since f32 loses the square of the second element.
  for (const float divisor : {1.0f, 4.0f}) {
    for (const bool is_below : {false, true}) {
      Floats x(129);
      x[0] = std::sqrt(divisor) * (is_below ? 0x1.FFFFFEp-51f : 0x1p-50f);
      x[128] = x[0] * 0x1.8p-13f;
      Options options;
      options.divisor = divisor;
      const double first = double{x[0]} * double{x[0]};
      const double exact = first + double{x[128]} * double{x[128]};
      EXPECT_DOUBLE_EQ(is_below ? exact : first, SumOf(x, options));
      EXPECT_NE(first, exact);
    }
  }
}

// The first part of a row gives the sum for the whole row.
TEST_P(DefinitionTest, PartialNorm) {
  Options options = WithEps(0);
  options.divisor = 4;
  const double sum = SumOf({3, 3, 3, 3}, options);
  EXPECT_EQ(36.0, sum);
  ForwardOperands operands;
  operands.sums = {&sum, 1};
  const Floats y = Normalised({3, 3, 3, 3, 100, 200}, options, 1, operands);
  EXPECT_EQ(1.0f / 3.0f, rstd_[0]);
  EXPECT_EQ(3.0f * (1.0f / 3.0f), y[0]);
  EXPECT_EQ(200.0f * (1.0f / 3.0f), y[5]);
}

// --------------------------------------------------------------------------------- quantised
// outputs

// A row of ones times a weight, quantised.
struct Quantised {
  std::vector<int8_t> q;
  float scale;
  int8_t zero;
};

TEST_P(DefinitionTest, QuantisedAtTheLimits) {
  const float smallest = 0x1p-100f;
  const float largest = std::numeric_limits<float>::max();
  const auto quantise = [&](const Floats& v, bool has_zero) {
    Quantised result = {std::vector<int8_t>(v.size(), 99), 99, 99};
    ForwardOperands operands;
    operands.weight = {v.data(), v.size()};
    operands.q = {result.q.data(), 1, v.size()};
    operands.scale = {&result.scale, 1};
    if (has_zero) operands.zero = {&result.zero, 1};
    Normalised(Floats(v.size(), 1), WithEps(0), 1, operands);
    return result;
  };
  struct Known {
    Floats v;
    std::vector<int8_t> symmetric;
    float symmetric_scale;
    std::vector<int8_t> asymmetric;
    float asymmetric_scale;
    int8_t zero;
  };
  for (const Known& known : {
           Known{{1, -1}, {127, -127}, 1.0f / 127, {127, -128}, 2.0f / 255, 0},
           Known{{0, smallest}, {0, 127}, smallest / 127, {-128, 127}, smallest / 255, -128},
           Known{{0, -smallest}, {0, -127}, smallest / 127, {127, -128}, smallest / 255, 127},
           Known{{0, 0x1.FFFFFEp-101f}, {0, 0}, 0, {0, 0}, 0, 0},
           Known{{0, 0}, {0, 0}, 0, {0, 0}, 0, 0},
           Known{{0, largest}, {0, 127}, largest / 127, {-128, 127}, largest / 255, -128},
           Known{{largest, -largest}, {127, -127}, largest / 127, {0, 0}, kNan, 0},
           Known{{1, kInfinity}, {0, 0}, kNan, {0, 0}, kNan, 0},
           Known{{1, kNan}, {0, 0}, kNan, {0, 0}, kNan, 0},
           Known{{-1, 127}, {-1, 127}, 1, {-128, 127}, 128.0f / 255, -126},
           Known{{2, 1}, {127, 64}, 2.0f / 127, {127, 0}, 2.0f / 255, -128},  // 63.5 to even
       }) {
    for (const bool has_zero : {false, true}) {
      SCOPED_TRACE(testing::PrintToString(known.v) + (has_zero ? " asymmetric" : " symmetric"));
      const Quantised actual = quantise(known.v, has_zero);
      EXPECT_EQ(has_zero ? known.asymmetric : known.symmetric, actual.q);
      const float scale = has_zero ? known.asymmetric_scale : known.symmetric_scale;
      EXPECT_TRUE(scale == actual.scale || (std::isnan(scale) && std::isnan(actual.scale)))
          << actual.scale;
      EXPECT_EQ(has_zero ? known.zero : 99, actual.zero);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, DefinitionTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

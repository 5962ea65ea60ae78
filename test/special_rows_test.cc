// SPDX-License-Identifier: Apache-2.0
// Rows at the limits of their type, on every target.
#include <gtest/gtest.h>

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

class SpecialRowsTest : public testing::TestWithParam<std::string> {
 protected:
  Options WithEps(float eps) const {
    Options options;
    options.eps = eps;
    options.target = target_.c_str();
    return options;
  }

  // y of one row of f32 without a weight, and its rstd.
  static std::vector<float> Normalised(const std::vector<float>& x, const Options& options,
                                       float* rstd = nullptr) {
    std::vector<float> y(x.size());
    forward({x.data(), x.size()}, nullptr, {y.data(), y.size()}, options, rstd);
    return y;
  }

 private:
  const std::string target_ = GetParam();
};

TEST_P(SpecialRowsTest, PublishedExample) {
  const float x[] = {1, 2};
  const float ones[] = {1, 1};
  float y[2];
  forward({x, 2}, {ones, 2}, {y, 2}, WithEps(1e-5f));
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
        for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
          for (const rmsnorm_dtype y_dtype : kDtypes) {
            SCOPED_TRACE(testing::Message()
                         << rmsnorm_dtype_name(x_dtype) << " to " << rmsnorm_dtype_name(y_dtype)
                         << " d " << d << " eps " << eps << " placement " << placement);
            Options options = WithEps(eps);
            options.eps_placement = placement;
            Tensor y(y_dtype, x.rows(), d);
            std::vector<float> rstd(x.rows());
            forward(ConstView(x.view()), ConstView(weight.vector()), View(y.view()), options,
                    rstd.data());
            for (size_t row = 0; row < x.rows(); ++row) {
              ASSERT_TRUE(RowIsWithinBound(x, &weight, y, rstd.data(), row, options));
            }
          }
        }
      }
    }
  }
}

// The limits between f32 and binary64 arithmetic, from both sides and exactly on them.
TEST_P(SpecialRowsTest, AroundTheSafeRange) {
  for (const size_t d : SizeList{1, 4, 100, 200}) {
    for (const float magnitude :
         {0x1p-50f, 0x1.FFFFFEp-51f, 0x1.000002p-50f, 0x1p63f, 0x1.FFFFFEp63f, 0x1p64f, 0x1p61f}) {
      for (const rmsnorm_dtype x_dtype : {RMSNORM_F32, RMSNORM_BF16}) {
        Tensor x(x_dtype, 1, d);
        for (size_t j = 0; j < d; ++j) x.set(0, j, j % 2 == 0 ? magnitude : -magnitude);
        Tensor y(RMSNORM_F32, 1, d);
        float rstd;
        forward(ConstView(x.view()), nullptr, View(y.view()), WithEps(0), &rstd);
        ASSERT_TRUE(RowIsWithinBound(x, nullptr, y, &rstd, 0, WithEps(0))) << d << " " << magnitude;
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
    // 2^149 is more than an f32 can say.
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
  for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
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
    forward({x.data(), 3, d}, nullptr, {y.data(), 3, d}, WithEps(0));
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

// A weight of f32 can bring a NaN that the usual rounding to 16 bits would turn into -0.
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
      forward(ConstView(x.view()), ConstView(weight.vector()), View(y.view()), WithEps(0));
      for (size_t j = 0; j < d; ++j) ASSERT_TRUE(std::isnan(y.get(0, j))) << Hex(bits);
    }
  }
}

// Results too large for the output's type become infinite, from the tie on.
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
    forward(ConstView(x.view()), ConstView(weight.vector()), View(y.view()), WithEps(0));
    for (size_t j = 0; j < d; ++j) {
      const double magnitude = j % 4 < 2 ? kInfinity : format.max();
      ASSERT_EQ(j % 2 == 0 ? magnitude : -magnitude, y.get(0, j));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, SpecialRowsTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

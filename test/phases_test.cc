// SPDX-License-Identifier: Apache-2.0
// The two phases on their own. That they give forward's bits on every target for every type and
// length is also part of bits_test.cc, where both are compared with the reference's forward.
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

class PhasesTest : public testing::TestWithParam<std::string> {
 protected:
  Options Defaults() const {
    Options options;
    options.target = target_.c_str();
    return options;
  }

 private:
  const std::string target_ = GetParam();
};

TEST_P(PhasesTest, SumAndScaleGiveTheBitsOfForward) {
  std::vector<Options> variants(6, Defaults());
  variants[1].eps = 0;
  variants[2].eps = 1e-38f;
  variants[2].divisor = 0.5f;
  variants[3].eps = 0;
  variants[3].divisor = 1e36f;
  variants[4].eps_placement = RMSNORM_EPS_OUTSIDE;
  variants[5].eps_placement = RMSNORM_EPS_OUTSIDE;
  variants[5].divisor = 1e6f;
  Random random(31);
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const size_t d : SizeList{1, 3, 64, 100, 128, 1000, 4100}) {
      Tensor x(x_dtype, 2 * kRowKinds, d);
      FillMixed(random, x);
      Tensor weight(RMSNORM_F32, 1, d);
      FillWeight(random, weight);
      for (const rmsnorm_dtype y_dtype : kDtypes) {
        for (size_t i = 0; i < variants.size(); ++i) {
          Tensor whole(y_dtype, x.rows(), d);
          std::vector<float> whole_rstd(x.rows());
          forward(ConstView(x.view()), ConstView(weight.vector()), View(whole.view()), variants[i],
                  whole_rstd.data());

          Tensor phases(y_dtype, x.rows(), d);
          std::vector<float> phases_rstd(x.rows());
          std::vector<double> sums(x.rows());
          sum_squares(ConstView(x.view()), sums.data(), variants[i]);
          scale(ConstView(x.view()), sums.data(), ConstView(weight.vector()), View(phases.view()),
                variants[i], phases_rstd.data());
          ASSERT_TRUE(SameBits(whole, phases)) << "d " << d << " variant " << i;
          ASSERT_TRUE(SameBits(RMSNORM_F32, whole_rstd.data(), phases_rstd.data(), x.rows()));
        }
      }
    }
  }
}

// The f32 sum of a row, widened, where it is safe: 1 + 2^-24 + ... is 1 in f32.
TEST_P(PhasesTest, SumIsTheF32SumWidened) {
  std::vector<float> x(129);
  x[0] = 1;
  x[128] = 0x1.8p-13f;  // in the lane of x[0]; the square, 1.125 * 2^-25, is less than half an ulp
  double sum;
  sum_squares({x.data(), x.size()}, &sum, Defaults());
  EXPECT_EQ(1.0, sum);
}

TEST_P(PhasesTest, SumIsInBinary64WhereF32Overflows) {
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> x(100, largest);
  double sum;
  sum_squares({x.data(), x.size()}, &sum, Defaults());
  EXPECT_DOUBLE_EQ(100 * static_cast<double>(largest) * largest, sum);
}

TEST_P(PhasesTest, SumIsInBinary64BelowTheSafeRange) {
  // 2^-100 D is the limit; the two sums differ since f32 loses the second element's square.
  for (const float divisor : {1.0f, 4.0f}) {
    for (const bool below : {false, true}) {
      std::vector<float> x(129);
      x[0] = std::sqrt(divisor) * (below ? 0x1.FFFFFEp-51f : 0x1p-50f);
      x[128] = x[0] * 0x1.8p-13f;
      Options options = Defaults();
      options.divisor = divisor;
      double sum;
      sum_squares({x.data(), x.size()}, &sum, options);
      const double exact = static_cast<double>(x[0]) * x[0] + static_cast<double>(x[128]) * x[128];
      if (below) {
        EXPECT_DOUBLE_EQ(exact, sum);
      } else {
        EXPECT_EQ(static_cast<double>(x[0]) * x[0], sum);
        EXPECT_NE(exact, sum);
      }
    }
  }
}

TEST_P(PhasesTest, SumOfZerosIsZero) {
  const std::vector<float> x(70, -0.0f);
  double sum = 1;
  sum_squares({x.data(), x.size()}, &sum, Defaults());
  EXPECT_EQ(0.0, sum);
  EXPECT_FALSE(std::signbit(sum));
}

// A row in parts, each on a device of its own: the sums add up, and each part is scaled by the
// whole.
TEST_P(PhasesTest, ShardedRowIsWithinTheBound) {
  Random random(33);
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : SizeList{6, 300, 4092, 12000}) {
      Tensor x(dtype, 3, d);
      FillMixed(random, x);
      FillRow(random, RowKind::kMassive, x, 0);
      FillRow(random, RowKind::kHuge, x, 2);
      Tensor weight(RMSNORM_F32, 1, d);
      FillNormal(random, weight);
      for (const size_t shards : SizeList{2, 3, 6}) {
        const size_t length = d / shards;
        Options options = Defaults();
        options.divisor = static_cast<float>(d);
        const size_t shape[] = {x.rows(), length};
        const ptrdiff_t stride[] = {static_cast<ptrdiff_t>(d), 1};
        const size_t size = rmsnorm_dtype_size(dtype);

        std::vector<double> total(x.rows());
        for (size_t shard = 0; shard < shards; ++shard) {
          const void* const data = static_cast<char*>(x.data()) + shard * length * size;
          const rmsnorm_view part = rmsnorm_tensor(data, dtype, 2, shape, stride);
          std::vector<double> sums(x.rows());
          sum_squares(ConstView(part), sums.data(), options);
          for (size_t row = 0; row < x.rows(); ++row) total[row] += sums[row];
        }
        Tensor y(dtype, x.rows(), d);
        std::vector<float> rstd(x.rows());
        for (size_t shard = 0; shard < shards; ++shard) {
          const size_t offset = shard * length * size;
          const rmsnorm_view part =
              rmsnorm_tensor(static_cast<char*>(x.data()) + offset, dtype, 2, shape, stride);
          const rmsnorm_view y_part =
              rmsnorm_tensor(static_cast<char*>(y.data()) + offset, dtype, 2, shape, stride);
          const rmsnorm_view w_part =
              rmsnorm_tensor(static_cast<float*>(weight.data()) + shard * length, RMSNORM_F32, 1,
                             &length, nullptr);
          scale(ConstView(part), total.data(), ConstView(w_part), View(y_part), options,
                rstd.data());
        }
        for (size_t row = 0; row < x.rows(); ++row) {
          ASSERT_TRUE(RowIsWithinBound(x, &weight, y, rstd.data(), row, options))
              << "d " << d << " in " << shards;
        }
      }
    }
  }
}

// A partial norm: the first part of the row gives the sum for all of it.
TEST_P(PhasesTest, PartialSum) {
  const std::vector<float> x = {3, 3, 3, 3, 100, 200};
  std::vector<float> y(x.size());
  Options options = Defaults();
  options.eps = 0;
  options.divisor = 4;
  double sum;
  sum_squares({x.data(), 4}, &sum, options);
  float rstd;
  scale({x.data(), x.size()}, &sum, nullptr, {y.data(), y.size()}, options, &rstd);
  EXPECT_EQ(36.0, sum);
  EXPECT_EQ(1.0f / 3.0f, rstd);
  EXPECT_EQ(3.0f * (1.0f / 3.0f), y[0]);
  EXPECT_EQ(200.0f * (1.0f / 3.0f), y[5]);
}

// Sums are given in binary64; one that f32 cannot hold takes the cold path.
TEST_P(PhasesTest, ScaleTakesSumsThatF32CannotHold) {
  const std::vector<float> x = {1e30f, -2e30f};
  std::vector<float> y(2);
  Options options = Defaults();
  options.eps = 0;
  for (const double sum : {2e80, 2e-80}) {
    float rstd;
    scale({x.data(), 2}, &sum, nullptr, {y.data(), 2}, options, &rstd);
    const double r = 1 / std::sqrt(sum / 2);
    EXPECT_EQ(static_cast<float>(r), rstd);
    EXPECT_EQ(static_cast<float>(x[0] * r), y[0]);
    EXPECT_EQ(static_cast<float>(x[1] * r), y[1]);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, PhasesTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

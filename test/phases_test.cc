// SPDX-License-Identifier: Apache-2.0
// The two phases separately. `rmsnorm check` tests that they give the bits of one call.
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
  // The sums of squares of the `rows` rows of x.
  std::vector<double> SumsOf(const ConstView& x, size_t rows, const Options& options) const {
    std::vector<double> sums(rows);
    ForwardOperands operands;
    operands.x = x;
    operands.sums_out = {sums.data(), rows};
    forward(operands, options, context_);
    return sums;
  }
  double SumOf(const std::vector<float>& x, const Options& options = {}) const {
    return SumsOf({x.data(), x.size()}, 1, options)[0];
  }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_);
};

// The widened f32 sum of a row, if it is in the safe range: 1 + 2^-24 + ... is 1 in f32.
TEST_P(PhasesTest, SumIsTheF32SumWidened) {
  std::vector<float> x(129);
  x[0] = 1;
  x[128] = 0x1.8p-13f;  // in the lane of x[0]; the square, 1.125 * 2^-25, is less than half an ulp
  EXPECT_EQ(1.0, SumOf(x));
}

TEST_P(PhasesTest, SumIsInBinary64WhereF32Overflows) {
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> x(100, largest);
  EXPECT_DOUBLE_EQ(100 * static_cast<double>(largest) * largest, SumOf(x));
}

TEST_P(PhasesTest, SumIsInBinary64BelowTheSafeRange) {
  // 2^-100 D is the limit; the two sums differ since f32 loses the square of the second element.
  for (const float divisor : {1.0f, 4.0f}) {
    for (const bool below : {false, true}) {
      std::vector<float> x(129);
      x[0] = std::sqrt(divisor) * (below ? 0x1.FFFFFEp-51f : 0x1p-50f);
      x[128] = x[0] * 0x1.8p-13f;
      Options options;
      options.divisor = divisor;
      const double sum = SumOf(x, options);
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
  const double sum = SumOf(x);
  EXPECT_EQ(0.0, sum);
  EXPECT_FALSE(std::signbit(sum));
}

// The parts of a row are on different devices: the sums add up, and the whole sum scales each part.
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
        Options options;
        options.divisor = static_cast<float>(d);
        const size_t shape[] = {x.rows(), length};
        const ptrdiff_t stride[] = {static_cast<ptrdiff_t>(d), 1};
        // The columns of a tensor that belong to a shard.
        const auto part = [&](const Tensor& tensor, size_t shard) {
          const size_t offset = shard * length * rmsnorm_dtype_size(dtype);
          return View(rmsnorm_tensor(static_cast<const char*>(tensor.data()) + offset, dtype, 2,
                                     shape, stride));
        };

        std::vector<double> total(x.rows());
        for (size_t shard = 0; shard < shards; ++shard) {
          const std::vector<double> sums = SumsOf(part(x, shard), x.rows(), options);
          for (size_t row = 0; row < x.rows(); ++row) total[row] += sums[row];
        }
        Tensor y(dtype, x.rows(), d);
        std::vector<float> rstd(x.rows());
        for (size_t shard = 0; shard < shards; ++shard) {
          ForwardOperands operands;
          operands.x = part(x, shard);
          operands.sums = {total.data(), x.rows()};
          operands.weight = {static_cast<const float*>(weight.data()) + shard * length, length};
          operands.y = part(y, shard);
          operands.rstd = {rstd.data(), x.rows()};
          forward(operands, options, context_);
        }
        for (size_t row = 0; row < x.rows(); ++row) {
          ASSERT_TRUE(RowIsWithinBound(x, &weight, y, rstd.data(), row, options))
              << "d " << d << " in " << shards;
        }
      }
    }
  }
}

// A partial norm: the first part of the row gives the sum for the whole row.
TEST_P(PhasesTest, PartialSum) {
  const std::vector<float> x = {3, 3, 3, 3, 100, 200};
  std::vector<float> y(x.size());
  Options options;
  options.eps = 0;
  options.divisor = 4;
  const double sum = SumsOf({x.data(), 4}, 1, options)[0];
  float rstd;
  ForwardOperands operands;
  operands.x = {x.data(), x.size()};
  operands.sums = {&sum, 1};
  operands.y = {y.data(), y.size()};
  operands.rstd = {&rstd, 1};
  forward(operands, options, context_);
  EXPECT_EQ(36.0, sum);
  EXPECT_EQ(1.0f / 3.0f, rstd);
  EXPECT_EQ(3.0f * (1.0f / 3.0f), y[0]);
  EXPECT_EQ(200.0f * (1.0f / 3.0f), y[5]);
}

// Given sums are in binary64; a sum that does not fit f32 takes the cold path.
TEST_P(PhasesTest, ScaleTakesSumsThatF32CannotHold) {
  const std::vector<float> x = {1e30f, -2e30f};
  std::vector<float> y(2);
  Options options;
  options.eps = 0;
  for (const double sum : {2e80, 2e-80}) {
    float rstd;
    ForwardOperands operands;
    operands.x = {x.data(), 2};
    operands.sums = {&sum, 1};
    operands.y = {y.data(), 2};
    operands.rstd = {&rstd, 1};
    forward(operands, options, context_);
    const double r = 1 / std::sqrt(sum / 2);
    EXPECT_EQ(static_cast<float>(r), rstd);
    EXPECT_EQ(static_cast<float>(x[0] * r), y[0]);
    EXPECT_EQ(static_cast<float>(x[1] * r), y[1]);
  }
}

// With a residual, the sums belong to the input of the norm h.
TEST_P(PhasesTest, SumsOfTheResidualAdd) {
  Random random(37);
  for (const ResidualRounding rounding : {ResidualRounding::rounded, ResidualRounding::unrounded}) {
    Tensor x(RMSNORM_BF16, 2 * kRowKinds, 1000);
    FillMixed(random, x);
    Tensor residual(RMSNORM_BF16, x.rows(), 1000);
    FillNormal(random, residual);
    Options options;
    options.residual_rounding = rounding;
    // h, the input of the norm, in its type.
    const bool rounded = rounding == ResidualRounding::rounded;
    Tensor h(rounded ? RMSNORM_BF16 : RMSNORM_F32, x.rows(), 1000);
    for (size_t row = 0; row < x.rows(); ++row) {
      for (size_t j = 0; j < 1000; ++j) {
        h.set(row, j, RoundTo(RMSNORM_F32, residual.get(row, j) + x.get(row, j)));
      }
    }
    std::vector<double> sums(x.rows());
    ForwardOperands operands;
    operands.x = ConstView(x.view());
    operands.residual = ConstView(residual.view());
    operands.sums_out = {sums.data(), x.rows()};
    forward(operands, options, context_);
    EXPECT_TRUE(SameBits(SumsOf(ConstView(h.view()), x.rows(), options), sums));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, PhasesTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

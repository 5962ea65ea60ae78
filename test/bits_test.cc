// SPDX-License-Identifier: Apache-2.0
// Every SIMD target gives the reference's bits: for each type, length, placement and option.
#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

// Where rows lie: elements from a cache line's start to the first, and from the end of one to the
// next.
struct Placement {
  size_t x_offset;
  size_t x_padding;
  size_t y_offset;
  size_t y_padding;
};
constexpr Placement kDense = {0, 0, 0, 0};

// All that a target computes from the same rows.
struct Results {
  Tensor y;
  std::vector<float> rstd;
  std::vector<double> sums;
  Tensor scaled_y;
  std::vector<float> scaled_rstd;
};

constexpr rmsnorm_dtype kNoWeight = 0;

// The types of x, weight and y.
using Types = std::tuple<rmsnorm_dtype, rmsnorm_dtype, rmsnorm_dtype>;

std::string Name(const testing::TestParamInfo<Types>& info) {
  const auto [x, weight, y] = info.param;
  return std::string(rmsnorm_dtype_name(x)) + "_" +
         (weight == kNoWeight ? "none" : rmsnorm_dtype_name(weight)) + "_" + rmsnorm_dtype_name(y);
}

class BitsTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    if (targets_.empty()) GTEST_SKIP() << "this CPU runs no target but the reference";
  }

  bool CanBeInPlace() const { return rmsnorm_dtype_size(x_dtype_) == rmsnorm_dtype_size(y_dtype_); }

  // Computes the same rows on every target, from x to y or in place at x, and compares all bytes.
  void Compare(size_t rows, size_t d, const Placement& placement, bool in_place,
               const Options& options) {
    Tensor x(x_dtype_, rows, d, placement.x_offset, placement.x_padding);
    FillMixed(random_, x);
    // The weight is off a vector's alignment by as much as the row is long, so by any amount.
    Tensor weight(weight_dtype_ == kNoWeight ? RMSNORM_F32 : weight_dtype_, 1, d, d % 32);
    FillWeight(random_, weight);
    Tensor y = in_place ? x : Tensor(y_dtype_, rows, d, placement.y_offset, placement.y_padding);
    y.Reinterpret(y_dtype_);

    const Results expected = Compute(kReference, x, weight, y, in_place, options);
    for (const std::string& target : targets_) {
      SCOPED_TRACE(testing::Message()
                   << target << ", " << rows << " x " << d << ", x at " << placement.x_offset
                   << " padded by " << placement.x_padding << ", y at " << placement.y_offset
                   << " padded by " << placement.y_padding << (in_place ? ", in place" : "")
                   << (options.rounding == RMSNORM_CAST_THEN_SCALE ? ", cast then scale" : ""));
      const Results actual = Compute(target.c_str(), x, weight, y, in_place, options);
      ASSERT_TRUE(SameBits(expected.y, actual.y));
      ASSERT_TRUE(SameBits(RMSNORM_F32, expected.rstd.data(), actual.rstd.data(), rows)) << "rstd";
      for (size_t row = 0; row < rows; ++row) {
        if (std::isnan(expected.sums[row]) && std::isnan(actual.sums[row])) continue;
        ASSERT_EQ(expected.sums[row], actual.sums[row]) << "sum of row " << row;
      }
      ASSERT_TRUE(SameBits(expected.scaled_y, actual.scaled_y)) << "scale";
      ASSERT_TRUE(
          SameBits(RMSNORM_F32, expected.scaled_rstd.data(), actual.scaled_rstd.data(), rows))
          << "rstd of scale";
    }
  }

  const rmsnorm_dtype x_dtype_ = std::get<0>(GetParam());
  const rmsnorm_dtype weight_dtype_ = std::get<1>(GetParam());
  const rmsnorm_dtype y_dtype_ = std::get<2>(GetParam());

 private:
  Results Compute(const char* target, const Tensor& x, const Tensor& weight, const Tensor& y,
                  bool in_place, Options options) const {
    options.threads = 1;
    options.target = target;
    const size_t rows = x.rows();
    Results results = {y, std::vector<float>(rows), std::vector<double>(rows), y,
                       std::vector<float>(rows)};
    const rmsnorm_view w = weight.vector();
    const rmsnorm_view* const weight_view = weight_dtype_ == kNoWeight ? nullptr : &w;
    const rmsnorm_view x_view = x.view();
    rmsnorm_view y_view = results.y.view();
    rmsnorm_view input = x_view;
    if (in_place) input.data = y_view.data;
    EXPECT_EQ(RMSNORM_OK,
              rmsnorm_forward(&input, weight_view, &y_view, results.rstd.data(), &options))
        << rmsnorm_error_message();
    EXPECT_EQ(RMSNORM_OK, rmsnorm_sum_squares(&x_view, results.sums.data(), &options))
        << rmsnorm_error_message();
    y_view = results.scaled_y.view();
    if (in_place) input.data = y_view.data;
    EXPECT_EQ(RMSNORM_OK, rmsnorm_scale(&input, results.sums.data(), weight_view, &y_view,
                                        results.scaled_rstd.data(), &options))
        << rmsnorm_error_message();
    return results;
  }

  const std::vector<std::string> targets_ = SimdTargets();
  Random random_{7};
};

// Lengths around every vector, group of lanes and block. Nine rows are a group of eight and one
// more; no kernel has reason to take more than four long rows at once. The rounding order and where
// the rows lie do not act on each other, so they change together, and change over with each length.
TEST_P(BitsTest, Lengths) {
  std::vector<size_t> sizes = {4095, 4096, 4097, 8193, 16385};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  Options one;
  Options other;
  other.rounding = RMSNORM_CAST_THEN_SCALE;
  for (const size_t d : sizes) {
    std::swap(one, other);
    const size_t rows = d <= 300 ? 9 : 5;
    ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, false, one));
    ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {1, 5, 3, 2}, false, other));
    if (CanBeInPlace()) {
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, true, other));
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {7, 3, 7, 3}, true, one));
    }
  }
}

// What is done with the type of the weight does not depend on where the rows lie, how many there
// are, nor on how 1 / RMS is made. These take one type of weight.
class BitsOfXAndYTest : public BitsTest {};

// x and y at every element of a cache line.
TEST_P(BitsOfXAndYTest, Alignments) {
  const size_t x_elements = 64 / rmsnorm_dtype_size(x_dtype_);
  const size_t y_elements = 64 / rmsnorm_dtype_size(y_dtype_);
  for (const size_t d : SizeList{1, 33, 128, 200}) {
    for (size_t x_offset = 0; x_offset < x_elements; ++x_offset) {
      for (size_t y_offset = 0; y_offset < y_elements; ++y_offset) {
        ASSERT_NO_FATAL_FAILURE(Compare(2, d, {x_offset, 0, y_offset, 1}, false, {}));
      }
      if (CanBeInPlace()) {
        ASSERT_NO_FATAL_FAILURE(Compare(2, d, {x_offset, 1, x_offset, 1}, true, {}));
      }
    }
  }
}

// Numbers of rows around every group a kernel may form, with the lengths for which it may.
TEST_P(BitsOfXAndYTest, RowCounts) {
  for (size_t rows = 1; rows <= 20; ++rows) {
    for (const size_t d : SizeList{1, 7, 16, 32, 63, 64, 65, 96, 127, 128, 129, 192, 256, 512}) {
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, false, {}));
      if (CanBeInPlace()) {
        ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, true, {}));
      }
    }
  }
  for (size_t rows = 1; rows <= 9; ++rows) {
    for (const size_t d : SizeList{4096, 8192}) {
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, false, {}));
    }
  }
}

TEST_P(BitsOfXAndYTest, EpsAndDivisor) {
  for (const size_t d : SizeList{1, 2, 64, 100, 128, 300, 4097}) {
    for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
      for (const float eps : {0.0f, 1e-6f, 1.0f}) {
        for (const float divisor : {0.0f, 100.5f, 1e-3f, 1e30f}) {
          Options options;
          options.eps = eps;
          options.eps_placement = placement;
          options.divisor = divisor;
          SCOPED_TRACE(testing::Message()
                       << "eps " << eps << " placement " << placement << " divisor " << divisor);
          ASSERT_NO_FATAL_FAILURE(Compare(9, d, kDense, false, options));
        }
      }
    }
  }
}

// An offset without a weight is refused: arguments_test.cc.
class BitsWithWeightTest : public BitsTest {};

TEST_P(BitsWithWeightTest, WeightOffset) {
  for (const size_t d : SizeList{1, 2, 3, 31, 64, 100, 128, 300, 4097, 8193}) {
    for (const float offset : {1.0f, -0.3f, 1e-40f}) {
      for (const rmsnorm_rounding rounding : {RMSNORM_SCALE_THEN_CAST, RMSNORM_CAST_THEN_SCALE}) {
        Options options;
        options.weight_offset = offset;
        options.rounding = rounding;
        SCOPED_TRACE(testing::Message() << "offset " << offset);
        ASSERT_NO_FATAL_FAILURE(Compare(5, d, {0, 1, 1, 0}, false, options));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, BitsTest,
                         testing::Combine(testing::ValuesIn(kDtypes),
                                          testing::Values(kNoWeight, RMSNORM_F32, RMSNORM_F16,
                                                          RMSNORM_BF16),
                                          testing::ValuesIn(kDtypes)),
                         Name);
INSTANTIATE_TEST_SUITE_P(AllTypes, BitsWithWeightTest,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::ValuesIn(kDtypes),
                                          testing::ValuesIn(kDtypes)),
                         Name);
INSTANTIATE_TEST_SUITE_P(AllTypes, BitsOfXAndYTest,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::Values(RMSNORM_F32),
                                          testing::ValuesIn(kDtypes)),
                         Name);

// No weight has the bits of a weight of ones, on every target.
TEST(NoWeight, IsAWeightOfOnes) {
  Random random(11);
  for (const std::string& target : SupportedTargets()) {
    for (const rmsnorm_dtype x_dtype : kDtypes) {
      for (const rmsnorm_dtype y_dtype : kDtypes) {
        for (const rmsnorm_rounding rounding : {RMSNORM_SCALE_THEN_CAST, RMSNORM_CAST_THEN_SCALE}) {
          const size_t d = 1000;
          Tensor x(x_dtype, kRowKinds * 2, d);
          FillMixed(random, x);
          Tensor ones(RMSNORM_F32, 1, d);
          for (size_t j = 0; j < d; ++j) ones.set(0, j, 1);
          Tensor with(y_dtype, x.rows(), d);
          Tensor without = with;
          Options options;
          options.rounding = rounding;
          options.target = target.c_str();
          forward(ConstView(x.view()), ConstView(ones.vector()), View(with.view()), options);
          forward(ConstView(x.view()), nullptr, View(without.view()), options);
          EXPECT_TRUE(SameBits(with, without)) << target;
        }
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

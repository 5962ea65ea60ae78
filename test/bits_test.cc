// SPDX-License-Identifier: Apache-2.0
// Every SIMD target gives the reference's bits: for each type, length, placement and option.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "gradients.h"
#include "norms.h"
#include "random_rows.h"
#include "targets.h"

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
  NormResults whole;
  NormResults sums;
  NormResults scaled;
};

constexpr rmsnorm_dtype kNone = 0;

constexpr Rounding kRoundings[] = {Rounding::scale_then_cast, Rounding::cast_then_scale,
                                   Rounding::inverse_rounded};
constexpr EpsPlacement kEpsPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                           EpsPlacement::floor};

// The types of x, weight and y.
using Types = std::tuple<rmsnorm_dtype, rmsnorm_dtype, rmsnorm_dtype>;

std::string Name(const testing::TestParamInfo<Types>& info) {
  const auto [x, weight, y] = info.param;
  return std::string(rmsnorm_dtype_name(x)) + "_" +
         (weight == kNone ? "none" : rmsnorm_dtype_name(weight)) + "_" + rmsnorm_dtype_name(y);
}

// A call that gives sums beside y, and the two phases.
Results Compute(const NormInputs& inputs, const Options& options, const Context& context) {
  NormInputs sums = inputs;
  sums.weight.reset();
  sums.bias.reset();
  sums.y.reset();
  sums.y_in_place = sums.rstd = false;
  sums.sums_out = true;
  NormInputs scaled = inputs;
  Results results = {
      ComputeNorm(inputs, options, context), ComputeNorm(sums, options, context), {}};
  scaled.sums = results.sums.sums;
  scaled.sums_out = false;
  results.scaled = ComputeNorm(scaled, options, context);
  if (inputs.sums_out) {
    EXPECT_TRUE(SameBits(results.whole.sums, results.sums.sums));
  }
  return results;
}

class BitsTest : public testing::TestWithParam<Types> {
 protected:
  void SetUp() override {
    if (targets_.empty()) GTEST_SKIP() << "this CPU runs no target but the reference";
  }

  bool CanBeInPlace() const { return rmsnorm_dtype_size(x_dtype_) == rmsnorm_dtype_size(y_dtype_); }

  // Computes the same rows on every target, from x to y or in place at x, and compares all bytes.
  // Every other call has a bias.
  void Compare(size_t rows, size_t d, const Placement& placement, bool in_place,
               const Options& options) {
    NormInputs inputs = Draw(rows, d, placement);
    if (in_place) PutInPlace(inputs);
    Compare(inputs, options);
  }

  NormInputs Draw(size_t rows, size_t d, const Placement& placement) {
    NormInputs inputs = {Tensor(x_dtype_, rows, d, placement.x_offset, placement.x_padding)};
    FillMixed(random_, inputs.x);
    inputs.y.emplace(y_dtype_, rows, d, placement.y_offset, placement.y_padding);
    has_bias_ = !has_bias_;
    // Off a vector's alignment by as much as the row is long, so by any amount.
    if (weight_dtype_ != kNone) inputs.weight = DrawColumns(weight_dtype_, 1, d, d % 32);
    if (has_bias_) inputs.bias = DrawColumns(kDtypes[random_.Below(3)], 1, d, d / 3 % 32);
    inputs.sums_out = random_.Below(2) == 0;
    inputs.step = 1 + random_.Below(3);
    return inputs;
  }

  Tensor DrawColumns(rmsnorm_dtype dtype, size_t rows, size_t d, size_t offset) {
    Tensor columns(dtype, rows, d, offset, rows > 1 ? random_.Below(9) : 0);
    FillWeight(random_, columns);
    return columns;
  }

  void PutInPlace(NormInputs& inputs) const {
    inputs.y = inputs.x;
    inputs.y->Reinterpret(y_dtype_);
    inputs.y_in_place = true;
  }

  void Compare(const NormInputs& inputs, const Options& options) {
    const Tensor x = inputs.x;
    const Results expected = Compute(inputs, options, OnTarget(kReference, 1));
    for (const std::string& target : targets_) {
      SCOPED_TRACE(testing::Message()
                   << target << ", " << x.rows() << " x " << x.d() << ", "
                   << (inputs.bias ? rmsnorm_dtype_name(inputs.bias->dtype()) : "no") << " bias"
                   << (inputs.y_in_place ? ", in place" : "") << ", x at byte "
                   << LineByte(inputs.x) << " of a line, y at " << LineByte(*inputs.y)
                   << ", rounding " << static_cast<int>(options.rounding));
      const Results actual = Compute(inputs, options, OnTarget(target, 1));
      ASSERT_TRUE(SameBits(expected.whole, actual.whole));
      ASSERT_TRUE(SameBits(expected.sums, actual.sums));
      ASSERT_TRUE(SameBits(expected.scaled, actual.scaled)) << "from the sums";
    }
    ASSERT_TRUE(SameBits(x, inputs.x)) << "x was written";
  }

  static size_t LineByte(const Tensor& rows) {
    return reinterpret_cast<uintptr_t>(rows.data()) % 64;
  }

  const rmsnorm_dtype x_dtype_ = std::get<0>(GetParam());
  const rmsnorm_dtype weight_dtype_ = std::get<1>(GetParam());
  const rmsnorm_dtype y_dtype_ = std::get<2>(GetParam());
  Random random_{7};

 private:
  const std::vector<std::string> targets_ = SimdTargets();
  bool has_bias_ = false;
};

// Lengths around every vector, group of lanes and block. Nine rows are a group of eight and one
// more; no kernel has reason to take more than four long rows at once. The rounding order and where
// the rows lie do not act on each other, so they change together, and change over with each length.
TEST_P(BitsTest, Lengths) {
  std::vector<size_t> sizes = {4095, 4096, 4097, 8193, 16385};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  size_t rounding = 0;
  for (const size_t d : sizes) {
    Options one;
    Options other;
    one.rounding = kRoundings[rounding % 3];
    other.rounding = kRoundings[(rounding + 1) % 3];
    ++rounding;
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
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, CanBeInPlace(), {}));
    }
  }
  for (size_t rows = 1; rows <= 9; ++rows) {
    for (const size_t d : SizeList{4096, 8192}) {
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, false, {}));
      ASSERT_NO_FATAL_FAILURE(Compare(rows, d, kDense, false, {}));
    }
  }
}

TEST_P(BitsOfXAndYTest, EpsAndDivisor) {
  for (const size_t d : SizeList{1, 2, 64, 100, 128, 300, 4097}) {
    for (const EpsPlacement placement : kEpsPlacements) {
      for (const float eps : {0.0f, 1e-6f, 1.0f}) {
        for (const float divisor : {0.0f, 100.5f, 1e-3f, 1e30f}) {
          Options options;
          options.eps = eps;
          options.eps_placement = placement;
          options.divisor = divisor;
          SCOPED_TRACE(testing::Message() << "eps " << eps << " placement "
                                          << static_cast<int>(placement) << " divisor " << divisor);
          ASSERT_NO_FATAL_FAILURE(Compare(9, d, kDense, false, options));
        }
      }
    }
  }
}

// Rows on either side of the floor and rows whose RMS is the floor, in any order; among them zeros
// of both signs, NaN and infinity.
TEST_P(BitsOfXAndYTest, EpsAsAFloor) {
  constexpr double kFloor = 0.125;
  const double ulp = Ulp(x_dtype_, kFloor);
  for (const size_t d : SizeList{1, 4, 33, 64, 127, 128, 300, 4097}) {
    for (int repeat = 0; repeat < 12; ++repeat) {
      NormInputs inputs = Draw(9, d, kDense);
      for (size_t row = 0; row < 9; ++row) {
        const double magnitudes[] = {kFloor, kFloor - ulp, kFloor + ulp, 0, 2, 1e-3};
        const size_t which = random_.Below(std::size(magnitudes) + 2);
        if (which >= std::size(magnitudes)) continue;  // as FillMixed() left it
        for (size_t j = 0; j < d; ++j) {
          inputs.x.set(row, j, random_.Below(2) == 0 ? magnitudes[which] : -magnitudes[which]);
        }
      }
      if (repeat % 4 == 3 && CanBeInPlace()) PutInPlace(inputs);
      Options options;
      options.eps = static_cast<float>(kFloor);
      options.eps_placement = EpsPlacement::floor;
      options.rounding = kRoundings[repeat % 3];
      if (repeat % 2 == 0) options.divisor = 1;  // an L2 norm
      ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
    }
  }
}

// Weights and biases that some rows share, up to one for each row; rows of up to 8 dimensions.
TEST_P(BitsTest, RowsShareWeightsAndBiases) {
  const SizeList all_leading[] = {{3, 2, 4}, {2, 9}, {12}, {2, 1, 2, 1, 2, 1, 3}};
  for (const size_t d : SizeList{1, 33, 64, 128, 200, 1000, 4097, 8192}) {
    for (const SizeList& leading : all_leading) {
      for (size_t repeat = 0; repeat < (d < 1000 ? 6 : 2); ++repeat) {
        NormInputs inputs = Draw(Product(leading), d, {repeat, d % 5, d % 16, repeat});
        inputs.leading = leading;
        inputs.weight_leading = DrawShared(random_, leading);
        inputs.bias_leading = DrawShared(random_, leading);
        if (inputs.weight) {
          inputs.weight =
              DrawColumns(weight_dtype_, Product(inputs.weight_leading), d, random_.Below(32));
        }
        if (inputs.bias) {
          inputs.bias =
              DrawColumns(inputs.bias->dtype(), Product(inputs.bias_leading), d, random_.Below(32));
        }
        if (CanBeInPlace() && repeat % 3 == 2) PutInPlace(inputs);
        Options options;
        options.rounding = kRoundings[repeat % 3];
        ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
      }
    }
  }
}

// An offset without a weight is refused: arguments_test.cc.
class BitsWithWeightTest : public BitsTest {};

TEST_P(BitsWithWeightTest, WeightOffset) {
  for (const size_t d : SizeList{1, 2, 3, 31, 64, 100, 128, 300, 4097, 8193}) {
    for (const float offset : {1.0f, -0.3f, 1e-40f}) {
      for (const Rounding rounding : kRoundings) {
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
                                          testing::Values(kNone, RMSNORM_F32, RMSNORM_F16,
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

// Properties of the definition itself, on every target.
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

// Rows of every kind by pointer and count.
TEST_P(NormTest, DenseRowsOfAModuleGiveThePlainCall) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : SizeList{1, 64, 128, 300, 4097}) {
      for (const size_t rows : SizeList{1, 1, 1, 2 * kRowKinds}) {
        for (const Rounding rounding : kRoundings) {
          NormInputs inputs = {DrawMixed(dtype, rows, d)};
          inputs.weight = DrawWeight(dtype, 1, d);
          inputs.y.emplace(dtype, rows, d);
          Options options;
          options.rounding = rounding;
          const NormResults expected = ComputeNorm(inputs, options, context_);
          RmsNorm norm(d, options, static_cast<Dtype>(dtype), context_);
          norm.set_weight(ConstView(inputs.weight->vector()));
          ASSERT_EQ(RMSNORM_OK, rmsnorm_module_forward_rows(norm.get(), dtype, rows,
                                                            inputs.x.data(), inputs.y->data()));
          ASSERT_TRUE(SameBits(*expected.y, *inputs.y));
          ASSERT_EQ(RMSNORM_OK, rmsnorm_module_forward_rows(norm.get(), dtype, rows,
                                                            inputs.x.data(), inputs.x.data()));
          ASSERT_TRUE(SameBits(*expected.y, inputs.x));
        }
      }
    }
  }
}

// Each row gives what it gives alone, with its own weight and bias.
TEST_P(NormTest, EachRowTakesItsWeightAndBias) {
  for (const SizeList& leading :
       {SizeList{3, 2, 4}, SizeList{2, 9}, SizeList{2, 1, 2, 1, 2, 1, 3}}) {
    for (const size_t d : SizeList{5, 128, 4100}) {
      for (int repeat = 0; repeat < 8; ++repeat) {
        NormInputs inputs = {DrawMixed(RMSNORM_BF16, Product(leading), d)};
        inputs.leading = leading;
        inputs.weight_leading = DrawShared(random_, leading);
        inputs.bias_leading = DrawShared(random_, leading);
        inputs.weight = DrawWeight(RMSNORM_F16, Product(inputs.weight_leading), d);
        inputs.bias = DrawWeight(RMSNORM_F32, Product(inputs.bias_leading), d);
        inputs.y.emplace(RMSNORM_F32, inputs.x.rows(), d);
        Options options;
        options.weight_offset = 1;
        const NormResults all = ComputeNorm(inputs, options, context_);
        for (size_t row = 0; row < inputs.x.rows(); ++row) {
          const auto alone = [d](const Tensor& rows, size_t index) {
            Tensor one(rows.dtype(), 1, d);
            std::memcpy(one.data(), rows.Row(index), d * rmsnorm_dtype_size(rows.dtype()));
            return one;
          };
          NormInputs one = {alone(inputs.x, row)};
          one.weight = alone(*inputs.weight, BroadcastRow(row, leading, inputs.weight_leading));
          one.bias = alone(*inputs.bias, BroadcastRow(row, leading, inputs.bias_leading));
          one.y.emplace(RMSNORM_F32, 1, d);
          const NormResults expected = ComputeNorm(one, options, context_);
          ASSERT_TRUE(SameBits(RMSNORM_F32, expected.y->Row(0), all.y->Row(row), d));
          ASSERT_TRUE(SameBits(RMSNORM_F32, &expected.rstd[0], &all.rstd[row], 1));
        }
      }
    }
  }
}

// The last steps by arithmetic on values, from n of a call without them. The product of two f32 is
// exact in binary64.
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
            const float y = std::fma(n, w, static_cast<float>(inputs.bias->get(0, j)));
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

// n = x * cast_x(1 / RMS), and cast again, from the rstd that comes beside it.
TEST_P(NormTest, InverseIsRoundedToTheTypeOfX) {
  constexpr size_t kD = 300;
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const float eps : {1e-5f, 0.0f}) {
      NormInputs inputs = {DrawMixed(x_dtype, 2 * kRowKinds, kD)};
      inputs.y.emplace(RMSNORM_F32, inputs.x.rows(), kD);
      Options options;
      options.eps = eps;
      options.rounding = Rounding::inverse_rounded;
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

// A row is scaled by 1 / max(RMS, eps); one that is cold by itself, too.
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

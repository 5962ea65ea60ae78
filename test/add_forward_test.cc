// SPDX-License-Identifier: Apache-2.0
// The residual add gives, on every target, the bits of a separate addition and a separate norm: for
// each type, length, placement, option and number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gradients.h"
#include "guarded_buffer.h"
#include "norms.h"
#include "random_rows.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

// Where rows lie, in elements; see Tensor.
struct Place {
  size_t offset = 0;
  size_t padding = 0;
};

struct Placement {
  Place x;
  Place residual;
  Place residual_out;
  Place y;
};

// Which outputs take the place of an input.
struct InPlace {
  bool residual = false;
  bool y = false;
};

void PutInPlace(NormInputs& inputs, InPlace in_place) {
  inputs.residual_in_place = in_place.residual;
  if (in_place.residual) inputs.residual_out = inputs.residual;
  inputs.y_in_place = in_place.y;
  if (in_place.y) {
    const rmsnorm_dtype dtype = inputs.y->dtype();
    inputs.y = inputs.x;
    inputs.y->Reinterpret(dtype);
  }
}

float AsFloat(const Tensor& tensor, size_t row, size_t j) {
  return static_cast<float>(tensor.get(row, j));  // exact
}

// h = residual + x in f32.
Tensor Sum(const Tensor& x, const Tensor& residual) {
  Tensor sum(RMSNORM_F32, x.rows(), x.d());
  for (size_t row = 0; row < x.rows(); ++row) {
    for (size_t j = 0; j < x.d(); ++j) {
      const float h = AsFloat(residual, row, j) + AsFloat(x, row, j);
      sum.set_bits(row, j, std::isnan(h) ? 0x7FC00000 : LoadBits(RMSNORM_F32, &h, 0));
    }
  }
  return sum;
}

// Copies rows into another tensor, rounded to its type.
void CopyRows(const Tensor& from, Tensor& to) {
  for (size_t row = 0; row < from.rows(); ++row) {
    for (size_t j = 0; j < from.d(); ++j) to.set(row, j, from.get(row, j));
  }
}

Tensor Rounded(const Tensor& from, rmsnorm_dtype dtype) {
  Tensor to(dtype, from.rows(), from.d());
  CopyRows(from, to);
  return to;
}

// The norm of h in f32 where n, which is made of it, is rounded to the type of x: n alone, and then
// a norm of n as x, with a sum of squares by which 1 / RMS is 1.
Tensor NormOfUnrounded(const NormInputs& norm, rmsnorm_dtype x_dtype, const Options& options,
                       const std::vector<float>& rstd, const Context& context) {
  NormInputs plain = {norm.x};
  plain.y.emplace(RMSNORM_F32, norm.x.rows(), norm.x.d());
  Options scale = options;
  scale.rounding = Rounding::scale_then_cast;
  scale.weight_offset = 0;
  Tensor n = *ComputeNorm(plain, scale, context).y;
  if (options.rounding == Rounding::inverse_rounded) {
    for (size_t row = 0; row < n.rows(); ++row) {
      const double r = RoundTo(x_dtype, static_cast<double>(rstd[row * norm.step]));
      for (size_t j = 0; j < n.d(); ++j) n.set(row, j, norm.x.get(row, j) * r);
    }
  }
  NormInputs scaled = norm;
  scaled.x = Rounded(n, x_dtype);
  scaled.sums.assign(n.rows() * norm.step, static_cast<double>(n.d()));
  scaled.rstd = scaled.sums_out = false;
  scale = Options();
  scale.eps = 0;
  scale.weight_offset = options.weight_offset;
  return *ComputeNorm(scaled, scale, context).y;
}

// What separate calls give: an addition, here, and the norm by the reference.
NormResults Separate(const NormInputs& inputs, const Options& options) {
  const std::string reference = kReference;
  const Context context = OnTarget(reference, 1);
  const rmsnorm_dtype x_dtype = inputs.x.dtype();
  const Tensor sum = Sum(inputs.x, *inputs.residual);
  const bool unrounded = options.residual_rounding == ResidualRounding::norm_then_cast;
  NormInputs norm = inputs;
  norm.x = unrounded ? sum : Rounded(sum, inputs.residual->dtype());
  norm.residual.reset();
  norm.residual_out.reset();
  norm.y_in_place = false;
  NormResults results = ComputeNorm(norm, options, context);
  if (unrounded && x_dtype != RMSNORM_F32 && options.rounding != Rounding::scale_then_cast) {
    results.y = NormOfUnrounded(norm, x_dtype, options, results.rstd, context);
  }
  results.residual_out = inputs.residual_out;
  CopyRows(sum, *results.residual_out);
  return results;
}

constexpr rmsnorm_dtype kNoWeight = 0;

// The types of x, the residual, the weight and y.
using Types = std::tuple<rmsnorm_dtype, rmsnorm_dtype, rmsnorm_dtype, rmsnorm_dtype>;

std::string NameOfTypes(const testing::TestParamInfo<Types>& info) {
  const auto [x, residual, weight, y] = info.param;
  return std::string(rmsnorm_dtype_name(x)) + "_" + rmsnorm_dtype_name(residual) + "_" +
         (weight == kNoWeight ? "none" : rmsnorm_dtype_name(weight)) + "_" + rmsnorm_dtype_name(y);
}

class AddForwardTest : public testing::TestWithParam<Types> {
 protected:
  bool YCanBeInPlace() const {
    return rmsnorm_dtype_size(x_dtype_) == rmsnorm_dtype_size(y_dtype_);
  }

  // Rows of every kind, the same on every target, against a separate addition and norm.
  void Compare(size_t rows, size_t d, const Placement& place, InPlace in_place,
               const Options& options) {
    NormInputs inputs = Draw(rows, d, place);
    PutInPlace(inputs, in_place);
    Compare(inputs, options);
  }

  NormInputs Draw(size_t rows, size_t d, const Placement& place) {
    const auto tensor = [&](rmsnorm_dtype dtype, const Place& at) {
      return Tensor(dtype, rows, d, at.offset, at.padding);
    };
    NormInputs inputs = {tensor(x_dtype_, place.x)};
    inputs.residual = tensor(residual_dtype_, place.residual);
    FillMixed(random_, inputs.x);
    FillMixed(random_, *inputs.residual);
    if (weight_dtype_ != kNoWeight) inputs.weight = DrawColumns(weight_dtype_, 1, d);
    if (random_.Below(2) == 0) inputs.bias = DrawColumns(kDtypes[random_.Below(3)], 1, d);
    inputs.residual_out = tensor(residual_dtype_, place.residual_out);
    inputs.y = tensor(y_dtype_, place.y);
    inputs.sums_out = random_.Below(2) == 0;
    inputs.step = 1 + random_.Below(2);
    return inputs;
  }

  Tensor DrawColumns(rmsnorm_dtype dtype, size_t rows, size_t d) {
    Tensor columns(dtype, rows, d, d % 32);
    FillWeight(random_, columns);
    return columns;
  }

  void Compare(const NormInputs& inputs, const Options& options) {
    const NormInputs before = inputs;
    const NormResults expected = Separate(inputs, options);
    for (const std::string& target : targets_) {
      SCOPED_TRACE(testing::Message() << target << ", " << inputs.x.rows() << " x " << inputs.x.d()
                                      << (inputs.bias ? ", bias" : "")
                                      << (inputs.residual_in_place ? ", residual in place" : "")
                                      << (inputs.y_in_place ? ", y in place" : "") << ", rounding "
                                      << static_cast<int>(options.rounding) << ", of the residual "
                                      << static_cast<int>(options.residual_rounding));
      ASSERT_TRUE(SameBits(expected, ComputeNorm(inputs, options, OnTarget(target, 1))));
    }
    ASSERT_TRUE(SameBits(before.x, inputs.x)) << "x was written";
    ASSERT_TRUE(SameBits(*before.residual, *inputs.residual)) << "the residual was written";
  }

  const rmsnorm_dtype x_dtype_ = std::get<0>(GetParam());
  const rmsnorm_dtype residual_dtype_ = std::get<1>(GetParam());
  const rmsnorm_dtype weight_dtype_ = std::get<2>(GetParam());
  const rmsnorm_dtype y_dtype_ = std::get<3>(GetParam());
  const std::vector<std::string> targets_ = SupportedTargets();
  Random random_{211};
};

std::vector<Options> AllRoundings() {
  std::vector<Options> all;
  for (const Rounding rounding :
       {Rounding::scale_then_cast, Rounding::cast_then_scale, Rounding::inverse_rounded}) {
    for (const auto of_residual :
         {ResidualRounding::cast_then_norm, ResidualRounding::norm_then_cast}) {
      Options options;
      options.rounding = rounding;
      options.residual_rounding = of_residual;
      all.push_back(options);
    }
  }
  return all;
}

// Lengths around every vector, group of lanes and block, each with other roundings and places.
TEST_P(AddForwardTest, Lengths) {
  SizeList sizes = {511, 512, 513, 1000, 4095, 4096, 4097, 8193};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  const std::vector<Options> roundings = AllRoundings();
  for (const size_t d : sizes) {
    const size_t rows = d <= 300 ? 9 : 5;
    const Options& options = roundings[(d + d / 6) % roundings.size()];
    const Options& other = roundings[(d + 1 + d / 6) % roundings.size()];
    const Placement apart = {{1, 5}, {3, 2}, {5, 7}, {7, 1}};
    ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {}, {true, false}, options));
    ASSERT_NO_FATAL_FAILURE(Compare(rows, d, apart, {d % 3 == 0, YCanBeInPlace()}, other));
  }
}

// What is done with the weight's type does not depend on the rest.
class AddForwardOfOneWeightTest : public AddForwardTest {};

// Each tensor at every element of a cache line, where a type's own loops see them; tiles of other
// types do so by one loop a type, at fewer elements.
TEST_P(AddForwardOfOneWeightTest, Alignments) {
  const size_t step = x_dtype_ == residual_dtype_ && x_dtype_ == y_dtype_ ? 1 : 7;
  for (const Options& options : AllRoundings()) {
    for (const size_t d : SizeList{1, 33, 128, 200, 600}) {
      for (size_t offset = 0; offset < 32; offset += step) {
        const Placement places[] = {{{offset, 0}, {}, {}, {}},
                                    {{}, {offset, 1}, {}, {}},
                                    {{}, {}, {offset, 1}, {}},
                                    {{}, {}, {}, {offset, 1}}};
        for (const Placement& place : places) {
          ASSERT_NO_FATAL_FAILURE(Compare(2, d, place, {}, options));
        }
        ASSERT_NO_FATAL_FAILURE(Compare(2, d, places[1], {true, YCanBeInPlace()}, options));
      }
    }
  }
}

// Numbers of rows around every group a kernel may form, with the lengths for which it may.
TEST_P(AddForwardOfOneWeightTest, RowCounts) {
  const std::vector<Options> roundings = AllRoundings();
  for (size_t rows = 1; rows <= 20; ++rows) {
    for (const size_t d : SizeList{1, 16, 64, 65, 127, 128, 256, 512}) {
      for (const Options& options : {roundings[0], roundings[1]}) {
        ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {}, {}, options));
        ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {}, {true, YCanBeInPlace()}, options));
      }
    }
  }
  for (size_t rows = 1; rows <= 9; ++rows) {
    ASSERT_NO_FATAL_FAILURE(
        Compare(rows, 8192, {}, {true, false}, roundings[rows % roundings.size()]));
  }
}

TEST_P(AddForwardOfOneWeightTest, EpsDivisorAndOffset) {
  for (Options options : AllRoundings()) {
    for (const size_t d : SizeList{1, 100, 300}) {
      for (const auto placement :
           {EpsPlacement::inside, EpsPlacement::outside, EpsPlacement::floor}) {
        for (const float eps : {0.0f, 1e-6f, 1.0f}) {
          for (const float divisor : {0.0f, 100.5f, 1e30f}) {
            options.eps = eps;
            options.eps_placement = placement;
            options.divisor = divisor;
            options.weight_offset = divisor == 0 ? 0.0f : 1.0f;
            SCOPED_TRACE(testing::Message()
                         << "eps " << eps << " placement " << static_cast<int>(placement)
                         << " divisor " << divisor);
            ASSERT_NO_FATAL_FAILURE(Compare(9, d, {}, {true, YCanBeInPlace()}, options));
          }
        }
      }
    }
  }
}

// Weights and biases that some rows share; rows of up to 8 dimensions.
TEST_P(AddForwardOfOneWeightTest, RowsShareWeightsAndBiases) {
  size_t repeat = 0;
  for (const Options& options : AllRoundings()) {
    for (const SizeList& leading :
         {SizeList{3, 2, 4}, SizeList{2, 9}, SizeList{2, 1, 2, 1, 2, 1, 3}}) {
      for (const size_t d : SizeList{1, 64, 300, 4097}) {
        if (d > 300 && leading.size() > 2) continue;  // of more rows they tell nothing more
        NormInputs inputs = Draw(Product(leading), d, {{1, 2}, {}, {0, 3}, {}});
        inputs.leading = leading;
        inputs.weight_leading = DrawShared(random_, leading);
        inputs.bias_leading = DrawShared(random_, leading);
        inputs.weight = DrawColumns(weight_dtype_, Product(inputs.weight_leading), d);
        inputs.bias = DrawColumns(kDtypes[random_.Below(3)], Product(inputs.bias_leading), d);
        ++repeat;
        PutInPlace(inputs, {repeat % 2 == 0, repeat % 3 == 0 && YCanBeInPlace()});
        ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
      }
    }
  }
}

// Whatever of its results a call is asked for, they have the same bits; up to the addition alone.
TEST_P(AddForwardOfOneWeightTest, AnyOfTheResults) {
  for (const Options& options : AllRoundings()) {
    for (const size_t d : SizeList{1, 64, 200, 4097}) {
      for (const InPlace in_place : {InPlace{}, InPlace{true, YCanBeInPlace()}}) {
        NormInputs inputs = Draw(7, d, {});
        PutInPlace(inputs, in_place);
        inputs.sums_out = true;
        for (const std::string& target : targets_) {
          const NormResults all = ComputeNorm(inputs, options, OnTarget(target, 1));
          for (unsigned some = 1; some < 16; ++some) {
            NormInputs fewer = inputs;
            NormResults expected = all;
            if ((some & 1) == 0) {
              fewer.y.reset();
              fewer.y_in_place = false;
              expected.y.reset();
            }
            if ((some & 2) == 0) {
              fewer.residual_out.reset();
              fewer.residual_in_place = false;
              expected.residual_out.reset();
            }
            fewer.rstd = (some & 4) != 0;
            if (!fewer.rstd) expected.rstd.clear();
            fewer.sums_out = (some & 8) != 0;
            if (!fewer.sums_out) expected.sums.clear();
            ASSERT_TRUE(SameBits(expected, ComputeNorm(fewer, options, OnTarget(target, 1))))
                << target << ", d " << d << ", results " << some;
          }
        }
      }
    }
  }
}

// Sums that leave the range of f32 or of the residual, that vanish, and that are zero.
TEST_P(AddForwardOfOneWeightTest, SpecialSums) {
  const double f32_max = std::numeric_limits<float>::max();
  const double largest = FormatOf(x_dtype_).max();
  const double residual_largest = FormatOf(residual_dtype_).max();
  const double smallest = std::ldexp(1.0, FormatOf(x_dtype_).min_exponent()) / 4;
  const double infinity = std::numeric_limits<double>::infinity();
  struct Pair {
    double x;
    double residual;
  };
  const Pair pairs[] = {
      {largest, residual_largest},  // overflows where both are f32, or the residual
      {largest, -residual_largest},
      {-largest, residual_largest / 4},
      {smallest, smallest},
      {smallest, -smallest},
      {0.0, -0.0},
      {-0.0, -0.0},
      {infinity, 1},
      {infinity, -infinity},
      {1, std::nan("")},
      {std::nan(""), infinity},
      {std::min(largest, 3e38), f32_max > 1e38 ? 1e38 : 1}};
  for (Options options : AllRoundings()) {
    for (const float eps : {0.0f, 1e-5f}) {
      options.eps = eps;
      for (const size_t d : SizeList{1, 63, 64, 300}) {
        // A row of each alone, and one where it is a single element among others.
        NormInputs inputs = Draw(2 * std::size(pairs), d, {});
        Random random(223);
        FillNormal(random, inputs.x);
        FillNormal(random, *inputs.residual);
        for (size_t i = 0; i < std::size(pairs); ++i) {
          for (size_t j = 0; j < d; ++j) {
            inputs.x.set(2 * i, j, pairs[i].x);
            inputs.residual->set(2 * i, j, pairs[i].residual);
          }
          inputs.x.set(2 * i + 1, d / 2, pairs[i].x);
          inputs.residual->set(2 * i + 1, d / 2, pairs[i].residual);
        }
        // NaNs of every payload.
        inputs.x.set_bits(18, 0, FormatOf(x_dtype_).sign() - 1);
        inputs.residual->set_bits(20, 0, FormatOf(residual_dtype_).sign() - 1);
        ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
        PutInPlace(inputs, {true, YCanBeInPlace()});
        ASSERT_NO_FATAL_FAILURE(Compare(inputs, options));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, AddForwardTest,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::ValuesIn(kDtypes),
                                          testing::Values(kNoWeight, RMSNORM_BF16),
                                          testing::ValuesIn(kDtypes)),
                         NameOfTypes);
INSTANTIATE_TEST_SUITE_P(AllTypes, AddForwardOfOneWeightTest,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::ValuesIn(kDtypes),
                                          testing::Values(RMSNORM_F32), testing::ValuesIn(kDtypes)),
                         NameOfTypes);

// ------------------------------------------------------------------------ threads, views, module

// Runs the parts on threads of their own, the last one started first, and keeps their number.
void OnThreads(void* context, size_t count, rmsnorm_task task, void* state) {
  *static_cast<size_t*>(context) = count;
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(task, state, i);
  for (std::thread& thread : threads) thread.join();
}

class AddForwardOnTargetTest : public testing::TestWithParam<std::string> {
 protected:
  // Outputs apart; x, residual and weight as they come.
  NormInputs Make(rmsnorm_dtype dtype, rmsnorm_dtype residual_dtype, size_t rows, size_t d) {
    NormInputs inputs = {Tensor(dtype, rows, d)};
    inputs.residual.emplace(residual_dtype, rows, d);
    inputs.weight.emplace(dtype, 1, d);
    inputs.residual_out.emplace(residual_dtype, rows, d);
    inputs.y.emplace(dtype, rows, d);
    FillWeight(random_, *inputs.weight);
    return inputs;
  }

  NormInputs DrawMixed(rmsnorm_dtype dtype, rmsnorm_dtype residual_dtype, size_t rows, size_t d) {
    NormInputs inputs = Make(dtype, residual_dtype, rows, d);
    FillMixed(random_, inputs.x);
    FillMixed(random_, *inputs.residual);
    return inputs;
  }

  // One thread against several, of OpenMP and of an executor.
  void CompareThreads(const NormInputs& inputs) {
    for (const auto residual_rounding :
         {ResidualRounding::cast_then_norm, ResidualRounding::norm_then_cast}) {
      SCOPED_TRACE(testing::Message() << "rounding " << static_cast<int>(residual_rounding));
      Options options;
      options.residual_rounding = residual_rounding;
      const NormResults serial = ComputeNorm(inputs, options, OnTarget(target_, 1));
      constexpr size_t kThreads = 3;
      Context context = OnTarget(target_, kThreads);
      EXPECT_TRUE(SameBits(serial, ComputeNorm(inputs, options, context)));
      size_t parts = 1;
      context.parallel_for = OnThreads;
      context.parallel_context = &parts;
      EXPECT_TRUE(SameBits(serial, ComputeNorm(inputs, options, context)));
      EXPECT_EQ(kThreads, parts);
      NormInputs in_place = inputs;
      PutInPlace(in_place, {true, true});
      const NormResults actual = ComputeNorm(in_place, options, context);
      EXPECT_TRUE(SameRows(*serial.y, *actual.y));
      EXPECT_TRUE(SameRows(*serial.residual_out, *actual.residual_out));
      EXPECT_TRUE(SameBits(serial.rstd, actual.rstd));
    }
  }

  // Of tensors that lie differently.
  static testing::AssertionResult SameRows(const Tensor& expected, const Tensor& actual) {
    for (size_t row = 0; row < expected.rows(); ++row) {
      const testing::AssertionResult same =
          SameBits(expected.dtype(), expected.Row(row), actual.Row(row), expected.d());
      if (!same) return testing::AssertionFailure() << "row " << row << ": " << same.message();
    }
    return testing::AssertionSuccess();
  }

  const std::string target_ = GetParam();
  Random random_{227};
};

TEST_P(AddForwardOnTargetTest, ThreadsOfManyRows) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const rmsnorm_dtype residual_dtype : kDtypes) {
      CompareThreads(DrawMixed(dtype, residual_dtype, 1031, 512));
    }
  }
}

// A row alone goes to all threads, its blocks in parts; rows of every kind, also such as are found
// to need binary64 only once they are summed.
TEST_P(AddForwardOnTargetTest, ThreadsOfOneLongRow) {
  const size_t d = 5 * 32768 + 77;
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const rmsnorm_dtype residual_dtype : kDtypes) {
      NormInputs inputs = Make(dtype, residual_dtype, 1, d);
      for (const RowKind kind : {RowKind::kNormal, RowKind::kTiny, RowKind::kHuge, RowKind::kNan}) {
        SCOPED_TRACE(testing::Message()
                     << rmsnorm_dtype_name(dtype) << ", kind " << static_cast<int>(kind));
        FillRow(random_, kind, inputs.x, 0);
        FillRow(random_, kind, *inputs.residual, 0);
        CompareThreads(inputs);
      }
    }
  }
}

// Longer than what is summed at once, and a few rows at places of their own.
TEST_P(AddForwardOnTargetTest, ThreadsOfFewVeryLongRows) {
  const size_t d = (size_t{4} << 20) + 3 * 4096 + 5;
  NormInputs inputs = Make(RMSNORM_BF16, RMSNORM_BF16, 2, d);
  inputs.x = Tensor(RMSNORM_BF16, 2, d, 3);
  inputs.residual.emplace(RMSNORM_BF16, 2, d, 5, 1);
  FillNormal(random_, inputs.x);
  FillNormal(random_, *inputs.residual);
  inputs.weight.emplace(RMSNORM_F32, 1, d);
  FillNormal(random_, *inputs.weight);
  CompareThreads(inputs);
}

// Each tensor with strides of its own over several dimensions: against rows one by one.
TEST_P(AddForwardOnTargetTest, ManyDimensions) {
  constexpr size_t kD = 70;
  const size_t shape[] = {3, 4, 5, kD};
  const ptrdiff_t x_stride[] = {-4 * 5 * 71, 5 * 71, 71, 1};
  const ptrdiff_t residual_stride[] = {5 * kD, 0, kD, 1};  // repeated
  const ptrdiff_t out_stride[] = {kD, 3 * 5 * kD, 3 * kD, 1};
  std::vector<float> x(3 * 4 * 5 * 71);
  std::vector<float> residual(3 * 5 * kD);
  for (float& value : x) value = static_cast<float>(random_.Normal());
  for (float& value : residual) value = static_cast<float>(random_.Normal());
  std::vector<float> residual_out(3 * 4 * 5 * kD);
  std::vector<float> y(residual_out.size());
  for (const int threads : {1, 3}) {
    ForwardOperands operands;
    operands.x = {x.data() + 2 * 4 * 5 * 71, Dtype::f32, 4, shape, x_stride};
    operands.residual = {residual.data(), Dtype::f32, 4, shape, residual_stride};
    operands.residual_out = {residual_out.data(), Dtype::f32, 4, shape, out_stride};
    operands.y = {y.data(), Dtype::f32, 4, shape};
    forward(operands, {}, OnTarget(target_, threads));
    for (size_t a = 0; a < 3; ++a) {
      for (size_t b = 0; b < 4; ++b) {
        for (size_t c = 0; c < 5; ++c) {
          const float* const x_row = x.data() + ((2 - a) * 20 + b * 5 + c) * 71;
          const float* const residual_row = residual.data() + (a * 5 + c) * kD;
          float sum[kD];
          float expected[kD];
          for (size_t j = 0; j < kD; ++j) sum[j] = residual_row[j] + x_row[j];
          norm({sum, kD}, {}, {expected, kD});
          const size_t out_row = a + b * 15 + c * 3;
          ASSERT_TRUE(SameBits(RMSNORM_F32, sum, residual_out.data() + out_row * kD, kD));
          ASSERT_TRUE(SameBits(RMSNORM_F32, expected, y.data() + (a * 20 + b * 5 + c) * kD, kD));
        }
      }
    }
  }
}

TEST_P(AddForwardOnTargetTest, ModuleGivesTheSame) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (Options options : AllRoundings()) {
      options.weight_offset = 1;
      for (const size_t rows : SizeList{1, 5}) {
        for (const size_t d : SizeList{1, 64, 300, 4097}) {
          const NormInputs inputs = DrawMixed(dtype, dtype, rows, d);
          const Context context = OnTarget(target_);
          const NormResults expected = ComputeNorm(inputs, options, context);
          RmsNorm module(d, options, static_cast<Dtype>(dtype), context);
          module.set_weight(ConstView(inputs.weight->vector()));

          NormResults actual = {inputs.y, inputs.residual_out, std::vector<float>(rows), {}};
          ForwardOperands operands;
          operands.x = ConstView(inputs.x.view());
          operands.residual = ConstView(inputs.residual->view());
          operands.residual_out = View(actual.residual_out->view());
          operands.y = View(actual.y->view());
          operands.rstd = {actual.rstd.data(), rows};
          module.forward(operands);
          ASSERT_TRUE(SameBits(expected, actual));

          Tensor residual = *inputs.residual;
          Tensor x = inputs.x;
          operands = {};
          operands.x = operands.y = View(x.view());
          operands.residual = operands.residual_out = View(residual.view());
          module.forward(operands);
          ASSERT_TRUE(SameBits(*expected.y, x));
          ASSERT_TRUE(SameBits(*expected.residual_out, residual));

          // Dense rows by pointer and count.
          Tensor y = *inputs.y;
          residual = *inputs.residual;
          ASSERT_EQ(RMSNORM_OK,
                    rmsnorm_module_add_forward_rows(module.get(), dtype, rows, inputs.x.data(),
                                                    residual.data(), residual.data(), y.data()));
          ASSERT_TRUE(SameBits(*expected.y, y));
          ASSERT_TRUE(SameBits(*expected.residual_out, residual));
        }
      }
    }
  }
}

// More bytes than most last caches hold, which may be written in another way.
TEST_P(AddForwardOnTargetTest, BeyondTheCaches) {
  for (const rmsnorm_dtype dtype : {RMSNORM_F32, RMSNORM_BF16}) {
    for (const auto residual_rounding :
         {ResidualRounding::cast_then_norm, ResidualRounding::norm_then_cast}) {
      const size_t d = 4099;
      const size_t rows = dtype == RMSNORM_F32 ? 2100 : 4200;
      NormInputs inputs = Make(dtype, dtype, rows, d);
      // Rows that repeat: the numbers matter less than their places.
      Tensor few(dtype, 7, d);
      FillMixed(random_, few);
      const size_t bytes = d * rmsnorm_dtype_size(dtype);
      for (size_t row = 0; row < rows; ++row) {
        std::memcpy(inputs.x.Row(row), few.Row(row % 7), bytes);
        std::memcpy(inputs.residual->Row(row), few.Row(row % 5), bytes);
      }
      Options options;
      options.residual_rounding = residual_rounding;
      const Context context = OnTarget(target_);
      const NormResults whole = ComputeNorm(inputs, options, context);
      for (const size_t first : {size_t{0}, rows / 2, rows - 35}) {
        NormInputs some = Make(dtype, dtype, 35, d);
        some.weight = inputs.weight;
        std::memcpy(some.x.data(), inputs.x.Row(first), 35 * bytes);
        std::memcpy(some.residual->data(), inputs.residual->Row(first), 35 * bytes);
        const NormResults results = ComputeNorm(some, options, context);
        ASSERT_TRUE(SameBits(dtype, results.y->data(), whole.y->Row(first), 35 * d));
        ASSERT_TRUE(
            SameBits(dtype, results.residual_out->data(), whole.residual_out->Row(first), 35 * d));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AddForwardOnTargetTest, testing::ValuesIn(SupportedTargets()),
                         Name);

// --------------------------------------------------------------------------------------- gradient

// The loss sum(dy * y) + sum(dr * residual_out) of one row, as a function of the unrounded
// residual_out, in binary64.
double Loss(const std::vector<double>& h, const Tensor& weight, const Tensor& dy,
            const std::vector<double>& dr, double eps) {
  const size_t d = h.size();
  double squares = 0;
  for (const double value : h) squares += value * value;
  const double r = 1 / std::sqrt(squares / static_cast<double>(d) + eps);
  double loss = 0;
  for (size_t j = 0; j < d; ++j) {
    loss += dy.get(0, j) * h[j] * r * weight.get(0, j) + dr[j] * h[j];
  }
  return loss;
}

// The gradient of the norm joins that of the residual in one call of backward: against central
// differences by residual (or x, which is the same), for a stream in f32 and for one in bf16.
TEST_P(AddForwardOnTargetTest, GradientJoinsTheResiduals) {
  const size_t d = 70;
  for (const rmsnorm_dtype stream : {RMSNORM_F32, RMSNORM_BF16}) {
    NormInputs inputs = Make(RMSNORM_BF16, stream, 1, d);
    inputs.weight.emplace(RMSNORM_F32, 1, d);
    Tensor dy(RMSNORM_BF16, 1, d);
    for (Tensor* tensor : {&inputs.x, &*inputs.residual, &*inputs.weight, &dy}) {
      FillNormal(random_, *tensor);
    }
    Options options;
    options.eps = 0.01f;
    const NormResults forward = ComputeNorm(inputs, options, OnTarget(target_));

    Tensor gradient(stream, 1, d);  // of residual_out, and then of residual and x
    FillNormal(random_, gradient);
    std::vector<double> dr(d);
    std::vector<double> h(d);
    for (size_t j = 0; j < d; ++j) {
      dr[j] = gradient.get(0, j);
      h[j] = forward.residual_out->get(0, j);
    }
    BackwardOperands operands;
    operands.dy = ConstView(dy.view());
    operands.x = ConstView(forward.residual_out->view());
    operands.weight = ConstView(inputs.weight->vector());
    operands.rstd = {forward.rstd.data(), 1};
    operands.dx = View(gradient.view());
    operands.add_to_dx = true;
    backward(operands, options, OnTarget(target_));
    const double bound = stream == RMSNORM_F32 ? 1e-5 : 0x1p-8;
    for (size_t j = 0; j < d; ++j) {
      constexpr double kStep = 1e-4;
      std::vector<double> above = h;
      std::vector<double> below = h;
      above[j] += kStep;
      below[j] -= kStep;
      const double eps = double{options.eps};
      const double expected =
          (Loss(above, *inputs.weight, dy, dr, eps) - Loss(below, *inputs.weight, dy, dr, eps)) /
          (2 * kStep);
      ASSERT_NEAR(expected, gradient.get(0, j), bound * std::max(1.0, std::fabs(expected)))
          << rmsnorm_dtype_name(stream) << ", " << j;
    }
  }
}

// ------------------------------------------------------------------------------------ guard pages

enum class Side { kBegin, kEnd };

class AddForwardGuardTest : public testing::TestWithParam<std::tuple<std::string, Side>> {
 protected:
  static constexpr size_t kMostRows = 9;
  static constexpr size_t kLongest = 8193;
  static constexpr size_t kBytes = kMostRows * kLongest * sizeof(float);

  template <class T>
  T* Place(const GuardedBuffer& buffer, size_t bytes) const {
    const Side side = std::get<1>(GetParam());
    return static_cast<T*>(side == Side::kBegin ? buffer.AtBegin() : buffer.AtEnd(bytes));
  }

  // Dense rows beside the guard page, every byte of them `byte`.
  View PlaceRows(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t rows, size_t d,
                 int byte) const {
    const size_t bytes = rows * d * rmsnorm_dtype_size(dtype);
    void* const data = Place<void>(buffer, bytes);
    std::memset(data, byte, bytes);
    return {data, static_cast<Dtype>(dtype), {rows, d}};
  }

  const GuardedBuffer x_{kBytes};
  const GuardedBuffer residual_{kBytes};
  const GuardedBuffer residual_out_{kBytes};
  const GuardedBuffer y_{kBytes};
  const GuardedBuffer rstd_{kMostRows * sizeof(float)};
};

TEST_P(AddForwardGuardTest, NoByteBesideAnArgument) {
  // Bytes that make a number of 0.01 to 1.1 in any type, and a NaN, which takes the cold path.
  constexpr int kOrdinary = 0x3C;
  constexpr int kNan = 0xFF;
  SizeList sizes = {1000, 4095, 4096, 4097, kLongest};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  const Context context = OnTarget(std::get<0>(GetParam()), 1);
  for (const auto residual_rounding :
       {ResidualRounding::cast_then_norm, ResidualRounding::norm_then_cast}) {
    Options options;
    options.residual_rounding = residual_rounding;
    for (unsigned types = 0; types < 27; ++types) {
      const rmsnorm_dtype residual_dtype = kDtypes[types / 3 % 3];
      for (const size_t d : sizes) {
        for (const size_t rows : {size_t{1}, kMostRows}) {
          for (const int byte : {kOrdinary, kNan}) {
            ForwardOperands operands;
            operands.x = PlaceRows(x_, kDtypes[types % 3], rows, d, byte);
            operands.residual = PlaceRows(residual_, residual_dtype, rows, d, kOrdinary);
            operands.residual_out = PlaceRows(residual_out_, residual_dtype, rows, d, 0);
            operands.y = PlaceRows(y_, kDtypes[types / 9], rows, d, 0);
            operands.rstd = {Place<float>(rstd_, rows * sizeof(float)), rows};
            forward(operands, options, context);
            const View in_place = PlaceRows(residual_, residual_dtype, rows, d, kOrdinary);
            operands.residual = operands.residual_out = in_place;
            forward(operands, options, context);
          }
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, AddForwardGuardTest,
                         testing::Combine(testing::ValuesIn(SupportedTargets()),
                                          testing::Values(Side::kBegin, Side::kEnd)),
                         [](const auto& test) {
                           return std::get<0>(test.param) +
                                  (std::get<1>(test.param) == Side::kBegin ? "_begin" : "_end");
                         });

}  // namespace
}  // namespace rmsnorm::test

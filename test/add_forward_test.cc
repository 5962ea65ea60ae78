// SPDX-License-Identifier: Apache-2.0
// The residual add gives, on every target, the bits of a separate addition and a separate norm: for
// each type, length, placement, option and number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "guarded_buffer.h"
#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

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

struct Results {
  Tensor residual_out;
  Tensor y;
  std::vector<float> rstd;
};

rmsnorm_status Call(const Tensor& x, const Tensor& residual, const Tensor* weight,
                    const Tensor& residual_out, const Tensor& y, float* rstd,
                    const Options& options) {
  const rmsnorm_view views[] = {x.view(), residual.view(), residual_out.view(), y.view()};
  const rmsnorm_view w = weight != nullptr ? weight->vector() : rmsnorm_view{};
  return rmsnorm_add_forward(&views[0], &views[1], weight != nullptr ? &w : nullptr, &views[2],
                             &views[3], rstd, &options);
}

constexpr rmsnorm_dtype kNoWeight = 0;

// The types of x, the residual, the weight and y.
struct Types {
  rmsnorm_dtype x;
  rmsnorm_dtype residual;
  rmsnorm_dtype weight;
  rmsnorm_dtype y;
};

// A residual has the type of x, or f32.
std::vector<Types> AllTypes(const std::vector<rmsnorm_dtype>& weights) {
  std::vector<Types> all;
  for (const rmsnorm_dtype x : kDtypes) {
    for (const rmsnorm_dtype residual : kDtypes) {
      if (residual != x && residual != RMSNORM_F32) continue;
      for (const rmsnorm_dtype weight : weights) {
        for (const rmsnorm_dtype y : kDtypes) all.push_back({x, residual, weight, y});
      }
    }
  }
  return all;
}

std::string TypeName(rmsnorm_dtype dtype) {
  return dtype == kNoWeight ? "none" : rmsnorm_dtype_name(dtype);
}

std::string NameOfTypes(const testing::TestParamInfo<Types>& info) {
  const Types& types = info.param;
  return TypeName(types.x) + "_" + TypeName(types.residual) + "_" + TypeName(types.weight) + "_" +
         TypeName(types.y);
}

void PrintTo(const Types& types, std::ostream* out) { *out << NameOfTypes({types, 0}); }

class AddForwardTest : public testing::TestWithParam<Types> {
 protected:
  bool YCanBeInPlace() const {
    return rmsnorm_dtype_size(types_.x) == rmsnorm_dtype_size(types_.y);
  }

  // Rows of every kind, the same on every target, against a separate addition and norm.
  void Compare(size_t rows, size_t d, const Placement& place, InPlace in_place,
               const Options& options) {
    Tensor x(types_.x, rows, d, place.x.offset, place.x.padding);
    Tensor residual(types_.residual, rows, d, place.residual.offset, place.residual.padding);
    FillMixed(random_, x);
    FillMixed(random_, residual);
    Compare(x, residual, place, in_place, options);
  }

  void Compare(const Tensor& x, const Tensor& residual, const Placement& place, InPlace in_place,
               const Options& options) {
    const size_t rows = x.rows();
    const size_t d = x.d();
    std::optional<Tensor> weight;
    if (types_.weight != kNoWeight) {
      weight.emplace(types_.weight, 1, d, d % 32);
      FillWeight(random_, *weight);
    }
    const Results expected = Separate(x, residual, weight ? &*weight : nullptr, options);
    for (const std::string& target : targets_) {
      SCOPED_TRACE(testing::Message()
                   << target << ", " << rows << " x " << d << ", x at " << place.x.offset
                   << ", residual at " << place.residual.offset << ", residual_out at "
                   << place.residual_out.offset << ", y at " << place.y.offset
                   << (in_place.residual ? ", residual in place" : "")
                   << (in_place.y ? ", y in place" : "")
                   << (options.rounding == RMSNORM_CAST_THEN_SCALE ? ", cast then scale" : "")
                   << (options.residual_rounding == RMSNORM_NORM_THEN_CAST ? ", unrounded" : ""));
      Options on_target = options;
      on_target.target = target.c_str();
      Tensor own_x = x;
      Tensor own_residual = residual;
      Tensor residual_out =
          Tensor(types_.residual, rows, d, place.residual_out.offset, place.residual_out.padding);
      Tensor y(types_.y, rows, d, place.y.offset, place.y.padding);
      Tensor& out = in_place.residual ? own_residual : residual_out;
      // In place, y is the memory of x under its own type.
      rmsnorm_view views[] = {own_x.view(), own_residual.view(), out.view(), y.view()};
      if (in_place.y) {
        views[3] = views[0];
        views[3].dtype = types_.y;
      }
      const rmsnorm_view w = weight ? weight->vector() : rmsnorm_view{};
      std::vector<float> rstd(rows);
      ASSERT_EQ(RMSNORM_OK, rmsnorm_add_forward(&views[0], &views[1], weight ? &w : nullptr,
                                                &views[2], &views[3], rstd.data(), &on_target))
          << rmsnorm_error_message();
      if (in_place.y) own_x.Reinterpret(types_.y);
      const Tensor& written_y = in_place.y ? own_x : y;
      for (size_t row = 0; row < rows; ++row) {
        ASSERT_TRUE(SameBits(types_.residual, expected.residual_out.Row(row), out.Row(row), d))
            << "residual_out, row " << row;
        ASSERT_TRUE(SameBits(types_.y, expected.y.Row(row), written_y.Row(row), d))
            << "y, row " << row;
      }
      ASSERT_TRUE(SameBits(RMSNORM_F32, expected.rstd.data(), rstd.data(), rows)) << "rstd";
      ASSERT_TRUE(out.IsPaddingWiped());
      ASSERT_TRUE(written_y.IsPaddingWiped());
      if (!in_place.y) {
        ASSERT_TRUE(SameBits(x, own_x)) << "x was written";
      }
      if (!in_place.residual) {
        ASSERT_TRUE(SameBits(residual, own_residual)) << "the residual was written";
      }
    }
  }

  const Types types_ = GetParam();

 private:
  // What two separate calls give: an addition, here, and the norm by the reference.
  Results Separate(const Tensor& x, const Tensor& residual, const Tensor* weight,
                   Options options) const {
    options.target = kReference;
    options.threads = 1;
    const Tensor sum = Sum(x, residual);
    Results results = {Tensor(types_.residual, x.rows(), x.d()), Tensor(types_.y, x.rows(), x.d()),
                       std::vector<float>(x.rows())};
    CopyRows(sum, results.residual_out);
    const bool unrounded = options.residual_rounding == RMSNORM_NORM_THEN_CAST;
    const rmsnorm_view normalised = unrounded ? sum.view() : results.residual_out.view();
    const rmsnorm_view w = weight != nullptr ? weight->vector() : rmsnorm_view{};
    const rmsnorm_view* const w_view = weight != nullptr ? &w : nullptr;
    const rmsnorm_view y = results.y.view();
    EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&normalised, w_view, &y, results.rstd.data(), &options));
    return results;
  }

  const std::vector<std::string> targets_ = SupportedTargets();
  Random random_{211};
};

Options MakeOptions(rmsnorm_rounding rounding, rmsnorm_residual_rounding residual_rounding) {
  Options options;
  options.threads = 1;
  options.rounding = rounding;
  options.residual_rounding = residual_rounding;
  return options;
}

std::vector<Options> BothRoundings() {
  std::vector<Options> all;
  for (const rmsnorm_rounding rounding : {RMSNORM_SCALE_THEN_CAST, RMSNORM_CAST_THEN_SCALE}) {
    for (const auto residual_rounding : {RMSNORM_CAST_THEN_NORM, RMSNORM_NORM_THEN_CAST}) {
      all.push_back(MakeOptions(rounding, residual_rounding));
    }
  }
  return all;
}

// Lengths around every vector, group of lanes and block, each with other roundings and places.
TEST_P(AddForwardTest, Lengths) {
  SizeList sizes = {511, 512, 513, 1000, 4095, 4096, 4097, 8193};
  for (size_t d = 1; d <= 300; ++d) sizes.push_back(d);
  const std::vector<Options> roundings = BothRoundings();
  for (const size_t d : sizes) {
    const size_t rows = d <= 300 ? 9 : 5;
    const Options& options = roundings[(d + d / 4) % roundings.size()];
    const Options& other = roundings[(d + 1 + d / 4) % roundings.size()];
    const Placement apart = {{1, 5}, {3, 2}, {5, 7}, {7, 1}};
    ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {}, {true, false}, options));
    ASSERT_NO_FATAL_FAILURE(Compare(rows, d, apart, {d % 3 == 0, YCanBeInPlace()}, other));
  }
}

// What is done with the weight's type does not depend on the rest.
class AddForwardOfOneWeightTest : public AddForwardTest {};

// Each tensor at every element of a cache line.
TEST_P(AddForwardOfOneWeightTest, Alignments) {
  for (const Options& options : BothRoundings()) {
    for (const size_t d : SizeList{1, 33, 128, 200, 600}) {
      for (size_t offset = 0; offset < 32; ++offset) {
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
  for (size_t rows = 1; rows <= 20; ++rows) {
    for (const size_t d : SizeList{1, 16, 64, 65, 127, 128, 256, 512}) {
      for (const auto residual_rounding : {RMSNORM_CAST_THEN_NORM, RMSNORM_NORM_THEN_CAST}) {
        const Options options = MakeOptions(RMSNORM_SCALE_THEN_CAST, residual_rounding);
        ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {}, {}, options));
        ASSERT_NO_FATAL_FAILURE(Compare(rows, d, {}, {true, YCanBeInPlace()}, options));
      }
    }
  }
  for (size_t rows = 1; rows <= 9; ++rows) {
    ASSERT_NO_FATAL_FAILURE(Compare(rows, 8192, {}, {true, false}, BothRoundings()[rows % 4]));
  }
}

TEST_P(AddForwardOfOneWeightTest, EpsDivisorAndOffset) {
  for (Options options : BothRoundings()) {
    for (const size_t d : SizeList{1, 100, 300}) {
      for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
        for (const float eps : {0.0f, 1e-6f, 1.0f}) {
          for (const float divisor : {0.0f, 100.5f, 1e30f}) {
            options.eps = eps;
            options.eps_placement = placement;
            options.divisor = divisor;
            options.weight_offset = divisor == 0 ? 0.0f : 1.0f;
            SCOPED_TRACE(testing::Message()
                         << "eps " << eps << " placement " << placement << " divisor " << divisor);
            ASSERT_NO_FATAL_FAILURE(Compare(9, d, {}, {true, YCanBeInPlace()}, options));
          }
        }
      }
    }
  }
}

// Sums that leave the range of f32 or of the residual, that vanish, and that are zero.
TEST_P(AddForwardOfOneWeightTest, SpecialSums) {
  const double f32_max = std::numeric_limits<float>::max();
  const double largest = FormatOf(types_.x).max();
  const double residual_largest = FormatOf(types_.residual).max();
  const double smallest = std::ldexp(1.0, FormatOf(types_.x).min_exponent()) / 4;
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
  for (const Options& rounding : BothRoundings()) {
    for (const float eps : {0.0f, 1e-5f}) {
      Options options = rounding;
      options.eps = eps;
      for (const size_t d : SizeList{1, 63, 64, 300}) {
        // A row of each alone, and one where it is a single element among others.
        Tensor x(types_.x, 2 * std::size(pairs), d);
        Tensor residual(types_.residual, x.rows(), d);
        Random random(223);
        FillNormal(random, x);
        FillNormal(random, residual);
        for (size_t i = 0; i < std::size(pairs); ++i) {
          for (size_t j = 0; j < d; ++j) {
            x.set(2 * i, j, pairs[i].x);
            residual.set(2 * i, j, pairs[i].residual);
          }
          x.set(2 * i + 1, d / 2, pairs[i].x);
          residual.set(2 * i + 1, d / 2, pairs[i].residual);
        }
        // NaNs of every payload.
        x.set_bits(18, 0, FormatOf(types_.x).sign() - 1);
        residual.set_bits(20, 0, FormatOf(types_.residual).sign() - 1);
        ASSERT_NO_FATAL_FAILURE(Compare(x, residual, {}, {}, options));
        ASSERT_NO_FATAL_FAILURE(Compare(x, residual, {}, {true, YCanBeInPlace()}, options));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, AddForwardTest,
                         testing::ValuesIn(AllTypes({kNoWeight, RMSNORM_BF16})), NameOfTypes);
INSTANTIATE_TEST_SUITE_P(AllTypes, AddForwardOfOneWeightTest,
                         testing::ValuesIn(AllTypes({RMSNORM_F32})), NameOfTypes);

// ------------------------------------------------------------------------ threads, views, module

// Calls with separate outputs and compares them with another call's.
Results AddApart(const Tensor& x, const Tensor& residual, const Tensor& weight, rmsnorm_dtype y,
                 const Options& options) {
  Results results = {Tensor(residual.dtype(), x.rows(), x.d()), Tensor(y, x.rows(), x.d()),
                     std::vector<float>(x.rows())};
  EXPECT_EQ(RMSNORM_OK, Call(x, residual, &weight, results.residual_out, results.y,
                             results.rstd.data(), options))
      << rmsnorm_error_message();
  return results;
}

// The same with both outputs in place, y of the type of x.
Results AddInPlace(const Tensor& x, const Tensor& residual, const Tensor& weight,
                   const Options& options) {
  Results results = {residual, x, std::vector<float>(x.rows())};
  EXPECT_EQ(RMSNORM_OK, Call(results.y, results.residual_out, &weight, results.residual_out,
                             results.y, results.rstd.data(), options))
      << rmsnorm_error_message();
  return results;
}

void ExpectSameRows(const Tensor& expected, const Tensor& actual) {
  for (size_t row = 0; row < expected.rows(); ++row) {
    ASSERT_TRUE(SameBits(expected.dtype(), expected.Row(row), actual.Row(row), expected.d()))
        << "row " << row;
  }
}

void ExpectSameBits(const Results& expected, const Results& actual) {
  ExpectSameRows(expected.residual_out, actual.residual_out);
  ExpectSameRows(expected.y, actual.y);
  EXPECT_TRUE(
      SameBits(RMSNORM_F32, expected.rstd.data(), actual.rstd.data(), expected.rstd.size()));
}

// Runs the parts on threads of their own, the last one started first, and keeps their number.
void OnThreads(void* context, size_t count, rmsnorm_task task, void* state) {
  *static_cast<size_t*>(context) = count;
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(task, state, i);
  for (std::thread& thread : threads) thread.join();
}

class AddForwardOnTargetTest : public testing::TestWithParam<std::string> {
 protected:
  AddForwardOnTargetTest() { options_.target = target_.c_str(); }

  // One thread against several, of OpenMP and of an executor.
  void CompareThreads(const Tensor& x, const Tensor& residual, const Tensor& weight) {
    for (const auto residual_rounding : {RMSNORM_CAST_THEN_NORM, RMSNORM_NORM_THEN_CAST}) {
      options_.residual_rounding = residual_rounding;
      options_.parallel_for = nullptr;
      options_.threads = 1;
      const Results serial = AddApart(x, residual, weight, x.dtype(), options_);
      constexpr size_t kThreads = 3;
      SCOPED_TRACE(testing::Message() << "rounding " << residual_rounding);
      options_.threads = kThreads;
      ExpectSameBits(serial, AddApart(x, residual, weight, x.dtype(), options_));
      // A row whose sum is not rounded is one thread's; one row alone is the caller's.
      const bool whole_rows =
          residual_rounding == RMSNORM_NORM_THEN_CAST && residual.dtype() != RMSNORM_F32;
      const size_t used = whole_rows ? std::min(x.rows(), kThreads) : kThreads;
      size_t parts = 1;
      options_.parallel_for = OnThreads;
      options_.parallel_context = &parts;
      ExpectSameBits(serial, AddApart(x, residual, weight, x.dtype(), options_));
      EXPECT_EQ(used, parts);
      ExpectSameBits(serial, AddInPlace(x, residual, weight, options_));
    }
  }

  const std::string target_ = GetParam();
  Options options_;
  Random random_{227};
};

TEST_P(AddForwardOnTargetTest, ThreadsOfManyRows) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const rmsnorm_dtype residual_dtype : {dtype, rmsnorm_dtype{RMSNORM_F32}}) {
      Tensor x(dtype, 1031, 512);
      Tensor residual(residual_dtype, 1031, 512);
      Tensor weight(dtype, 1, 512);
      FillMixed(random_, x);
      FillMixed(random_, residual);
      FillWeight(random_, weight);
      CompareThreads(x, residual, weight);
    }
  }
}

// A row alone goes to all threads, its blocks in parts; rows of every kind, also such as are found
// to need binary64 only once they are summed.
TEST_P(AddForwardOnTargetTest, ThreadsOfOneLongRow) {
  const size_t d = 5 * 32768 + 77;
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const rmsnorm_dtype residual_dtype : {dtype, rmsnorm_dtype{RMSNORM_F32}}) {
      Tensor weight(dtype, 1, d);
      FillWeight(random_, weight);
      for (const RowKind kind : {RowKind::kNormal, RowKind::kTiny, RowKind::kHuge, RowKind::kNan}) {
        SCOPED_TRACE(testing::Message()
                     << rmsnorm_dtype_name(dtype) << ", kind " << static_cast<int>(kind));
        Tensor x(dtype, 1, d);
        Tensor residual(residual_dtype, 1, d);
        FillRow(random_, kind, x, 0);
        FillRow(random_, kind, residual, 0);
        CompareThreads(x, residual, weight);
      }
    }
  }
}

// Longer than what is summed at once, and a few rows at places of their own.
TEST_P(AddForwardOnTargetTest, ThreadsOfFewVeryLongRows) {
  const size_t d = (size_t{4} << 20) + 3 * 4096 + 5;
  Tensor x(RMSNORM_BF16, 2, d, 3);
  Tensor residual(RMSNORM_BF16, 2, d, 5, 1);
  Tensor weight(RMSNORM_F32, 1, d);
  FillNormal(random_, x);
  FillNormal(random_, residual);
  FillNormal(random_, weight);
  CompareThreads(x, residual, weight);
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
    options_.threads = threads;
    add_forward(
        ConstView(rmsnorm_tensor(x.data() + 2 * 4 * 5 * 71, RMSNORM_F32, 4, shape, x_stride)),
        ConstView(rmsnorm_tensor(residual.data(), RMSNORM_F32, 4, shape, residual_stride)), nullptr,
        View(rmsnorm_tensor(residual_out.data(), RMSNORM_F32, 4, shape, out_stride)),
        View(rmsnorm_tensor(y.data(), RMSNORM_F32, 4, shape, nullptr)), options_);
    for (size_t a = 0; a < 3; ++a) {
      for (size_t b = 0; b < 4; ++b) {
        for (size_t c = 0; c < 5; ++c) {
          const float* const x_row = x.data() + ((2 - a) * 20 + b * 5 + c) * 71;
          const float* const residual_row = residual.data() + (a * 5 + c) * kD;
          float sum[kD];
          float expected[kD];
          for (size_t j = 0; j < kD; ++j) sum[j] = residual_row[j] + x_row[j];
          forward({sum, kD}, nullptr, {expected, kD}, options_);
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
    for (const Options& rounding : BothRoundings()) {
      for (const size_t rows : SizeList{1, 5}) {
        for (const size_t d : SizeList{1, 64, 300, 4097}) {
          Options options = rounding;
          options.target = target_.c_str();
          options.weight_offset = 1;
          Tensor x(dtype, rows, d);
          Tensor residual(dtype, rows, d);
          Tensor weight(dtype, 1, d);
          FillMixed(random_, x);
          FillMixed(random_, residual);
          FillWeight(random_, weight);
          const Results expected = AddApart(x, residual, weight, dtype, options);
          RmsNorm norm(d, options, static_cast<Dtype>(dtype));
          norm.set_weight(ConstView(weight.vector()));
          Results actual = {Tensor(dtype, rows, d), Tensor(dtype, rows, d),
                            std::vector<float>(rows)};
          norm.add_forward(ConstView(x.view()), ConstView(residual.view()),
                           View(actual.residual_out.view()), View(actual.y.view()),
                           actual.rstd.data());
          ExpectSameBits(expected, actual);
          actual = {residual, x, expected.rstd};
          norm.add_forward(ConstView(actual.y.view()), ConstView(actual.residual_out.view()),
                           View(actual.residual_out.view()), View(actual.y.view()));
          ExpectSameBits(expected, actual);
        }
      }
    }
  }
}

// More bytes than most last caches hold, which may be written in another way.
TEST_P(AddForwardOnTargetTest, BeyondTheCaches) {
  for (const rmsnorm_dtype dtype : {RMSNORM_F32, RMSNORM_BF16}) {
    for (const auto residual_rounding : {RMSNORM_CAST_THEN_NORM, RMSNORM_NORM_THEN_CAST}) {
      const size_t d = 4099;
      const size_t rows = dtype == RMSNORM_F32 ? 2100 : 4200;
      Tensor x(dtype, rows, d);
      Tensor residual(dtype, rows, d);
      // Rows that repeat: the numbers matter less than their places.
      Tensor few(dtype, 7, d);
      FillMixed(random_, few);
      const size_t bytes = d * rmsnorm_dtype_size(dtype);
      for (size_t row = 0; row < rows; ++row) {
        std::memcpy(x.Row(row), few.Row(row % 7), bytes);
        std::memcpy(residual.Row(row), few.Row(row % 5), bytes);
      }
      Tensor weight(dtype, 1, d);
      FillWeight(random_, weight);
      options_.residual_rounding = residual_rounding;
      const Results whole = AddApart(x, residual, weight, dtype, options_);
      for (const size_t first : {size_t{0}, rows / 2, rows - 35}) {
        Tensor some_x(dtype, 35, d);
        Tensor some_residual(dtype, 35, d);
        std::memcpy(some_x.data(), x.Row(first), 35 * bytes);
        std::memcpy(some_residual.data(), residual.Row(first), 35 * bytes);
        const Results some = AddApart(some_x, some_residual, weight, dtype, options_);
        ASSERT_TRUE(SameBits(dtype, some.y.data(), whole.y.Row(first), 35 * d));
        ASSERT_TRUE(
            SameBits(dtype, some.residual_out.data(), whole.residual_out.Row(first), 35 * d));
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
    Tensor x(RMSNORM_BF16, 1, d);
    Tensor residual(stream, 1, d);
    Tensor weight(RMSNORM_F32, 1, d);
    Tensor dy(RMSNORM_BF16, 1, d);
    for (Tensor* tensor : {&x, &residual, &weight, &dy}) FillNormal(random_, *tensor);
    options_.eps = 0.01f;
    const Results forward = AddApart(x, residual, weight, RMSNORM_BF16, options_);

    Tensor gradient(stream, 1, d);  // of residual_out, and then of residual and x
    FillNormal(random_, gradient);
    std::vector<double> dr(d);
    std::vector<double> h(d);
    for (size_t j = 0; j < d; ++j) {
      dr[j] = gradient.get(0, j);
      h[j] = forward.residual_out.get(0, j);
    }
    backward(ConstView(dy.view()), ConstView(forward.residual_out.view()),
             ConstView(weight.vector()), {View(gradient.view()), std::nullopt, true}, options_,
             forward.rstd.data());
    const double bound = stream == RMSNORM_F32 ? 1e-5 : 0x1p-8;
    for (size_t j = 0; j < d; ++j) {
      constexpr double kStep = 1e-4;
      std::vector<double> above = h;
      std::vector<double> below = h;
      above[j] += kStep;
      below[j] -= kStep;
      const double eps = double{options_.eps};
      const double expected =
          (Loss(above, weight, dy, dr, eps) - Loss(below, weight, dy, dr, eps)) / (2 * kStep);
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
  rmsnorm_view PlaceRows(const GuardedBuffer& buffer, rmsnorm_dtype dtype, size_t rows, size_t d,
                         int byte) const {
    const size_t bytes = rows * d * rmsnorm_dtype_size(dtype);
    void* const data = Place<void>(buffer, bytes);
    std::memset(data, byte, bytes);
    return rmsnorm_rows(data, dtype, rows, d, static_cast<ptrdiff_t>(d));
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
  const std::string target = std::get<0>(GetParam());
  for (Options options : BothRoundings()) {
    if (options.rounding == RMSNORM_CAST_THEN_SCALE) continue;
    options.target = target.c_str();
    for (const Types& types : AllTypes({kNoWeight})) {
      for (const size_t d : sizes) {
        for (const size_t rows : {size_t{1}, kMostRows}) {
          for (const int byte : {kOrdinary, kNan}) {
            const rmsnorm_view x = PlaceRows(x_, types.x, rows, d, byte);
            const rmsnorm_view residual = PlaceRows(residual_, types.residual, rows, d, kOrdinary);
            const rmsnorm_view out = PlaceRows(residual_out_, types.residual, rows, d, 0);
            const rmsnorm_view y = PlaceRows(y_, types.y, rows, d, 0);
            float* const rstd = Place<float>(rstd_, rows * sizeof(float));
            ASSERT_EQ(RMSNORM_OK,
                      rmsnorm_add_forward(&x, &residual, nullptr, &out, &y, rstd, &options));
            ASSERT_EQ(RMSNORM_OK,
                      rmsnorm_add_forward(&x, &residual, nullptr, &residual, &y, rstd, &options));
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

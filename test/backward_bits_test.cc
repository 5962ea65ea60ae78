// SPDX-License-Identifier: Apache-2.0
// Every SIMD target gives the reference's gradients, bit for bit.
#include <gtest/gtest.h>

#include <cfenv>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "gradients.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

// What the elements of a call are like.
enum class Contents {
  kNormal,  // no row leaves f32
  kFinite,  // every finite kind of row of x and of dy
  kAny,     // also NaN and infinity, and weights that are hard to round
};

constexpr rmsnorm_dtype kNone = 0;

// The types of x and of dy.
class BackwardBitsTest : public testing::TestWithParam<std::tuple<rmsnorm_dtype, rmsnorm_dtype>> {
 protected:
  void SetUp() override {
    if (targets_.empty()) GTEST_SKIP() << "this CPU runs no target but the reference";
  }

  // A call in which everything but the numbers of rows and elements is drawn.
  void CompareDrawn(size_t rows, size_t d) {
    constexpr rmsnorm_dtype kWeights[] = {kNone, RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16};
    const auto some = [this] { return random_.Below(2) == 0; };
    Options options;
    options.threads = 1;
    options.eps_placement = some() ? RMSNORM_EPS_INSIDE : RMSNORM_EPS_OUTSIDE;
    options.rounding = some() ? RMSNORM_SCALE_THEN_CAST : RMSNORM_CAST_THEN_SCALE;
    constexpr float kEps[] = {1e-5f, 0.0f, 0.5f};
    options.eps = kEps[random_.Below(3)];
    constexpr float kDivisors[] = {0.0f, 0.0f, 100.5f, 1e-3f};
    options.divisor = kDivisors[random_.Below(4)];
    const rmsnorm_dtype weight = kWeights[random_.Below(4)];
    if (weight != kNone && some()) options.weight_offset = 1;
    Draw(rows, d, weight, static_cast<Contents>(random_.Below(3)), options);
  }

  void Draw(size_t rows, size_t d, rmsnorm_dtype weight_dtype, Contents contents,
            const Options& options) {
    const auto some = [this] { return random_.Below(2) == 0; };
    const auto tensor = [&](rmsnorm_dtype dtype) {
      return Tensor(dtype, rows, d, random_.Below(16), some() ? 0 : random_.Below(8));
    };
    GradientInputs inputs = {tensor(x_dtype_), tensor(dy_dtype_), {}, {}, {}, {}};
    Fill(inputs.x, contents);
    Fill(inputs.dy, contents);
    if (weight_dtype != kNone) {
      inputs.weight.emplace(weight_dtype, 1, d, random_.Below(32));
      if (contents == Contents::kAny && random_.Below(4) == 0) {
        FillWeight(random_, *inputs.weight);
      } else {
        FillTameWeight(random_, *inputs.weight);
      }
    }
    if (some()) inputs.rstd = InverseRmsOf(inputs.x, options);
    const size_t outputs = random_.Below(4);
    if (outputs != 0) {
      // Where x is f32, dx may be as dy or as x.
      const bool like_x = x_dtype_ == RMSNORM_F32 && dy_dtype_ != RMSNORM_F32 && some();
      inputs.in_place = !like_x && some();
      inputs.dx = inputs.in_place ? inputs.dy : tensor(like_x ? x_dtype_ : dy_dtype_);
      if (some()) {
        inputs.flags |= RMSNORM_ADD_TO_DX;
        if (!inputs.in_place) FillMixed(random_, *inputs.dx);
      }
    }
    if (outputs != 1) {
      inputs.dw.emplace(kDtypes[random_.Below(3)], 1, d, random_.Below(32));
      if (some()) {
        inputs.flags |= RMSNORM_ADD_TO_DW;
        FillNormal(random_, *inputs.dw);
      }
    }
    Compare(inputs, options);
  }

  void Compare(const GradientInputs& inputs, Options options) {
    options.target = kReference;
    const GradientResults expected = ComputeGradients(inputs, options);
    for (const std::string& target : targets_) {
      options.target = target.c_str();
      const GradientResults actual = ComputeGradients(inputs, options);
      ASSERT_TRUE(SameBits(expected, actual))
          << target << ", " << inputs.x.rows() << " x " << inputs.x.d() << ", "
          << (inputs.weight ? rmsnorm_dtype_name(inputs.weight->dtype()) : "no") << " weight"
          << (inputs.rstd.empty() ? "" : ", rstd") << (inputs.dx ? ", dx " : "")
          << (inputs.dx ? rmsnorm_dtype_name(inputs.dx->dtype()) : "")
          << (inputs.in_place ? " in place" : "") << (inputs.dw ? ", dw " : "")
          << (inputs.dw ? rmsnorm_dtype_name(inputs.dw->dtype()) : "") << ", flags " << inputs.flags
          << ", eps " << options.eps
          << (options.eps_placement == RMSNORM_EPS_OUTSIDE ? " outside" : "") << ", divisor "
          << options.divisor << ", offset " << options.weight_offset;
    }
  }

  void Fill(Tensor& tensor, Contents contents) {
    if (contents == Contents::kNormal) FillNormal(random_, tensor);
    if (contents == Contents::kFinite) FillFinite(random_, tensor, random_.Below(9));
    if (contents == Contents::kAny) FillMixed(random_, tensor);
  }

  const rmsnorm_dtype x_dtype_ = std::get<0>(GetParam());
  const rmsnorm_dtype dy_dtype_ = std::get<1>(GetParam());
  const std::vector<std::string> targets_ = SimdTargets();
  Random random_{17};
};

// Lengths around every vector and group of lanes.
TEST_P(BackwardBitsTest, ShortRows) {
  for (size_t d = 1; d <= 300; ++d) {
    for (int repeat = 0; repeat < 12; ++repeat) {
      ASSERT_NO_FATAL_FAILURE(CompareDrawn(1 + random_.Below(11), d)) << "repeat " << repeat;
    }
  }
}

// Lengths around blocks.
TEST_P(BackwardBitsTest, LongRows) {
  for (const size_t d : SizeList{1000, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 16385}) {
    for (int repeat = 0; repeat < 12; ++repeat) {
      ASSERT_NO_FATAL_FAILURE(CompareDrawn(1 + random_.Below(6), d)) << "repeat " << repeat;
    }
  }
}

// Numbers of rows around the blocks over which dw is summed, up to more than the most.
TEST_P(BackwardBitsTest, ManyRows) {
  for (const size_t rows : SizeList{15, 16, 17, 31, 32, 33, 48, 100, 257, 1023, 1024, 1025, 1500}) {
    for (const size_t d : SizeList{1, 5, 64, 70}) {
      for (int repeat = 0; repeat < 3; ++repeat) {
        ASSERT_NO_FATAL_FAILURE(CompareDrawn(rows, d)) << "repeat " << repeat;
      }
    }
  }
}

std::string NameOfTypes(
    const testing::TestParamInfo<std::tuple<rmsnorm_dtype, rmsnorm_dtype>>& info) {
  return std::string(rmsnorm_dtype_name(std::get<0>(info.param))) + "_" +
         rmsnorm_dtype_name(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(AllTypes, BackwardBitsTest,
                         testing::Combine(testing::ValuesIn(kDtypes), testing::ValuesIn(kDtypes)),
                         NameOfTypes);

// Properties of the definition itself, on every target.
class BackwardTest : public testing::TestWithParam<std::string> {
 protected:
  BackwardTest() {
    options_.target = target_.c_str();
    options_.threads = 1;
    FillNormal(random_, inputs_.x);
    FillNormal(random_, inputs_.dy);
    FillNormal(random_, *inputs_.weight);
  }

  const std::string target_ = GetParam();
  Random random_{19};
  Options options_;
  GradientInputs inputs_ = {Tensor(RMSNORM_F32, 40, 300), Tensor(RMSNORM_F32, 40, 300),
                            Tensor(RMSNORM_F32, 1, 300),  {},
                            Tensor(RMSNORM_F32, 40, 300), Tensor(RMSNORM_F32, 1, 300)};
};

TEST_P(BackwardTest, NoWeightIsAWeightOfOnes) {
  for (size_t j = 0; j < 300; ++j) inputs_.weight->set(0, j, 1);
  const GradientResults ones = ComputeGradients(inputs_, options_);
  inputs_.weight.reset();
  EXPECT_TRUE(SameBits(ones, ComputeGradients(inputs_, options_)));
}

TEST_P(BackwardTest, ASavedInverseRmsGivesTheSameBits) {
  for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
    options_.eps_placement = placement;
    inputs_.rstd.clear();
    const GradientResults computed = ComputeGradients(inputs_, options_);
    inputs_.rstd = InverseRmsOf(inputs_.x, options_);
    EXPECT_TRUE(SameBits(computed, ComputeGradients(inputs_, options_)));
  }
}

// It is used as it is given: twice of it, with eps inside, gives four times the second term.
TEST_P(BackwardTest, ASavedInverseRmsIsUsedAsGiven) {
  inputs_.rstd = InverseRmsOf(inputs_.x, options_);
  const GradientResults once = ComputeGradients(inputs_, options_);
  for (float& r : inputs_.rstd) r *= 2;
  const GradientResults twice = ComputeGradients(inputs_, options_);
  for (size_t row = 0; row < 40; ++row) {
    for (size_t j = 0; j < 300; ++j) {
      const double first = inputs_.dy.get(row, j) * inputs_.weight->get(0, j) * inputs_.rstd[row];
      const double second = once.dx->get(row, j) - first / 2;
      ASSERT_NEAR(twice.dx->get(row, j), first + 8 * second, 1e-4);
    }
  }
  for (size_t j = 0; j < 300; ++j) {
    ASSERT_NEAR(twice.dw->get(0, j), 2 * once.dw->get(0, j), 1e-4);
  }
}

TEST_P(BackwardTest, EachGradientDoesNotDependOnTheOther) {
  const GradientResults both = ComputeGradients(inputs_, options_);
  GradientInputs only_dx = inputs_;
  only_dx.dw.reset();
  GradientInputs only_dw = inputs_;
  only_dw.dx.reset();
  EXPECT_TRUE(SameBits(*both.dx, *ComputeGradients(only_dx, options_).dx));
  EXPECT_TRUE(SameBits(*both.dw, *ComputeGradients(only_dw, options_).dw));
}

// The existing gradient is added in f32, and the sum rounded once.
TEST_P(BackwardTest, AddsToAnExistingGradient) {
  const GradientResults alone = ComputeGradients(inputs_, options_);
  FillNormal(random_, *inputs_.dx);
  FillNormal(random_, *inputs_.dw);
  inputs_.flags = RMSNORM_ADD_TO_DX | RMSNORM_ADD_TO_DW;
  const GradientResults added = ComputeGradients(inputs_, options_);
  for (size_t row = 0; row < 40; ++row) {
    for (size_t j = 0; j < 300; ++j) {
      ASSERT_EQ(RoundTo(RMSNORM_F32, inputs_.dx->get(row, j) + alone.dx->get(row, j)),
                added.dx->get(row, j));
    }
  }
  for (size_t j = 0; j < 300; ++j) {
    ASSERT_EQ(RoundTo(RMSNORM_F32, inputs_.dw->get(0, j) + alone.dw->get(0, j)),
              added.dw->get(0, j));
  }
}

// One flag adds to one gradient only.
TEST_P(BackwardTest, FlagsAreApart) {
  const GradientResults alone = ComputeGradients(inputs_, options_);
  FillNormal(random_, *inputs_.dx);
  FillNormal(random_, *inputs_.dw);
  inputs_.flags = RMSNORM_ADD_TO_DX;
  EXPECT_TRUE(SameBits(*alone.dw, *ComputeGradients(inputs_, options_).dw));
  inputs_.flags = RMSNORM_ADD_TO_DW;
  EXPECT_TRUE(SameBits(*alone.dx, *ComputeGradients(inputs_, options_).dx));
}

// dw of 16 bits is the one of f32, rounded at the end.
TEST_P(BackwardTest, WeightGradientIsRoundedOnce) {
  const GradientResults exact = ComputeGradients(inputs_, options_);
  for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    inputs_.dw.emplace(dtype, 1, 300);
    const GradientResults rounded = ComputeGradients(inputs_, options_);
    for (size_t j = 0; j < 300; ++j) {
      ASSERT_EQ(RoundTo(dtype, exact.dw->get(0, j)), rounded.dw->get(0, j));
    }
  }
}

TEST_P(BackwardTest, RoundingOrderIsNoMatter) {
  inputs_.x = Tensor(RMSNORM_BF16, 40, 300);
  FillNormal(random_, inputs_.x);
  const GradientResults one = ComputeGradients(inputs_, options_);
  options_.rounding = RMSNORM_CAST_THEN_SCALE;
  EXPECT_TRUE(SameBits(one, ComputeGradients(inputs_, options_)));
}

// The order of the roundings, by an example that is small enough to be written out: of five
// elements lane l holds the l-th product, and the lanes fold as (0 + 4) + 2 and 1 + 3.
TEST_P(BackwardTest, AnExampleOperationByOperation) {
  for (const bool outside : {false, true}) {
    for (int repeat = 0; repeat < 200; ++repeat) {
      // In binary64 and rounded to f32, so that no compiler makes one operation of two.
      const auto f32 = [](double value) { return static_cast<float>(value); };
      float x[5];
      float dy[5];
      float w[5];
      double square[5];
      double product[5];
      double g[5];
      for (int j = 0; j < 5; ++j) {
        x[j] = f32(random_.Normal());
        dy[j] = f32(random_.Normal());
        w[j] = f32(random_.Normal());
        g[j] = f32(double{dy[j]} * w[j]);
        square[j] = f32(double{x[j]} * x[j]);
        product[j] = f32(g[j] * x[j]);
      }
      const auto fold = [&](const double* lane) {
        const double even = f32(f32(lane[0] + lane[4]) + lane[2]);
        return f32(even + f32(lane[1] + lane[3]));
      };
      const double eps = 0.01f;
      const double mean = f32(fold(square) / 5.0);
      const double c = fold(product);
      const double s = f32(std::sqrt(mean));
      const double root = outside ? f32(s + eps) : f32(std::sqrt(double{f32(mean + eps)}));
      const double r = f32(1 / root);
      const double q = f32(f32(c * r) / (outside ? double{f32(5 * s)} : 5.0));
      float dx[5];
      float dw[5];
      options_.eps = 0.01f;
      options_.eps_placement = outside ? RMSNORM_EPS_OUTSIDE : RMSNORM_EPS_INSIDE;
      backward({dy, 5}, {x, 5}, {w, 5}, {View(dx, 5), View(dw, 5)}, options_);
      for (int j = 0; j < 5; ++j) {
        const double mean_term = outside ? f32(x[j] * q) : f32(f32(x[j] * r) * q);
        const double e = f32(g[j] - mean_term);
        ASSERT_EQ(f32(r * e), dx[j]);
        const double p = f32(double{dy[j]} * x[j]);
        ASSERT_EQ(f32(p * r), dw[j]);
      }
    }
  }
}

// c adds up by fma: elements 0 and 128 share a lane, and the others are 0.
TEST_P(BackwardTest, DotAddsUpByFma) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<float> x(129);
    std::vector<float> dy(129);
    for (const size_t j : SizeList{0, 128}) {
      x[j] = static_cast<float>(random_.Normal());
      dy[j] = static_cast<float>(random_.Normal());
    }
    const double c = std::fma(dy[128], x[128], static_cast<float>(double{dy[0]} * x[0]));
    const float r = 1.5f;
    std::vector<float> dx(129);
    // Of the terms c alone is left where g is 0.
    x[1] = 1;
    backward({dy.data(), 129}, {x.data(), 129}, nullptr, {View(dx.data(), 129)}, options_, &r);
    const double q = static_cast<float>(double{static_cast<float>(c * r)} / 129);
    ASSERT_EQ(-static_cast<float>(r * double{static_cast<float>(r * q)}), dx[1]);
  }
}

// The blocks of rows over which dw adds up, and their order.
TEST_P(BackwardTest, WeightGradientAddsUpByBlocks) {
  for (const size_t rows : SizeList{1, 16, 17, 33, 100, 1023, 1024, 1025, 3000}) {
    GradientInputs inputs = {Tensor(RMSNORM_F32, rows, 3), Tensor(RMSNORM_F32, rows, 3), {}, {}, {},
                             Tensor(RMSNORM_F32, 1, 3)};
    FillNormal(random_, inputs.x);
    FillNormal(random_, inputs.dy);
    inputs.rstd = InverseRmsOf(inputs.x, options_);
    const GradientResults results = ComputeGradients(inputs, options_);
    const size_t blocks = std::min<size_t>(64, (rows + 15) / 16);
    for (size_t j = 0; j < 3; ++j) {
      float total = 0;
      for (size_t block = 0; block < blocks; ++block) {
        float sum = 0;
        for (size_t row = block * rows / blocks; row < (block + 1) * rows / blocks; ++row) {
          const float p =
              static_cast<float>(inputs.dy.get(row, j)) * static_cast<float>(inputs.x.get(row, j));
          sum = std::fma(p, inputs.rstd[row], sum);
        }
        total += sum;
      }
      ASSERT_EQ(total, results.dw->get(0, j)) << rows << " rows";
    }
  }
}

// A row beyond f32 is right: the norm of s * x is that of x, so its gradient is that of x over s.
TEST_P(BackwardTest, ScaledRowsHaveScaledGradients) {
  options_.eps = 0;
  const GradientResults plain = ComputeGradients(inputs_, options_);
  for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
    options_.eps_placement = placement;
    for (const double scale : {0x1p-110, 0x1p-60, 0x1p70, 0x1p120}) {
      GradientInputs scaled = inputs_;
      // dx / scale, too, must be a number of f32.
      const double dy_scale = scale < 1 ? 0x1p-20 : 0x1p10;
      for (size_t row = 0; row < 40; ++row) {
        for (size_t j = 0; j < 300; ++j) {
          scaled.x.set(row, j, inputs_.x.get(row, j) * scale);
          scaled.dy.set(row, j, inputs_.dy.get(row, j) * dy_scale);
        }
      }
      const GradientResults results = ComputeGradients(scaled, options_);
      for (size_t row = 0; row < 40; ++row) {
        for (size_t j = 0; j < 300; ++j) {
          ASSERT_NEAR(plain.dx->get(row, j), results.dx->get(row, j) * scale / dy_scale, 2e-5)
              << scale;
        }
      }
      for (size_t j = 0; j < 300; ++j) {
        ASSERT_NEAR(plain.dw->get(0, j), results.dw->get(0, j) / dy_scale, 2e-5) << scale;
      }
    }
  }
}

// A NaN spreads over its row of dx and over dw, not to other rows.
TEST_P(BackwardTest, NanStaysInItsRow) {
  const GradientResults before = ComputeGradients(inputs_, options_);
  GradientInputs spoilt = inputs_;
  spoilt.dy.set(7, 100, std::numeric_limits<double>::quiet_NaN());
  const GradientResults after = ComputeGradients(spoilt, options_);
  for (size_t row = 0; row < 40; ++row) {
    for (size_t j = 0; j < 300; ++j) {
      if (row == 7) {
        ASSERT_TRUE(std::isnan(after.dx->get(row, j)));
      } else {
        ASSERT_EQ(before.dx->get(row, j), after.dx->get(row, j));
      }
    }
  }
  for (size_t j = 0; j < 300; ++j) ASSERT_EQ(j == 100, std::isnan(after.dw->get(0, j)));
}

// Where c is beyond FLT_MAX, and forward is not cold, dx alone is computed in binary64. dw adds the
// products in f32, of which some are beyond FLT_MAX here, too.
TEST_P(BackwardTest, OnlyDxIsColdWhereTheDotOverflows) {
  GradientInputs inputs = {Tensor(RMSNORM_F32, 5, 300), Tensor(RMSNORM_F32, 5, 300), {}, {},
                           Tensor(RMSNORM_F32, 5, 300), Tensor(RMSNORM_F32, 1, 300)};
  FillNormal(random_, inputs.x);
  FillNormal(random_, inputs.dy);
  for (size_t j = 0; j < 300; ++j) {
    inputs.x.set(2, j, inputs.x.get(2, j) * 0x1p47);
    inputs.dy.set(2, j, std::abs(inputs.dy.get(2, j)) * 0x1p81 * (inputs.x.get(2, j) < 0 ? -1 : 1));
  }
  const std::vector<float> rstd = InverseRmsOf(inputs.x, options_);
  Tensor dw(RMSNORM_F32, 1, 300);
  for (size_t j = 0; j < 300; ++j) {
    float sum = 0;
    for (size_t row = 0; row < 5; ++row) {
      const float product =
          static_cast<float>(inputs.dy.get(row, j)) * static_cast<float>(inputs.x.get(row, j));
      sum = std::fma(product, rstd[row], sum);
    }
    dw.set(0, j, sum);
  }
  for (const bool in_place : {false, true}) {
    inputs.in_place = in_place;
    if (in_place) inputs.dx = inputs.dy;
    const GradientResults results = ComputeGradients(inputs, options_);
    EXPECT_TRUE(SameBits(dw, *results.dw));
    for (size_t j = 0; j < 300; ++j) ASSERT_TRUE(std::isfinite(results.dx->get(2, j))) << j;
  }
}

// Zeros: the formula's second term is 0.
TEST_P(BackwardTest, RowOfZeros) {
  for (const rmsnorm_eps_placement placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE}) {
    options_.eps_placement = placement;
    options_.eps = 0.25f;
    const double r = placement == RMSNORM_EPS_INSIDE ? 2 : 4;
    for (size_t j = 0; j < 300; ++j) inputs_.x.set(3, j, 0);
    const GradientResults results = ComputeGradients(inputs_, options_);
    for (size_t j = 0; j < 300; ++j) {
      const double g = RoundTo(RMSNORM_F32, inputs_.dy.get(3, j) * inputs_.weight->get(0, j));
      ASSERT_NEAR(r * g, results.dx->get(3, j), 1e-6);
    }
  }
}

// A NaN with every bit of its payload, which the usual rounding to bf16 would turn into -0.
TEST_P(BackwardTest, NanOfTheInputsStaysNan) {
  for (const uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
    GradientInputs nan = inputs_;
    for (size_t j = 0; j < 300; ++j) nan.x.set_bits(0, j, bits);
    nan.dy = Tensor(RMSNORM_BF16, 40, 300);
    FillNormal(random_, nan.dy);
    nan.dx.emplace(RMSNORM_BF16, 40, 300);
    nan.dw.emplace(RMSNORM_BF16, 1, 300);
    const GradientResults results = ComputeGradients(nan, options_);
    for (size_t j = 0; j < 300; ++j) {
      ASSERT_TRUE(std::isnan(results.dx->get(0, j))) << Hex(bits);
      ASSERT_TRUE(std::isnan(results.dw->get(0, j))) << Hex(bits);
    }
  }
}

// The caller's rounding mode changes no bit and is found as it was.
TEST_P(BackwardTest, RoundingModeOfTheCaller) {
  const GradientResults expected = ComputeGradients(inputs_, options_);
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const GradientResults results = ComputeGradients(inputs_, options_);
    const int after = std::fegetround();
    std::fesetround(FE_TONEAREST);
    EXPECT_EQ(mode, after);
    EXPECT_TRUE(SameBits(expected, results));
  }
}

TEST_P(BackwardTest, ModuleGivesThePlainCall) {
  for (const float offset : {0.0f, 1.0f}) {
    options_.weight_offset = offset;
    const GradientResults plain = ComputeGradients(inputs_, options_);
    RmsNorm norm(300, options_);
    norm.set_weight(ConstView(inputs_.weight->vector()));
    GradientResults results = {Tensor(RMSNORM_F32, 40, 300), Tensor(RMSNORM_F32, 1, 300)};
    const std::vector<float> rstd = InverseRmsOf(inputs_.x, options_);
    for (const float* given : {static_cast<const float*>(nullptr), rstd.data()}) {
      results.dx->Wipe();
      results.dw->Wipe();
      norm.backward(ConstView(inputs_.dy.view()), ConstView(inputs_.x.view()),
                    {View(results.dx->view()), View(results.dw->vector())}, given);
      EXPECT_TRUE(SameBits(plain, results));
    }
  }
}

// Without rows dw is zeros, unless it is added to.
TEST_P(BackwardTest, WithoutRows) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    Tensor dw(dtype, 1, 300);
    for (size_t j = 0; j < 300; ++j) dw.set(0, j, -0.0);
    const Tensor before = dw;
    const ConstView none(static_cast<const float*>(nullptr), 0, 300);
    backward(none, none, nullptr, {std::nullopt, View(dw.vector()), false, true}, options_);
    EXPECT_TRUE(SameBits(before, dw));
    backward(none, none, nullptr, {std::nullopt, View(dw.vector())}, options_);
    for (size_t j = 0; j < 300; ++j) ASSERT_EQ(0u, dw.bits(0, j));
    EXPECT_TRUE(dw.IsPaddingWiped());
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

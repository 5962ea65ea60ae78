// SPDX-License-Identifier: Apache-2.0
// Properties of the gradients' definition on every target. They can also find errors of the
// reference.
#include <gtest/gtest.h>

#include <cfenv>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "../lib/fma.h"  // which fma_test.cc tests
#include "gradients.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

constexpr EpsPlacement kEpsPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                           EpsPlacement::floor};

class BackwardTest : public testing::TestWithParam<std::string> {
 protected:
  BackwardTest() {
    FillNormal(random_, inputs_.x);
    FillNormal(random_, inputs_.dy);
    FillNormal(random_, *inputs_.weight);
  }

  GradientResults Compute(const GradientInputs& inputs) const {
    return ComputeGradients(inputs, options_, context_);
  }
  std::vector<float> RstdOf(const Tensor& x) const { return InverseRmsOf(x, options_, context_); }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_, 1);
  Random random_{19};
  Options options_;
  GradientInputs inputs_ = {
      Tensor(RMSNORM_F32, 40, 300), Tensor(RMSNORM_F32, 40, 300), Tensor(RMSNORM_F32, 1, 300), {},
      Tensor(RMSNORM_F32, 40, 300), Tensor(RMSNORM_F32, 1, 300),  Tensor(RMSNORM_F32, 1, 300)};
};

TEST_P(BackwardTest, NoWeightIsAWeightOfOnes) {
  for (size_t j = 0; j < 300; ++j) inputs_.weight->set(0, j, 1);
  const GradientResults ones = Compute(inputs_);
  inputs_.weight.reset();
  EXPECT_TRUE(SameBits(ones, Compute(inputs_)));
}

TEST_P(BackwardTest, ASavedInverseRmsGivesTheSameBits) {
  for (const EpsPlacement placement : kEpsPlacements) {
    options_.eps_placement = placement;
    inputs_.rstd.clear();
    const GradientResults computed = Compute(inputs_);
    inputs_.rstd = RstdOf(inputs_.x);
    EXPECT_TRUE(SameBits(computed, Compute(inputs_)));
  }
}

// A given inverse RMS is used unchanged: a doubled one, with eps inside, gives four times the
// second term.
TEST_P(BackwardTest, ASavedInverseRmsIsUsedAsGiven) {
  inputs_.rstd = RstdOf(inputs_.x);
  const GradientResults once = Compute(inputs_);
  for (float& r : inputs_.rstd) r *= 2;
  const GradientResults twice = Compute(inputs_);
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

TEST_P(BackwardTest, EachGradientDoesNotDependOnTheOthers) {
  const GradientResults all = Compute(inputs_);
  for (unsigned some = 1; some < 7; ++some) {
    GradientInputs inputs = inputs_;
    if ((some & 1) == 0) inputs.dx.reset();
    if ((some & 2) == 0) inputs.dw.reset();
    if ((some & 4) == 0) inputs.db.reset();
    const GradientResults results = Compute(inputs);
    if (results.dx) {
      EXPECT_TRUE(SameBits(*all.dx, *results.dx)) << some;
    }
    if (results.dw) {
      EXPECT_TRUE(SameBits(*all.dw, *results.dw)) << some;
    }
    if (results.db) {
      EXPECT_TRUE(SameBits(*all.db, *results.db)) << some;
    }
  }
}

// Backward adds to an existing gradient in f32 and rounds the sum once. Each flag applies to one
// gradient.
TEST_P(BackwardTest, AddsToAnExistingGradient) {
  const GradientResults alone = Compute(inputs_);
  FillNormal(random_, *inputs_.dx);
  FillNormal(random_, *inputs_.dw);
  FillNormal(random_, *inputs_.db);
  for (uint32_t add_to = 0; add_to < 8; ++add_to) {
    inputs_.add_to = add_to;
    const GradientResults added = Compute(inputs_);
    const auto expect = [](const Tensor& before, const Tensor& gradient, bool add,
                           const Tensor& actual) {
      Tensor expected = gradient;
      for (size_t row = 0; add && row < before.rows(); ++row) {
        for (size_t j = 0; j < 300; ++j) {
          expected.set(row, j, before.get(row, j) + gradient.get(row, j));
        }
      }
      EXPECT_TRUE(SameBits(expected, actual));
    };
    expect(*inputs_.dx, *alone.dx, (add_to & RMSNORM_ADD_TO_DX) != 0, *added.dx);
    expect(*inputs_.dw, *alone.dw, (add_to & RMSNORM_ADD_TO_DW) != 0, *added.dw);
    expect(*inputs_.db, *alone.db, (add_to & RMSNORM_ADD_TO_DB) != 0, *added.db);
  }
}

// dw and db of 16 bits equal the results in f32, rounded at the end.
TEST_P(BackwardTest, GradientsByColumnsAreRoundedOnce) {
  const GradientResults exact = Compute(inputs_);
  for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    inputs_.dw.emplace(dtype, 1, 300);
    inputs_.db.emplace(dtype, 1, 300);
    const GradientResults rounded = Compute(inputs_);
    for (size_t j = 0; j < 300; ++j) {
      ASSERT_EQ(RoundTo(dtype, exact.dw->get(0, j)), rounded.dw->get(0, j));
      ASSERT_EQ(RoundTo(dtype, exact.db->get(0, j)), rounded.db->get(0, j));
    }
  }
}

TEST_P(BackwardTest, RoundingOrderIsNoMatter) {
  inputs_.x = Tensor(RMSNORM_BF16, 40, 300);
  FillNormal(random_, inputs_.x);
  const GradientResults one = Compute(inputs_);
  for (const Rounding rounding : {Rounding::before_weight, Rounding::inverse}) {
    options_.rounding = rounding;
    EXPECT_TRUE(SameBits(one, Compute(inputs_)));
  }
}

// The order of the roundings, in an example that is small enough to write out: with five elements,
// lane l holds the l-th product, and the lanes fold as (0 + 4) + 2 and 1 + 3.
TEST_P(BackwardTest, AnExampleOperationByOperation) {
  for (const EpsPlacement placement : kEpsPlacements) {
    const bool outside = placement == EpsPlacement::outside;
    for (int repeat = 0; repeat < 200; ++repeat) {
      // Computes in binary64 and rounds to f32, so that no compiler fuses two operations.
      const auto f32 = [](double value) { return static_cast<float>(value); };
      float x[5];
      float dy[5];
      float w[5];
      double square[5];
      double product[5];
      double g[5];
      for (int j = 0; j < 5; ++j) {
        x[j] = f32(random_.Normal());
        if (repeat % 4 == 0) x[j] = std::copysign(1.0f, x[j]);  // the RMS equals the floor
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
      // As a floor, eps is the RMS of these rows, or close to it on either side.
      const double eps = placement == EpsPlacement::floor ? 1.0 : double{0.01f};
      const double i = f32(1.0 / 5);
      const float sum = f32(fold(square));
      const double c = fold(product);
      const double s = f32(std::sqrt(double{f32(sum * i)}));
      const double root = outside ? f32(s + eps)
                          : placement == EpsPlacement::inside
                              ? f32(std::sqrt(double{internal::Fma(sum, f32(i), f32(eps))}))
                              : std::max(s, eps);
      const bool only_g = placement == EpsPlacement::floor && s < eps;
      const double r = f32(1 / root);
      const double q = f32(f32(f32(c * r) * i) / (outside ? s : 1));
      float dx[5];
      float dw[5];
      options_.eps = f32(eps);
      options_.eps_placement = placement;
      BackwardOperands operands;
      operands.dy = {dy, 5};
      operands.x = {x, 5};
      operands.weight = {w, 5};
      operands.dx = {dx, 5};
      operands.dw = {dw, 5};
      backward(operands, options_, context_);
      for (int j = 0; j < 5; ++j) {
        const double mean_term = only_g ? 0 : outside ? f32(x[j] * q) : f32(f32(x[j] * r) * q);
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
    const double c = internal::Fma(dy[128], x[128], static_cast<float>(double{dy[0]} * x[0]));
    const float r = 1.5f;
    std::vector<float> dx(129);
    // Only c remains of the terms: g is 0 there.
    x[1] = 1;
    BackwardOperands operands;
    operands.dy = {dy.data(), 129};
    operands.x = {x.data(), 129};
    operands.rstd = {&r, 1};
    operands.dx = {dx.data(), 129};
    backward(operands, options_, context_);
    const double q = static_cast<float>(double{static_cast<float>(c * r)} * (1.0f / 129));
    ASSERT_EQ(-static_cast<float>(r * double{static_cast<float>(r * q)}), dx[1]);
  }
}

// The blocks of rows over which dw and db add up, and their order.
TEST_P(BackwardTest, GradientsByColumnsAddUpByBlocks) {
  for (const size_t rows : SizeList{1, 16, 17, 33, 100, 1023, 1024, 1025, 3000}) {
    GradientInputs inputs = {Tensor(RMSNORM_F32, rows, 3), Tensor(RMSNORM_F32, rows, 3), {}, {}, {},
                             Tensor(RMSNORM_F32, 1, 3),    Tensor(RMSNORM_F32, 1, 3)};
    FillNormal(random_, inputs.x);
    FillNormal(random_, inputs.dy);
    inputs.rstd = RstdOf(inputs.x);
    const GradientResults results = Compute(inputs);
    const size_t blocks = std::min<size_t>(64, (rows + 15) / 16);
    for (size_t j = 0; j < 3; ++j) {
      float dw = 0;
      float db = 0;
      for (size_t block = 0; block < blocks; ++block) {
        float dw_of_block = 0;
        float db_of_block = 0;
        for (size_t row = block * rows / blocks; row < (block + 1) * rows / blocks; ++row) {
          const float dy = static_cast<float>(inputs.dy.get(row, j));
          const float p = dy * static_cast<float>(inputs.x.get(row, j));
          dw_of_block = internal::Fma(p, inputs.rstd[row], dw_of_block);
          db_of_block += dy;
        }
        dw += dw_of_block;
        db += db_of_block;
      }
      ASSERT_EQ(dw, results.dw->get(0, j)) << rows << " rows";
      ASSERT_EQ(db, results.db->get(0, j)) << rows << " rows";
    }
  }
}

// A row beyond f32 is right: s * x has the same norm as x, so its gradient is the gradient of x
// divided by s.
TEST_P(BackwardTest, ScaledRowsHaveScaledGradients) {
  options_.eps = 0;
  const GradientResults plain = Compute(inputs_);
  for (const EpsPlacement placement : kEpsPlacements) {
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
      const GradientResults results = Compute(scaled);
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
  const GradientResults before = Compute(inputs_);
  GradientInputs spoilt = inputs_;
  spoilt.dy.set(7, 100, std::numeric_limits<double>::quiet_NaN());
  const GradientResults after = Compute(spoilt);
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

// If c exceeds FLT_MAX, and forward is not cold, only dx is computed in binary64. dw adds the
// products in f32; some of them exceed FLT_MAX here, too.
TEST_P(BackwardTest, OnlyDxIsColdWhereTheDotOverflows) {
  GradientInputs inputs = {Tensor(RMSNORM_F32, 5, 300), Tensor(RMSNORM_F32, 5, 300), {}, {},
                           Tensor(RMSNORM_F32, 5, 300), Tensor(RMSNORM_F32, 1, 300), {}};
  FillNormal(random_, inputs.x);
  FillNormal(random_, inputs.dy);
  for (size_t j = 0; j < 300; ++j) {
    inputs.x.set(2, j, inputs.x.get(2, j) * 0x1p47);
    inputs.dy.set(2, j, std::abs(inputs.dy.get(2, j)) * 0x1p81 * (inputs.x.get(2, j) < 0 ? -1 : 1));
  }
  const std::vector<float> rstd = RstdOf(inputs.x);
  Tensor dw(RMSNORM_F32, 1, 300);
  for (size_t j = 0; j < 300; ++j) {
    float sum = 0;
    for (size_t row = 0; row < 5; ++row) {
      const float product =
          static_cast<float>(inputs.dy.get(row, j)) * static_cast<float>(inputs.x.get(row, j));
      sum = internal::Fma(product, rstd[row], sum);
    }
    dw.set(0, j, sum);
  }
  for (const bool in_place : {false, true}) {
    inputs.in_place = in_place;
    if (in_place) inputs.dx = inputs.dy;
    const GradientResults results = Compute(inputs);
    EXPECT_TRUE(SameBits(dw, *results.dw));
    for (size_t j = 0; j < 300; ++j) ASSERT_TRUE(std::isfinite(results.dx->get(2, j))) << j;
  }
}

// Zeros: the formula's second term is 0.
TEST_P(BackwardTest, RowOfZeros) {
  for (const EpsPlacement placement : kEpsPlacements) {
    options_.eps_placement = placement;
    options_.eps = 0.25f;
    const double r = placement == EpsPlacement::inside ? 2 : 4;
    for (size_t j = 0; j < 300; ++j) inputs_.x.set(3, j, 0);
    const GradientResults results = Compute(inputs_);
    for (size_t j = 0; j < 300; ++j) {
      const double g = RoundTo(RMSNORM_F32, inputs_.dy.get(3, j) * inputs_.weight->get(0, j));
      ASSERT_NEAR(r * g, results.dx->get(3, j), 1e-6);
    }
  }
}

// A NaN with all payload bits set: plain rounding to bf16 would turn it into -0.
TEST_P(BackwardTest, NanOfTheInputsStaysNan) {
  for (const uint32_t bits : {0x7FFFFFFFu, 0xFFFFFFFFu, 0x7F800001u}) {
    GradientInputs nan = inputs_;
    for (size_t j = 0; j < 300; ++j) nan.x.set_bits(0, j, bits);
    nan.dy = Tensor(RMSNORM_BF16, 40, 300);
    FillNormal(random_, nan.dy);
    nan.dx.emplace(RMSNORM_BF16, 40, 300);
    nan.dw.emplace(RMSNORM_BF16, 1, 300);
    const GradientResults results = Compute(nan);
    for (size_t j = 0; j < 300; ++j) {
      ASSERT_TRUE(std::isnan(results.dx->get(0, j))) << Hex(bits);
      ASSERT_TRUE(std::isnan(results.dw->get(0, j))) << Hex(bits);
    }
  }
}

// Without rows, dw and db are zeros, or unchanged if the call adds to them.
TEST_P(BackwardTest, WithoutRows) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const SizeList& shared : {SizeList{}, SizeList{3}}) {
      Tensor dw(dtype, Product(shared), 300, 1, 2);
      for (size_t row = 0; row < dw.rows(); ++row) {
        for (size_t j = 0; j < 300; ++j) dw.set(row, j, -0.0);
      }
      Tensor db = dw;
      const Tensor before = dw;
      BackwardOperands operands;
      operands.x = operands.dy = ConstView(static_cast<const float*>(nullptr), {0, 3, 300});
      operands.dw = View(dw.view(shared));
      operands.db = View(db.view(shared));
      operands.add_to_dw = operands.add_to_db = true;
      backward(operands, options_, context_);
      EXPECT_TRUE(SameBits(before, dw));
      EXPECT_TRUE(SameBits(before, db));
      operands.add_to_dw = operands.add_to_db = false;
      backward(operands, options_, context_);
      for (const Tensor* zeros : {&dw, &db}) {
        for (size_t row = 0; row < dw.rows(); ++row) {
          for (size_t j = 0; j < 300; ++j) ASSERT_EQ(0u, zeros->bits(row, j));
        }
        EXPECT_TRUE(zeros->IsPaddingWiped());
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

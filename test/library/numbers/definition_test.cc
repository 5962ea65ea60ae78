// SPDX-License-Identifier: Apache-2.0
// Results of doc/definition.md that can be written down by hand. All are the reference's, whose
// bits every target gives. Recorded bits and `rmsnorm check --formula` have the others.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "../../../lib/fma.h"  // which fma_test.cc tests
#include "fixtures.h"

namespace rmsnorm::test {
namespace {

using Floats = std::vector<float>;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

const std::string kTarget = kReference;
const Context kContext = OnTarget(kTarget);

double SumOf(const Floats& x, const Options& options = {}) {
  double sum;
  ForwardOperands operands;
  operands.x = {x.data(), x.size()};
  operands.sums_out = {&sum, 1};
  forward(operands, options, kContext);
  return sum;
}

// silu(-100) is subnormal, and kernels have a shorter way for gates above that. A NaN must not hide
// such a gate in another vector. No kind of values has one of each, so this asks every target.
TEST(Definition, NanBesideASmallGate) {
  constexpr size_t kD = 64;  // at least four vectors
  Random random(19);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, kD * kD, kD);
  Rows gate = Draw(random, Values::kPositive, RMSNORM_F32, kD * kD, kD);
  for (size_t row = 0; row < kD * kD; ++row) {
    Set(gate, row, row / kD, -100);
    Set(gate, row, row % kD, kNan);
  }
  const auto gated = [&](const std::string& target) {
    Rows y(RMSNORM_F32, kD * kD, kD);
    ForwardOperands operands = NormOperands(x, nullptr, y);
    operands.gate = ConstView(ViewOf(gate));
    forward(operands, {}, OnTarget(target));
    return y;
  };
  const Rows expected = gated(kReference);
  for (const std::string& target : SupportedTargets()) {
    EXPECT_TRUE(SameBits(expected, gated(target))) << target;
  }
}

// --------------------------------------------------------------------------------- sums of squares

// Element 128 is in the lane of element 0. Its square, 1.125 * 2^-25 of the other, is less than
// half an ulp: f32 loses it. 2^-100 D is the limit.
TEST(Definition, SumsInF32AndBinary64) {
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

// ------------------------------------------------------------------------------------- gradients

// Squares and c add up by fma: elements 0 and 128 share a lane, and the others are 0. The
// inverse RMS is given. dx is rounded before it is added.
TEST(Definition, SumsByFma) {
  Random random(19);
  for (int repeat = 0; repeat < 200; ++repeat) {
    const Rows drawn = Draw(random, Values::kNormal, RMSNORM_F32, 1, 4);
    const auto number = [&](size_t j) { return static_cast<float>(Get(drawn, 0, j)); };
    Floats x(129), dy(129), dx(129, number(3) / 64);
    x[0] = number(0);
    x[128] = number(1);
    dy[0] = number(2);
    dy[128] = number(3);
    const auto f32 = [](double value) { return static_cast<float>(value); };
    const float squares = internal::Fma(x[128], x[128], f32(double{x[0]} * double{x[0]}));
    ASSERT_EQ(double{squares}, SumOf(x));
    x[1] = 1;  // g is 0 there: only c remains of the terms
    const float r = 1.5f;
    BackwardOperands operands;
    operands.x = {x.data(), 1, 129};
    operands.dy = {dy.data(), 1, 129};
    operands.rstd = {&r, 1};
    operands.dx = {dx.data(), 1, 129};
    operands.add_to_dx = true;
    backward(operands, {}, kContext);
    const float c = internal::Fma(dy[128], x[128], f32(double{dy[0]} * double{x[0]}));
    const float q = f32(double{f32(double{c} * r)} * double{1.0f / 129});
    ASSERT_EQ(number(3) / 64 - f32(r * double{f32(double{r} * q)}), dx[1]);
  }
}

// If c exceeds FLT_MAX, and forward is not cold, only dx is computed in binary64. dw adds the
// products in f32; some of them exceed FLT_MAX here, too.
TEST(Definition, DotOverflow) {
  Random random(19);
  Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 1, 300);
  Rows dy = Draw(random, Values::kNormal, RMSNORM_F32, 1, 300);
  Rows dx(RMSNORM_F32, 1, 300), dw(RMSNORM_F32, 1, 300), expected(RMSNORM_F32, 1, 300);
  const float r = 0x1p-47f;
  for (size_t j = 0; j < 300; ++j) {
    Set(x, 0, j, Get(x, 0, j) * 0x1p47);
    Set(dy, 0, j, std::copysign(Get(dy, 0, j) * 0x1p81, Get(x, 0, j)));
    const float product = static_cast<float>(Get(dy, 0, j)) * static_cast<float>(Get(x, 0, j));
    Set(expected, 0, j, double{internal::Fma(product, r, 0.0f)});
  }
  BackwardOperands operands;
  operands.x = ConstView(ViewOf(x));
  operands.dy = ConstView(ViewOf(dy));
  operands.rstd = {&r, 1};
  operands.dx = View(ViewOf(dx));
  operands.dw = View(VectorOf(dw));
  backward(operands, {}, kContext);
  EXPECT_TRUE(SameBits(expected, dw));
  for (size_t j = 0; j < 300; ++j) ASSERT_TRUE(std::isfinite(Get(dx, 0, j))) << j;
}

}  // namespace
}  // namespace rmsnorm::test

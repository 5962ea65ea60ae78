// SPDX-License-Identifier: Apache-2.0
// Gradients of doc/definition.md that can be written down by hand, on every target, and the
// reference's gradients beside derivatives of the forward formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "../../../lib/fma.h"  // which fma_test.cc tests
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using Floats = std::vector<float>;

constexpr EpsPlacement kPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                        EpsPlacement::floor};

// Computes in binary64 and rounds to f32, so that no compiler fuses two operations.
float F32(double value) { return static_cast<float>(value); }

Floats DrawFloats(Random& random, size_t count) {
  const Rows rows = Draw(random, Values::kNormal, RMSNORM_F32, 1, count);
  Floats numbers(count);
  std::memcpy(numbers.data(), rows.row(0), rows.row_bytes());
  return numbers;
}

struct Inputs {
  size_t rows;
  size_t d;
  Floats x, dy, weight, rstd;  // the last two may be empty
};

struct Gradients {
  Floats dx, dw, db;
};

class BackwardDefinitionTest : public testing::TestWithParam<std::string> {
 protected:
  Inputs DrawInputs(size_t rows, size_t d) {
    return {rows,
            d,
            DrawFloats(random_, rows * d),
            DrawFloats(random_, rows * d),
            DrawFloats(random_, d),
            {}};
  }

  // Gradients whose memory is empty are left out. The others may be added to.
  void Compute(const Inputs& in, Gradients& out, bool add = false) const {
    BackwardOperands operands;
    operands.x = {in.x.data(), in.rows, in.d};
    operands.dy = {in.dy.data(), in.rows, in.d};
    if (!in.weight.empty()) operands.weight = {in.weight.data(), in.d};
    if (!in.rstd.empty()) operands.rstd = {in.rstd.data(), in.rows};
    if (!out.dx.empty()) operands.dx = {out.dx.data(), in.rows, in.d};
    if (!out.dw.empty()) operands.dw = {out.dw.data(), in.d};
    if (!out.db.empty()) operands.db = {out.db.data(), in.d};
    operands.add_to_dx = operands.add_to_dw = operands.add_to_db = add;
    backward(operands, options_, context_);
  }
  Gradients Compute(const Inputs& in) const {
    Gradients out = {Floats(in.rows * in.d), Floats(in.d), Floats(in.d)};
    Compute(in, out);
    return out;
  }

  Floats InverseRmsOf(const Inputs& in) const {
    Floats rstd(in.rows);
    ForwardOperands operands;
    operands.x = {in.x.data(), in.rows, in.d};
    operands.rstd = {rstd.data(), in.rows};
    forward(operands, options_, context_);
    return rstd;
  }

  const std::string target_ = GetParam();
  const Context context_ = OnTarget(target_, 1);
  Random random_{19};
  Options options_;
};

void ExpectSame(const Gradients& a, const Gradients& b) {
  EXPECT_EQ(a.dx, b.dx);
  EXPECT_EQ(a.dw, b.dw);
  EXPECT_EQ(a.db, b.db);
}

TEST_P(BackwardDefinitionTest, NoWeightIsAWeightOfOnes) {
  Inputs in = DrawInputs(40, 300);
  in.weight.assign(300, 1);
  const Gradients ones = Compute(in);
  in.weight.clear();
  ExpectSame(ones, Compute(in));
}

TEST_P(BackwardDefinitionTest, SavedInverseRmsAndRoundingOrderChangeNothing) {
  Inputs in = DrawInputs(40, 300);
  for (const EpsPlacement placement : kPlacements) {
    options_.eps_placement = placement;
    in.rstd.clear();
    const Gradients computed = Compute(in);
    for (const Rounding rounding : {Rounding::before_weight, Rounding::inverse}) {
      options_.rounding = rounding;
      ExpectSame(computed, Compute(in));
      in.rstd = InverseRmsOf(in);
    }
  }
}

TEST_P(BackwardDefinitionTest, EachGradientDoesNotDependOnTheOthers) {
  const Inputs in = DrawInputs(40, 300);
  const Gradients all = Compute(in);
  for (unsigned some = 1; some < 7; ++some) {
    Gradients out = {Floats((some & 1) != 0 ? 40 * 300 : 0), Floats((some & 2) != 0 ? 300 : 0),
                     Floats((some & 4) != 0 ? 300 : 0)};
    Compute(in, out);
    EXPECT_TRUE(out.dx.empty() || out.dx == all.dx) << some;
    EXPECT_TRUE(out.dw.empty() || out.dw == all.dw) << some;
    EXPECT_TRUE(out.db.empty() || out.db == all.db) << some;
  }
}

// The sum with an existing gradient is made in f32 and rounded once.
TEST_P(BackwardDefinitionTest, AddsToAnExistingGradient) {
  const Inputs in = DrawInputs(40, 300);
  const Gradients alone = Compute(in);
  const Gradients before = {DrawFloats(random_, 40 * 300), DrawFloats(random_, 300),
                            DrawFloats(random_, 300)};
  Gradients added = before;
  Compute(in, added, true);
  for (const auto gradient : {&Gradients::dx, &Gradients::dw, &Gradients::db}) {
    for (size_t j = 0; j < (added.*gradient).size(); ++j) {
      ASSERT_EQ((before.*gradient)[j] + (alone.*gradient)[j], (added.*gradient)[j]) << j;
    }
  }
}

// The order of the roundings, in an example that is small enough to write out: with five elements,
// lane l holds the l-th product, and the lanes fold as (0 + 4) + 2 and 1 + 3.
TEST_P(BackwardDefinitionTest, AnExampleOperationByOperation) {
  for (const EpsPlacement placement : kPlacements) {
    const bool is_outside = placement == EpsPlacement::outside;
    for (int repeat = 0; repeat < 200; ++repeat) {
      Inputs in = DrawInputs(1, 5);
      const Floats& x = in.x;
      const Floats& dy = in.dy;
      double square[5];
      double product[5];
      double g[5];
      for (size_t j = 0; j < 5; ++j) {
        if (repeat % 4 == 0) in.x[j] = std::copysign(1.0f, x[j]);  // the RMS equals the floor
        g[j] = F32(double{dy[j]} * in.weight[j]);
        square[j] = F32(double{x[j]} * x[j]);
        product[j] = F32(g[j] * x[j]);
      }
      const auto fold = [&](const double* lane) {
        const double even = F32(F32(lane[0] + lane[4]) + lane[2]);
        return F32(even + F32(lane[1] + lane[3]));
      };
      // As a floor, eps is the RMS of these rows, or close to it on either side.
      const double eps = placement == EpsPlacement::floor ? 1.0 : double{0.01f};
      const double i = F32(1.0 / 5);
      const float sum = fold(square);
      const double c = fold(product);
      const double s = F32(std::sqrt(double{F32(sum * i)}));
      const double root = is_outside ? F32(s + eps)
                          : placement == EpsPlacement::inside
                              ? F32(std::sqrt(double{internal::Fma(sum, F32(i), F32(eps))}))
                              : std::max(s, eps);
      const bool only_g = placement == EpsPlacement::floor && s < eps;
      const double r = F32(1 / root);
      const double q = F32(F32(F32(c * r) * i) / (is_outside ? s : 1));
      options_.eps = F32(eps);
      options_.eps_placement = placement;
      const Gradients out = Compute(in);
      for (size_t j = 0; j < 5; ++j) {
        const double mean_term = only_g ? 0 : is_outside ? F32(x[j] * q) : F32(F32(x[j] * r) * q);
        ASSERT_EQ(F32(r * double{F32(g[j] - mean_term)}), out.dx[j]);
        ASSERT_EQ(F32(double{F32(double{dy[j]} * x[j])} * r), out.dw[j]);
        ASSERT_EQ(dy[j], out.db[j]);
      }
    }
  }
}

// c adds up by fma: elements 0 and 128 share a lane, and the others are 0. The given inverse RMS is
// used as it is.
TEST_P(BackwardDefinitionTest, DotAddsUpByFma) {
  for (int repeat = 0; repeat < 200; ++repeat) {
    const Floats drawn = DrawFloats(random_, 4);
    Inputs in = {1, 129, Floats(129), Floats(129), {}, {1.5f}};
    in.x[0] = drawn[0];
    in.x[128] = drawn[1];
    in.dy[0] = drawn[2];
    in.dy[128] = drawn[3];
    in.x[1] = 1;  // g is 0 there: only c remains of the terms
    const double r = 1.5;
    const double c = internal::Fma(in.dy[128], in.x[128], F32(double{in.dy[0]} * double{in.x[0]}));
    const double q = F32(double{F32(c * r)} * double{1.0f / 129});
    ASSERT_EQ(-F32(r * double{F32(r * q)}), Compute(in).dx[1]);
  }
}

// The blocks of rows over which dw and db add up, their order, and one rounding at the end.
TEST_P(BackwardDefinitionTest, GradientsByColumnsAddUpByBlocks) {
  for (const size_t rows : Sizes{1, 16, 17, 33, 100, 1023, 1024, 1025, 3000}) {
    Inputs in = DrawInputs(rows, 3);
    in.weight.clear();
    in.rstd = InverseRmsOf(in);
    Gradients out = {{}, Floats(3), Floats(3)};
    Compute(in, out);
    std::vector<bf16> short_dw(3);
    std::vector<f16> short_db(3);
    BackwardOperands operands;
    operands.x = {in.x.data(), rows, 3};
    operands.dy = {in.dy.data(), rows, 3};
    operands.rstd = {in.rstd.data(), rows};
    operands.dw = {short_dw.data(), 3};
    operands.db = {short_db.data(), 3};
    backward(operands, options_, context_);
    const size_t blocks = std::min<size_t>(64, (rows + 15) / 16);
    for (size_t j = 0; j < 3; ++j) {
      float dw = 0;
      float db = 0;
      for (size_t block = 0; block < blocks; ++block) {
        float dw_of_block = 0;
        float db_of_block = 0;
        for (size_t row = block * rows / blocks; row < (block + 1) * rows / blocks; ++row) {
          const float p = in.dy[row * 3 + j] * in.x[row * 3 + j];
          dw_of_block = internal::Fma(p, in.rstd[row], dw_of_block);
          db_of_block += in.dy[row * 3 + j];
        }
        dw += dw_of_block;
        db += db_of_block;
      }
      ASSERT_EQ(dw, out.dw[j]) << rows << " rows";
      ASSERT_EQ(db, out.db[j]) << rows << " rows";
      ASSERT_EQ(Encode(RMSNORM_BF16, double{dw}), short_dw[j].bits);
      ASSERT_EQ(Encode(RMSNORM_F16, double{db}), short_db[j].bits);
    }
  }
}

// A bf16 sum of bf16 gradients would stay at 256.
TEST_P(BackwardDefinitionTest, GradientsByColumnsDoNotAddUpInTheirType) {
  const Floats ones(4096, 1);
  bf16 sums[2];
  options_.eps = 0;
  BackwardOperands operands;
  operands.x = operands.dy = {ones.data(), 4096, 1};
  operands.dw = {&sums[0], 1};
  operands.db = {&sums[1], 1};
  backward(operands, options_, context_);
  for (const bf16& sum : sums) EXPECT_EQ(Encode(RMSNORM_BF16, 4096), sum.bits);
}

// A NaN spreads over its row of dx and over its column, not to other rows.
TEST_P(BackwardDefinitionTest, NanStaysInItsRow) {
  Inputs in = DrawInputs(40, 300);
  const Gradients before = Compute(in);
  in.dy[7 * 300 + 100] = std::numeric_limits<float>::quiet_NaN();
  const Gradients after = Compute(in);
  for (size_t i = 0; i < in.x.size(); ++i) {
    ASSERT_TRUE(i / 300 == 7 ? std::isnan(after.dx[i]) : after.dx[i] == before.dx[i]) << i;
  }
  for (size_t j = 0; j < 300; ++j) {
    ASSERT_TRUE(j == 100 ? std::isnan(after.dw[j]) : after.dw[j] == before.dw[j]) << j;
    ASSERT_TRUE(j == 100 ? std::isnan(after.db[j]) : after.db[j] == before.db[j]) << j;
  }
}

// If c exceeds FLT_MAX, and forward is not cold, only dx is computed in binary64. dw adds the
// products in f32; some of them exceed FLT_MAX here, too.
TEST_P(BackwardDefinitionTest, OnlyDxIsColdWhereTheDotOverflows) {
  Inputs in = DrawInputs(5, 300);
  in.weight.clear();
  for (size_t i = 2 * 300; i < 3 * 300; ++i) {
    in.x[i] *= 0x1p47f;
    in.dy[i] = std::copysign(in.dy[i] * 0x1p81f, in.x[i]);
  }
  const Floats rstd = InverseRmsOf(in);
  Floats dw(300);
  for (size_t i = 0; i < in.x.size(); ++i) {
    const float product = in.dy[i] * in.x[i];
    dw[i % 300] = internal::Fma(product, rstd[i / 300], dw[i % 300]);
  }
  const Gradients out = Compute(in);
  EXPECT_EQ(dw, out.dw);
  for (size_t j = 0; j < 300; ++j) ASSERT_TRUE(std::isfinite(out.dx[2 * 300 + j])) << j;
}

// Without rows, dw and db are zeros, or unchanged if the call adds to them.
TEST_P(BackwardDefinitionTest, WithoutRows) {
  Gradients out = {{}, Floats(300, -0.0f), Floats(300, -0.0f)};
  for (const bool add : {true, false}) {
    Compute({0, 300, {}, {}, {}, {}}, out, add);
    for (const Floats& zeros : {out.dw, out.db}) {
      for (const float zero : zeros) ASSERT_TRUE(zero == 0 && std::signbit(zero) == add);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardDefinitionTest, testing::ValuesIn(SupportedTargets()),
                         Name);

// --------------------------------------------------------------------------------- derivatives

using Doubles = std::vector<double>;

// The loss sum(dy * y) + sum(dr * h) of rows h, from the formula for y alone.
double Loss(const Doubles& h, const Doubles& weight, const Doubles& bias, const Doubles& dy,
            const Doubles& dr, const Options& options) {
  const size_t d = weight.size();
  const double divisor = options.divisor == 0 ? static_cast<double>(d) : double{options.divisor};
  const double eps = double{options.eps};
  double loss = 0;
  for (size_t begin = 0; begin < h.size(); begin += d) {
    double sum = 0;
    for (size_t j = 0; j < d; ++j) sum += h[begin + j] * h[begin + j];
    const double root = std::sqrt(sum / divisor);
    const double rms = options.eps_placement == EpsPlacement::inside
                           ? std::sqrt(sum / divisor + eps)
                       : options.eps_placement == EpsPlacement::outside ? root + eps
                                                                        : std::max(root, eps);
    for (size_t j = 0; j < d; ++j) {
      const double y = h[begin + j] / rms * (double{options.weight_offset} + weight[j]) + bias[j];
      loss += dy[begin + j] * y + dr[begin + j] * h[begin + j];
    }
  }
  return loss;
}

// The central difference of the loss by one of its arguments.
template <class LossFunction>
double Difference(double& argument, const LossFunction& loss) {
  constexpr double kStep = 1e-5;
  const double before = argument;
  argument = before + kStep;
  const double above = loss();
  argument = before - kStep;
  const double below = loss();
  argument = before;
  return (above - below) / (2 * kStep);
}

// h is the residual stream: its gradient dr is added to dx.
TEST(Gradients, AreTheDerivativesOfTheFormula) {
  Random random(41);
  const std::string reference = kReference;
  const Context context = OnTarget(reference);
  for (const EpsPlacement placement : kPlacements) {
    for (const float eps : {1e-5f, 0.5f}) {
      for (const float divisor : {0.0f, 100.5f}) {
        for (const float offset : {0.0f, 1.0f}) {
          for (const size_t d : Sizes{1, 2, 5, 17, 70}) {
            Options options;
            options.eps_placement = placement;
            options.eps = eps;
            options.divisor = divisor;
            options.weight_offset = offset;
            Floats x = DrawFloats(random, 3 * d);
            // Avoids values near 0, where the root of a short row is too curved for the step.
            for (size_t row = 0; row < 3; ++row) x[row * d] = 1 + std::fabs(x[row * d]);
            const Floats dy = DrawFloats(random, 3 * d);
            const Floats w = DrawFloats(random, d);
            Floats dx = DrawFloats(random, 3 * d);
            Floats dw(d);
            Floats db(d);
            Doubles h(x.begin(), x.end());
            Doubles weight(w.begin(), w.end());
            Doubles bias(d, 0.25);
            const Doubles dy64(dy.begin(), dy.end());
            const Doubles dr(dx.begin(), dx.end());
            BackwardOperands operands;
            operands.x = {x.data(), 3, d};
            operands.dy = {dy.data(), 3, d};
            operands.weight = {w.data(), d};
            operands.dx = {dx.data(), 3, d};
            operands.add_to_dx = true;
            operands.dw = {dw.data(), d};
            operands.db = {db.data(), d};
            backward(operands, options, context);
            const auto loss = [&] { return Loss(h, weight, bias, dy64, dr, options); };
            // The differences are good to about 1e-8, the gradients to some units of 2^-24 of their
            // terms, which are a few units large.
            constexpr double kTolerance = 1e-5;
            SCOPED_TRACE(testing::Message() << "d " << d << ", eps " << eps << " of placement "
                                            << static_cast<int>(placement) << ", divisor "
                                            << divisor << ", offset " << offset);
            for (size_t i = 0; i < h.size(); ++i) {
              ASSERT_NEAR(Difference(h[i], loss), double{dx[i]}, kTolerance) << "dx " << i;
            }
            for (size_t j = 0; j < d; ++j) {
              ASSERT_NEAR(Difference(weight[j], loss), double{dw[j]}, kTolerance) << "dw " << j;
              ASSERT_NEAR(Difference(bias[j], loss), double{db[j]}, kTolerance) << "db " << j;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

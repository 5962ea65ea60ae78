// SPDX-License-Identifier: Apache-2.0
// Results of doc/definition.md that can be written down by hand, and gradients beside derivatives
// of the forward formula. All are the reference's, whose bits every target gives: `rmsnorm check`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
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

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr EpsPlacement kPlacements[] = {EpsPlacement::inside, EpsPlacement::outside,
                                        EpsPlacement::floor};

Options WithEps(float eps, EpsPlacement placement = EpsPlacement::inside) {
  Options options;
  options.eps = eps;
  options.eps_placement = placement;
  return options;
}

const std::string kTarget = kReference;
const Context kContext = OnTarget(kTarget);

class Definition : public testing::Test {
 protected:
  // y of f32 rows; the inverse RMS is in rstd_. Operands may be added.
  Floats Normalised(const Floats& x, const Options& options, size_t rows = 1,
                    ForwardOperands operands = {}, const Context& context = kContext) {
    Floats y(x.size());
    rstd_.assign(rows, 0);
    operands.x = {x.data(), rows, x.size() / rows};
    operands.y = {y.data(), rows, x.size() / rows};
    operands.rstd = {rstd_.data(), rows};
    forward(operands, options, context);
    return y;
  }

  static double SumOf(const Floats& x, const Options& options = {}) {
    double sum;
    ForwardOperands operands;
    operands.x = {x.data(), x.size()};
    operands.sums_out = {&sum, 1};
    forward(operands, options, kContext);
    return sum;
  }

  Floats rstd_;
};

TEST_F(Definition, PublishedExample) {
  const Floats ones = {1, 1};
  ForwardOperands operands;
  operands.weight = {ones.data(), 2};
  const Floats y = Normalised({1, 2}, WithEps(1e-5f), 1, operands);
  EXPECT_NEAR(0.6325f, y[0], 0.00005f);
  EXPECT_NEAR(1.2649f, y[1], 0.00005f);
}

// Rows of equal numbers are ones: at the limits of f32, on the limits between f32 and binary64
// (2^-50 and 2^64 with a divisor of d), and next to them.
TEST_F(Definition, EqualNumbers) {
  for (const float magnitude :
       {std::numeric_limits<float>::max(), std::numeric_limits<float>::denorm_min(), 0x1p-50f,
        0x1.FFFFFEp-51f, 0x1.000002p-50f, 0x1p63f, 0x1.FFFFFEp63f, 0x1p64f, 0x1p61f}) {
    for (const size_t d : Sizes{1, 3, 4, 64, 300, 4097}) {
      Floats x(d, magnitude);
      for (size_t j = 1; j < d; j += 2) x[j] = -magnitude;
      const Floats y = Normalised(x, WithEps(0));
      for (size_t j = 0; j < d; ++j) ASSERT_NEAR(y[j], j % 2 == 0 ? 1 : -1, 1e-6) << magnitude;
    }
  }
  Normalised({std::numeric_limits<float>::denorm_min()}, WithEps(0));
  EXPECT_EQ(kInfinity, rstd_[0]);  // 2^149 exceeds f32
}

TEST_F(Definition, ZerosWithEps) {
  for (const float y : Normalised(Floats(100, -0.0f), WithEps(0.25f))) {
    EXPECT_EQ(0.0f, y);
    EXPECT_TRUE(std::signbit(y));
  }
  EXPECT_EQ(2.0f, rstd_[0]);
  EXPECT_FALSE(std::signbit(SumOf(Floats(70, -0.0f))));
}

TEST_F(Definition, ZerosWithoutEps) {
  for (const EpsPlacement placement : kPlacements) {
    for (const float y : Normalised(Floats(100), WithEps(0, placement))) {
      EXPECT_TRUE(std::isnan(y));
    }
    EXPECT_EQ(kInfinity, rstd_[0]);
  }
}

TEST_F(Definition, Infinity) {
  for (const float infinity : {kInfinity, -kInfinity}) {
    Floats x(70, 3.0f);
    x[2] = infinity;
    const Floats y = Normalised(x, WithEps(1e-5f));
    EXPECT_EQ(0.0f, rstd_[0]);
    for (size_t j = 0; j < x.size(); ++j) ASSERT_TRUE(j == 2 ? std::isnan(y[j]) : y[j] == 0);
  }
}

// A row is multiplied by 1 / max(RMS, eps), also one that would be cold without a floor. The sums
// of these squares are exact, or far below the floor.
TEST_F(Definition, Floor) {
  const float eps = 0.125f;
  for (const float magnitude : {0.0f, -0.0f, 0x1p-80f, 0x1.FFFFFEp-4f, eps, 0x1.000002p-3f, 2.0f}) {
    for (const size_t d : Sizes{1, 4, 128, 300}) {
      const Floats y = Normalised(Floats(d, magnitude), WithEps(eps, EpsPlacement::floor));
      EXPECT_NEAR(1 / std::max(std::fabs(magnitude), eps), rstd_[0], 0x1p-20f);
      if (magnitude <= eps) {
        EXPECT_EQ(8.0f, rstd_[0]);
      }
      for (const float result : y) ASSERT_EQ(magnitude * rstd_[0], result);
    }
  }
  Normalised({1, kNan}, WithEps(eps, EpsPlacement::floor));
  EXPECT_TRUE(std::isnan(rstd_[0]));
}

TEST_F(Definition, L2Norm) {
  Options options = WithEps(1e-12f, EpsPlacement::floor);
  options.divisor = 1;
  EXPECT_EQ(Floats({3 * 0.2f, 0, -4 * 0.2f}), Normalised({3, 0, -4}, options));
  EXPECT_EQ(0.2f, rstd_[0]);
}

// 1 / 3 in bf16 is 171 / 512.
TEST_F(Definition, InverseRounding) {
  const std::vector<bf16> x(70, bf16{0x4040});  // 3
  Floats y(70);
  float rstd;
  Options options = WithEps(0);
  options.rounding = Rounding::inverse;
  ForwardOperands operands;
  operands.x = {x.data(), 70};
  operands.y = {y.data(), 70};
  operands.rstd = {&rstd, 1};
  forward(operands, options, kContext);
  for (const float result : y) EXPECT_EQ(RoundTo(RMSNORM_BF16, 3 * 171.0 / 512), double{result});
  EXPECT_EQ(1.0f / 3.0f, rstd);
}

// silu(-100) is subnormal or 0, and kernels have a shorter way for gates above that. A NaN must not
// hide such a gate in another vector. No kind of values has one of each, so this asks every target.
TEST_F(Definition, NanBesideASmallGate) {
  constexpr size_t kD = 64;  // at least four vectors
  for (const std::string& target : SupportedTargets()) {
    for (size_t i = 0; i < kD * kD; ++i) {
      const size_t small = i / kD;
      const size_t nan = i % kD;
      if (nan == small) continue;
      Floats gate(kD, 20);  // silu(20) rounds to 20
      gate[small] = -100;
      gate[nan] = kNan;
      ForwardOperands operands;
      operands.gate = {gate.data(), 1, kD};
      const Floats y = Normalised(Floats(kD, 1), WithEps(0), 1, operands, OnTarget(target));
      for (size_t j = 0; j < kD; ++j) {
        ASSERT_TRUE(j == nan ? std::isnan(y[j]) : std::fabs(y[j] - (j == small ? 0 : 20)) < 1e-6f)
            << target << ": " << small << ", NaN " << nan << ", " << j;
      }
    }
  }
}

// --------------------------------------------------------------------------------- sums of squares

// The widened f32 sum of a row: 1 + 2^-24 + ... is 1 in f32.
TEST_F(Definition, SumInF32) {
  Floats x(129);
  x[0] = 1;
  x[128] = 0x1.8p-13f;  // in the lane of x[0]; the square, 1.125 * 2^-25, is less than half an ulp
  EXPECT_EQ(1.0, SumOf(x));
}

TEST_F(Definition, SumInBinary64) {
  // 2^-100 D is the limit; the two sums differ since f32 loses the square of the second element.
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

// The first part of a row gives the sum for the whole row.
TEST_F(Definition, PartialNorm) {
  Options options = WithEps(0);
  options.divisor = 4;
  const double sum = SumOf({3, 3, 3, 3}, options);
  EXPECT_EQ(36.0, sum);
  ForwardOperands operands;
  operands.sums = {&sum, 1};
  const Floats y = Normalised({3, 3, 3, 3, 100, 200}, options, 1, operands);
  EXPECT_EQ(1.0f / 3.0f, rstd_[0]);
  EXPECT_EQ(3.0f * (1.0f / 3.0f), y[0]);
  EXPECT_EQ(200.0f * (1.0f / 3.0f), y[5]);
}

// ------------------------------------------------------------------------------- quantised outputs

// A row of ones times a weight, quantised.
struct Quantised {
  std::vector<int8_t> q;
  float scale;
  int8_t zero;
};

TEST_F(Definition, Quantised) {
  const float smallest = 0x1p-100f;
  const float largest = std::numeric_limits<float>::max();
  const auto quantise = [&](const Floats& v, bool has_zero) {
    Quantised result = {std::vector<int8_t>(v.size(), 99), 99, 99};
    ForwardOperands operands;
    operands.weight = {v.data(), v.size()};
    operands.q = {result.q.data(), 1, v.size()};
    operands.scale = {&result.scale, 1};
    if (has_zero) operands.zero = {&result.zero, 1};
    Normalised(Floats(v.size(), 1), WithEps(0), 1, operands);
    return result;
  };
  struct Known {
    Floats v;
    std::vector<int8_t> symmetric;
    float symmetric_scale;
    std::vector<int8_t> asymmetric;
    float asymmetric_scale;
    int8_t zero;
  };
  for (const Known& known : {
           Known{{1, -1}, {127, -127}, 1.0f / 127, {127, -128}, 2.0f / 255, 0},
           Known{{0, smallest}, {0, 127}, smallest / 127, {-128, 127}, smallest / 255, -128},
           Known{{0, -smallest}, {0, -127}, smallest / 127, {127, -128}, smallest / 255, 127},
           Known{{0, 0x1.FFFFFEp-101f}, {0, 0}, 0, {0, 0}, 0, 0},
           Known{{0, 0}, {0, 0}, 0, {0, 0}, 0, 0},
           Known{{0, largest}, {0, 127}, largest / 127, {-128, 127}, largest / 255, -128},
           Known{{largest, -largest}, {127, -127}, largest / 127, {0, 0}, kNan, 0},
           Known{{1, kInfinity}, {0, 0}, kNan, {0, 0}, kNan, 0},
           Known{{1, kNan}, {0, 0}, kNan, {0, 0}, kNan, 0},
           Known{{-1, 127}, {-1, 127}, 1, {-128, 127}, 128.0f / 255, -126},
           Known{{2, 1}, {127, 64}, 2.0f / 127, {127, 0}, 2.0f / 255, -128},  // 63.5 to even
       }) {
    for (const bool has_zero : {false, true}) {
      SCOPED_TRACE(testing::PrintToString(known.v) + (has_zero ? " asymmetric" : " symmetric"));
      const Quantised actual = quantise(known.v, has_zero);
      EXPECT_EQ(has_zero ? known.asymmetric : known.symmetric, actual.q);
      const float scale = has_zero ? known.asymmetric_scale : known.symmetric_scale;
      EXPECT_TRUE(scale == actual.scale || (std::isnan(scale) && std::isnan(actual.scale)))
          << actual.scale;
      EXPECT_EQ(has_zero ? known.zero : 99, actual.zero);
    }
  }
}

// ------------------------------------------------------------------------------------- gradients

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

class Gradient : public testing::Test {
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
    forward(operands, options_, kContext);
    return rstd;
  }

  Random random_{19};
  Context context_ = kContext;
  Options options_;
};

TEST_F(Gradient, SavedInverseRms) {
  Inputs in = DrawInputs(40, 300);
  for (const EpsPlacement placement : kPlacements) {
    options_.eps_placement = placement;
    in.rstd.clear();
    const Gradients computed = Compute(in);
    in.rstd = InverseRmsOf(in);
    const Gradients saved = Compute(in);
    EXPECT_EQ(computed.dx, saved.dx);
    EXPECT_EQ(computed.dw, saved.dw);
  }
}

// The order of the roundings, in an example that is small enough to write out: with five elements,
// lane l holds the l-th product, and the lanes fold as (0 + 4) + 2 and 1 + 3.
TEST_F(Gradient, OperationByOperation) {
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
TEST_F(Gradient, DotByFma) {
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

// The blocks of rows over which dw and db add up, and their order.
TEST_F(Gradient, BlocksOfRows) {
  for (const size_t rows : Sizes{1, 16, 17, 33, 100, 1023, 1024, 1025, 3000}) {
    Inputs in = DrawInputs(rows, 3);
    in.weight.clear();
    in.rstd = InverseRmsOf(in);
    Gradients out = {{}, Floats(3), Floats(3)};
    Compute(in, out);
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
    }
  }
}

// If c exceeds FLT_MAX, and forward is not cold, only dx is computed in binary64. dw adds the
// products in f32; some of them exceed FLT_MAX here, too.
TEST_F(Gradient, DotOverflow) {
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

// Without rows, dw and db are zeros, or unchanged if the call adds to them. A case has rows, so
// this asks every target.
TEST_F(Gradient, WithoutRows) {
  for (const std::string& target : SupportedTargets()) {
    context_.target = target.c_str();
    Gradients out = {{}, Floats(300, -0.0f), Floats(300, -0.0f)};
    for (const bool add : {true, false}) {
      Compute({0, 300, {}, {}, {}, {}}, out, add);
      for (const Floats& zeros : {out.dw, out.db}) {
        for (const float zero : zeros) {
          ASSERT_TRUE(zero == 0 && std::signbit(zero) == add) << target;
        }
      }
    }
  }
}

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
TEST_F(Gradient, Derivatives) {
  for (unsigned i = 0; i < 120; ++i) {
    const size_t d = Sizes{1, 2, 5, 17, 70}[i % 5];
    options_.eps_placement = kPlacements[i / 5 % 3];
    options_.eps = i / 15 % 2 == 0 ? 1e-5f : 0.5f;
    options_.divisor = i / 30 % 2 == 0 ? 0.0f : 100.5f;
    options_.weight_offset = i / 60 == 0 ? 0.0f : 1.0f;
    SCOPED_TRACE(i);
    Inputs in = DrawInputs(3, d);
    // Avoids values near 0, where the root of a short row is too curved for the step.
    for (size_t row = 0; row < 3; ++row) in.x[row * d] = 1 + std::fabs(in.x[row * d]);
    Gradients out = {DrawFloats(random_, 3 * d), Floats(d), Floats(d)};
    Doubles h(in.x.begin(), in.x.end());
    Doubles weight(in.weight.begin(), in.weight.end());
    Doubles bias(d, 0.25);
    const Doubles dy(in.dy.begin(), in.dy.end());
    const Doubles dr(out.dx.begin(), out.dx.end());
    Compute(in, out, true);
    const auto loss = [&] { return Loss(h, weight, bias, dy, dr, options_); };
    // The differences are good to about 1e-8, the gradients to some units of 2^-24 of their terms,
    // which are a few units large.
    constexpr double kTolerance = 1e-5;
    for (size_t j = 0; j < h.size(); ++j) {
      ASSERT_NEAR(Difference(h[j], loss), double{out.dx[j]}, kTolerance) << "dx " << j;
    }
    for (size_t j = 0; j < d; ++j) {
      ASSERT_NEAR(Difference(weight[j], loss), double{out.dw[j]}, kTolerance) << "dw " << j;
      ASSERT_NEAR(Difference(bias[j], loss), double{out.db[j]}, kTolerance) << "db " << j;
    }
  }
}

}  // namespace
}  // namespace rmsnorm::test

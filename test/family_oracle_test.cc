// SPDX-License-Identifier: Apache-2.0
// Compares activations, post-norms, factors, gates, residuals and quantised outputs with their
// formulas in binary64. A call with several steps has the bits of calls with one step each.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../lib/fma.h"
#include "oracle.h"
#include "random_rows.h"
#include "targets.h"

namespace rmsnorm::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// ------------------------------------------------------------------------------ activations

double ExactActivation(Activation activation, double z) {
  const double denominator = 1 + std::exp(-z);
  if (activation == Activation::sigmoid) return 1 / denominator;
  return z == -kInfinity ? -0.0 : z / denominator;
}

// With these options the inverse RMS of a row is exactly 1: it is 1 / floor.
Options UnitNorm() {
  Options options;
  options.eps_placement = EpsPlacement::floor;
  options.eps = 1;
  options.divisor = 1e20f;
  return options;
}

// Expects that every target is within 2 ulp for these numbers.
void ExpectActivations(const Tensor& gate) {
  Tensor ones(RMSNORM_F32, gate.rows(), gate.d());
  for (size_t row = 0; row < gate.rows(); ++row) {
    for (size_t j = 0; j < gate.d(); ++j) ones.set(row, j, 1);
  }
  for (const std::string& target : SupportedTargets()) {
    for (const Activation activation : {Activation::silu, Activation::sigmoid}) {
      SCOPED_TRACE(target + (activation == Activation::silu ? ", silu" : ", sigmoid"));
      Options options = UnitNorm();
      options.activation = activation;
      Tensor y(RMSNORM_F32, gate.rows(), gate.d());
      ForwardOperands operands = NormOperands(ones, nullptr, y);
      operands.gate = ConstView(gate.view());
      forward(operands, options, OnTarget(target));
      for (size_t row = 0; row < gate.rows(); ++row) {
        for (size_t j = 0; j < gate.d(); ++j) {
          const double z = gate.get(row, j);
          const double exact = ExactActivation(activation, z);
          const double actual = y.get(row, j);
          if (std::isnan(z)) {
            ASSERT_TRUE(std::isnan(actual)) << actual;
          } else if (std::isinf(exact)) {
            ASSERT_EQ(exact, actual);
          } else {
            ASSERT_LE(std::fabs(actual - exact), 2 * Ulp(RMSNORM_F32, exact))
                << "of " << z << ": " << actual << ", not " << exact;
            ASSERT_EQ(std::signbit(exact), std::signbit(actual)) << "of " << z;
          }
        }
      }
    }
  }
}

// Includes zeros, subnormals, infinities and NaNs.
TEST(Activations, OfEveryExponentAreWithinTwoUlp) {
  Random random(1);
  const size_t mantissas = 64;
  Tensor gate(RMSNORM_F32, 512, mantissas);
  for (uint32_t row = 0; row < 512; ++row) {
    for (uint32_t j = 0; j < mantissas; ++j) {
      const uint32_t mantissa = j == 0 ? 0 : j == 1 ? 1 : j == 2 ? 0x7FFFFF : random.Bits() >> 9;
      gate.set_bits(row, j, row << 23 | mantissa);
    }
  }
  ExpectActivations(gate);
}

TEST(Activations, OfAll16BitNumbersAreWithinTwoUlp) {
  for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    Tensor gate(dtype, 256, 256);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) gate.set_bits(bits / 256, bits % 256, bits);
    ExpectActivations(gate);
  }
}

// Numbers whose results become subnormal, vanish or stop changing, and the ends of the range of z.
TEST(Activations, AroundLimitsAreWithinTwoUlp) {
  const std::vector<float> limits = {-110,    -104,   -103.97f, -103.3f, -88.03f, -87,
                                     -86.64f, -17.3f, 0,        0.35f,   16.6f,   17.4f,
                                     87,      88.03f, 88.73f,   104,     110};
  const int neighbours = 100;
  Tensor gate(RMSNORM_F32, limits.size(), 2 * neighbours + 1);
  for (size_t row = 0; row < limits.size(); ++row) {
    float below = limits[row];
    float above = limits[row];
    gate.set(row, neighbours, limits[row]);
    for (size_t j = 1; j <= neighbours; ++j) {
      below = std::nextafterf(below, -HUGE_VALF);
      above = std::nextafterf(above, HUGE_VALF);
      gate.set(row, neighbours - j, below);
      gate.set(row, neighbours + j, above);
    }
  }
  ExpectActivations(gate);
}

TEST(Activations, OfNumbersThatMatterAreWithinTwoUlp) {
  Random random(2);
  Tensor gate(RMSNORM_F32, 100, 1000);
  for (size_t row = 0; row < gate.rows(); ++row) {
    for (size_t j = 0; j < gate.d(); ++j) gate.set(row, j, 220 * random.Uniform() - 115);
  }
  ExpectActivations(gate);
}

// ----------------------------------------------------------------------- ranges of the results
//
// Each step of a call turns a range that certainly holds its operand into the range of its result.
// Sums, products and casts are rounded as doc/definition.md says. They are monotonic in their
// operands, so they do not widen a range. The relative bound of an inverse RMS (oracle.h), twice
// with a post-norm, and the 2 ulp of an activation do widen it. If such a range contains the middle
// between two numbers of a type, a cast widens it to an ulp of that type. Without a post-norm, and
// with no cast except the one to y's type, y is thus within half an ulp of its type and those
// relative bounds of its exact value.
struct Range {
  double low;
  double high;

  bool Has(double value) const { return low <= value && value <= high; }
};

using Ranges = std::vector<Range>;

// The range of a monotonic function.
template <class F>
Range Map(const Range& range, const F& f) {
  const double a = f(range.low);
  const double b = f(range.high);
  return {std::min(a, b), std::max(a, b)};
}

Range Cast(rmsnorm_dtype dtype, const Range& range) {
  return Map(range, [dtype](double value) { return RoundTo(dtype, value); });
}

// The range of a product in f32.
Range Times(const Range& a, const Range& b) {
  const Range low = Map(b, [&](double factor) { return RoundTo(RMSNORM_F32, a.low * factor); });
  const Range high = Map(b, [&](double factor) { return RoundTo(RMSNORM_F32, a.high * factor); });
  return {std::min(low.low, high.low), std::max(low.high, high.high)};
}

Range ActivationRange(Activation activation, double z) {
  const double exact = ExactActivation(activation, z);
  const double error = 2 * Ulp(RMSNORM_F32, exact);
  return {exact - error, exact + error};
}

// The range of the inverse RMS of a row.
Range InverseRange(const Ranges& row, const Options& options) {
  double low = 0;
  double high = 0;
  for (const Range& element : row) {
    const double a = element.low * element.low;
    const double b = element.high * element.high;
    low += element.Has(0) ? 0 : std::min(a, b);
    high += std::max(a, b);
  }
  const bool cold = IsCold(ExactUnderRoot(low, row.size(), options)) &&
                    IsCold(ExactUnderRoot(high, row.size(), options));
  const double bound = cold ? kColdBound : InverseRmsBound(row.size());
  return {ExactInverseRms(high, row.size(), options) * (1 - bound),
          ExactInverseRms(low, row.size(), options) * (1 + bound)};
}

// The row times its inverse RMS, then the weight and the bias; both may be null.
void ScaleRange(Ranges& row, const Tensor* weight, const Tensor* bias, rmsnorm_dtype x_dtype,
                const Options& options) {
  Range r = InverseRange(row, options);
  if (options.rounding == Rounding::inverse) {
    r = Cast(x_dtype, Cast(RMSNORM_F32, r));
  }
  for (size_t j = 0; j < row.size(); ++j) {
    Range n = Times(row[j], r);
    if (options.rounding != Rounding::after_weight) n = Cast(x_dtype, n);
    const double w = PreparedWeight(weight, 0, j, options);
    row[j] = Map(n, [&](double value) -> double {
      if (bias == nullptr) return RoundTo(RMSNORM_F32, value * w);
      return internal::Fma(static_cast<float>(value), static_cast<float>(w),
                           static_cast<float>(bias->get(0, j)));
    });
  }
}

// A call: its operands and its options.
struct Call {
  explicit Call(Tensor rows) : x(std::move(rows)) {}

  Tensor x;
  std::optional<Tensor> post_norm_weight, gate, residual, weight, bias;
  rmsnorm_dtype y_dtype = RMSNORM_F32;
  Options options;

  bool IsGated(GatePlacement placement) const {
    return gate.has_value() && options.gate_placement == placement;
  }
};

template <class T>
const T* Pointer(const std::optional<T>& value) {
  return value ? &*value : nullptr;
}

struct ExpectedRow {
  Ranges residual_out;
  Ranges y;
};

ExpectedRow Expect(const Call& call, size_t row) {
  const Options& options = call.options;
  rmsnorm_dtype x_dtype = call.x.dtype();
  const size_t d = call.x.d();
  Ranges h;
  for (size_t j = 0; j < d; ++j) h.push_back({call.x.get(row, j), call.x.get(row, j)});
  const auto multiply_by_gate = [&] {
    for (size_t j = 0; j < d; ++j) {
      h[j] = Times(h[j], ActivationRange(options.activation, call.gate->get(row, j)));
    }
  };
  const auto cast = [&](rmsnorm_dtype dtype) {
    for (Range& element : h) element = Cast(dtype, element);
  };

  if (call.post_norm_weight) {
    ScaleRange(h, &*call.post_norm_weight, nullptr, x_dtype, options);
    cast(x_dtype);
  }
  if (options.factor != 0) {
    for (Range& element : h) element = Times(element, {options.factor, options.factor});
    cast(x_dtype);
  }
  if (call.IsGated(GatePlacement::before)) multiply_by_gate();
  ExpectedRow expected;
  if (call.residual) {
    const rmsnorm_dtype residual_dtype = call.residual->dtype();
    for (size_t j = 0; j < d; ++j) {
      const double residual = call.residual->get(row, j);
      h[j] = Map(h[j], [&](double value) { return RoundTo(RMSNORM_F32, residual + value); });
      expected.residual_out.push_back(Cast(residual_dtype, h[j]));
    }
    if (options.residual_rounding == ResidualRounding::rounded) {
      x_dtype = residual_dtype;
      h = expected.residual_out;
    }
  }
  ScaleRange(h, Pointer(call.weight), Pointer(call.bias), x_dtype, options);
  if (call.IsGated(GatePlacement::after)) {
    if (options.gate_rounding == GateRounding::rounded) cast(x_dtype);
    multiply_by_gate();
  }
  cast(call.y_dtype);
  expected.y = h;
  return expected;
}

testing::AssertionResult RowIsWithin(const Ranges& expected, const Tensor& actual, size_t row) {
  for (size_t j = 0; j < expected.size(); ++j) {
    if (expected[j].Has(actual.get(row, j))) continue;
    return testing::AssertionFailure()
           << "row " << row << ", element " << j << " is " << actual.get(row, j) << ", not between "
           << expected[j].low << " and " << expected[j].high;
  }
  return testing::AssertionSuccess();
}

void ExpectWithinRanges(const Call& call) {
  const size_t rows = call.x.rows();
  const size_t d = call.x.d();
  Tensor y(call.y_dtype, rows, d);
  std::optional<Tensor> residual_out;
  ForwardOperands operands = NormOperands(call.x, Pointer(call.weight), y);
  if (call.bias) operands.bias = ConstView(call.bias->vector());
  if (call.post_norm_weight) operands.post_norm_weight = ConstView(call.post_norm_weight->vector());
  if (call.gate) operands.gate = ConstView(call.gate->view());
  if (call.residual) {
    residual_out.emplace(call.residual->dtype(), rows, d);
    operands.residual = ConstView(call.residual->view());
    operands.residual_out = View(residual_out->view());
  }
  forward(operands, call.options, OnTarget(kReference));
  for (size_t row = 0; row < rows; ++row) {
    const ExpectedRow expected = Expect(call, row);
    if (residual_out) {
      ASSERT_TRUE(RowIsWithin(expected.residual_out, *residual_out, row)) << "residual_out";
    }
    ASSERT_TRUE(RowIsWithin(expected.y, y, row)) << "y";
  }
}

// The placement and rounding of the gate and of the residual.
enum class Gating { kNone, kBefore, kAfter, kAfterRounded };
enum class Adding { kNone, kRounded, kUnrounded };

struct Steps {
  bool post_norm;
  bool factor;
  Gating gating;
  Adding adding;
};

std::vector<Steps> EveryStep() {
  std::vector<Steps> all;
  for (const bool post_norm : {false, true}) {
    for (const bool factor : {false, true}) {
      for (const Gating gating :
           {Gating::kNone, Gating::kBefore, Gating::kAfter, Gating::kAfterRounded}) {
        for (const Adding adding : {Adding::kNone, Adding::kRounded, Adding::kUnrounded}) {
          if (gating == Gating::kBefore && adding != Adding::kNone) continue;
          all.push_back({post_norm, factor, gating, adding});
        }
      }
    }
  }
  return all;
}

// A post-norm brings rows of any size into a range that no later step leaves. `turn` varies
// everything that does not affect the order of the steps.
Call MakeCall(Random& random, const Steps& steps, rmsnorm_dtype x_dtype, rmsnorm_dtype y_dtype,
              Rounding rounding, size_t d, size_t turn) {
  const auto in_turn = [&turn](size_t count) {
    const size_t chosen = turn % count;
    turn /= count;
    return chosen;
  };
  std::vector<RowKind> kinds = {RowKind::kNormal, RowKind::kMassive};
  if (steps.post_norm && rounding != Rounding::inverse) {
    kinds.insert(kinds.end(), {RowKind::kTiny, RowKind::kSubnormal, RowKind::kHuge});
  }
  Call call(Tensor(x_dtype, kinds.size(), d));
  for (size_t row = 0; row < kinds.size(); ++row) {
    FillRow(random, kinds[row], call.x, row);
    if (kinds[row] == RowKind::kSubnormal) call.x.set_bits(row, 0, 3);  // keeps one element nonzero
  }
  const auto normal = [&](rmsnorm_dtype dtype, size_t rows) {
    Tensor tensor(dtype, rows, d);
    FillNormal(random, tensor);
    return tensor;
  };
  Options& options = call.options;
  options.rounding = rounding;
  options.eps_placement = static_cast<EpsPlacement>(in_turn(3));
  options.eps = in_turn(2) == 0 ? 0 : 1e-6f;
  call.y_dtype = y_dtype;
  if (in_turn(3) != 0) {
    call.weight = normal(kDtypes[in_turn(3)], 1);
  }
  if (call.weight || steps.post_norm) options.weight_offset = in_turn(2) == 0 ? 0 : 1;
  if (in_turn(2) == 0) call.bias = normal(kDtypes[in_turn(3)], 1);
  if (steps.post_norm) call.post_norm_weight = normal(kDtypes[in_turn(3)], 1);
  if (steps.factor) options.factor = 0.22f;
  if (steps.gating != Gating::kNone) {
    call.gate = normal(kDtypes[in_turn(3)], kinds.size());
    options.activation = static_cast<Activation>(in_turn(2));
    if (steps.gating == Gating::kBefore) options.gate_placement = GatePlacement::before;
    if (steps.gating == Gating::kAfterRounded) options.gate_rounding = GateRounding::rounded;
  }
  if (steps.adding != Adding::kNone) {
    call.residual = normal(kDtypes[in_turn(3)], kinds.size());
    if (steps.adding == Adding::kUnrounded) {
      options.residual_rounding = ResidualRounding::unrounded;
    }
  }
  return call;
}

// A test that visits every call with rows of d elements.
class StepsTest : public testing::TestWithParam<size_t> {
 protected:
  template <class Visit>
  static void ForEachCall(const Visit& visit) {
    const size_t d = GetParam();
    Random random(3);
    size_t number = 0;
    for (const Steps& steps : EveryStep()) {
      ++number;
      for (const rmsnorm_dtype x_dtype : kDtypes) {
        for (const rmsnorm_dtype y_dtype : kDtypes) {
          for (const Rounding rounding :
               {Rounding::after_weight, Rounding::before_weight, Rounding::inverse}) {
            // A ninth of the calls suffices: only sums and blocks depend on the length.
            if (d > 300 && number++ % 9 != 0) continue;
            SCOPED_TRACE(std::string(rmsnorm_dtype_name(x_dtype)) + " to " +
                         rmsnorm_dtype_name(y_dtype) + (steps.post_norm ? ", post-norm" : "") +
                         (steps.factor ? ", factor" : "") + ", gating " +
                         std::to_string(static_cast<int>(steps.gating)) + ", adding " +
                         std::to_string(static_cast<int>(steps.adding)) + ", rounding " +
                         std::to_string(static_cast<int>(rounding)));
            const Call call = MakeCall(random, steps, x_dtype, y_dtype, rounding, d, random.Bits());
            ASSERT_NO_FATAL_FAILURE(visit(call));
          }
        }
      }
    }
  }
};

TEST_P(StepsTest, AreWithinTheirRanges) { ForEachCall(ExpectWithinRanges); }

// ------------------------------------------------------------------------- quantised outputs

// The rows of y are the rows of the weight: x is ones, and the RMS is 1.
struct Quantised {
  Tensor y;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int8_t> zero;
};

Quantised Quantise(const Tensor& weight, rmsnorm_dtype x_dtype, rmsnorm_dtype y_dtype, bool with_y,
                   bool with_zero) {
  const size_t rows = weight.rows();
  const size_t d = weight.d();
  Tensor ones(x_dtype, rows, d);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t j = 0; j < d; ++j) ones.set(row, j, 1);
  }
  Quantised result = {Tensor(y_dtype, rows, d), std::vector<int8_t>(rows * d, 99),
                      std::vector<float>(rows, 99), std::vector<int8_t>(rows, 99)};
  ForwardOperands operands;
  operands.x = ConstView(ones.view());
  operands.weight = ConstView(weight.view());
  if (with_y) operands.y = View(result.y.view());
  operands.q = View(result.q.data(), rows, d);
  operands.scale = View(result.scale.data(), rows);
  if (with_zero) operands.zero = View(result.zero.data(), rows);
  forward(operands, UnitNorm(), OnTarget(kReference));
  return result;
}

// Compares a row of integers with its row of y. `zero` is null if they are symmetric. Two or three
// roundings of 2^-24 come before the rounding to an integer, for numbers up to 256.
void ExpectQuantised(const Tensor& y, size_t row, const int8_t* q, float scale,
                     const int8_t* zero) {
  constexpr double kHalf = 0.5 + 256 * 0x1p-22;
  double low = 0;
  double high = 0;
  bool finite = true;
  for (size_t j = 0; j < y.d(); ++j) {
    const double v = y.get(row, j);
    finite = finite && std::isfinite(v);
    low = std::min(low, v);
    high = std::max(high, v);
  }
  const double width = RoundTo(RMSNORM_F32, zero != nullptr ? high - low : std::max(high, -low));
  const int steps = zero != nullptr ? 255 : 127;
  const bool none = !finite || std::isinf(width) || width < 0x1p-100;
  if (none) {
    for (size_t j = 0; j < y.d(); ++j) ASSERT_EQ(0, q[j]) << j;
    if (zero != nullptr) {
      ASSERT_EQ(0, *zero);
    }
    if (finite && !std::isinf(width)) {
      ASSERT_EQ(0, scale);
    } else {
      ASSERT_TRUE(std::isnan(scale)) << scale;
    }
    return;
  }
  ASSERT_EQ(RoundTo(RMSNORM_F32, width / steps), scale);
  const double at_zero = zero != nullptr ? *zero : 0;
  if (zero != nullptr) {
    ASSERT_LE(std::fabs(*zero - (-128 - low * (steps / width))), kHalf);
  }
  for (size_t j = 0; j < y.d(); ++j) {
    const double exact = std::clamp(y.get(row, j) * (steps / width) + at_zero,
                                    zero != nullptr ? -128.0 : -127.0, 127.0);
    ASSERT_LE(std::fabs(q[j] - exact), kHalf) << "element " << j << " of " << y.get(row, j);
  }
}

// Rows of values of every kind, and values at the limits.
Tensor QuantisedRows(Random& random, size_t d) {
  Tensor rows(RMSNORM_F32, 40, d);
  FillMixed(random, rows);
  const double smallest = 0x1p-100;
  const double largest = std::numeric_limits<float>::max();
  size_t row = 0;
  const auto fill = [&](double low, double high) {
    for (size_t j = 0; j < d; ++j) {
      rows.set(row, j, j == 0 ? low : j == 1 ? high : low + (high - low) * random.Uniform());
    }
    ++row;
  };
  fill(0, smallest);
  fill(0, smallest * (1 - 0x1p-24));
  fill(-smallest, 0);
  fill(-smallest / 2, smallest / 2);
  fill(-smallest / 2, smallest * 0.49);
  fill(largest / 2, largest);
  fill(-largest, 0);
  fill(-largest / 2, largest / 2);
  fill(-largest * 0.6, largest * 0.6);
  fill(1, 2);
  fill(-2, -1);
  fill(-1, 127);
  fill(-3, 5);
  return rows;
}

TEST(QuantisedOutputs, AreWithinHalfAStep) {
  Random random(4);
  for (const size_t d : SizeList{2, 31, 300, 4100}) {
    const Tensor weight = QuantisedRows(random, d);
    for (const rmsnorm_dtype x_dtype : kDtypes) {
      for (const rmsnorm_dtype y_dtype : kDtypes) {
        for (const bool with_zero : {false, true}) {
          const Quantised result = Quantise(weight, x_dtype, y_dtype, true, with_zero);
          for (size_t row = 0; row < weight.rows(); ++row) {
            SCOPED_TRACE("row " + std::to_string(row) + " of " + std::to_string(d) + ", " +
                         rmsnorm_dtype_name(y_dtype) + (with_zero ? ", zero" : ""));
            ASSERT_NO_FATAL_FAILURE(ExpectQuantised(result.y, row, result.q.data() + row * d,
                                                    result.scale[row],
                                                    with_zero ? &result.zero[row] : nullptr));
          }
          if (x_dtype != y_dtype) continue;
          const Quantised alone = Quantise(weight, x_dtype, y_dtype, false, with_zero);
          EXPECT_EQ(result.q, alone.q);
          EXPECT_EQ(result.zero, alone.zero);
          EXPECT_TRUE(SameBits(result.scale, alone.scale));
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------ separate calls

// The outputs of a call, or of separate calls.
struct Outputs {
  Tensor y;
  std::optional<Tensor> residual_out;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int8_t> zero;
};

// Computes one step as a separate call, on the reference.
Tensor OneStep(ForwardOperands operands, const Tensor& x, rmsnorm_dtype dtype,
               const Options& options) {
  Tensor result(dtype, x.rows(), x.d());
  operands.x = ConstView(x.view());
  (operands.residual.empty() ? operands.y : operands.residual_out) = View(result.view());
  forward(operands, options, OnTarget(kReference));
  return result;
}

Tensor GateAlone(const Call& call, const Tensor& x, rmsnorm_dtype dtype) {
  Options options = UnitNorm();
  options.activation = call.options.activation;
  ForwardOperands operands;
  operands.gate = ConstView(call.gate->view());
  return OneStep(operands, x, dtype, options);
}

Tensor Converted(const Tensor& from, rmsnorm_dtype dtype, float factor = 1) {
  Tensor to(dtype, from.rows(), from.d());
  for (size_t row = 0; row < from.rows(); ++row) {
    for (size_t j = 0; j < from.d(); ++j) {
      to.set(row, j, RoundTo(RMSNORM_F32, factor * from.get(row, j)));
    }
  }
  return to;
}

// Quantises as doc/definition.md, section 9, says, in f32.
void QuantiseAlone(const Tensor& y, bool symmetric, Outputs& outputs) {
  for (size_t row = 0; row < y.rows(); ++row) {
    float low = 0;
    float high = 0;
    for (size_t j = 0; j < y.d(); ++j) {
      low = std::min(low, static_cast<float>(y.get(row, j)));
      high = std::max(high, static_cast<float>(y.get(row, j)));
    }
    const float width = symmetric ? std::max(-low, high) : high - low;
    if (width < 0x1p-100f) continue;  // the zeros are already there
    const float inverse = (symmetric ? 127.0f : 255.0f) / width;
    float zero = 0;
    const volatile float lowest = low * inverse;  // prevents a fused subtraction on arm64
    if (!symmetric) zero = std::clamp(std::nearbyint(-128 - lowest), -128.0f, 127.0f);
    outputs.scale[row] = width / (symmetric ? 127.0f : 255.0f);
    outputs.zero[row] = static_cast<int8_t>(zero);
    for (size_t j = 0; j < y.d(); ++j) {
      const float integer = std::nearbyint(static_cast<float>(y.get(row, j)) * inverse) + zero;
      outputs.q[row * y.d() + j] = static_cast<int8_t>(std::clamp(integer, -128.0f, 127.0f));
    }
  }
}

Outputs EmptyOutputs(const Call& call) {
  const size_t rows = call.x.rows();
  Outputs outputs = {Tensor(call.y_dtype, rows, call.x.d()),
                     {},
                     std::vector<int8_t>(rows * call.x.d()),
                     std::vector<float>(rows),
                     std::vector<int8_t>(rows)};
  if (call.residual) outputs.residual_out.emplace(call.residual->dtype(), rows, call.x.d());
  return outputs;
}

// Returns nothing if the input of the norm is in f32 but x is not: a separate call would round to
// f32 where this call rounds to x's type.
std::optional<Outputs> Separately(const Call& call, bool symmetric) {
  const rmsnorm_dtype x_dtype = call.x.dtype();
  const Options& given = call.options;
  const bool unrounded = call.IsGated(GatePlacement::before) ||
                         (call.residual && given.residual_rounding == ResidualRounding::unrounded);
  if (unrounded && x_dtype != RMSNORM_F32 &&
      (given.rounding != Rounding::after_weight || given.gate_rounding == GateRounding::rounded)) {
    return {};
  }
  Options options;
  options.eps = given.eps;
  options.eps_placement = given.eps_placement;
  options.rounding = given.rounding;
  options.weight_offset = given.weight_offset;
  Outputs outputs = EmptyOutputs(call);
  Tensor h = call.x;
  if (call.post_norm_weight) {
    ForwardOperands operands;
    operands.weight = ConstView(call.post_norm_weight->vector());
    h = OneStep(operands, h, x_dtype, options);
  }
  if (given.factor != 0) h = Converted(h, x_dtype, given.factor);
  if (call.IsGated(GatePlacement::before)) h = GateAlone(call, h, RMSNORM_F32);
  if (call.residual) {
    const auto add = [&](const Tensor& residual) {
      ForwardOperands operands;
      operands.residual = ConstView(residual.view());
      return OneStep(operands, h, residual.dtype(), {});
    };
    outputs.residual_out = add(*call.residual);
    h = unrounded ? add(Converted(*call.residual, RMSNORM_F32)) : *outputs.residual_out;
  }
  const bool gated = call.IsGated(GatePlacement::after);
  ForwardOperands operands;
  if (call.weight) operands.weight = ConstView(call.weight->vector());
  if (call.bias) operands.bias = ConstView(call.bias->vector());
  if (!call.weight) options.weight_offset = 0;
  const rmsnorm_dtype dtype = !gated                                           ? call.y_dtype
                              : given.gate_rounding == GateRounding::unrounded ? RMSNORM_F32
                                                                               : h.dtype();
  outputs.y = OneStep(operands, h, dtype, options);
  if (gated) outputs.y = GateAlone(call, outputs.y, call.y_dtype);
  QuantiseAlone(outputs.y, symmetric, outputs);
  return outputs;
}

// One call with all steps. y replaces x if possible, or is absent if q stays the same without it.
Outputs AtOnce(const Call& call, bool symmetric, bool in_place, bool with_y,
               const Context& context) {
  Outputs outputs = EmptyOutputs(call);
  Tensor x = call.x;
  if (in_place) outputs.y = call.x;
  ForwardOperands operands;
  operands.x = ConstView((in_place ? outputs.y : x).view());
  if (call.weight) operands.weight = ConstView(call.weight->vector());
  if (call.bias) operands.bias = ConstView(call.bias->vector());
  if (call.post_norm_weight) operands.post_norm_weight = ConstView(call.post_norm_weight->vector());
  if (call.gate) operands.gate = ConstView(call.gate->view());
  if (call.residual) {
    operands.residual = ConstView(call.residual->view());
    operands.residual_out = View(outputs.residual_out->view());
  }
  if (with_y) {
    rmsnorm_view view = outputs.y.view();
    view.dtype = call.y_dtype;
    operands.y = View(view);
  }
  operands.q = View(outputs.q.data(), x.rows(), x.d());
  operands.scale = View(outputs.scale.data(), x.rows());
  if (!symmetric) operands.zero = View(outputs.zero.data(), x.rows());
  forward(operands, call.options, context);
  outputs.y.Reinterpret(call.y_dtype);
  return outputs;
}

void ExpectTheBitsOfSeparateCalls(const Call& call) {
  const rmsnorm_dtype x_dtype = call.x.dtype();
  const bool of_residual =
      call.residual && call.options.residual_rounding == ResidualRounding::rounded;
  const rmsnorm_dtype norm_dtype = of_residual ? call.residual->dtype() : x_dtype;
  const bool can_be_in_place = rmsnorm_dtype_size(x_dtype) == rmsnorm_dtype_size(call.y_dtype);
  for (const bool symmetric : {false, true}) {
    const std::optional<Outputs> expected = Separately(call, symmetric);
    if (!expected) return;
    for (const std::string& target : SupportedTargets()) {
      for (const bool with_y : {false, true}) {
        if (!with_y && norm_dtype != call.y_dtype) continue;
        const bool in_place = with_y && symmetric && can_be_in_place;
        const Outputs actual = AtOnce(call, symmetric, in_place, with_y, OnTarget(target, 1));
        if (with_y) {
          ASSERT_TRUE(SameBits(expected->y, actual.y)) << target << " y";
        }
        ASSERT_EQ(expected->scale, actual.scale) << target;
        ASSERT_EQ(expected->zero, actual.zero) << target;
        ASSERT_EQ(expected->q, actual.q) << target;
        if (call.residual) {
          ASSERT_TRUE(SameBits(*expected->residual_out, *actual.residual_out)) << target;
        }
      }
    }
  }
}

TEST_P(StepsTest, HaveTheBitsOfSeparateCalls) { ForEachCall(ExpectTheBitsOfSeparateCalls); }

INSTANTIATE_TEST_SUITE_P(Sizes, StepsTest, testing::Values(2, 7, 130, 4097, 9000),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
#include "oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "../../../lib/fma.h"  // which fma_test.cc tests
#include "error_bounds.h"
#include "exact.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using cases::Case;
using cases::Operand;
using cases::Problem;
using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kDy, internal::kGate,
    internal::kPostNormWeight, internal::kQ, internal::kResidual, internal::kResidualOut,
    internal::kRstd, internal::kScale, internal::kSums, internal::kSumsOut, internal::kWeight,
    internal::kX, internal::kY, internal::kZero;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// --------------------------------------------------------------------------------- ranges

// Numbers from `low` to `high`, perhaps NaN as well. Empty at first.
struct Range {
  Range() = default;
  explicit Range(double value) { Include(value); }
  Range(double a, double b) : Range(a) { Include(b); }

  void Include(double value) {
    if (std::isnan(value)) {
      may_be_nan = true;
    } else {
      // -0 lies below 0.
      if (value < low || (value == low && std::signbit(value))) low = value;
      if (value > high || (value == high && !std::signbit(value))) high = value;
    }
  }
  bool HasNumbers() const { return low <= high; }
  bool IsFinite() const {
    return HasNumbers() && !may_be_nan && -kInfinity < low && high < kInfinity;
  }
  bool Has(double value) const {
    return std::isnan(value) ? may_be_nan : low <= value && value <= high;
  }

  double low = kInfinity;
  double high = -kInfinity;
  bool may_be_nan = false;
};

Range Anything() {
  Range all(-kInfinity, kInfinity);
  all.may_be_nan = true;
  return all;
}

using Ranges = std::vector<Range>;

// The range of a monotonic function.
template <class F>
Range Map(const Range& range, const F& f) {
  Range result;
  result.may_be_nan = range.may_be_nan;
  if (range.HasNumbers()) {
    result.Include(f(range.low));
    result.Include(f(range.high));
  }
  return result;
}

Range Cast(rmsnorm_dtype dtype, const Range& range) {
  return Map(range, [dtype](double value) { return RoundTo(dtype, value); });
}

bool IsInfinite(const Range& range) { return range.low == -kInfinity || range.high == kInfinity; }

// The range of a function that is monotonic in both arguments.
template <class F>
Range Map(const Range& a, const Range& b, const F& f) {
  Range result;
  result.may_be_nan = a.may_be_nan || b.may_be_nan;
  if (!b.HasNumbers()) return result;
  for (const double second : {b.low, b.high}) {
    const Range one = Map(a, [&](double first) { return f(first, second); });
    result.may_be_nan |= one.may_be_nan;
    if (!one.HasNumbers()) continue;
    result.Include(one.low);
    result.Include(one.high);
  }
  return result;
}

// The range of a product in f32. The product of two f32 is exact in binary64.
Range Times(const Range& a, const Range& b) {
  Range result = Map(a, b, [](double x, double y) { return RoundToF32(x * y); });
  result.may_be_nan |= (a.Has(0) && IsInfinite(b)) || (b.Has(0) && IsInfinite(a));
  return result;
}

// --------------------------------------------------------------------------------- inverse RMS

// The sum of squares. The square of an f32 is exact in binary64.
Range SumOfSquares(const Ranges& row) {
  Sum low;
  Sum high;
  Range sum;
  for (const Range& element : row) {
    sum.may_be_nan |= element.may_be_nan;
    if (!element.HasNumbers()) return Range(std::nan(""));
    const double a = element.low * element.low;
    const double b = element.high * element.high;
    low.Add(element.Has(0) ? 0 : std::min(a, b));
    high.Add(std::max(a, b));
  }
  sum.Include(low.Get());
  sum.Include(high.Get());
  return sum;
}

// Rows in binary64 have the same number of roundings, of 2^-53 each. This bound is larger for every
// row here, and covers the oracle's own errors.
constexpr double kColdBound = 0x1p-46;

// Whether a row is certainly computed in binary64: the value under the root is outside of [2^-100,
// the largest f32] by more than the error of the f32 sum.
bool IsCold(double under_root) { return !(under_root >= 0x1.FEp-101 && under_root <= 0x1.01p128); }

// Whether a row is certainly computed in f32: by as much inside, and the sum fits, too.
bool IsHot(const Norm& norm, double sum) {
  const double under_root = norm.UnderRoot(sum);
  return sum <= 0x1.FEp127 && under_root >= 0x1.02p-100 && under_root <= 0x1.FEp127;
}

// The bound for the inverse RMS of a row whose sum is in a range. The bound in f32 is the wider
// one.
double BoundOf(const Norm& norm, const Range& sum) {
  const bool is_cold = IsCold(norm.UnderRoot(sum.low)) && IsCold(norm.UnderRoot(sum.high));
  return is_cold ? kColdBound : InverseRmsBound(norm.d, norm.placement);
}

Range InverseRange(const Norm& norm, const Range& sum) {
  Range r;
  r.may_be_nan = sum.may_be_nan;
  if (!sum.HasNumbers()) return r;
  const double bound = BoundOf(norm, sum);
  const double low = norm.Inverse(sum.high) * (1 - bound);
  const double high = norm.Inverse(sum.low) * (1 + bound);
  // An RMS that is certainly below the floor has the inverse of the floor, which may be exact.
  const double of_floor = 1 / norm.eps;
  const bool is_floor = norm.placement == RMSNORM_EPS_FLOOR && of_floor == RoundToF32(of_floor) &&
                        std::sqrt(norm.UnderRoot(sum.high)) * (1 + bound) < norm.eps;
  r.Include(is_floor ? of_floor : low);
  r.Include(is_floor ? of_floor : high);
  return r;
}

// --------------------------------------------------------------------------------- a case

class Oracle {
 public:
  Oracle(const Case& c, const Problem& problem, Worst& worst)
      : c_(c), problem_(problem), worst_(worst), norm_(c), has_short_types_(HasShortTypes(c)) {}

  std::string Fault() {
    if (c_.backward) {
      CheckGradients();
    } else {
      for (size_t row = 0; row < c_.RowCount(); ++row) CheckRow(row);
    }
    return fault_.str();
  }

 private:
  static bool HasShortTypes(const Case& c) {
    return std::any_of(std::begin(c.operand), std::end(c.operand), [](const auto& operand) {
      return operand.dtype == RMSNORM_F16 || operand.dtype == RMSNORM_BF16;
    });
  }

  // An element of the row that belongs to a row of x.
  double Input(Operand o, size_t row, size_t j) const {
    return Get(problem_.before(o), cases::SharedRow(c_, o, row), j);
  }
  double Result(Operand o, size_t row, size_t j) const { return Get(problem_.after(o), row, j); }

  // w' = offset + w in f32, or 1 without a weight.
  double Prepared(Operand weight, size_t row, size_t j) const {
    if (!c_.Has(weight)) return 1;
    return RoundToF32(double{c_.options.weight_offset} + Input(weight, row, j));
  }

  // Whether a zero of a type with signed zeros certainly has the other sign.
  bool HasOtherSign(Operand o, const Range& expected, double zero) const {
    return c_.operand[o].dtype != RMSNORM_I8 && expected.low == 0 && expected.high == 0 &&
           !std::isnan(zero) && std::signbit(expected.low) == std::signbit(expected.high) &&
           std::signbit(expected.low) != std::signbit(zero);
  }

  void Expect(Operand o, size_t row, size_t j, const Range& expected) {
    const double actual = Result(o, row, j);
    if (!expected.Has(actual) || HasOtherSign(o, expected, actual)) {
      if (fault_.tellp() != 0) return;
      fault_.precision(17);
      fault_ << internal::kOperandRules[o].name << "[" << row << "][" << j << "] is " << actual
             << ", not between " << expected.low << " and " << expected.high
             << (expected.may_be_nan ? ", nor NaN" : "");
      return;
    }
    // In narrower ranges, the rounding to f32 would be most of the distance.
    constexpr double kUlps = 3;
    const double half = (expected.high - expected.low) / 2;
    if (has_short_types_ || !expected.IsFinite() || half < kUlps * Ulp(RMSNORM_F32, actual)) return;
    const double share = std::fabs(actual - (expected.low + half)) / half;
    worst_.of[o] = std::max(worst_.of[o], share);
  }

  // ---- forward

  void CheckRow(size_t row);
  void ScaleRow(Ranges& h, const Range& r, Operand weight, bool has_bias, size_t row,
                rmsnorm_dtype x_dtype) const;
  void MultiplyByGate(Ranges& h, size_t row) const;
  Range CheckSums(const Ranges& h, size_t row);
  Range CheckInverse(const Range& sum, size_t row);
  void CheckQuantised(const Ranges& v, size_t row);

  // ---- backward

  void CheckGradients();
  void ExpectGradients(Operand o, const std::vector<std::vector<double>>& values,
                       const std::vector<std::vector<double>>& errors);

  const Case& c_;
  const Problem& problem_;
  Worst& worst_;
  const Norm norm_;
  const bool has_short_types_;
  std::ostringstream fault_;
};

// --------------------------------------------------------------------------------- forward

// Definition 5: n = x r in f32, rounded to the type of x or not, then the weight and the bias.
void Oracle::ScaleRow(Ranges& h, const Range& r, Operand weight, bool has_bias, size_t row,
                      rmsnorm_dtype x_dtype) const {
  const int rounding = c_.options.rounding;
  const Range factor = rounding == RMSNORM_ROUND_INVERSE ? Cast(x_dtype, Cast(RMSNORM_F32, r)) : r;
  for (size_t j = 0; j < c_.d; ++j) {
    Range n = Times(h[j], factor);
    if (rounding != RMSNORM_ROUND_AFTER_WEIGHT) n = Cast(x_dtype, n);
    const double w = Prepared(weight, row, j);
    if (!has_bias) {
      h[j] = Times(n, Range(w));
      continue;
    }
    const auto b = static_cast<float>(Input(kBias, row, j));
    h[j] = Map(n, [&](double value) {
      return double{internal::Fma(static_cast<float>(value), static_cast<float>(w), b)};
    });
    h[j].may_be_nan |= n.Has(0) && std::isinf(w);
  }
}

// Definition 8, to 2 ulp.
Range ActivationRange(int activation, double z) {
  const double exact = ExactActivation(activation, z);
  if (!std::isfinite(exact)) return Range(exact);
  const double error = 2 * Ulp(RMSNORM_F32, exact);
  return {exact - error, exact + error};
}

void Oracle::MultiplyByGate(Ranges& h, size_t row) const {
  for (size_t j = 0; j < c_.d; ++j) {
    h[j] = Times(h[j], ActivationRange(c_.options.activation, Input(kGate, row, j)));
  }
}

// The sum of squares of a row, which may be an output. Twice the bound of the inverse RMS, since
// the root halves an error.
Range Oracle::CheckSums(const Ranges& h, size_t row) {
  if (c_.Has(kSums)) return Range(Input(kSums, row, 0));
  const Range sum = SumOfSquares(h);
  if (c_.Has(kSumsOut)) {
    Norm without_eps = norm_;
    without_eps.eps = 0;
    const double bound = 2 * BoundOf(without_eps, sum);
    Range expected;
    expected.may_be_nan = sum.may_be_nan;
    if (sum.HasNumbers()) {
      expected.Include(sum.low * (1 - bound));
      expected.Include(sum.high * (1 + bound));
    }
    Expect(kSumsOut, row, 0, expected);
  }
  return sum;
}

// The inverse RMS of a row, which may be an output: of a row in f32, and where it is rounded, this
// is the one that the call went on with.
Range Oracle::CheckInverse(const Range& sum, size_t row) {
  const Range r = InverseRange(norm_, sum);
  if (!c_.Has(kRstd)) return r;
  Expect(kRstd, row, 0, Cast(RMSNORM_F32, r));
  const bool is_hot = !sum.may_be_nan && IsHot(norm_, sum.low) && IsHot(norm_, sum.high);
  const bool is_f32 = is_hot || c_.options.rounding == RMSNORM_ROUND_INVERSE;
  return is_f32 ? Range(Result(kRstd, row, 0)) : r;
}

// The steps before the norm (definition 7), the norm, the gate and the quantised output.
void Oracle::CheckRow(size_t row) {
  const rmsnorm_options& options = c_.options;
  rmsnorm_dtype x_dtype = c_.operand[kX].dtype;
  Ranges h;
  for (size_t j = 0; j < c_.d; ++j) h.emplace_back(Input(kX, row, j));
  const auto cast = [&h](rmsnorm_dtype dtype) {
    for (Range& element : h) element = Cast(dtype, element);
  };

  if (c_.Has(kPostNormWeight)) {
    const Range r = InverseRange(norm_, SumOfSquares(h));
    ScaleRow(h, r, kPostNormWeight, false, row, x_dtype);
    cast(x_dtype);
  }
  if (const float factor = internal::FactorOf(options); factor != 1) {
    for (Range& element : h) element = Times(element, Range(double{factor}));
    cast(x_dtype);
  }
  const bool is_gated_before = options.gate_placement == RMSNORM_GATE_BEFORE;
  if (c_.Has(kGate) && is_gated_before) MultiplyByGate(h, row);
  if (c_.Has(kResidual)) {
    const rmsnorm_dtype stream = c_.operand[kResidual].dtype;
    Ranges rounded;
    for (size_t j = 0; j < c_.d; ++j) {
      const double residual = Input(kResidual, row, j);
      h[j] = Map(h[j], [residual](double value) { return RoundToF32(residual + value); });
      rounded.push_back(Cast(stream, h[j]));
      if (c_.Has(kResidualOut)) Expect(kResidualOut, row, j, rounded[j]);
    }
    if (options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED) {
      x_dtype = stream;
      h = rounded;
    }
  }

  const Range sum = CheckSums(h, row);
  // eps could cancel a negative sum, and zeros of either sign are one.
  if (sum.HasNumbers() && std::signbit(sum.low)) return;
  const Range r = CheckInverse(sum, row);
  if (!c_.Has(kY) && !c_.Has(kQ)) return;
  ScaleRow(h, r, kWeight, c_.Has(kBias), row, x_dtype);
  if (c_.Has(kGate) && !is_gated_before) {
    if (options.gate_rounding == RMSNORM_GATE_ROUNDED) cast(x_dtype);
    MultiplyByGate(h, row);
  }
  cast(c_.Has(kY) ? c_.operand[kY].dtype : x_dtype);
  for (size_t j = 0; c_.Has(kY) && j < c_.d; ++j) {
    Expect(kY, row, j, h[j]);
    h[j] = Range(Result(kY, row, j));
  }
  if (c_.Has(kQ)) CheckQuantised(h, row);
}

// Definition 9. Every operation is monotonic and rounded once.
void Oracle::CheckQuantised(const Ranges& v, size_t row) {
  const bool has_zero = c_.Has(kZero);
  const double steps = has_zero ? 255 : 127;
  Range low(0.0);
  Range high(0.0);
  bool is_finite = true;  // certainly
  bool is_special = false;
  for (const Range& element : v) {
    is_finite = is_finite && element.IsFinite();
    is_special = is_special || !element.HasNumbers() || element.low == kInfinity ||
                 element.high == -kInfinity;
    low.low = std::min(low.low, element.low);
    low.high = std::min(low.high, element.high);
    high.low = std::max(high.low, element.low);
    high.high = std::max(high.high, element.high);
  }
  const Range width = Map(low, high, [&](double lo, double hi) {
    return has_zero ? RoundToF32(hi - lo) : std::max(hi, -lo);
  });
  const auto expect_no_integers = [&](double scale) {
    Expect(kScale, row, 0, Range(scale));
    if (has_zero) Expect(kZero, row, 0, Range(0.0));
    for (size_t j = 0; j < c_.d; ++j) Expect(kQ, row, j, Range(0.0));
  };
  if (is_special || width.low == kInfinity) return expect_no_integers(std::nan(""));
  if (!is_finite || width.high == kInfinity) return;  // either
  if (width.high < 0x1p-100) return expect_no_integers(0);
  if (width.low < 0x1p-100) return;  // either

  const auto clamped = [](double value) { return std::clamp(value, -128.0, 127.0); };
  const auto rint = [](double value) { return std::nearbyint(value); };
  Expect(kScale, row, 0, Map(width, [&](double a) { return RoundToF32(a / steps); }));
  const Range inverse = Map(width, [&](double a) { return RoundToF32(steps / a); });
  Range zero(0.0);
  if (has_zero) {
    zero = Map(Times(low, inverse),
               [&](double lowest) { return clamped(rint(RoundToF32(-128 - lowest))); });
    Expect(kZero, row, 0, zero);
    zero = Range(Result(kZero, row, 0));
  }
  for (size_t j = 0; j < c_.d; ++j) {
    Expect(kQ, row, j, Map(Times(v[j], inverse), [&](double value) {
             return clamped(rint(value) + zero.low);
           }));
  }
}

// --------------------------------------------------------------------------------- backward

// With u = 2^-24 (2^-53 where the row is computed in binary64), R the bound of the inverse RMS,
// which includes its roundings, and sums over a row of a_j = |g_j x_j|:
//
// - g = dy w' rounds once: u |g|. An element of c takes part in that rounding and in at most
//   m = k + 7 + b others (definition 15 counts them), so c is off by (m + 1) u sum(a).
// - q = c r / D rounds twice and contains r: it is off by (m + 1) u sum(a) r / D + |q| (R + 2 u).
//   With eps outside it also contains s, with the bound of r, and rounds once more: 2 R + 3 u.
// - (x r) q rounds twice and contains r once more, x q rounds once: with M = |x r q| or |x q|, the
//   error is M_a (m + 1) u + M (2 R + 4 u), where M_a is M with sum(a) for c.
// - e = g - M rounds once: u (|g| + M); r e contains r and rounds once: |dx| (R + u).
// - An element of dw contains dy x, which rounds once, and r: |dy x r| (u + R) each. The fma rounds
//   once for each row of a block from its own on, up to 16 with fewer than 1,024 rows and
//   rows / 64 + 1 above; then the blocks add up, in at most 63 roundings. db is the same without r.
//
// Products of two errors are of the order of u times these: 1 % more covers them for the m and the
// rows of these tests. In binary64, dx and each term of dw round to f32 at the end. Products below
// 2^-126 are rounded to multiples of 2^-149. That matters for tiny rows or gradients, so each sum,
// product and result may be off by another 2^-149.
void Oracle::CheckGradients() {
  constexpr double kTiny = 0x1p-149;
  constexpr double kSlack = 1.01;
  const size_t rows = c_.RowCount();
  const size_t d = c_.d;
  const double eps = norm_.eps;
  const double roundings_of_sums = static_cast<double>(rows) / 64 + 17 + 63;
  const double m_plus_1 = RoundingsOfSum(d) + 1;

  using Numbers = std::vector<std::vector<double>>;  // per row
  const auto zeros = [&](Operand columns) {
    return Numbers(c_.Has(columns) ? cases::RowsOf(c_, columns) : 1, std::vector<double>(d));
  };
  Numbers dx(rows, std::vector<double>(d)), dw = zeros(kDw), db = zeros(kDb);
  Numbers dx_error = dx, dw_error = dw, db_error = db;
  for (size_t row = 0; row < rows; ++row) {
    Sum squares;
    Sum c;
    Sum c_a;
    for (size_t j = 0; j < d; ++j) {
      const double x = Input(kX, row, j);
      const double product = Input(kDy, row, j) * Prepared(kWeight, row, j) * x;
      squares.Add(x * x);
      c.Add(product);
      c_a.Add(std::fabs(product));
    }
    const double sum = squares.Get();
    const double r = c_.Has(kRstd) ? Input(kRstd, row, 0) : norm_.Inverse(sum);
    const bool is_cold = IsCold(norm_.UnderRoot(sum));
    const double u = is_cold ? 0x1p-53 : kUnit;
    const double bound = BoundOf(norm_, Range(sum));
    const double s = std::sqrt(sum / norm_.divisor);
    const bool is_floor = norm_.placement == RMSNORM_EPS_FLOOR;
    const double factor = norm_.placement == RMSNORM_EPS_OUTSIDE
                              ? (s == 0 ? 0 : r / (norm_.divisor * s))
                              : r * r / norm_.divisor;
    const bool only_g = is_floor && s < eps;
    // This close to the floor, the library may take the RMS to be on either side.
    const bool is_open = is_floor && std::fabs(s - eps) <= bound * eps;
    const double tiny_c = is_cold ? 0 : static_cast<double>(d) * kTiny;
    const size_t dw_row = c_.Has(kDw) ? cases::SharedRow(c_, kDw, row) : 0;
    const size_t db_row = c_.Has(kDb) ? cases::SharedRow(c_, kDb, row) : 0;
    for (size_t j = 0; j < d; ++j) {
      const double dy = Input(kDy, row, j);
      const double x = Input(kX, row, j);
      const double g = dy * Prepared(kWeight, row, j);
      const double second = x * factor * c.Get();
      const double size = std::fabs(g) + std::fabs(second);
      const double value = r * (only_g ? g : g - second);
      const double second_error = std::fabs(x) * factor * (c_a.Get() * m_plus_1 * u + tiny_c) +
                                  std::fabs(second) * (2 * bound + 4 * u);
      double error = kSlack * (r * (second_error + 2 * size * u + (is_cold ? 0 : 4 * kTiny)) +
                               std::fabs(value) * (bound + u + (is_cold ? kUnit : 0))) +
                     kTiny;
      if (is_cold) error += r * size * 0x1p-40;  // binary64, plus the oracle's own errors
      if (is_open) error += r * std::fabs(second);
      dx[row][j] = value;
      dx_error[row][j] = error;

      // In a row in f32 the product may overflow although the term does not.
      const double term = (is_cold ? dy * x : RoundToF32(dy * x)) * r;
      dw[dw_row][j] += term;
      dw_error[dw_row][j] +=
          kSlack * std::fabs(term) * (u + bound + roundings_of_sums * kUnit) + (r + 1) * kTiny;
      db[db_row][j] += dy;
      db_error[db_row][j] += kSlack * std::fabs(dy) * roundings_of_sums * kUnit;
    }
  }
  ExpectGradients(kDx, dx, dx_error);
  ExpectGradients(kDw, dw, dw_error);
  ExpectGradients(kDb, db, db_error);
}

// The gradient in f32 is added to the existing one, if requested, and then cast.
void Oracle::ExpectGradients(Operand o, const std::vector<std::vector<double>>& values,
                             const std::vector<std::vector<double>>& errors) {
  if (!c_.Has(o)) return;
  const auto& own = c_.operand[o];
  for (size_t row = 0; row < values.size(); ++row) {
    for (size_t j = 0; j < c_.d; ++j) {
      const double value = values[row][j];
      const double error = errors[row][j];
      Range gradient =
          std::isfinite(value + error) ? Range(value - error, value + error) : Anything();
      if (own.add) {
        const double before = Get(problem_.before(o), row, j);
        gradient = Map(gradient, [before](double to_add) { return RoundToF32(before + to_add); });
      }
      Expect(o, row, j, Cast(own.dtype, gradient));
    }
  }
}

}  // namespace

std::string FaultOf(const Case& c, const Problem& problem, Worst& worst) {
  return Oracle(c, problem, worst).Fault();
}

}  // namespace rmsnorm::test

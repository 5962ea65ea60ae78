// SPDX-License-Identifier: Apache-2.0
#include "expected.h"

#include <algorithm>
#include <rmsnorm/rmsnorm.hpp>
#include <sstream>

#include "../lib/fma.h"  // which fma_test.cc tests
#include "run.h"
#include "theta.h"

namespace rmsnorm::cases {
namespace {

using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kDy, internal::kGate,
    internal::kPostNormWeight, internal::kCos, internal::kQ, internal::kResidual,
    internal::kResidualOut, internal::kRstd, internal::kScale, internal::kSin, internal::kSums,
    internal::kSumsOut, internal::kWeight, internal::kX, internal::kY, internal::kZero;

// Adds up to a few units of 2^-53, by Neumaier's compensated summation.
class Sum {
 public:
  void Add(double term) {
    const double total = sum_ + term;
    if (std::isfinite(total)) lost_ += std::max(sum_, term) - total + std::min(sum_, term);
    sum_ = total;
  }
  double Get() const { return sum_ + lost_; }

 private:
  double sum_ = 0;
  double lost_ = 0;
};

// --------------------------------------------------------------------------------- inverse RMS

// What the norms of a case have in common.
struct Norm {
  explicit Norm(const Case& c)
      : divisor(c.options.divisor == 0 ? static_cast<double>(c.d) : double{c.options.divisor}),
        eps(double{c.options.eps}),
        placement(c.options.eps_placement) {}

  double UnderRoot(double sum) const {
    return sum / divisor + (placement == RMSNORM_EPS_INSIDE ? eps : 0);
  }
  double Inverse(double sum) const {
    const double root = std::sqrt(UnderRoot(sum));
    if (placement == RMSNORM_EPS_OUTSIDE) return 1 / (root + eps);
    return 1 / (placement == RMSNORM_EPS_FLOOR && root < eps ? eps : root);
  }

  double divisor;
  double eps;
  int placement;
};

// Rows in binary64 have the same number of roundings, of 2^-53 each. This bound is larger for every
// row here, and covers errors of this file.
constexpr double kColdBound = 0x1p-46;
constexpr double kSlack = 1.01;  // for products of two errors

// Whether a row is certainly computed in binary64: the value under the root is outside of [2^-100,
// the largest f32] by more than the error of the f32 sum.
bool IsCold(double under_root) { return !(under_root >= 0x1.FEp-101 && under_root <= 0x1.01p128); }

// Whether a row is certainly computed in f32: by as much inside, and the sum fits, too.
bool IsHot(const Norm& norm, double sum) {
  const double under_root = norm.UnderRoot(sum);
  return sum <= 0x1.FEp127 && under_root >= 0x1.02p-100 && under_root <= 0x1.FEp127;
}

// The relative error of the inverse RMS of a row whose sum is in a range.
double InverseBound(const Roundings& roundings, const Norm& norm, const Range& sum) {
  const bool is_cold = IsCold(norm.UnderRoot(sum.low)) && IsCold(norm.UnderRoot(sum.high));
  return is_cold ? kColdBound : std::expm1(roundings.Inverse());
}

// An exact value and its range.
struct Quantity {
  Quantity(double value, const Range& its_range) : exact(value), range(its_range) {}
  // NOLINTNEXTLINE(google-explicit-constructor): formulas mix numbers with quantities
  Quantity(double value) : Quantity(value, Range(value)) {}

  double exact;
  Range range;
};
Quantity operator*(const Quantity& a, const Quantity& b) {
  return {a.exact * b.exact, Map(a.range, b.range, std::multiplies<>())};
}
Quantity operator-(const Quantity& a, const Quantity& b) {
  return {a.exact - b.exact, Map(a.range, b.range, std::minus<>())};
}

Quantity InverseOf(const Roundings& roundings, const Norm& norm, const Quantity& sum) {
  Quantity r(norm.Inverse(sum.exact), {});
  r.range.may_be_nan = sum.range.may_be_nan;
  if (!sum.range.HasNumbers()) return r;
  const double bound = InverseBound(roundings, norm, sum.range);
  r.range.Include(norm.Inverse(sum.range.high));
  r.range.Include(norm.Inverse(sum.range.low));
  r.range = Widen(r.range, bound);
  // An RMS that is certainly below the floor has the inverse of the floor, which may be exact.
  const double of_floor = 1 / norm.eps;
  if (norm.placement == RMSNORM_EPS_FLOOR && of_floor == RoundToF32(of_floor) &&
      std::sqrt(norm.UnderRoot(sum.range.high)) * (1 + bound) < norm.eps) {
    r.range.low = r.range.high = of_floor;
  }
  return r;
}

// --------------------------------------------------------------------------------- a case

// What the computations of forward and of backward share.
class Computation {
 public:
  Computation(const Case& c, const Problem& problem, Arithmetic arithmetic, const Results& results,
              const std::function<bool(const ExpectedRow&)>& visit)
      : c_(c),
        problem_(problem),
        results_(results),
        visit_(visit),
        roundings_(c, arithmetic),
        norm_(c) {}

  bool goes_on() const { return goes_on_; }

 protected:
  // The elements of the row of an input that belongs to a row of x.
  auto Input(Operand o, size_t row) const {
    return [&rows = problem_.before(o), own = SharedRow(c_, o, row)](size_t j) {
      return Get(rows, own, j);
    };
  }

  // w' = offset + w, or 1 without a weight.
  auto Weight(Operand weight, size_t row) const {
    return [has = c_.Has(weight), offset = double{c_.options.weight_offset},
            w = Input(weight, row)](size_t j) { return has ? offset + w(j) : 1; };
  }

  void Expect(const ExpectedRow& row) { goes_on_ = goes_on_ && visit_(row); }

  const Case& c_;
  const Problem& problem_;
  const Results& results_;
  const std::function<bool(const ExpectedRow&)>& visit_;
  const Roundings roundings_;
  const Norm norm_;
  bool goes_on_ = true;
};

// --------------------------------------------------------------------------------- forward

// The worst errors of the activations in ulp, as definition 16 has them.
constexpr double kMostUlps[] = {1.99815, 1.99915, 0};

// The activation of an element of a gate (definition 8).
double ExactActivation(int activation, double z) {
  if (activation == RMSNORM_ACTIVATION_NONE) return z;
  const double denominator = 1 + std::exp(-z);
  if (activation == RMSNORM_ACTIVATION_SIGMOID) return 1 / denominator;
  return z == -kInfinity ? -0.0 : z / denominator;
}

// The element that is rotated together with element j (definition 10), with the sign of the sine
// that multiplies it; j itself where it is not rotated.
struct Partner {
  size_t j;
  size_t pair;
  double sign;
};

Partner PartnerOf(const Case& c, size_t j) {
  const size_t pairs = RowLengthOf(c, kCos);
  const size_t begin = c.options.rotary_part == RMSNORM_ROTARY_END ? c.d - 2 * pairs : 0;
  if (j < begin || j >= begin + 2 * pairs) return {j, 0, 0};
  const size_t at = j - begin;
  if (c.options.rotary_pairs == RMSNORM_ROTARY_NEIGHBOURS) {
    return at % 2 == 0 ? Partner{j + 1, at / 2, -1.0} : Partner{j - 1, at / 2, 1.0};
  }
  return at < pairs ? Partner{j + pairs, at, -1.0} : Partner{j - pairs, at - pairs, 1.0};
}

// The elements of a row, step by step.
class Forward : public Computation {
 public:
  using Computation::Computation;
  // The steps before the norm (definition 7), the norm, the gate and the quantised output.
  void MakeRow(size_t row) {
    const rmsnorm_options& options = c_.options;
    rmsnorm_dtype x_dtype = c_.operand[kX].dtype;
    row_.row = row;
    row_.elements.resize(c_.d);
    const auto x = Input(kX, row);
    for (size_t j = 0; j < c_.d; ++j) row_.elements[j] = {x(j), 0, Range(x(j))};
    theta_ = Theta(roundings_);
    theta_of_term_ = 0;
    may_cancel_ = leaves_range_ = false;
    has_bound_ = true;

    if (c_.Has(kPostNormWeight)) {
      BeginNorm();
      Scale(InverseOf(roundings_, norm_, SumOfSquares()), kPostNormWeight, false, x_dtype);
      Cast(x_dtype);
    }
    if (const float factor = internal::FactorOr1(options.factor); factor != 1) {
      MultiplyBy(factor);
      Cast(x_dtype);
    }
    const bool is_gated_before = options.gate_placement == RMSNORM_GATE_BEFORE;
    const bool is_gate_rounded = options.gate_rounding == RMSNORM_GATE_ROUNDED;
    if (c_.Has(kGate) && is_gated_before) {
      MultiplyByGate();
      if (is_gate_rounded) Cast(x_dtype);
    }
    if (c_.Has(kResidual)) x_dtype = AddResidual();

    BeginNorm();
    const Quantity sum = MakeSum();
    // eps could cancel a negative sum, and zeros of either sign are one.
    if (!roundings_.any && sum.range.HasNumbers() && std::signbit(sum.range.low)) return;
    const Quantity r = MakeInverse(sum);
    if (!c_.Has(kY) && !c_.Has(kQ)) return;
    Scale(r, kWeight, c_.Has(kBias), x_dtype);
    if (c_.Has(kGate) && !is_gated_before) {
      if (is_gate_rounded) Cast(x_dtype);
      MultiplyByGate();
    }
    if (c_.Has(kCos)) Rotate();
    Cast(c_.Has(kY) ? c_.operand[kY].dtype : x_dtype);
    if (c_.Has(kY)) {
      ExpectElements(kY, theta_.Bound(c_.operand[kY].dtype), !(may_cancel_ && c_.Has(kBias)));
    }
    if (c_.Has(kQ)) MakeQuantised();
  }

 private:
  // A step of each element, with one rounding to f32.
  template <class F>
  void Operate(const F& step) {
    SeeRange();
    for (size_t j = 0; j < c_.d; ++j) step(row_.elements[j], j);
    theta_.Operate();
  }

  static void MultiplyExact(ExpectedElement& element, double exact) {
    element.exact *= exact;
    if (element.size < kInfinity) element.size *= std::fabs(exact);
  }

  void Multiply(ExpectedElement& element, double exact, const Range& range) const {
    MultiplyExact(element, exact);
    if (!roundings_.any) element.range = Times(element.range, range);
  }

  void MultiplyBy(float factor) {
    const double exact = factor;
    Operate([&](ExpectedElement& h, size_t) { Multiply(h, exact, Range(exact)); });
  }

  // A number below the normal ones of the type that it was rounded to has the error of the smallest
  // normal number.
  void SeeRange() {
    if (theta_.rounded_to() == 0) return;
    const Format format = FormatOf(theta_.rounded_to());
    const double smallest = PowerOfTwo(format.min_exponent());
    const double largest = PowerOfTwo(format.max_exponent());
    for (ExpectedElement& element : row_.elements) {
      const double magnitude = std::max(std::fabs(element.exact), element.size);
      if ((magnitude >= smallest && magnitude <= largest) || magnitude == 0) continue;
      leaves_range_ = true;
      element.size = std::max(element.size, magnitude < smallest ? smallest : kInfinity);
    }
  }

  // The bound of an inverse RMS needs every h in range.
  void BeginNorm() {
    SeeRange();
    has_bound_ = has_bound_ && !leaves_range_;
  }

  void Cast(rmsnorm_dtype dtype) {
    SeeRange();
    for (ExpectedElement& element : row_.elements) {
      if (!roundings_.any) element.range = cases::Cast(dtype, element.range);
    }
    theta_.Cast(dtype);
  }

  // The square of an f32 is exact in binary64.
  Quantity SumOfSquares() {
    Sum exact;
    Sum low;
    Sum high;
    Quantity sum(0, {});
    for (const ExpectedElement& element : row_.elements) {
      exact.Add(element.exact * element.exact);
      if (roundings_.any) continue;
      const Range& range = element.range;
      sum.range.may_be_nan |= range.may_be_nan;
      if (!range.HasNumbers()) return {std::nan(""), Range(std::nan(""))};
      const double a = range.low * range.low;
      const double b = range.high * range.high;
      low.Add(range.Has(0) ? 0 : std::min(a, b));
      high.Add(std::max(a, b));
    }
    sum.exact = exact.Get();
    sum.range.Include(low.Get());
    sum.range.Include(high.Get());
    return sum;
  }

  // Definition 5: n = h r in f32, rounded to the type of x or not, then the weight and the bias.
  // The theta of h counts twice: n contains h, and r depends on it. The theta of a term that is
  // added to h counts once, with the size of definition 16.
  void Scale(const Quantity& r, Operand weight, bool has_bias, rmsnorm_dtype x_dtype) {
    const int rounding = c_.options.rounding;
    const bool is_inverse = rounding == RMSNORM_ROUND_INVERSE;
    const Range factor =
        is_inverse ? cases::Cast(x_dtype, cases::Cast(RMSNORM_F32, r.range)) : r.range;
    double rms_of_term = 0;
    if (may_cancel_) {
      Sum squares;
      for (const ExpectedElement& element : row_.elements) squares.Add(element.size * element.size);
      rms_of_term = std::sqrt(squares.Get() / norm_.divisor);
    }
    theta_ = Theta(roundings_, roundings_.Inverse() + 2 * theta_.Get() + theta_of_term_);
    if (is_inverse) {
      const Format format = FormatOf(x_dtype);
      has_bound_ = has_bound_ && r.exact >= PowerOfTwo(format.min_exponent()) &&
                   r.exact <= PowerOfTwo(format.max_exponent());
      if (x_dtype != RMSNORM_F32) theta_.Add(UnitOf(x_dtype));
    }
    Operate([&](ExpectedElement& h, size_t) {
      if (may_cancel_) h.size += std::fabs(h.exact) * r.exact * rms_of_term;
      Multiply(h, r.exact, factor);
    });
    if (rounding != RMSNORM_ROUND_AFTER_WEIGHT) Cast(x_dtype);
    if (!c_.Has(weight) && !has_bias) return;
    if (c_.options.weight_offset != 0) theta_.Add(kUnit);
    const auto weights = Weight(weight, row_.row);
    const auto biases = Input(kBias, row_.row);
    Operate([&](ExpectedElement& n, size_t j) {
      const double w = weights(j);
      if (std::fabs(w) >= 0x1p127) n.size = kInfinity;  // the sum with the offset may be infinite
      if (!has_bias) return Multiply(n, w, Range(RoundToF32(w)));
      const double b = biases(j);
      MultiplyExact(n, w);
      n.size = std::max(n.size, std::fabs(n.exact));
      n.exact += b;
      if (roundings_.any) return;
      const auto weight_in_f32 = static_cast<float>(w);
      const bool may_be_nan = n.range.Has(0) && std::isinf(weight_in_f32);
      n.range = Map(n.range, [&](double value) {
        return double{
            internal::Fma(static_cast<float>(value), weight_in_f32, static_cast<float>(b))};
      });
      n.range.may_be_nan |= may_be_nan;
    });
  }

  void MultiplyByGate() {
    const double most_ulps = kMostUlps[c_.options.activation];
    if (most_ulps > 0) theta_.Add(roundings_.Activation());
    const auto gate = Input(kGate, row_.row);
    Operate([&](ExpectedElement& h, size_t j) {
      const double exact = ExactActivation(c_.options.activation, gate(j));
      Range range(exact);
      if (std::isfinite(exact)) {
        const double magnitude = std::fabs(exact);
        const double error = most_ulps * Ulp(RMSNORM_F32, exact);
        range = {std::copysign(std::max(magnitude - error, 0.0), exact),
                 std::copysign(magnitude + error, exact)};
      }
      Multiply(h, exact, range);
      if (most_ulps > 0 && exact != 0 && std::fabs(exact) < 0x1p-126) {
        leaves_range_ = true;
        h.size = kInfinity;
      }
    });
  }

  // Definition 10: the product with the cosine, the product of the partner with the sine, and their
  // sum.
  void Rotate() {
    const rmsnorm_dtype y = c_.operand[kY].dtype;
    const bool round_each = c_.options.rotary_rounding == RMSNORM_ROTARY_ROUND_EACH;
    if (c_.options.rotary_rounding != RMSNORM_ROTARY_ROUND_NONE) Cast(y);
    SeeRange();
    const std::vector<ExpectedElement> m = row_.elements;
    const Theta theta = theta_;
    const auto multiply = [&](Operand table, bool is_sine) {
      theta_ = theta;
      theta_.Add(roundings_.Between());
      if (round_each && BitsOf(c_.operand[table].dtype) > BitsOf(y)) theta_.Add(UnitOf(y));
      const Format format = FormatOf(y);
      const auto numbers = Input(table, row_.row);
      Operate([&](ExpectedElement& element, size_t j) {
        const Partner partner = PartnerOf(c_, j);
        if (partner.sign == 0) return;
        const double number = numbers(partner.pair) * (is_sine ? partner.sign : 1);
        if (is_sine) element = m[partner.j];
        Multiply(element, number, Range(round_each ? RoundTo(y, number) : number));
        const double magnitude = std::fabs(number);
        const bool fits = magnitude == 0 || (magnitude >= PowerOfTwo(format.min_exponent()) &&
                                             magnitude <= PowerOfTwo(format.max_exponent()));
        if (round_each && !fits) element.size = kInfinity;
      });
      if (round_each) Cast(y);
      SeeRange();
      return row_.elements;
    };
    const std::vector<ExpectedElement> of_sine = multiply(kSin, true);
    row_.elements = m;
    multiply(kCos, false);
    Operate([&](ExpectedElement& element, size_t j) {
      if (PartnerOf(c_, j).sign == 0) return;
      const ExpectedElement& other = of_sine[j];
      element.size = std::max(element.size, std::fabs(element.exact)) +
                     std::max(other.size, std::fabs(other.exact));
      element.exact += other.exact;
      element.range =
          Map(element.range, other.range, [](double a, double b) { return RoundToF32(a + b); });
    });
  }

  // Adds the residual and multiplies the sum (definition 7). Returns x's type in the rounding
  // orders.
  rmsnorm_dtype AddResidual() {
    const rmsnorm_dtype stream = c_.operand[kResidual].dtype;
    const bool is_rounded = c_.options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
    theta_of_term_ = theta_.Get();
    may_cancel_ = theta_of_term_ > 0;
    SeeRange();
    theta_ = Theta(roundings_);
    const auto residuals = Input(kResidual, row_.row);
    Operate([&](ExpectedElement& h, size_t j) {
      const double residual = residuals(j);
      h.size = may_cancel_ ? std::max(h.size, std::fabs(h.exact)) : 0;
      h.exact += residual;
      h.range = Map(h.range, [residual](double value) { return RoundToF32(residual + value); });
    });
    Theta sum(roundings_, theta_of_term_);
    sum.Operate();
    if (const float factor = internal::FactorOr1(c_.options.residual_factor); factor != 1) {
      if (is_rounded) {
        Cast(stream);
        sum.Cast(stream);
      }
      MultiplyBy(factor);
      sum.Operate();
    }
    sum.Cast(stream);
    const ExpectedRow unrounded = is_rounded ? ExpectedRow{} : row_;
    const Theta theta = theta_;
    Cast(stream);
    if (c_.Has(kResidualOut)) ExpectElements(kResidualOut, sum.Bound(stream));
    if (!is_rounded) {
      row_ = unrounded;
      theta_ = theta;
    }
    if (roundings_.any && may_cancel_ && c_.Has(kResidualOut)) {
      for (size_t j = 0; j < c_.d; ++j) {
        row_.elements[j] = {results_(kResidualOut, row_.row, j), 0, {}};
      }
      theta_of_term_ = 0;
      may_cancel_ = false;
    }
    return is_rounded ? stream : c_.operand[kX].dtype;
  }

  // The sum of squares of a row, which may be given, or be an output. Twice the bound of the
  // inverse RMS, since the root halves an error.
  Quantity MakeSum() {
    if (c_.Has(kSums)) {
      const double given = Input(kSums, row_.row)(0);
      return {given, Range(given)};
    }
    const Quantity sum = SumOfSquares();
    if (c_.Has(kSumsOut)) {
      Norm without_eps = norm_;
      without_eps.eps = 0;
      const double error = 2 * InverseBound(roundings_, without_eps, sum.range);
      const Theta theta = RoundedToF32(roundings_, roundings_.Sum() * kUnit + 2 * theta_.Get());
      ExpectNumbers(kSumsOut, {{sum.exact, 0, Widen(sum.range, error)}}, theta.Bound(RMSNORM_F32));
    }
    return sum;
  }

  // The inverse RMS of a row, which may be an output: of a row in f32, and where it is rounded,
  // this is the one that the call went on with.
  Quantity MakeInverse(const Quantity& sum) {
    Quantity r = InverseOf(roundings_, norm_, sum);
    if (!c_.Has(kRstd)) return r;
    const Theta theta = RoundedToF32(roundings_, roundings_.Inverse() + theta_.Get());
    ExpectNumbers(kRstd, {{r.exact, 0, cases::Cast(RMSNORM_F32, r.range)}},
                  theta.Bound(RMSNORM_F32));
    const bool is_hot =
        !sum.range.may_be_nan && IsHot(norm_, sum.range.low) && IsHot(norm_, sum.range.high);
    if (is_hot || c_.options.rounding == RMSNORM_ROUND_INVERSE) {
      r.range = Range(results_(kRstd, row_.row, 0));
    }
    return r;
  }

  // Definition 9. Every operation is monotonic and rounded once.
  void MakeQuantised() {
    SeeRange();
    const auto group = static_cast<size_t>(c_.options.group);
    const size_t size = group != 0 ? group : c_.d;
    std::vector<ExpectedElement> scales, zeros;
    for (size_t begin = 0; begin < c_.d; begin += size) MakeGroup(begin, size, scales, zeros);
    const bool has_zero = c_.Has(kZero);
    Theta theta = Theta(roundings_, theta_.Get()).OperateInF32();
    if (has_zero) theta.Operate();  // hi - lo
    ExpectNumbers(kScale, std::move(scales), theta.Bound(RMSNORM_F32));
    if (has_zero) ExpectNumbers(kZero, std::move(zeros), kInfinity);
    const double roundings = has_zero ? 7 : 4;
    const double error = std::expm1(theta_.Get() + roundings * kUnit);
    const double steps = has_zero ? 255 : 127;
    ExpectElements(kQ, roundings_.any ? error / kUnit : 0.5 + steps * error, !may_cancel_);
  }

  // Turns the elements of a group from v into q, and adds its scale and zero. A group whose range
  // the errors of v may decide has no bound.
  void MakeGroup(size_t begin, size_t size, std::vector<ExpectedElement>& scales,
                 std::vector<ExpectedElement>& zeros) {
    const bool has_zero = c_.Has(kZero);
    const double steps = has_zero ? 255 : 127;
    double lo = 0;
    double hi = 0;
    double largest_size = 0;
    Range low(0.0);
    Range high(0.0);
    bool is_finite = true;  // certainly
    bool is_special = false;
    for (size_t j = begin; j < begin + size; ++j) {
      ExpectedElement& element = row_.elements[j];
      Range& v = element.range;
      if (c_.Has(kY)) v = Range(results_(kY, row_.row, j));
      is_finite = is_finite && v.IsFinite();
      is_special = is_special || !v.HasNumbers() || v.low == kInfinity || v.high == -kInfinity;
      low.low = std::min(low.low, v.low);
      low.high = std::min(low.high, v.high);
      high.low = std::max(high.low, v.low);
      high.high = std::max(high.high, v.high);
      lo = std::min(lo, element.exact);
      hi = std::max(hi, element.exact);
      largest_size =
          std::max(largest_size, std::isfinite(element.exact) ? element.size : kInfinity);
    }
    const double exact_width = has_zero ? hi - lo : std::max(hi, -lo);
    const bool has_bound = !c_.Has(kBias) && largest_size <= exact_width && exact_width > 0x1p-99;
    const double bounded = has_bound ? 0 : kInfinity;
    const Range width = Map(low, high, [&](double a, double b) {
      return has_zero ? RoundToF32(b - a) : std::max(b, -a);
    });
    const bool is_nan = is_special || width.low == kInfinity;
    const bool is_small = !is_nan && is_finite && width.high < 0x1p-100;
    const bool may_be_either =
        !is_nan && !is_small && (!is_finite || width.high == kInfinity || width.low < 0x1p-100);
    const auto range_of = [&](double without_integers, const Range& range) {
      return may_be_either ? Anything() : is_nan || is_small ? Range(without_integers) : range;
    };
    // An integer has no -0.
    const auto clamped = [](double value) { return std::clamp(value, -128.0, 127.0) + 0.0; };

    const size_t group = scales.size();
    const Range scale = Map(width, [&](double a) { return RoundToF32(a / steps); });
    scales.push_back({exact_width / steps, bounded, range_of(is_nan ? std::nan("") : 0, scale)});
    const Range inverse = Map(width, [&](double a) { return RoundToF32(steps / a); });
    const Range zero_range = Map(Times(low, inverse), [&](double lowest) {
      return clamped(std::nearbyint(RoundToF32(-128 - lowest)));
    });
    zeros.push_back({0, 0, range_of(0, zero_range)});
    const double zero = has_zero ? results_(kZero, row_.row, group) : 0;
    const double actual_scale = results_(kScale, row_.row, group);
    for (size_t j = begin; j < begin + size; ++j) {
      ExpectedElement& v = row_.elements[j];
      v.exact = v.exact / actual_scale + zero;
      v.size = bounded;
      v.range = range_of(0, Map(Times(v.range, inverse), [&](double value) {
                           return clamped(std::nearbyint(value) + zero);
                         }));
    }
  }

  void ExpectElements(Operand o, double bound, bool has_bound = true) {
    row_.operand = o;
    row_.dtype = c_.operand[o].dtype;
    row_.arithmetic = roundings_.arithmetic;
    row_.bound = has_bound_ && has_bound ? bound : kInfinity;
    Expect(row_);
  }

  // Expects a result that has a number for each row or group. After an inexact addition it has no
  // bound.
  void ExpectNumbers(Operand o, std::vector<ExpectedElement> elements, double bound) {
    const rmsnorm_dtype dtype = o == kZero ? RMSNORM_I8 : RMSNORM_F32;
    Expect({o, row_.row, std::move(elements), dtype, roundings_.arithmetic,
            has_bound_ && !may_cancel_ ? bound : kInfinity});
  }

  ExpectedRow row_ = {};     // its exact values, ranges, and sizes
  Theta theta_{roundings_};  // of each element
  double theta_of_term_ = 0;
  bool may_cancel_ = false;    // the term that was added is not exact; the sizes are its own
  bool leaves_range_ = false;  // an element is too large or too small for its type
  bool has_bound_ = true;
};

// --------------------------------------------------------------------------------- backward

// The closed form of the gradients, with a range for each step. A rounding widens the range: to
// f32, or to binary64 where the row is certainly computed in that. A row that may be either has the
// ranges of f32, which hold the results of both.
class Backward : public Computation {
 public:
  using Computation::Computation;
  void Make() {
    const Gradients zeros(c_.d, {0, 0, Range(0.0)});
    dw_.assign(c_.Has(kDw) ? RowsOf(c_, kDw) : 1, zeros);
    db_.assign(c_.Has(kDb) ? RowsOf(c_, kDb) : 1, zeros);
    for (size_t row = 0; goes_on() && row < c_.RowCount(); ++row) AddRow(row);
    for (const Operand o : {kDw, kDb}) {
      std::vector<Gradients>& columns = o == kDw ? dw_ : db_;
      const double roundings = roundings_.Rows(c_.RowCount() / columns.size(), o);
      Theta sum(roundings_, std::max(roundings - 1, 0.0) * kUnit);
      // The product of dy and x, and the inverse RMS; others may round both.
      if (o == kDw) sum.Add(kUnit + roundings_.Inverse() + 2 * roundings_.Between());
      if (roundings > 0) sum.Operate();
      for (size_t row = 0; row < columns.size(); ++row) {
        for (ExpectedElement& one : columns[row]) {
          one.range = Around(one.range, kSlack * one.size * roundings * kUnit);
        }
        Expect(o, row, columns[row], sum);
      }
    }
  }

 private:
  using Gradients = std::vector<ExpectedElement>;

  static void AddTerm(const Quantity& term, ExpectedElement& to) {
    to.exact += term.exact;
    to.size += std::fabs(term.exact);
    to.range = Map(to.range, term.range, std::plus<>());
  }

  // dy, or what definition 10 makes of it, in f32: each operation is rounded once.
  std::vector<double> RowOfDy(size_t row) const {
    const auto given = Input(kDy, row);
    std::vector<double> dy(c_.d);
    for (size_t j = 0; j < c_.d; ++j) {
      dy[j] = given(j);
      if (!c_.Has(kCos)) continue;
      const Partner partner = PartnerOf(c_, j);
      if (partner.sign == 0) continue;
      const double of_cosine = RoundToF32(dy[j] * Input(kCos, row)(partner.pair));
      const double of_sine = RoundToF32(given(partner.j) * Input(kSin, row)(partner.pair));
      dy[j] = RoundToF32(of_cosine - partner.sign * of_sine);
    }
    return dy;
  }

  void AddRow(size_t row) {
    const auto row_of_x = Input(kX, row);
    const std::vector<double> row_of_dy = RowOfDy(row);
    const auto weights = Weight(kWeight, row);
    Sum squares;
    for (size_t j = 0; j < c_.d; ++j) squares.Add(row_of_x(j) * row_of_x(j));
    const double sum = squares.Get();
    const Quantity r =
        c_.Has(kRstd) ? Input(kRstd, row)(0) : InverseOf(roundings_, norm_, Quantity(sum));
    const bool needs_sum = !c_.Has(kRstd) || norm_.placement != RMSNORM_EPS_INSIDE;
    const bool is_cold =
        needs_sum ? IsCold(norm_.UnderRoot(sum)) : !(r.exact >= 0x1p-64 && r.exact <= 0x1p50);
    constexpr double kTiny = 0x1p-149;  // f32 rounds numbers below 2^-126 to multiples of it
    const double unit = is_cold ? kColdBound : kUnit;
    const double tiny = is_cold ? 0 : kTiny;
    const auto rounded = [=](const Quantity& a) {
      return Quantity{a.exact, Around(Widen(a.range, unit), tiny)};
    };
    // In a row in f32 a step may overflow although the gradient does not.
    const auto fitting = [=](const Quantity& a) {
      const bool fits = is_cold || (a.range.low > -0x1.FFp127 && a.range.high < 0x1.FFp127);
      return fits ? a : Quantity{a.exact, Anything()};
    };

    std::vector<Quantity> g;
    Sum exact, sizes, low, high;
    for (size_t j = 0; j < c_.d; ++j) {
      const Quantity weight = {weights(j), Range(RoundToF32(weights(j)))};
      g.push_back(rounded(Quantity(row_of_dy[j]) * weight));
      const Quantity term = g[j] * row_of_x(j);
      exact.Add(term.exact);
      sizes.Add(std::fabs(term.exact));
      low.Add(term.range.low);
      high.Add(term.range.high);
    }
    const double error =
        kSlack * sizes.Get() * roundings_.Sum() * unit + static_cast<double>(c_.d) * tiny;
    const Quantity c = {exact.Get(), Around(Range(low.Get(), high.Get()), error)};

    // f32 multiplies by the inverse of the divisor. Where the mean overflows, dx is computed in
    // binary64.
    const Quantity over_divisor = {1 / norm_.divisor,
                                   Range(1 / norm_.divisor, RoundToF32(1 / norm_.divisor))};
    Quantity mean = rounded(rounded(c * r) * over_divisor);
    double mean_of_sizes = sizes.Get() * std::fabs(r.exact) / norm_.divisor;
    const bool is_floor = norm_.placement == RMSNORM_EPS_FLOOR;
    const bool is_outside = norm_.placement == RMSNORM_EPS_OUTSIDE;
    const double s = std::sqrt(sum / norm_.divisor);
    const double bound = InverseBound(roundings_, norm_, Range(sum));
    if (is_outside) {
      mean = rounded(mean * Quantity{1 / s, Widen(Range(1 / s), bound)});
      mean_of_sizes /= s;
    }
    // This close to the floor, the library may take the RMS to be on either side.
    const bool is_open = is_floor && std::fabs(s - norm_.eps) <= bound * norm_.eps;
    const bool only_g = is_floor ? s < norm_.eps : is_outside && s == 0;
    if (only_g) mean.exact = mean_of_sizes = 0;
    if (is_open) mean.range.Include(0);
    if (only_g && !is_open) mean = 0;

    Gradients dx(c_.d);
    Gradients& dw = dw_[c_.Has(kDw) ? SharedRow(c_, kDw, row) : 0];
    Gradients& db = db_[c_.Has(kDb) ? SharedRow(c_, kDb, row) : 0];
    for (size_t j = 0; j < c_.d; ++j) {
      const Quantity x = row_of_x(j);
      const Quantity dy = row_of_dy[j];
      const Quantity scaled = is_outside ? x : fitting(rounded(x * r));
      const Quantity second = fitting(rounded(scaled * mean));
      const Quantity value = rounded(r * fitting(rounded(fitting(g[j]) - second)));
      const double size = std::fabs(r.exact) *
                          (std::fabs(g[j].exact) + 5 * std::fabs(scaled.exact) * mean_of_sizes);
      // In a row in f32 the product may overflow although the term does not.
      const double dy_x = dy.exact * x.exact;
      const Quantity of_fma = rounded({dy_x, Range(is_cold ? dy_x : RoundToF32(dy_x))}) * r;
      dx[j] = {value.exact, size, value.range};
      AddTerm({of_fma.exact, Around(of_fma.range, kTiny)}, dw[j]);
      AddTerm(dy, db[j]);
    }
    // G of definition 16, and the subtraction. Others may round g; the size is five times the
    // second term, so it also covers two products with x that they round.
    const double weight = c_.Has(kWeight) ? 1 + (c_.options.weight_offset != 0) : 0;
    Theta theta(roundings_, roundings_.Inverse() + (weight + 1) * kUnit + roundings_.Between());
    theta.Operate();
    Expect(kDx, row, dx, theta);
  }

  // The gradient in f32 is added to the existing one, if requested, multiplied by the factor of the
  // residual, and then cast.
  void Expect(Operand o, size_t row, Gradients gradients, Theta theta) {
    if (!c_.Has(o)) return;
    const OperandCase& own = c_.operand[o];
    if (own.add) theta.Operate();
    const double factor = o == kDx ? internal::FactorOr1(c_.options.residual_factor) : 1;
    if (factor != 1) theta.Operate();
    theta.Cast(own.dtype);
    for (size_t j = 0; j < c_.d; ++j) {
      auto& [exact, size, range] = gradients[j];
      const double before = own.add ? Get(problem_.before(o), row, j) : -0.0;
      // Some sum of rows may overflow although the last one does not.
      if (!range.IsFinite() || (o != kDx && !(size < 0x1p128))) range = Anything();
      range = Cast(own.dtype, Map(range, [=](double to_add) {
                     return RoundToF32(RoundToF32(before + RoundToF32(to_add)) * factor);
                   }));
      exact = (exact + before) * factor;
      size *= std::fabs(factor);
    }
    Computation::Expect({o, row, std::move(gradients), own.dtype, roundings_.arithmetic,
                         HasBound() ? theta.Bound(own.dtype) : kInfinity});
  }

  // Whether the rows and the gradients are of an ordinary size, and so all products.
  bool HasBound() const {
    const auto is_ordinary = [](const OperandCase& own) {
      return own.values == Values::kNormal || own.values == Values::kMassive ||
             own.values == Values::kPositive || own.values == Values::kAdverse;
    };
    const float factor = std::fabs(internal::FactorOr1(c_.options.residual_factor));
    return std::all_of(std::begin(c_.operand), std::end(c_.operand), is_ordinary) &&
           c_.operand[kRstd].values == Values::kNormal && !IsShared(c_.operand[kRstd].order) &&
           c_.options.eps <= 1 && std::fabs(c_.options.weight_offset) <= 1 &&
           c_.options.divisor < 1000 && factor > 1e-3f && factor < 1000;
  }

  std::vector<Gradients> dw_;
  std::vector<Gradients> db_;
};

}  // namespace

double ExpectedRow::Error(size_t j, double result) const {
  const auto& [exact, size, range] = elements[j];
  const bool is_integer = dtype == RMSNORM_I8;
  const double most = is_integer ? kInfinity : PowerOfTwo(FormatOf(dtype).max_exponent());
  if (!(size < kInfinity) || !(std::fabs(exact) < most)) return 0;
  if (!std::isfinite(result)) return kInfinity;
  const double error = std::fabs(result - exact);
  if (arithmetic == Arithmetic::kAny) {
    const double smallest = is_integer ? 0 : PowerOfTwo(FormatOf(dtype).min_exponent());
    const double above = std::max(error - (is_integer ? 0.5 : 0), 0.0);
    return above == 0 ? 0 : above / (kUnit * std::max({std::fabs(exact), size, smallest}));
  }
  if (is_integer) return error;
  return error / Ulp(dtype, std::max(std::fabs(result), size));
}

Results ResultsOf(const Problem& problem) {
  return [&problem](Operand o, size_t row, size_t j) { return Get(problem.after(o), row, j); };
}

void ForEachExpectedRow(const Case& c, const Problem& problem, Arithmetic arithmetic,
                        const Results& results,
                        const std::function<bool(const ExpectedRow&)>& visit, size_t every) {
  if (c.RowCount() == 0) return;
  if (c.backward) return Backward(c, problem, arithmetic, results, visit).Make();
  Forward forward(c, problem, arithmetic, results, visit);
  const size_t last = c.RowCount() - 1;
  for (size_t row = 0; forward.goes_on() && row < last; row += every) forward.MakeRow(row);
  if (forward.goes_on()) forward.MakeRow(last);
}

std::string FormulaFault(const Case& c, const Problem& problem) {
  if (c.strewn || (c.options.divisor != 0 && c.options.divisor < 1) || c.options.eps > 0x1p100f) {
    return "";
  }
  std::ostringstream fault;
  fault.precision(17);
  const Results results = ResultsOf(problem);
  ForEachExpectedRow(c, problem, Arithmetic::kReference, results, [&](const ExpectedRow& row) {
    for (size_t j = 0; j < row.elements.size(); ++j) {
      const double result = results(row.operand, row.row, j);
      const ExpectedElement& element = row.elements[j];
      const bool is_in_range = element.range.Has(result);
      const double error = row.Error(j, result);
      if (is_in_range && error <= row.bound) continue;
      fault << internal::kOperandRules[row.operand].name << "[" << row.row << ", " << j << "] is "
            << result;
      if (is_in_range) {
        fault << ", not " << element.exact << ": an error of " << error
              << (row.dtype == RMSNORM_I8 ? " steps" : " ulp") << ", with a bound of " << row.bound;
      } else {
        fault << ", not between " << element.range.low << " and " << element.range.high
              << (element.range.may_be_nan ? ", nor NaN" : "");
      }
      return false;
    }
    return true;
  });
  return fault.str();
}

std::string FaultByFormula(Runner& /*runner*/, const Calls& calls,
                           const std::string& /*target*/) try {
  for (const Case& c : calls) {
    const std::string fault = FormulaFault(c, Problem(c));
    if (!fault.empty()) return fault;
  }
  return {};
} catch (const Error& error) {
  return std::string("refused: ") + error.what();
}

}  // namespace rmsnorm::cases

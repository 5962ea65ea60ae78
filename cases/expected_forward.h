// SPDX-License-Identifier: Apache-2.0
// The results of forward in floating point: the steps of definitions 5, 7, 8 and 10.
#ifndef RMSNORM_CASES_EXPECTED_FORWARD_H_
#define RMSNORM_CASES_EXPECTED_FORWARD_H_

#include "../lib/fma.h"  // which fma_test.cc tests
#include "computation.h"

namespace rmsnorm::cases {

// The worst errors of the activations in ulp, as definition 16 has them.
constexpr double kMostUlps[] = {1.99815, 1.99915, 0};

// The activation of an element of a gate (definition 8).
inline double ExactActivation(int activation, double z) {
  if (activation == RMSNORM_ACTIVATION_NONE) return z;
  const double denominator = 1 + std::exp(-z);
  if (activation == RMSNORM_ACTIVATION_SIGMOID) return 1 / denominator;
  return z == -kInfinity ? -0.0 : z / denominator;
}

// The elements of a row, step by step.
class Forward : public Computation {
 public:
  using Computation::Computation;

 protected:
  // The steps before the norm (definition 7), the norm, the gate and y. Returns whether the row has
  // elements for q.
  bool MakeElements(size_t row) {
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
    if (!roundings_.any && sum.range.HasNumbers() && std::signbit(sum.range.low)) return false;
    const Quantity r = MakeInverse(sum);
    if (!c_.Has(kY) && !c_.Has(kQ)) return false;
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
    return c_.Has(kQ);
  }

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

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_EXPECTED_FORWARD_H_

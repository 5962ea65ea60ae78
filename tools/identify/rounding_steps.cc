// SPDX-License-Identifier: Apache-2.0
// Roundings to 16 bits that no option of the library asks for.
#include <algorithm>
#include <cmath>
#include <set>

#include "../../lib/element.h"
#include "options_text.h"
#include "step_list.h"

namespace rmsnorm::identify {
namespace {

using internal::BitsOf;
using internal::DivisorOf;
using internal::FromBits;
using internal::kBias;
using internal::kGate;
using internal::kResidual;
using internal::kWeight;
using internal::kX;
using internal::Operand;

// A step that computes y in f32 and rounds it by f(value).
template <class F>
auto WithCast(const F& f) {
  return [f](NormCall& call) -> Result {
    NormCall wide = call;
    wide.y_dtype = RMSNORM_F32;
    std::vector<float> y = ValuesOf(ComputeY(wide));
    std::transform(y.begin(), y.end(), y.begin(), f);
    return Rounded(y, call.y_dtype, call.x().rows, call.x().d);
  };
}

Matrix Scaled(const Matrix& n, const NormCall& call) {
  return Rounded(Weighted(ValuesOf(n), call), call.y_dtype, n.rows, n.d);
}

// A step that computes n by f(x, mean of squares, eps), and rounds n to the type of x if the
// options say so.
template <class F>
auto WithNorm(const F& f) {
  return [f](const NormCall& call) -> Result {
    if (call.options.eps_placement != RMSNORM_EPS_INSIDE) return {};
    const std::optional<NormCall> plain = WithoutResidual(call);
    if (!plain || call.options.rounding == RMSNORM_ROUND_INVERSE) return {};
    const Matrix& x = plain->x();
    const std::vector<double> sums = SumsOfSquares(x);
    const auto divisor = static_cast<double>(DivisorOf(call.options, x.d));
    std::vector<float> n = ValuesOf(x);
    for (size_t row = 0; row < x.rows; ++row)
      f(&n[row * x.d], x.d, sums[row] / divisor, call.options.eps);
    const bool is_rounded = call.options.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
    return Scaled(Rounded(n, is_rounded ? x.dtype : RMSNORM_F32, x.rows, x.d), call);
  };
}

float RootOf(double mean, float eps) {
  return static_cast<float>(std::sqrt(mean + static_cast<double>(eps)));
}

// y where each operation rounds to a type, by a division or by a multiplication.
Matrix InNarrowSteps(const NormCall& call, rmsnorm_dtype narrow, bool divides) {
  const auto round = [narrow](float value) { return RoundedTo(narrow, value); };
  const Matrix& x = call.x();
  std::vector<float> n = ValuesOf(x);
  for (size_t row = 0; row < x.rows; ++row) {
    float* const values = &n[row * x.d];
    double sum = 0;
    for (size_t i = 0; i < x.d; ++i) sum += static_cast<double>(round(values[i] * values[i]));
    const float mean = round(static_cast<float>(sum / static_cast<double>(x.d)));
    const float root = std::sqrt(round(mean + call.options.eps));
    const float factor = round(divides ? root : 1 / root);
    for (size_t i = 0; i < x.d; ++i)
      values[i] = round(divides ? values[i] / factor : values[i] * factor);
  }
  return Scaled(Rounded(n, narrow, x.rows, x.d), call);
}

// y where the weight is multiplied by 1 / RMS first, and the product is rounded to a type.
Result WithScaledWeight(const NormCall& call, rmsnorm_dtype narrow) {
  if (call.options.eps_placement != RMSNORM_EPS_INSIDE) return {};
  if (call.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
  const std::optional<NormCall> plain = WithoutResidual(call);
  if (!plain) return {};
  const Matrix& x = plain->x();
  const std::vector<double> sums = SumsOfSquares(x);
  const auto divisor = static_cast<double>(DivisorOf(call.options, x.d));
  std::vector<float> y = ValuesOf(x);
  const std::vector<float> weight = Weighted(std::vector<float>(y.size(), 1), call);
  for (size_t i = 0; i < y.size(); ++i) {
    const float root = RootOf(sums[i / x.d] / divisor, call.options.eps);
    y[i] *= RoundedTo(narrow, weight[i] * (1 / root));
  }
  return Rounded(y, call.y_dtype, x.rows, x.d);
}

// The number below which f16 has units of 2^-24.
constexpr float kLeastNormalF16 = 0x1p-14f;

}  // namespace

float CutOff(rmsnorm_dtype narrow, float value) {
  if (narrow == RMSNORM_BF16) return FromBits(BitsOf(value) & 0xFFFF0000u);
  if (std::fabs(value) < kLeastNormalF16) return std::trunc(value * 0x1p24f) * 0x1p-24f;
  return FromBits(BitsOf(value) & 0xFFFFE000u);
}

float WithTiesAway(rmsnorm_dtype narrow, float value) {
  if (narrow == RMSNORM_BF16) return CutOff(narrow, FromBits(BitsOf(value) + 0x8000u));
  if (std::fabs(value) < kLeastNormalF16) return std::round(value * 0x1p24f) * 0x1p-24f;
  return CutOff(narrow, FromBits(BitsOf(value) + 0x1000u));
}

void AddRoundings(const NormCall& call, const StepNumbers& numbers, StepList& list) {
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const std::string name = rmsnorm_dtype_name(narrow);
    const auto keep = [](float value) { return value; };
    for (const Operand o : {kX, kWeight}) {
      if (!call.Has(o) || Holds(narrow, *call.operand[o])) continue;
      const std::string words = NameOf(o) + " is rounded to " + name;
      list.Variant(words + " first", WithValues(o, narrow, keep));
      if (o != kX || call.x().dtype != RMSNORM_F32 || call.Has(kResidual)) continue;
      list.Variant(words + " first, and so is the norm before the weight", [=](NormCall& c) {
        c.options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;
        return WithValues(o, narrow, keep)(c);
      });
    }
    const bool is_held = call.x().dtype == RMSNORM_F32 && Holds(narrow, call.x());
    if (is_held && !call.Has(kResidual)) {
      list.Variant(
          "the norm is rounded to " + name + ", the type of the numbers in x, before the weight",
          [=](NormCall& c) {
            c.options.rounding = RMSNORM_ROUND_BEFORE_WEIGHT;
            return WithValues(kX, narrow, keep)(c);
          });
    }
    const bool in_weight = call.Has(kWeight) && Holds(narrow, *call.operand[kWeight]);
    for (const float offset : numbers.offsets) {
      if (!in_weight || offset == 0) continue;
      list.Variant(ShortestDecimal(offset) + " + weight is rounded to " + name,
                   [=](NormCall& c) -> Result {
                     if (c.options.weight_offset != offset) return {};
                     c.options.weight_offset = 0;
                     return WithValues(kWeight, RMSNORM_F32,
                                       [=](float w) { return RoundedTo(narrow, offset + w); })(c);
                   });
    }
    const bool is_simple = !call.Has(kBias) && !call.Has(kGate);
    if (in_weight && is_simple && call.x().dtype != narrow) {
      list.Variant("the norm is rounded to " + name + " before the weight",
                   [=](NormCall& c) -> Result {
                     if (c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
                     NormCall plain = c;
                     plain.operand[kWeight].reset();
                     plain.options.weight_offset = 0;
                     plain.y_dtype = narrow;
                     return Scaled(ComputeY(plain), c);
                   });
    }
  }
  if (call.y_dtype != RMSNORM_F32) {
    const rmsnorm_dtype narrow = call.y_dtype;
    const std::string name = rmsnorm_dtype_name(narrow);
    list.Mistake("the result is cut off to " + name + " instead of rounded",
                 WithCast([narrow](float value) { return CutOff(narrow, value); }));
    list.Mistake("the result is rounded to " + name + " with ties away from zero",
                 WithCast([narrow](float value) { return WithTiesAway(narrow, value); }));
  }
  for (const float times : numbers.times) {
    const float plus = numbers.plus;
    if (times == 1 && plus == 0) continue;
    int exponent = 0;
    const bool is_exact = plus == 0 && std::fabs(std::frexp(times, &exponent)) == 0.5f;
    const std::string product = "is multiplied by " + ShortestDecimal(times);
    const std::string sum = ShortestDecimal(plus) + " is added to ";
    for (const rmsnorm_dtype first : std::set<rmsnorm_dtype>{RMSNORM_F32, call.y_dtype}) {
      if (is_exact && first != call.y_dtype) continue;
      const std::string result =
          first == RMSNORM_F32 || is_exact ? "the result" : "the rounded result";
      list.Mistake(times == 1  ? sum + result
                   : plus == 0 ? result + " " + product
                               : result + " " + product + ", and " + sum + "the product",
                   WithCast([=](float value) { return RoundedTo(first, value) * times + plus; }));
    }
  }
}

// Roundings of what is computed for a row.
void AddRowRoundings(const NormCall& call, StepList& list) {
  if (call.Has(kBias) || call.Has(kGate)) return;
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const std::string name = rmsnorm_dtype_name(narrow);
    list.Variant("x is divided by the RMS, which is rounded to " + name,
                 WithNorm([narrow](float* x, size_t d, double mean, float eps) {
                   const float root = RoundedTo(narrow, RootOf(mean, eps));
                   for (size_t i = 0; i < d; ++i) x[i] /= root;
                 }));
    list.Variant("1 / RMS is rounded to " + name,
                 WithNorm([narrow](float* x, size_t d, double mean, float eps) {
                   const float inverse = RoundedTo(narrow, 1 / RootOf(mean, eps));
                   for (size_t i = 0; i < d; ++i) x[i] *= inverse;
                 }));
    if (call.Has(kWeight)) {
      list.Variant("the weight times 1 / RMS is rounded to " + name,
                   [narrow](const NormCall& c) { return WithScaledWeight(c, narrow); });
    }
    for (const bool divides : {true, false}) {
      list.Variant(
          "every operation rounds to " + name + (divides ? ", and x is divided by the RMS" : ""),
          [narrow, divides](const NormCall& c) -> Result {
            if (c.options.eps_placement != RMSNORM_EPS_INSIDE) return {};
            if (c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
            const std::optional<NormCall> plain = WithoutResidual(c);
            return plain ? InNarrowSteps(*plain, narrow, divides) : Result();
          });
    }
  }
}

}  // namespace rmsnorm::identify

// SPDX-License-Identifier: Apache-2.0
// The quantised results of forward (definition 9).
#ifndef RMSNORM_CASES_EXPECTED_QUANTISED_H_
#define RMSNORM_CASES_EXPECTED_QUANTISED_H_

#include "expected_forward.h"

namespace rmsnorm::cases {

// Forward with the quantised results.
class QuantisedForward : public Forward {
 public:
  using Forward::Forward;
  void MakeRow(size_t row) {
    if (MakeElements(row)) MakeQuantised();
  }

 private:
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
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_EXPECTED_QUANTISED_H_

// SPDX-License-Identifier: Apache-2.0
// Ranges that certainly hold a number of the definition. Sums, products and casts are rounded as
// doc/definition.md says. They are monotonic, so they do not widen a range; a cast widens one that
// contains the middle between two numbers to an ulp of its type.
#ifndef RMSNORM_CASES_RANGE_H_
#define RMSNORM_CASES_RANGE_H_

#include <cmath>
#include <limits>

#include "rounding.h"

namespace rmsnorm::cases {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Numbers from `low` to `high`, perhaps NaN as well. Empty at first.
struct Range {
  Range() = default;
  explicit Range(double value) { Include(value); }
  Range(double a, double b) : Range(a) { Include(b); }

  void Include(double value) {
    if (std::isnan(value)) may_be_nan = true;
    if (IsBelow(value, low)) low = value;
    if (IsBelow(high, value)) high = value;
  }
  bool HasNumbers() const { return low <= high; }
  bool IsFinite() const {
    return HasNumbers() && !may_be_nan && -kInfinity < low && high < kInfinity;
  }
  // Most ranges are. Their functions are computed once.
  bool IsOneNumber() const { return low == high && std::signbit(low) == std::signbit(high); }
  bool HasInfinity() const { return low == -kInfinity || high == kInfinity; }
  bool Has(double value) const {
    return std::isnan(value) ? may_be_nan : !IsBelow(value, low) && !IsBelow(high, value);
  }
  // -0 lies below 0.
  static bool IsBelow(double a, double b) {
    return a < b || (a == b && std::signbit(a) && !std::signbit(b));
  }

  double low = kInfinity;
  double high = -kInfinity;
  bool may_be_nan = false;
};

inline Range Anything() {
  Range all(-kInfinity, kInfinity);
  all.may_be_nan = true;
  return all;
}

// The range of a monotonic function.
template <class F>
Range Map(const Range& range, const F& f) {
  Range result;
  result.may_be_nan = range.may_be_nan;
  if (range.HasNumbers()) result.Include(f(range.low));
  if (range.HasNumbers() && !range.IsOneNumber()) result.Include(f(range.high));
  return result;
}

// The range of a function that is monotonic in both arguments.
template <class F>
Range Map(const Range& a, const Range& b, const F& f) {
  Range result;
  result.may_be_nan = a.may_be_nan || b.may_be_nan;
  if (!a.HasNumbers() || !b.HasNumbers()) return result;
  result.Include(f(a.low, b.low));
  if (a.IsOneNumber() && b.IsOneNumber()) return result;
  result.Include(f(a.low, b.high));
  result.Include(f(a.high, b.low));
  result.Include(f(a.high, b.high));
  return result;
}

inline Range Cast(rmsnorm_dtype dtype, const Range& range) {
  return Map(range, [dtype](double value) { return RoundTo(dtype, value); });
}

// The range of a product in f32. The product of two f32 is exact in binary64.
inline Range Times(const Range& a, const Range& b) {
  Range result = Map(a, b, [](double x, double y) { return RoundToF32(x * y); });
  result.may_be_nan |= (a.Has(0) && b.HasInfinity()) || (b.Has(0) && a.HasInfinity());
  return result;
}

// Widened by an error.
inline Range Around(const Range& range, double error) {
  Range result = range;
  result.low -= error;
  result.high += error;
  return result;
}

// Widened by a relative error.
inline Range Widen(const Range& range, double error) {
  Range result = range;
  if (!range.HasNumbers()) return result;
  result.low = std::min(range.low * (1 - error), range.low * (1 + error));
  result.high = std::max(range.high * (1 - error), range.high * (1 + error));
  return result;
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_RANGE_H_

// SPDX-License-Identifier: Apache-2.0
// An independent computation of RMSNorm, from the formula, and the bounds for the library's
// results. It shares no code with lib/ and has its own order of summation.
#ifndef RMSNORM_TEST_ORACLE_H_
#define RMSNORM_TEST_ORACLE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <rmsnorm/rmsnorm.hpp>

#include "../lib/fma.h"  // which fma_test.cc tests
#include "slow_float.h"
#include "tensor.h"

namespace rmsnorm::test {

// The sum of squares of a row to a few units of 2^-53, by Neumaier's compensated summation. The
// square of an f32 is exact in binary64.
inline double ExactSumSquares(const Tensor& x, size_t row) {
  double sum = 0;
  double lost = 0;
  for (size_t j = 0; j < x.d(); ++j) {
    const double square = x.get(row, j) * x.get(row, j);
    const double total = sum + square;
    if (std::isfinite(total)) {
      lost += std::max(sum, square) - total + std::min(sum, square);
    }
    sum = total;
  }
  return sum + lost;
}

// The value under the root.
inline double ExactUnderRoot(double sum, size_t d, const Options& options) {
  const double divisor = options.divisor == 0 ? static_cast<double>(d) : options.divisor;
  return sum / divisor + (options.eps_placement == EpsPlacement::inside ? options.eps : 0.0f);
}

inline double ExactInverseRms(double sum, size_t d, const Options& options) {
  const double root = std::sqrt(ExactUnderRoot(sum, d, options));
  if (options.eps_placement == EpsPlacement::outside) return 1 / (root + options.eps);
  return 1 /
         (options.eps_placement == EpsPlacement::floor && root < options.eps ? options.eps : root);
}

// The relative bound of the library's r, for a row that is computed in f32, a divisor of at least 1
// and an eps of at most 2^100. With u = 2^-24, half the distance from 1 to the next f32:
//
// An element passes through at most m = k + 7 + b roundings on its way into the sum of the row: one
// in each fma of its lane from its own on, at most k = ceil(min(d, 4096) / 128); seven in the fold
// of 128 lanes; and one for each of the b = ceil(d / 4096) - 1 further blocks (the first block is
// added to 0, which is exact). Each rounding multiplies its operand by 1 + e, |e| <= u / (1 + u).
// All terms are positive, so the sum is off by a factor between (1 + u)^-m and (1 + u / (1 + u))^m,
// that is by m u and a remainder of less than m^2 u^2 / 2 + .... The inverse of D rounds once more.
// Then
//   eps inside:  fma rounds once, and eps reduces the error; the root halves it, (m + 2) u / 2;
//                root and reciprocal round once each: (m + 2) / 2 + 2 = m / 2 + 3 in all;
//   eps outside: the product with the inverse rounds once, and the root halves (m + 2) u; the root,
//                the addition of eps and the reciprocal round once each: m / 2 + 4.
// With eps inside, the 4 in the bound leaves u for the remainders. That is enough up to m = 5,000,
// for rows of 20 million elements: (m u)^2 is of the order of m^2 2^-24 u. With eps outside,
// nothing is left, and the bound holds to first order: a row could exceed it only if all its
// roundings erred by u in one direction.
//
// Squares below 2^-126 are rounded to a multiple of 2^-149. Under the root, this is at most d
// 2^-150 / D <= 2^-150 d, where the sum is at least 2^-100: much less than u for any d that fits
// into memory.
inline double InverseRmsBound(size_t d) {
  const auto ceil_div = [](size_t a, size_t b) { return (a + b - 1) / b; };
  const double k = static_cast<double>(ceil_div(std::min<size_t>(d, 4096), 128));
  const double b = static_cast<double>(ceil_div(d, 4096) - 1);
  return ((k + 7 + b) / 2 + 4) * std::ldexp(1.0, -24);
}

// Rows in binary64 have the same number of roundings, of 2^-53 each. This bound is larger for every
// row here, and covers the oracle's own errors.
constexpr double kColdBound = 0x1p-46;

// Whether a row is certainly computed in binary64: the value under the root is outside [2^-100, the
// largest f32] by more than the error of the f32 sum. The other bound is the wider one.
inline bool IsCold(double under_root) {
  return !(under_root >= 0x1.FEp-101 && under_root <= 0x1.01p128);
}

// The steps after the inverse RMS (doc/definition.md, section 5): n = x r in f32, rounded to the
// type of x or not, then the weight, the bias (may be null) and the type of y. The product of two
// f32 is exact in binary64.
inline double ScaledElement(double x, double r, double weight, const double* bias,
                            rmsnorm_dtype x_dtype, rmsnorm_dtype y_dtype, const Options& options) {
  if (options.rounding == Rounding::inverse) r = RoundTo(x_dtype, RoundTo(RMSNORM_F32, r));
  double n = RoundTo(RMSNORM_F32, x * r);
  if (options.rounding != Rounding::after_weight) n = RoundTo(x_dtype, n);
  const double m = bias == nullptr
                       ? RoundTo(RMSNORM_F32, n * weight)
                       : internal::Fma(static_cast<float>(n), static_cast<float>(weight),
                                       static_cast<float>(*bias));
  return RoundTo(y_dtype, m);
}

// w' = offset + w, rounded to f32.
inline double PreparedWeight(const Tensor* weight, size_t row, size_t j, const Options& options) {
  if (weight == nullptr) return 1;
  return RoundTo(RMSNORM_F32, static_cast<double>(options.weight_offset) + weight->get(row, j));
}

// Whether a number lies between the results for the two ends of a range. If one result is NaN (a
// product with an infinite weight vanishes at that end), NaN is right.
inline bool IsBetween(double actual, double a, double b) {
  if (std::isnan(actual)) return std::isnan(a) || std::isnan(b);
  if (std::isnan(a) != std::isnan(b)) return actual == (std::isnan(a) ? b : a);
  return std::min(a, b) <= actual && actual <= std::max(a, b);
}

// Checks a row of y, and its rstd (may be null), given the sum of squares of the row. Rows of x use
// the rows of the weight and of the bias (each may be null) in turn. Every operation after r is
// monotonic in r, so y must lie between the results for the two ends of r's range. Then y is within
// half an ulp of its type, plus the bound and the roundings of the products, of the exact value.
inline testing::AssertionResult RowIsWithinBound(double sum, const Tensor& x, const Tensor* weight,
                                                 const Tensor& y, const float* rstd, size_t row,
                                                 const Options& options,
                                                 const Tensor* bias = nullptr) {
  const double r = ExactInverseRms(sum, x.d(), options);
  const bool cold = IsCold(ExactUnderRoot(sum, x.d(), options));
  const double bound = cold ? kColdBound : InverseRmsBound(x.d());
  const double low = r * (1 - bound);
  const double high = r * (1 + bound);
  const double saved = rstd != nullptr ? rstd[row] : r;
  if (rstd != nullptr && !IsBetween(saved, RoundTo(RMSNORM_F32, low), RoundTo(RMSNORM_F32, high))) {
    return testing::AssertionFailure() << "row " << row << ": 1 / RMS is " << saved << ", not " << r
                                       << " (" << (saved / r - 1) / bound << " of the bound)";
  }
  const size_t weight_row = weight != nullptr ? row % weight->rows() : 0;
  for (size_t j = 0; j < x.d(); ++j) {
    const double w = PreparedWeight(weight, weight_row, j, options);
    const double b = bias != nullptr ? bias->get(row % bias->rows(), j) : 0;
    const auto with = [&](double end) {
      return ScaledElement(x.get(row, j), end, w, bias != nullptr ? &b : nullptr, x.dtype(),
                           y.dtype(), options);
    };
    const double at_low = with(low);
    const double at_high = with(high);
    const double actual = y.get(row, j);
    if (!IsBetween(actual, at_low, at_high)) {
      return testing::AssertionFailure() << "row " << row << ": element " << j << " is " << actual
                                         << ", not between " << at_low << " and " << at_high;
    }
  }
  return testing::AssertionSuccess();
}

// Computes the sum from the row itself.
inline testing::AssertionResult RowIsWithinBound(const Tensor& x, const Tensor* weight,
                                                 const Tensor& y, const float* rstd, size_t row,
                                                 const Options& options,
                                                 const Tensor* bias = nullptr) {
  return RowIsWithinBound(ExactSumSquares(x, row), x, weight, y, rstd, row, options, bias);
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ORACLE_H_

// SPDX-License-Identifier: Apache-2.0
// a * b + c with one rounding. MinGW's C library rounds twice, so there the sum is made of exact
// parts; the other C libraries that were tried are right. All arithmetic is IEEE and rounds to
// nearest.
#ifndef RMSNORM_LIB_FMA_H_
#define RMSNORM_LIB_FMA_H_

#include <cmath>
#include <cstdint>
#include <cstring>

namespace rmsnorm::internal {

// ------------------------------------------------------------------ by exact parts

// A sum or product, rounded, and what its rounding lost.
struct Exact {
  double rounded;
  double lost;
};

// Knuth's sum.
inline Exact AddExactly(double a, double b) {
  const double sum = a + b;
  const double of_b = sum - a;
  return {sum, (a - (sum - of_b)) + (b - of_b)};
}

// Dekker's product. The magnitudes of both factors are in [2^-480, 2^480], so that no part
// overflows or vanishes.
inline Exact MultiplyExactly(double a, double b) {
  constexpr double kSplit = 0x1p27 + 1;
  const auto upper_half = [](double value) {
    const double scaled = kSplit * value;
    return scaled - (scaled - value);
  };
  const double product = a * b;
  const double a1 = upper_half(a);
  const double a2 = a - a1;
  const double b1 = upper_half(b);
  const double b2 = b - b1;
  return {product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2};
}

// a + b rounded to odd: an inexact sum gets the neighbour whose last bit is 1. Rounding that once
// more, to a format with at least two fewer bits, gives the sum rounded once (Boldo and Melquiond,
// "Emulation of a FMA and correctly rounded sums", 2008).
inline double AddToOdd(double a, double b) {
  const Exact exact = AddExactly(a, b);
  if (exact.lost == 0 || !std::isfinite(exact.rounded)) return exact.rounded;
  uint64_t bits;
  std::memcpy(&bits, &exact.rounded, sizeof bits);
  if ((bits & 1) == 0) bits += (exact.lost > 0) == (exact.rounded > 0) ? 1 : ~uint64_t{0};
  double odd;
  std::memcpy(&odd, &bits, sizeof odd);
  return odd;
}

// The product of two floats is exact in binary64.
inline float FmaOfParts(float a, float b, float c) {
  return static_cast<float>(AddToOdd(double{a} * double{b}, c));
}

// The factors are in the range of MultiplyExactly(), or zero, infinite or NaN.
inline double FmaOfParts(double a, double b, double c) {
  const double rounded_twice = a * b + c;
  if (a * b == 0 || !std::isfinite(rounded_twice)) return rounded_twice;
  const Exact product = MultiplyExactly(a, b);
  const Exact lower = AddExactly(c, product.lost);
  const Exact upper = AddExactly(product.rounded, lower.rounded);
  return upper.rounded + AddToOdd(upper.lost, lower.lost);
}

// ------------------------------------------------------------------ for the definition

template <class Real>
Real Fma(Real a, Real b, Real c) {
#ifdef __MINGW32__
  return FmaOfParts(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_FMA_H_

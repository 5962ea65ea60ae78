// SPDX-License-Identifier: Apache-2.0
// How far a result of LayerNorm may lie from the exact one.
//
// With u = 2^-24, v = x - pivot, mu its mean over the row, V^2 its mean square and
// U = variance + eps:
//
// An element takes part in at most m = k + 7 + b roundings until it is in a sum: one in each step
// of its lane from its own on, of which there are up to k = ceil(min(d, 4096) / 32) where there are
// 32 lanes, seven in the fold of up to 128 lanes, one for each of the b blocks of 4,096. v itself
// is rounded once, and the sums' division by d rounds. So
//   mu is off by (m + 2) u V, as the mean of |v| is at most V, and mu^2 by 2 (m + 2) u V^2;
//   the mean square is off by (m + 3) u V^2;
//   their difference and the addition of eps round once each, U being at least what they round:
//   U is off by (3 m + 7) u V^2 + 2 u U.
// The root halves that, root and reciprocal round once each: 1 / sqrt(U) is off, relative to it, by
//   e = (3 m + 7) / 2 u V^2 / U + 3 u.
// n = v r + shift with shift = -mu r is one fma. Its errors are e |n| for r, u |n| for its own
// rounding, u |v| r with |v| r <= |n| + V r for that of v, u V r for that of shift, and
// (m + 2) u V r for that of mu: (e + 2 u) |n| + (m + 4) u V / sqrt(U) in all.
// y = n weight + bias is another fma, and bf16 rounds by 2^-8 once more. One part in a hundred on
// top is above all products of two errors for d up to 2^20. The loops of the reference round less.
//
// No term holds the row's own mean. V^2 / U is 1 + mu^2 / U with eps small beside the variance; a
// row in which mu^2 > 16 U is summed again, with a mu of at most u |mean| + (m + 2) u V of before.
#ifndef RMSNORM_BENCH_LAYER_NORM_ERROR_H_
#define RMSNORM_BENCH_LAYER_NORM_ERROR_H_

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace rmsnorm::bench {

constexpr double kF32Unit = 0x1p-24;
constexpr double kBF16Unit = 0x1p-8;

// What to multiply a bound by for the products of two errors.
constexpr double kProductsOfErrors = 1.01;

// A row is summed again where mu^2 is more than this many times U.
constexpr double kMostSquaredMean = 16;

// m, of a row of d elements.
inline double LayerNormRoundings(size_t d) {
  return std::ceil(static_cast<double>(std::min<size_t>(d, 4096)) / 32) + 7 +
         std::ceil(static_cast<double>(d) / 4096);
}

// n is off by at most relative |n| + absolute.
struct NormalisedError {
  double relative;
  double absolute;
};

// For m roundings and a spread of V^2 / U.
inline NormalisedError FindNormalisedError(double m, double spread) {
  const double e = (3 * m + 7) / 2 * kF32Unit * spread + 3 * kF32Unit;
  return {e + 2 * kF32Unit, (m + 4) * kF32Unit * std::sqrt(spread)};
}

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_LAYER_NORM_ERROR_H_

// SPDX-License-Identifier: Apache-2.0
// From a row's sum of squares to 1 / RMS, and the rule that says in which precision. Shared by the
// reference and by the kernels of every target; Real is float, or double on the cold path.
#ifndef RMSNORM_LIB_INVERSE_RMS_H_
#define RMSNORM_LIB_INVERSE_RMS_H_

#include <cmath>
#include <limits>

#include "fma.h"
#include "kernel_table.h"
#include "portable.h"

namespace rmsnorm::internal {

// The value under the root. f32 multiplies by the inverse of the divisor, binary64 divides.
// Without the hint clang computes both values and selects one.
inline float UnderRoot(const Root& root, float sum) {
  if (RMSNORM_LIKELY(root.eps_placement == RMSNORM_EPS_INSIDE)) {
    return Fma(sum, root.inverse_divisor, root.eps);
  }
  return sum * root.inverse_divisor;
}
inline double UnderRoot(const Root& root, double sum) {
  const double mean = sum / root.divisor;
  return root.eps_placement == RMSNORM_EPS_INSIDE ? mean + root.eps : mean;
}

template <class Real>
Real InverseRms(const Root& root, Real under_root) {
  const Real s = std::sqrt(under_root);
  const Real eps = static_cast<Real>(root.eps);
  if (root.eps_placement == RMSNORM_EPS_OUTSIDE) return 1 / (s + eps);
  if (root.eps_placement == RMSNORM_EPS_FLOOR && s < eps) return 1 / eps;  // a NaN stays one
  return 1 / s;
}

// Whether f32 suffices. Below 2^-100 squares lose bits to underflow; infinity says that one
// overflowed, or that the row holds it. False for NaN.
constexpr float kSmallestSafe = 0x1p-100f;
constexpr float kLargestSafe = std::numeric_limits<float>::max();
inline bool IsSafe(float under_root) {
  return under_root >= kSmallestSafe && under_root <= kLargestSafe;
}

// Whether a call returns the f32 sum of a row unchanged. This is the rule of IsSafe() with eps = 0.
// It is exact, since the product of 2^-100 and an f32 does not round in binary64.
inline bool IsSafeSum(float sum, float divisor) {
  return sum >= double{kSmallestSafe} * double{divisor} && sum <= kLargestSafe;
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_INVERSE_RMS_H_

// SPDX-License-Identifier: Apache-2.0
// From a row's sums to the terms of its gradient, and the rule that says in which precision. Shared
// by the reference and by the kernels of every target; Real is float, or double on the cold path.
#ifndef RMSNORM_LIB_GRADIENT_TERMS_H_
#define RMSNORM_LIB_GRADIENT_TERMS_H_

#include <cmath>

#include "gradient_rows.h"
#include "inverse_rms.h"

namespace rmsnorm::internal {

// With eps inside, dx = r * (g - (x * r) * ((c * r) / D)). With eps outside and s = sqrt(sum / D),
// dx = r * (g - x * ((c * r) / (D * s))), without the second term where s = 0; x * 1 is exact.
// `under_root` matters there only.
template <class Real>
Terms<Real> MakeTerms(const Norm& norm, Real r, Real under_root, Real c) {
  const Real divisor = static_cast<Real>(norm.divisor);
  if (!norm.eps_outside) return {r, r, (c * r) / divisor};
  const Real s = std::sqrt(under_root);
  return {r, 1, s == 0 ? 0 : (c * r) / (divisor * s)};
}

// Whether the sum of squares is needed where `rstd` is given, or null.
inline bool NeedsSquares(const Norm& norm, const float* rstd) {
  return rstd == nullptr || norm.eps_outside;
}

// 1 / RMS of all rows for which IsSafe(). One that is given stands for the sum, where that is not
// needed.
constexpr float kSmallestInverse = 0x1p-64f;
constexpr float kLargestInverse = 0x1p50f;

struct HotTerms {
  Terms<float> terms;
  Cold cold;  // where it is not kNothing, the terms mean nothing but for r
};

// The terms in f32. `rstd` is that of the row, or null.
inline HotTerms MakeHotTerms(const Norm& norm, const RowSums& sums, const float* rstd) {
  const float under_root = UnderRoot(norm, sums.squares);
  const float r = rstd != nullptr ? *rstd : InverseRms(norm, under_root);
  const bool safe =
      NeedsSquares(norm, rstd) ? IsSafe(under_root) : r >= kSmallestInverse && r <= kLargestInverse;
  const Terms<float> terms = MakeTerms(norm, r, under_root, sums.dot);
  return {terms, !safe ? Cold::kAll : std::isfinite(terms.q) ? Cold::kNothing : Cold::kDx};
}

inline RowTerms Widened(const Terms<float>& terms) {
  return {{terms.r, terms.k, terms.q}, terms.r, Cold::kNothing};
}

inline Terms<float> Narrowed(const Terms<double>& terms) {
  return {static_cast<float>(terms.r), static_cast<float>(terms.k), static_cast<float>(terms.q)};
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_GRADIENT_TERMS_H_

// SPDX-License-Identifier: Apache-2.0
// From a row's sums to the terms of its gradient, and the rule that says in which precision. Shared
// by the reference and by the kernels of every target; Real is float, or double on the cold path.
#ifndef RMSNORM_LIB_GRADIENT_TERMS_H_
#define RMSNORM_LIB_GRADIENT_TERMS_H_

#include <cmath>
#include <type_traits>

#include "inverse_rms.h"
#include "portable.h"

namespace rmsnorm::internal {

// A row's terms make its gradient: dx = r * (g - (x * scale_x) * mean). The second part is the
// scaled x times its mean product with g.
template <class Real>
struct Terms {
  Real r;
  Real scale_x;
  Real mean;
  bool only_g;  // dx = r * g: the second part is +0, whatever x holds
};

// The sums of a row, from which its terms come.
template <class Real>
struct Sums {
  Real squares;  // 0 where it is not needed
  Real dot;      // c
};

// Which results of a row need binary64: all of them, as in forward, or dx alone, whose second part
// is not finite.
enum class Cold { kNothing, kDx, kAll };

// The terms in f32. Where something is cold, dx needs the terms in binary64. If all is cold, dw
// needs them, too.
struct HotTerms {
  Terms<float> terms;
  Cold cold;
};

// With eps inside, or as a floor below the RMS, dx = r * (g - (x * r) * ((c * r) / D)). With eps
// outside and s = sqrt(sum / D), dx = r * (g - x * ((c * r) / (D * s))); x * 1 is exact. f32
// multiplies by 1 / D, and then divides by s. There is no second part with eps outside where the
// RMS is 0, and with eps as a floor where the RMS is below it.
template <class Real>
Terms<Real> MakeTerms(const Root& root, Real r, Real under_root, Real c) {
  const bool outside = root.eps_placement == RMSNORM_EPS_OUTSIDE;
  Real s = 1;
  if (root.eps_placement != RMSNORM_EPS_INSIDE) {
    s = std::sqrt(under_root);
    if (outside ? s == 0 : s < static_cast<Real>(root.eps)) return {r, 0, 0, true};
  }
  Real mean = c * r;
  if constexpr (std::is_same_v<Real, float>) {
    mean *= root.inverse_divisor;
    if (outside) mean /= s;
  } else {
    mean /= outside ? root.divisor * s : root.divisor;
  }
  return {r, outside ? 1 : r, mean, false};
}

// Whether the sum of squares is needed, where `rstd` says whether the inverse RMS is given.
inline bool NeedsSquares(const Root& root, bool rstd) {
  return !rstd || root.eps_placement != RMSNORM_EPS_INSIDE;
}

// 1 / RMS of all rows for which IsSafe(). One that is given stands for the sum, where that is not
// needed.
constexpr float kSmallestInverse = 0x1p-64f;
constexpr float kLargestInverse = 0x1p50f;

// Makes the terms in f32. `rstd` is the row's, or null. Inlined, as clang would call it for each
// row.
RMSNORM_ALWAYS_INLINE HotTerms MakeHotTerms(const Root& root, const Sums<float>& sums,
                                            const float* rstd) {
  const float under_root = UnderRoot(root, sums.squares);
  const float r = rstd != nullptr ? *rstd : InverseRms(root, under_root);
  const bool safe = NeedsSquares(root, rstd != nullptr)
                        ? IsSafe(under_root)
                        : r >= kSmallestInverse && r <= kLargestInverse;
  // Made in place: a copy of the terms would pass through memory.
  HotTerms hot = {MakeTerms(root, r, under_root, sums.dot), Cold::kNothing};
  if (!safe) {
    hot.cold = Cold::kAll;
  } else if (!std::isfinite(hot.terms.only_g ? sums.dot : hot.terms.mean)) {
    hot.cold = Cold::kDx;
  }
  return hot;
}

inline Terms<double> MakeColdTerms(const Root& root, const Sums<double>& sums, const float* rstd) {
  const double under_root = UnderRoot(root, sums.squares);
  const double r = rstd != nullptr ? *rstd : InverseRms(root, under_root);
  return MakeTerms(root, r, under_root, sums.dot);
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_GRADIENT_TERMS_H_

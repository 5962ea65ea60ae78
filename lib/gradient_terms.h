// SPDX-License-Identifier: Apache-2.0
// From a row's sums to the terms of its gradient, and the rule that says in which precision. Shared
// by the reference and by the kernels of every target; Real is float, or double on the cold path.
#ifndef RMSNORM_LIB_GRADIENT_TERMS_H_
#define RMSNORM_LIB_GRADIENT_TERMS_H_

#include <cmath>

#include "inverse_rms.h"

namespace rmsnorm::internal {

// The terms of a row's gradient: dx = r * (g - (x * scale_x) * mean). The second part is the scaled
// x times its mean product with g.
template <class Real>
struct Terms {
  Real r;
  Real scale_x;
  Real mean;
};

// Which part of a row f32 cannot hold: all of it, as in forward, or dx alone, whose second term is
// not finite.
enum class Cold { kNothing, kDx, kAll };

// The terms of a row, widened from f32 where nothing is cold, and r in f32.
struct RowTerms {
  Terms<double> terms;
  float r;
  Cold cold;
  bool only_g;  // dx = r * g: the second term is +0, whatever x holds
};

// The sums of a row in f32.
struct RowSums {
  float squares;  // 0 where it is not needed
  float dot;      // c
};

// Whether dx = r * g, without a second term: with eps outside where the RMS is 0, and with eps as a
// floor where the RMS is below it.
template <class Real>
bool IsOnlyG(const Root& root, Real under_root) {
  if (root.eps_placement == RMSNORM_EPS_INSIDE) return false;
  const Real s = std::sqrt(under_root);
  return root.eps_placement == RMSNORM_EPS_OUTSIDE ? s == 0 : s < static_cast<Real>(root.eps);
}

// With eps inside, or as a floor below the RMS, dx = r * (g - (x * r) * ((c * r) / D)). With eps
// outside and s = sqrt(sum / D), dx = r * (g - x * ((c * r) / (D * s))); x * 1 is exact. f32
// multiplies by 1 / D. `under_root` matters with eps outside only.
inline Terms<float> MakeTerms(const Root& root, float r, float under_root, float c) {
  if (IsOnlyG(root, under_root)) return {r, 0, 0};
  const float mean = (c * r) * root.inverse_divisor;
  if (root.eps_placement != RMSNORM_EPS_OUTSIDE) return {r, r, mean};
  return {r, 1, mean / std::sqrt(under_root)};
}
inline Terms<double> MakeTerms(const Root& root, double r, double under_root, double c) {
  if (IsOnlyG(root, under_root)) return {r, 0, 0};
  if (root.eps_placement != RMSNORM_EPS_OUTSIDE) return {r, r, (c * r) / root.divisor};
  return {r, 1, (c * r) / (root.divisor * std::sqrt(under_root))};
}

// Whether the sum of squares is needed, where `rstd` says whether the inverse RMS is given.
inline bool NeedsSquares(const Root& root, bool rstd) {
  return !rstd || root.eps_placement != RMSNORM_EPS_INSIDE;
}

// 1 / RMS of all rows for which IsSafe(). One that is given stands for the sum, where that is not
// needed.
constexpr float kSmallestInverse = 0x1p-64f;
constexpr float kLargestInverse = 0x1p50f;

struct HotTerms {
  Terms<float> terms;
  Cold cold;  // where it is not kNothing, the terms mean nothing but for r
  bool only_g;
};

// The terms in f32. `rstd` is the row's, or null. Clang would else call it for each row: 4096
// x 64 took 1.4 times as long.
[[gnu::always_inline]] inline HotTerms MakeHotTerms(const Root& root, const RowSums& sums,
                                                    const float* rstd) {
  const float under_root = UnderRoot(root, sums.squares);
  const float r = rstd != nullptr ? *rstd : InverseRms(root, under_root);
  const bool safe = NeedsSquares(root, rstd != nullptr)
                        ? IsSafe(under_root)
                        : r >= kSmallestInverse && r <= kLargestInverse;
  // Made in place: a copy of the terms would pass through memory.
  HotTerms hot = {MakeTerms(root, r, under_root, sums.dot), Cold::kNothing,
                  IsOnlyG(root, under_root)};
  if (!safe) {
    hot.cold = Cold::kAll;
  } else if (!std::isfinite(hot.only_g ? sums.dot : hot.terms.mean)) {
    hot.cold = Cold::kDx;
  }
  return hot;
}

inline RowTerms Widened(const HotTerms& hot) {
  return {{hot.terms.r, hot.terms.scale_x, hot.terms.mean}, hot.terms.r, hot.cold, hot.only_g};
}

inline Terms<float> Narrowed(const Terms<double>& terms) {
  return {static_cast<float>(terms.r), static_cast<float>(terms.scale_x),
          static_cast<float>(terms.mean)};
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_GRADIENT_TERMS_H_

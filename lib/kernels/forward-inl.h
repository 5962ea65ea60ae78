// SPDX-License-Identifier: Apache-2.0
// The forward kernels, compiled for each target. Each gives the bits of its namesake in reference.cc:
// what follows reorders memory accesses, never an addition.

#if defined(RMSNORM_LIB_KERNELS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#undef RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#endif

#include <algorithm>

#include "../inverse_rms.h"
#include "../reference.h"
#include "elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ sum of squares

// The 128 lanes of a block are 8 AVX-512 registers, enough to hide the latency of fma. Narrower targets
// make two passes over a block, one for each half of the lanes, to have registers enough (8 AVX2 or 16
// NEON ones each): a half is 64 neighbouring elements, so the passes touch different cache lines.
constexpr size_t kPasses = kN >= 16 ? 1 : 2;
constexpr size_t kPassLanes = kLanes / kPasses;
constexpr size_t kAccumulators = kPassLanes / kN;

struct Accumulators {
  F32Vec lane[kAccumulators];
};

// Adds the squares of one pass's lanes: of each kLanes elements of x the first kPassLanes. `size`
// elements may be read.
template <class X>
HWY_INLINE Accumulators SumPass(const X* HWY_RESTRICT x, size_t size) {
  Accumulators sums;
  for (F32Vec& lane : sums.lane) lane = hn::Zero(F32Tag());
  size_t j = 0;
  for (; j + kPassLanes <= size; j += kLanes) {
    HWY_UNROLL(kAccumulators)
    for (size_t a = 0; a < kAccumulators; ++a) {
      const F32Vec value = Load(x + j + a * kN);
      sums.lane[a] = hn::MulAdd(value, value, sums.lane[a]);
    }
  }
  // Less than kPassLanes are left.
  HWY_UNROLL(kAccumulators)
  for (size_t a = 0; a < kAccumulators; ++a) {
    const size_t begin = j + a * kN;
    if (begin >= size) break;
    const F32Vec value = begin + kN <= size ? Load(x + begin) : LoadFirst(x + begin, size - begin);
    sums.lane[a] = hn::MulAdd(value, value, sums.lane[a]);
  }
  return sums;
}

// Lane l += lane l + kN / 2, then + kN / 4 and so on down to 1.
template <class D>
HWY_INLINE float FoldLanes(D tag, hn::Vec<D> sum) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return FoldLanes(half, hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum)));
  } else {
    sum = hn::Add(sum, hn::Shuffle1032(sum));
    sum = hn::Add(sum, hn::Shuffle2301(sum));
    return hn::GetLane(sum);
  }
}

// The tree over the accumulators and then over the lanes within.
HWY_INLINE float Fold(Accumulators sums) {
  for (size_t half = kAccumulators / 2; half > 0; half /= 2) {
    for (size_t a = 0; a < half; ++a) {
      sums.lane[a] = hn::Add(sums.lane[a], sums.lane[a + half]);
    }
  }
  return FoldLanes(F32Tag(), sums.lane[0]);
}

template <class X>
HWY_INLINE float SumBlock(const X* HWY_RESTRICT x, size_t size) {
  Accumulators sums = SumPass(x, size);
  if constexpr (kPasses == 2) {
    if (size > kPassLanes) {
      const Accumulators upper = SumPass(x + kPassLanes, size - kPassLanes);
      for (size_t a = 0; a < kAccumulators; ++a) {
        sums.lane[a] = hn::Add(sums.lane[a], upper.lane[a]);
      }
    }
  }
  return Fold(sums);
}

template <class X>
HWY_INLINE float SumSquares(const X* HWY_RESTRICT x, size_t d) {
  float total = SumBlock(x, std::min(kBlock, d));
  for (size_t begin = kBlock; begin < d; begin += kBlock) {
    total += SumBlock(x + begin, std::min(kBlock, d - begin));
  }
  return total;
}

// ------------------------------------------------------------------ scale

// One vector: x * r, rounded to X if asked, times the weight if there is one.
template <bool kCast, bool kWeighted, class X>
HWY_INLINE F32Vec ScaleVector(F32Vec x, F32Vec r, F32Vec weight) {
  F32Vec n = hn::Mul(x, r);
  if constexpr (kCast) n = Round<X>(n);
  if constexpr (kWeighted) n = hn::Mul(n, weight);
  return n;
}

template <bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void ScaleRow(size_t d, float inverse_rms, const X* x, const float* HWY_RESTRICT weight,
                         Y* y) {
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  size_t j = 0;
  for (; j + kN <= d; j += kN) {
    const F32Vec w = kWeighted ? Load(weight + j) : r;
    Store(ScaleVector<kCast, kWeighted, X>(Load(x + j), r, w), y + j);
  }
  if (j < d) {
    const F32Vec w = kWeighted ? LoadFirst(weight + j, d - j) : r;
    StoreFirst(ScaleVector<kCast, kWeighted, X>(LoadFirst(x + j, d - j), r, w), y + j, d - j);
  }
}

// ------------------------------------------------------------------ kernels

template <bool kSumsGiven, bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void NormaliseRows(const Norm& norm, const Rows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    const X* x = rows.Input<X>(row);
    Y* y = rows.Output<Y>(row);
    const float sum = kSumsGiven ? static_cast<float>(rows.sums[row]) : SumSquares(x, norm.d);
    const float under_root = UnderRoot(norm, sum);
    float r;
    if (HWY_LIKELY(IsSafe(under_root))) {
      r = InverseRms(norm, under_root);
      ScaleRow<kCast, kWeighted>(norm.d, r, x, norm.weight, y);
    } else {
      const double cold_sum = kSumsGiven ? rows.sums[row] : ColdSumSquares(x, norm.d);
      r = static_cast<float>(ColdScale(norm, cold_sum, x, y));
    }
    if (rows.rstd != nullptr) rows.rstd[row] = r;
  }
}

// Makes the options that matter for each element constants of the loops.
template <bool kSumsGiven, class X, class Y>
HWY_INLINE void Normalise(const Norm& norm, const Rows& rows) {
  constexpr bool kCanCast = sizeof(X) == 2;  // rounding f32 to f32 does nothing
  if (kCanCast && norm.cast_then_scale) {
    if (norm.weight != nullptr) {
      NormaliseRows<kSumsGiven, kCanCast, true, X, Y>(norm, rows);
    } else {
      NormaliseRows<kSumsGiven, kCanCast, false, X, Y>(norm, rows);
    }
  } else {
    if (norm.weight != nullptr) {
      NormaliseRows<kSumsGiven, false, true, X, Y>(norm, rows);
    } else {
      NormaliseRows<kSumsGiven, false, false, X, Y>(norm, rows);
    }
  }
}

template <class X, class Y>
void ForwardRows(const Norm& norm, const Rows& rows) {
  Normalise<false, X, Y>(norm, rows);
}

template <class X, class Y>
void ScaleRows(const Norm& norm, const Rows& rows) {
  Normalise<true, X, Y>(norm, rows);
}

template <class X>
void SumSquaresRows(const Norm& norm, const Rows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    const X* x = rows.Input<X>(row);
    const float sum = SumSquares(x, norm.d);
    rows.sums[row] = IsSafeSum(sum, norm.divisor) ? sum : ColdSumSquares(x, norm.d);
  }
}

template <class W>
void PrepareWeight(const void* weight, size_t d, float offset, float* HWY_RESTRICT prepared) {
  const W* from = static_cast<const W*>(weight);
  const F32Vec add = hn::Set(F32Tag(), offset);
  size_t j = 0;
  for (; j + kN <= d; j += kN) Store(hn::Add(add, Load(from + j)), prepared + j);
  if (j < d) StoreFirst(hn::Add(add, LoadFirst(from + j, d - j)), prepared + j, d - j);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_FORWARD_INL_H_

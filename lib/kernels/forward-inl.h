// SPDX-License-Identifier: Apache-2.0
// The forward kernels, compiled for each target. Each gives the bits of its namesake in
// reference.cc: what follows reorders memory accesses, never an addition.

#if defined(RMSNORM_LIB_KERNELS_FORWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#undef RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_FORWARD_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "../inverse_rms.h"
#include "../reference.h"
#include "elements-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// Up to this many bytes of x a row is short: four rows of x and y then fit L1 with the weight.
constexpr size_t kShortRowBytes = 2048;

constexpr size_t kCacheLine = 64;

// ------------------------------------------------------------------ sum of squares

// The 128 lanes of a block are 8 AVX-512 registers, enough to hide the latency of fma. Narrower
// targets make two passes over a block, one for each half of the lanes, to have registers enough (8
// AVX2 or 16 NEON ones each): a half is 64 neighbouring elements, so the passes touch different
// cache lines.
constexpr size_t kPasses = kN >= 16 ? 1 : 2;
constexpr size_t kPassLanes = kLanes / kPasses;
constexpr size_t kPairs = kPassLanes / kPair;

// The lanes of one pass. Where 2 kN elements are loaded as one pair, accumulator `lower[a]` holds
// the first kN and `upper[a]` the others. bf16 splits cheaper into even and odd elements: then they
// are in `lower` and `upper`. That changes where a lane is, not what is added to it.
struct Lanes {
  // Not the implicit one, which gcc would compile for the baseline and then not inline.
  HWY_INLINE Lanes() {}

  F32Vec lower[kPairs];
  F32Vec upper[kPairs];
};

template <class X>
constexpr bool kSplitsByParity = std::is_same_v<X, BF16>;

HWY_INLINE Pair SplitByParity(hn::Vec<PackedTag> packed) {
  const U32Tag tag;
  const auto bits = hn::BitCast(tag, packed);
  return {hn::BitCast(F32Tag(), hn::ShiftLeft<16>(bits)),
          hn::BitCast(F32Tag(), hn::And(bits, hn::Set(tag, 0xFFFF0000u)))};
}

template <class X>
HWY_INLINE Pair LoadForSum(const X* from) {
  if constexpr (kSplitsByParity<X>) {
    return SplitByParity(hn::LoadU(PackedTag(), Bits(from)));
  } else {
    return Load(from);
  }
}

template <class X>
HWY_INLINE Pair LoadFirstForSum(const X* from, size_t n) {
  if constexpr (kSplitsByParity<X>) {
    return SplitByParity(LoadBits(PackedTag(), Bits(from), n));
  } else {
    return LoadFirst(from, n);
  }
}

// Adds the squares of one pass: of each kLanes elements of x the first kPassLanes. `size` elements
// may be read.
template <class X>
HWY_INLINE Lanes SumPass(const X* HWY_RESTRICT x, size_t size) {
  Lanes lanes;
  HWY_UNROLL(kPairs)
  for (size_t a = 0; a < kPairs; ++a) lanes.lower[a] = lanes.upper[a] = hn::Zero(F32Tag());
  size_t j = 0;
  for (; j + kPassLanes <= size; j += kLanes) {
    HWY_UNROLL(kPairs)
    for (size_t a = 0; a < kPairs; ++a) {
      const Pair v = LoadForSum(x + j + a * kPair);
      lanes.lower[a] = hn::MulAdd(v.lower, v.lower, lanes.lower[a]);
      lanes.upper[a] = hn::MulAdd(v.upper, v.upper, lanes.upper[a]);
    }
  }
  if (j < size) {  // less than kPassLanes are left
    HWY_UNROLL(kPairs)
    for (size_t a = 0; a < kPairs; ++a) {
      const size_t begin = j + a * kPair;
      if (begin >= size) break;
      const Pair v =
          begin + kPair <= size ? LoadForSum(x + begin) : LoadFirstForSum(x + begin, size - begin);
      lanes.lower[a] = hn::MulAdd(v.lower, v.lower, lanes.lower[a]);
      lanes.upper[a] = hn::MulAdd(v.upper, v.upper, lanes.upper[a]);
    }
  }
  return lanes;
}

using FourTag = hn::FixedTag<float, 4>;
using Four = hn::Vec<FourTag>;

// Lane l += lane l + size / 2, and so on until four are left.
template <class D>
HWY_INLINE Four FoldToFour(D, hn::Vec<D> sum) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return FoldToFour(half, hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum)));
  } else {
    return sum;
  }
}

// A block's lanes, folded to four; those of the even and of the odd elements apart where X splits
// so.
template <class X>
struct FoldedBlock {
  Four part[kSplitsByParity<X> ? 2 : 1];
};

template <class X>
HWY_INLINE FoldedBlock<X> SumBlock(const X* HWY_RESTRICT x, size_t size) {
  Lanes lanes = SumPass(x, size);
  if constexpr (kPasses == 2) {
    if (size > kPassLanes) {
      const Lanes upper = SumPass(x + kPassLanes, size - kPassLanes);
      HWY_UNROLL(kPairs)
      for (size_t a = 0; a < kPairs; ++a) {
        lanes.lower[a] = hn::Add(lanes.lower[a], upper.lower[a]);
        lanes.upper[a] = hn::Add(lanes.upper[a], upper.upper[a]);
      }
    }
  }
  HWY_UNROLL(kPairs)
  for (size_t half = kPairs / 2; half > 0; half /= 2) {
    HWY_UNROLL(kPairs)
    for (size_t a = 0; a < half; ++a) {
      lanes.lower[a] = hn::Add(lanes.lower[a], lanes.lower[a + half]);
      lanes.upper[a] = hn::Add(lanes.upper[a], lanes.upper[a + half]);
    }
  }
  if constexpr (kSplitsByParity<X>) {
    return {{FoldToFour(F32Tag(), lanes.lower[0]), FoldToFour(F32Tag(), lanes.upper[0])}};
  } else {
    return {{FoldToFour(F32Tag(), hn::Add(lanes.lower[0], lanes.upper[0]))}};
  }
}

// The last two steps of the tree for four blocks at once: sum i is that of block i.
HWY_INLINE Four FoldFour(Four a, Four b, Four c, Four d) {
  const FourTag tag;
  const Four ab = hn::Add(hn::ConcatLowerLower(tag, b, a), hn::ConcatUpperUpper(tag, b, a));
  const Four cd = hn::Add(hn::ConcatLowerLower(tag, d, c), hn::ConcatUpperUpper(tag, d, c));
  return hn::Add(hn::ConcatEven(tag, cd, ab), hn::ConcatOdd(tag, cd, ab));
}

template <class X>
HWY_INLINE Four FoldFour(const FoldedBlock<X> (&block)[4], size_t part) {
  return FoldFour(block[0].part[part], block[1].part[part], block[2].part[part],
                  block[3].part[part]);
}

template <class X>
HWY_INLINE Four FoldFour(const FoldedBlock<X> (&block)[4]) {
  if constexpr (kSplitsByParity<X>) {
    return hn::Add(FoldFour(block, 0), FoldFour(block, 1));
  } else {
    return FoldFour(block, 0);
  }
}

HWY_INLINE float FoldOne(Four sum) {
  sum = hn::Add(sum, hn::Shuffle1032(sum));
  return hn::GetLane(hn::Add(sum, hn::Shuffle2301(sum)));
}

template <class X>
HWY_INLINE float FoldOne(const FoldedBlock<X>& block) {
  if constexpr (kSplitsByParity<X>) {
    return FoldOne(block.part[0]) + FoldOne(block.part[1]);
  } else {
    return FoldOne(block.part[0]);
  }
}

// Functions of their own, not inlined: SumSquares(), ScaleRow() and SumFour() serve all
// combinations of options, and inlining them everywhere makes the library four times as large.
template <class X>
HWY_NOINLINE float SumSquares(const X* HWY_RESTRICT x, size_t d) {
  float total = FoldOne(SumBlock(x, std::min(kBlock, d)));
  for (size_t begin = kBlock; begin < d; begin += kBlock) {
    total += FoldOne(SumBlock(x + begin, std::min(kBlock, d - begin)));
  }
  return total;
}

// ------------------------------------------------------------------ scale

// x * r, rounded to X if asked, times the weight if there is one.
template <bool kCast, bool kWeighted, class X>
HWY_INLINE F32Vec Scaled(F32Vec x, F32Vec r, F32Vec weight) {
  F32Vec n = hn::Mul(x, r);
  if constexpr (kCast) n = Round<X>(n);
  if constexpr (kWeighted) n = hn::Mul(n, weight);
  return n;
}

template <bool kCast, bool kWeighted, class X>
HWY_INLINE Pair Scaled(Pair x, F32Vec r, Pair weight) {
  return {Scaled<kCast, kWeighted, X>(x.lower, r, weight.lower),
          Scaled<kCast, kWeighted, X>(x.upper, r, weight.upper)};
}

// The first n < kPair elements.
template <bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void ScaleFirst(size_t n, F32Vec r, const X* x, const float* HWY_RESTRICT weight, Y* y) {
  const Pair w = kWeighted ? LoadFirst(weight, n) : Pair{r, r};
  StoreFirst(Scaled<kCast, kWeighted, X>(LoadFirst(x, n), r, w), y, n);
}

// One row, from its end: the sum has just touched that, and in rows beyond L1 the start is gone. y
// may be x. With kStream y goes past the caches, and `next`, the row to be summed after this one,
// is fetched meanwhile: 8192 x 4096 in f32 takes 1.0 times memcpy's time so, and 1.8 without.
template <bool kStream, bool kCast, bool kWeighted, class X, class Y>
HWY_NOINLINE void ScaleRow(size_t d, float inverse_rms, const X* x,
                           const float* HWY_RESTRICT weight, Y* y, const X* next) {
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  size_t head = 0;
  if (kStream) {  // such stores must be aligned
    head = std::min(d, -reinterpret_cast<uintptr_t>(y) % sizeof(F32Vec) / sizeof(Y));
    if (head > 0) ScaleFirst<kCast, kWeighted>(head, r, x, weight, y);
  }
  size_t j = head + (d - head) / kPair * kPair;
  if (j < d) {
    ScaleFirst<kCast, kWeighted>(d - j, r, x + j, kWeighted ? weight + j : nullptr, y + j);
  }
  while (j > head) {
    j -= kPair;
    const Pair w = kWeighted ? Load(weight + j) : Pair{r, r};
    const Pair scaled = Scaled<kCast, kWeighted, X>(Load(x + j), r, w);
    if constexpr (kStream) {
      for (size_t i = 0; i < kPair; i += kCacheLine / sizeof(X)) hwy::Prefetch(next + j + i);
      Stream(scaled, y + j);
    } else {
      Store(scaled, y + j);
    }
  }
}

template <bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void ScaleRow(const Norm& norm, const Rows& rows, size_t row, float r) {
  const X* x = rows.Input<X>(row);
  Y* y = rows.Output<Y>(row);
  if (HWY_UNLIKELY(rows.stream)) {
    const X* next = rows.Input<X>(std::min(row + 1, rows.count - 1));
    ScaleRow<true, kCast, kWeighted>(norm.d, r, x, norm.weight, y, next);
  } else {
    ScaleRow<false, kCast, kWeighted>(norm.d, r, x, norm.weight, y, x);
  }
}

// ------------------------------------------------------------------ kernels

template <bool kSumsGiven, bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void NormaliseRow(const Norm& norm, const Rows& rows, size_t row) {
  const X* x = rows.Input<X>(row);
  Y* y = rows.Output<Y>(row);
  const float sum = kSumsGiven ? static_cast<float>(rows.sums[row]) : SumSquares(x, norm.d);
  const float under_root = UnderRoot(norm, sum);
  float r;
  if (HWY_LIKELY(IsSafe(under_root))) {
    r = InverseRms(norm, under_root);
    // A sum that was given does not rule out a NaN in x, which RoundToBF16() may lose. Those that
    // come from bf16 have no payload bits to carry.
    constexpr bool kMayLoseNaN = kSumsGiven && std::is_same_v<Y, BF16> && !std::is_same_v<X, BF16>;
    bool lost = false;
    if constexpr (kMayLoseNaN) {
      lost = std::isnan(SumSquares(x, norm.d));
      if (lost) HotScale(norm, r, x, y);
    }
    if (!lost) ScaleRow<kCast, kWeighted, X, Y>(norm, rows, row, r);
  } else {
    const double cold_sum = kSumsGiven ? rows.sums[row] : ColdSumSquares(x, norm.d);
    r = static_cast<float>(ColdScale(norm, cold_sum, x, y));
  }
  if (rows.rstd != nullptr) rows.rstd[row] = r;
}

// The sums of four rows of one block each.
template <class X>
HWY_NOINLINE void SumFour(const Rows& rows, size_t row, size_t d, float* HWY_RESTRICT sums) {
  const FoldedBlock<X> block[4] = {
      SumBlock(rows.Input<X>(row), d), SumBlock(rows.Input<X>(row + 1), d),
      SumBlock(rows.Input<X>(row + 2), d), SumBlock(rows.Input<X>(row + 3), d)};
  hn::StoreU(FoldFour(block), FourTag(), sums);
}

// 1 / RMS of four rows, by the operations of inverse_rms.h.
struct FourInverses {
  Four r;
  bool safe;  // whether all four are; if not, r is meaningless
};

template <class X>
HWY_INLINE FourInverses InvertFour(const Norm& norm, const Rows& rows, size_t row) {
  const FourTag tag;
  HWY_ALIGN float sums[4];
  SumFour<X>(rows, row, norm.d, sums);
  const Four eps = hn::Set(tag, norm.eps);
  const Four mean = hn::Div(hn::Load(tag, sums), hn::Set(tag, norm.divisor));
  const Four under_root = norm.eps_outside ? mean : hn::Add(mean, eps);
  const Four root = hn::Sqrt(under_root);
  const auto safe = hn::And(hn::Ge(under_root, hn::Set(tag, kSmallestSafe)),
                            hn::Le(under_root, hn::Set(tag, kLargestSafe)));
  return {hn::Div(hn::Set(tag, 1.0f), norm.eps_outside ? hn::Add(root, eps) : root),
          hn::AllTrue(tag, safe)};
}

// Rows of one block, four at a time. One row alone leaves the units idle for the time of its last
// fma, fold, division, root and division, one after the other; four share them, and the next four
// are summed before these are scaled, so that the two overlap.
template <bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void NormaliseShortRows(const Norm& norm, const Rows& rows) {
  FourInverses next = InvertFour<X>(norm, rows, 0);
  size_t row = 0;
  for (; row + 4 <= rows.count; row += 4) {
    const FourInverses now = next;
    if (row + 8 <= rows.count) next = InvertFour<X>(norm, rows, row + 4);
    if (HWY_UNLIKELY(!now.safe)) {
      for (size_t i = row; i < row + 4; ++i) {
        NormaliseRow<false, kCast, kWeighted, X, Y>(norm, rows, i);
      }
      continue;
    }
    HWY_ALIGN float r[4];
    hn::Store(now.r, FourTag(), r);
    for (size_t i = 0; i < 4; ++i) {
      ScaleRow<kCast, kWeighted, X, Y>(norm, rows, row + i, r[i]);
    }
    if (rows.rstd != nullptr) hn::StoreU(now.r, FourTag(), rows.rstd + row);
  }
  for (; row < rows.count; ++row) {
    NormaliseRow<false, kCast, kWeighted, X, Y>(norm, rows, row);
  }
}

template <bool kSumsGiven, bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void NormaliseRows(const Norm& norm, const Rows& rows) {
  if (!kSumsGiven && rows.count >= 4 && norm.d * sizeof(X) <= kShortRowBytes) {
    NormaliseShortRows<kCast, kWeighted, X, Y>(norm, rows);
    return;
  }
  for (size_t row = 0; row < rows.count; ++row) {
    NormaliseRow<kSumsGiven, kCast, kWeighted, X, Y>(norm, rows, row);
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
  if (rows.stream) hwy::FlushStream();  // before another thread may read y
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

// Makes every NaN the same quiet one, whose payload survives the rounding to bf16.
HWY_INLINE F32Vec PlainNaN(F32Vec value) {
  const F32Vec plain = hn::BitCast(F32Tag(), hn::Set(U32Tag(), 0x7FC00000));
  return hn::IfThenElse(hn::IsNaN(value), plain, value);
}

HWY_INLINE Pair PreparedPair(F32Vec offset, Pair weight) {
  return {PlainNaN(hn::Add(offset, weight.lower)), PlainNaN(hn::Add(offset, weight.upper))};
}

template <class W>
void PrepareWeight(const void* weight, size_t d, float weight_offset,
                   float* HWY_RESTRICT prepared) {
  const W* from = static_cast<const W*>(weight);
  const F32Vec offset = hn::Set(F32Tag(), weight_offset);
  size_t j = 0;
  for (; j + kPair <= d; j += kPair) Store(PreparedPair(offset, Load(from + j)), prepared + j);
  if (j < d) StoreFirst(PreparedPair(offset, LoadFirst(from + j, d - j)), prepared + j, d - j);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_FORWARD_INL_H_

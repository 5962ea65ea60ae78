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
#include "../thresholds.h"
#include "cold-inl.h"
#include "squares-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

constexpr size_t kCacheLine = 64;

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

// The weights of a pair of vectors; where there are none, nothing of meaning.
template <bool kWeighted>
HWY_INLINE Pair LoadWeight(const float* weight, size_t j) {
  if constexpr (kWeighted) return Load(weight + j);
  return {hn::Zero(F32Tag()), hn::Zero(F32Tag())};
}

// A row to scale by r. y may be x.
template <class X, class Y>
struct Row {
  HWY_INLINE Row(const Rows& rows, size_t row, float inverse_rms)
      : x(rows.Input<X>(row)), y(rows.Output<Y>(row)), r(hn::Set(F32Tag(), inverse_rms)) {}

  template <bool kCast, bool kWeighted>
  HWY_INLINE Pair ScaledAt(size_t j, Pair weight) const {
    return Scaled<kCast, kWeighted, X>(Load(x + j), r, weight);
  }

  // Its elements from `begin` up to `end`, fewer than kPair.
  template <bool kCast, bool kWeighted>
  HWY_INLINE void ScaleFew(size_t begin, size_t end, const float* weight) const {
    const size_t n = end - begin;
    const Pair w = kWeighted ? LoadFirst(weight + begin, n) : LoadWeight<false>(weight, begin);
    StoreFirst(Scaled<kCast, kWeighted, X>(LoadFirst(x + begin, n), r, w), y + begin, n);
  }

  const X* x;
  Y* y;
  F32Vec r;
};

// Into L2, not into L1, where the row being scaled and the weight are: 8192 x 4096 in f32 takes 5 %
// less time so, 2048 x 16384 15 %.
HWY_INLINE void PrefetchToL2(const void* from) { __builtin_prefetch(from, 0, 2); }

// The elements from `head` on. From the begin of the row, as the sum: from its end is faster by 8 %
// for one row whose weight does not fit L1 with it, but slower by 8 % where rows come from L2 and
// by a third from memory. With kStream y goes past the caches, and `next`, the row to be summed
// after this one, is fetched meanwhile.
template <bool kStream, bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void ScaleFrom(size_t head, size_t d, const float* HWY_RESTRICT weight,
                          const Row<X, Y>& row, const X* next) {
  if (d - head < kPair) {
    if (head < d) row.template ScaleFew<kCast, kWeighted>(head, d, weight);
    return;
  }
  // Elements at the row's end that fill no pair are done with some before them, again, as a whole
  // pair: 17 elements of 16 bits take AVX2 a third of the time so. They are read before anything is
  // written, as y may be x.
  const size_t last = d - kPair;
  const bool is_ragged = (d - head) % kPair != 0;
  Pair last_scaled = LoadWeight<false>(weight, last);
  if (is_ragged) {
    last_scaled =
        row.template ScaledAt<kCast, kWeighted>(last, LoadWeight<kWeighted>(weight, last));
  }
  size_t j = head;
  for (; j + 2 * kPair <= d; j += 2 * kPair) {
    const size_t k = j + kPair;
    const Pair j_scaled =
        row.template ScaledAt<kCast, kWeighted>(j, LoadWeight<kWeighted>(weight, j));
    const Pair k_scaled =
        row.template ScaledAt<kCast, kWeighted>(k, LoadWeight<kWeighted>(weight, k));
    if constexpr (kStream) {
      for (size_t i = 0; i < 2 * kPair; i += kCacheLine / sizeof(X)) PrefetchToL2(next + j + i);
      Stream(j_scaled, row.y + j);
      Stream(k_scaled, row.y + k);
    } else {
      StoreBoth(j_scaled, row.y + j, k_scaled, row.y + k);
    }
  }
  if (j + kPair <= d) {
    const Pair scaled =
        row.template ScaledAt<kCast, kWeighted>(j, LoadWeight<kWeighted>(weight, j));
    Store(scaled, row.y + j);
  }
  if (is_ragged) Store(last_scaled, row.y + last);
}

// One row. Past the caches 8192 x 4096 in f32 takes 0.84 times memcpy's time, and else 1.45.
template <bool kStream, bool kCast, bool kWeighted, class X, class Y>
HWY_NOINLINE void ScaleRow(const Norm& norm, const Rows& rows, size_t index, float inverse_rms) {
  const Row<X, Y> row(rows, index, inverse_rms);
  const X* const next = rows.Input<X>(std::min(index + 1, rows.count - 1));
  size_t head = 0;
  if (kStream || norm.d >= kAlignedRow) {  // stores past the caches must be aligned
    head = std::min(norm.d, -reinterpret_cast<uintptr_t>(row.y) % sizeof(F32Vec) / sizeof(Y));
    if (head > 0) row.template ScaleFew<kCast, kWeighted>(0, head, norm.weight);
  }
  ScaleFrom<kStream, kCast, kWeighted>(head, norm.d, norm.weight, row, next);
}

// Four long rows, each load of the weight shared.
template <bool kCast, bool kWeighted, class X, class Y>
HWY_NOINLINE void ScaleFourLongRows(const Norm& norm, const Rows& rows, size_t index, Four r) {
  HWY_ALIGN float inverse_rms[4];
  hn::Store(r, FourTag(), inverse_rms);
  const size_t d = norm.d;
  const float* HWY_RESTRICT weight = norm.weight;
  const size_t whole_pairs = d / kPair * kPair;
  if (whole_pairs < d) {
    for (size_t i = 0; i < 4; ++i) {
      Row<X, Y>(rows, index + i, inverse_rms[i])
          .template ScaleFew<kCast, kWeighted>(whole_pairs, d, weight);
    }
  }
  const Row<X, Y> a(rows, index, inverse_rms[0]);
  const Row<X, Y> b(rows, index + 1, inverse_rms[1]);
  const Row<X, Y> c(rows, index + 2, inverse_rms[2]);
  const Row<X, Y> e(rows, index + 3, inverse_rms[3]);
  for (size_t j = 0; j < whole_pairs; j += kPair) {
    const Pair w = LoadWeight<kWeighted>(weight, j);
    StoreBoth(a.template ScaledAt<kCast, kWeighted>(j, w), a.y + j,
              b.template ScaledAt<kCast, kWeighted>(j, w), b.y + j);
    StoreBoth(c.template ScaledAt<kCast, kWeighted>(j, w), c.y + j,
              e.template ScaledAt<kCast, kWeighted>(j, w), e.y + j);
  }
}

template <bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void ScaleOneRow(const Norm& norm, const Rows& rows, size_t row, float r) {
  if (HWY_UNLIKELY(rows.stream)) {
    ScaleRow<true, kCast, kWeighted, X, Y>(norm, rows, row, r);
  } else {
    ScaleRow<false, kCast, kWeighted, X, Y>(norm, rows, row, r);
  }
}

// ------------------------------------------------------------------ kernels

// A row that IsSafe() turns away, by the sum that is given or, where that is null, by its own.
// Returns rstd. The sum of a row with a NaN is one, and then so is all that the row gives.
template <class X, class Y>
HWY_NOINLINE float NormaliseColdRow(const Norm& norm, const X* x, Y* y, float under_root,
                                    const double* given) {
  if (std::isnan(under_root)) {
    FillWithNaN(y, norm.d);
    return under_root;
  }
  const double sum = given != nullptr ? *given : ColdSumSquares(x, norm.d);
  const double r = InverseRms(norm, UnderRoot(norm, sum));
  ColdScale<X, Y>(norm, r, x, y);
  return static_cast<float>(r);
}

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
    if (kMayLoseNaN && !rows.hot_sums) {
      ColdScale<X, Y>(norm, r, x, y);
    } else {
      ScaleOneRow<kCast, kWeighted, X, Y>(norm, rows, row, r);
    }
  } else {
    const double* given = kSumsGiven && !rows.hot_sums ? &rows.sums[row] : nullptr;
    r = NormaliseColdRow<X, Y>(norm, x, y, under_root, given);
  }
  if (rows.rstd != nullptr) rows.rstd[row] = r;
}

// 1 / RMS of four rows from their sums, by the operations of inverse_rms.h.
struct FourInverses {
  Four r;
  bool safe;  // whether all four are; if not, r is meaningless
};

HWY_INLINE FourInverses InvertFour(const Norm& norm, Four sums) {
  const FourTag tag;
  const Four eps = hn::Set(tag, norm.eps);
  const Four mean = hn::Div(sums, hn::Set(tag, norm.divisor));
  const Four under_root = norm.eps_outside ? mean : hn::Add(mean, eps);
  const Four root = hn::Sqrt(under_root);
  const auto safe = hn::And(hn::Ge(under_root, hn::Set(tag, kSmallestSafe)),
                            hn::Le(under_root, hn::Set(tag, kLargestSafe)));
  return {hn::Div(hn::Set(tag, 1.0f), norm.eps_outside ? hn::Add(root, eps) : root),
          hn::AllTrue(tag, safe)};
}

// Rows of these, short ones and long ones, have more code of their own: 10 to 20 % less time. All
// of them would make the library twice as large.
template <bool kWeighted, class X, class Y>
constexpr bool kIsUsual = kWeighted&& std::is_same_v<X, Y>;

template <class X>
HWY_NOINLINE FoldedBlock SumAnyBlock(const X* x, size_t d) {
  return SumBlock(x, d);
}

// The folded blocks of four rows. In memory, so that a loop can go over the rows.
template <class Source>
struct FourBlocks {
  HWY_INLINE FourBlocks() {}

  HWY_INLINE void Set(size_t i, FoldedBlock block) {
    hn::Store(block.sum, FourTag(), sum[i]);
    if constexpr (kSplitsByParity<Source>) hn::Store(block.odd, FourTag(), odd[i]);
  }

  template <bool kInline>
  HWY_INLINE void SumRow(size_t i, Source x, size_t d) {
    Set(i, kInline ? SumBlock(x, d) : SumAnyBlock(x, d));
  }

  HWY_INLINE Four Sums() const {
    const Four sums = Fold(sum);
    if constexpr (!kSplitsByParity<Source>) return sums;
    return hn::Add(sums, Fold(odd));
  }

  static HWY_INLINE Four Fold(const float (&rows)[4][4]) {
    const FourTag tag;
    return FoldFour(hn::Load(tag, rows[0]), hn::Load(tag, rows[1]), hn::Load(tag, rows[2]),
                    hn::Load(tag, rows[3]));
  }

  HWY_ALIGN float sum[4][4];
  HWY_ALIGN float odd[4][4];
};

// Rows of one block, four at a time. One alone leaves the units idle for the time of its last fma,
// fold, division, root and division, one after the other; four share them, and the next four are
// summed before the last of these is scaled. In f32 one by one between them: then loads and stores
// alternate, and 4096 x 128 took 1.25 times memcpy's time on AVX-512 instead of 1.5. 16-bit rows
// are bound by arithmetic, and take 7 % less with all four at once. kD is the rows' length where it
// is not 0: loops of known length take 10 % less.
template <size_t kD, bool kCast, bool kWeighted, class X, class Y>
HWY_NOINLINE void NormaliseShortRows(const Norm& norm, const Rows& rows) {
  const size_t d = kD != 0 ? kD : norm.d;
  constexpr bool kInline = kIsUsual<kWeighted, X, Y>;
  FourBlocks<const X*> blocks;
  for (size_t i = 0; i < 4; ++i) blocks.template SumRow<kInline>(i, rows.Input<X>(i), d);
  size_t row = 0;
  for (; row + 4 <= rows.count; row += 4) {
    const FourInverses inverses = InvertFour(norm, blocks.Sums());
    HWY_ALIGN float r[4];
    hn::Store(inverses.r, FourTag(), r);
    const bool more = row + 8 <= rows.count;
    constexpr size_t kAtOnce = sizeof(X) == 4 ? 1 : 4;
    for (size_t i = 0; more && i < kAtOnce; ++i) {
      blocks.template SumRow<kInline>(i, rows.Input<X>(row + 4 + i), d);
    }
    for (size_t i = 0; i < 4; ++i) {
      const size_t next = i + kAtOnce;
      if (more && next < 4) {
        blocks.template SumRow<kInline>(next, rows.Input<X>(row + 4 + next), d);
      }
      if (HWY_UNLIKELY(!inverses.safe)) {
        NormaliseRow<false, kCast, kWeighted, X, Y>(norm, rows, row + i);
      } else if (HWY_UNLIKELY(rows.stream)) {
        ScaleRow<true, kCast, kWeighted, X, Y>(norm, rows, row + i, r[i]);
      } else {
        const Row<X, Y> one(rows, row + i, r[i]);
        ScaleFrom<false, kCast, kWeighted>(0, d, norm.weight, one, one.x);
      }
    }
    if (rows.rstd != nullptr && inverses.safe) hn::StoreU(inverses.r, FourTag(), rows.rstd + row);
  }
  for (; row < rows.count; ++row) {
    NormaliseRow<false, kCast, kWeighted, X, Y>(norm, rows, row);
  }
}

// Short rows by sums that are given. Four share the time of a root and two divisions: the residual
// add takes 8 % less for 4096 x 128.
template <bool kCast, bool kWeighted, class X, class Y>
HWY_NOINLINE void ScaleShortRows(const Norm& norm, const Rows& rows) {
  size_t row = 0;
  for (; row + 4 <= rows.count; row += 4) {
    HWY_ALIGN float four[4];  // the sums, and then the inverses
    for (size_t i = 0; i < 4; ++i) four[i] = static_cast<float>(rows.sums[row + i]);
    const FourInverses inverses = InvertFour(norm, hn::Load(FourTag(), four));
    hn::Store(inverses.r, FourTag(), four);
    for (size_t i = 0; i < 4; ++i) {
      if (HWY_UNLIKELY(!inverses.safe || rows.stream)) {
        NormaliseRow<true, kCast, kWeighted, X, Y>(norm, rows, row + i);
      } else {
        const Row<X, Y> one(rows, row + i, four[i]);
        ScaleFrom<false, kCast, kWeighted>(0, norm.d, norm.weight, one, one.x);
      }
    }
    if (rows.rstd != nullptr && inverses.safe) hn::StoreU(inverses.r, FourTag(), rows.rstd + row);
  }
  for (; row < rows.count; ++row) {
    NormaliseRow<true, kCast, kWeighted, X, Y>(norm, rows, row);
  }
}

// Long rows, four at a time, which share each load of the weight: 64 x 16384 in f32 takes 1.67
// times memcpy's time so, and 1.97 without.
template <bool kCast, bool kWeighted, class X, class Y>
HWY_NOINLINE void NormaliseLongRows(const Norm& norm, const Rows& rows) {
  size_t row = 0;
  for (; row + 4 <= rows.count; row += 4) {
    HWY_ALIGN float sums[4];
    for (size_t i = 0; i < 4; ++i) sums[i] = SumSquares(rows.Input<X>(row + i), norm.d);
    const FourInverses inverses = InvertFour(norm, hn::Load(FourTag(), sums));
    if (HWY_LIKELY(inverses.safe)) {
      ScaleFourLongRows<kCast, kWeighted, X, Y>(norm, rows, row, inverses.r);
      if (rows.rstd != nullptr) hn::StoreU(inverses.r, FourTag(), rows.rstd + row);
    } else {
      for (size_t i = row; i < row + 4; ++i) {
        NormaliseRow<false, kCast, kWeighted, X, Y>(norm, rows, i);
      }
    }
  }
  for (; row < rows.count; ++row) {
    NormaliseRow<false, kCast, kWeighted, X, Y>(norm, rows, row);
  }
}

// ------------------------------------------------------------------ rows in registers

// Two rows of up to 128 f32 elements take half of the registers of AVX-512. One is summed while the
// one before it waits for its 1 / RMS. Beside reading a row again to scale it, 4096 x 128
// takes 1.05 times memcpy's time instead of 1.29, and past the caches 0.65 instead of 0.90.
// Elements of 16 bits take 4 to 20 % longer so: arithmetic bounds them, and four rows at a time
// share a root and divisions.
template <class X>
constexpr bool kFitsRegisters = kN >= 16 && std::is_same_v<X, float>;

// The pairs of registers that hold a row in kPairs pairs: the tree of sums has 1, 2 or 4 leaves.
template <size_t kPairs>
constexpr size_t kHeldPairs = kPairs == 3 ? 4 : kPairs;

// Tells the compiler what is known of rows that take kPairs pairs, so that branches on their length
// leave no code. With kWhole they fill the pairs, and the divisor is their length, so that it
// multiplies by the inverse: 4096 x 64 takes 8 % less time so.
template <size_t kPairs, bool kWhole>
HWY_INLINE void AssumeHeld(Norm& norm) {
  if constexpr (kWhole) {
    norm.d = kPairs * kPair;
    norm.divisor = kPairs * kPair;
  } else if (norm.d <= (kPairs - 1) * kPair || norm.d > kPairs * kPair) {
    __builtin_unreachable();
  }
}

template <size_t kPairs>
HWY_INLINE bool IsWhole(const Norm& norm) {
  constexpr size_t kLength = kPairs * kPair;
  return norm.d == kLength && norm.divisor == static_cast<float>(kLength);
}

// The first n elements, and then zeros. With kWhole n is a multiple of kPair.
template <bool kWhole, size_t kCount, class Source>
HWY_INLINE Lanes<kCount> LoadRow(Source x, size_t n) {
  if constexpr (kCount == 1) {
    return {kWhole ? LoadForSum(x) : LoadFirst(x, n)};
  } else {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) return {LoadRow<kWhole, kCount / 2>(x, n), ZeroLanes<kCount / 2>()};
    return {LoadRow<true, kCount / 2>(x, kHalf), LoadRow<kWhole, kCount / 2>(x + kHalf, n - kHalf)};
  }
}

template <size_t kCount>
HWY_INLINE Lanes<kCount> Squares(const Lanes<kCount>& row) {
  if constexpr (kCount == 1) {
    return Squares(row.pair);
  } else {
    return {Squares(row.first), Squares(row.second)};
  }
}

template <size_t kCount>
HWY_INLINE float Sum(const Lanes<kCount>& lanes) {
  return FoldBlock<const float*>(FoldToFour<const float*>(FoldToPair(lanes)));
}

// Stores what LoadRow() loads, past the caches if kStream.
template <bool kWhole, bool kStream, size_t kCount>
HWY_INLINE void StoreRow(const Lanes<kCount>& row, float* to, size_t n) {
  if constexpr (kCount > 1) {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) return StoreRow<kWhole, kStream>(row.first, to, n);
    StoreRow<true, kStream>(row.first, to, kHalf);
    StoreRow<kWhole, kStream>(row.second, to + kHalf, n - kHalf);
  } else if constexpr (!kWhole) {
    StoreFirst(row.pair, to, n);
  } else if constexpr (kStream) {
    Stream(row.pair, to);
  } else {
    Store(row.pair, to);
  }
}

template <size_t kCount>
HWY_INLINE Lanes<kCount> ScaledRow(const Lanes<kCount>& row, F32Vec r,
                                   const Lanes<kCount>& weight) {
  if constexpr (kCount == 1) {
    return {Scaled<false, true, float>(row.pair, r, weight.pair)};
  } else {
    return {ScaledRow(row.first, r, weight.first), ScaledRow(row.second, r, weight.second)};
  }
}

// The rows from `begin` on, up to one that is not safe: returns its index and sets what is under
// its root, or returns the number of rows. What is given is copied here, so that it is not read
// again after each store, and not by the call: a copy by vectors waits for the caller's stores of
// single fields, and one row of 64 took 2.5 times as long by clang.
template <size_t kPairs, bool kWhole, bool kStream, class Sources>
HWY_NOINLINE size_t NormaliseSafeRows(const Norm& given_norm, const Rows& given_rows,
                                      const typename Sources::Given& given, size_t begin,
                                      float& unsafe_root) {
  Norm norm = given_norm;
  const Rows rows = given_rows;
  const Sources sources = {given};
  constexpr size_t kCount = kHeldPairs<kPairs>;
  AssumeHeld<kPairs, kWhole>(norm);
  const size_t d = norm.d;
  const Lanes<kCount> weight = LoadRow<kWhole, kCount>(norm.weight, d);
  // The row after one that was not safe has been read.
  Lanes<kCount> row = begin == 0 ? LoadRow<kWhole, kCount>(sources.First(0), d)
                                 : LoadRow<kWhole, kCount>(rows.Input<float>(begin), d);
  float sum = Sum(Squares(row));
  for (size_t i = begin; i < rows.count; ++i) {
    Lanes<kCount> next = row;
    float next_sum = sum;
    if (i + 1 < rows.count) {
      next = LoadRow<kWhole, kCount>(sources.First(i + 1), d);
      next_sum = Sum(Squares(next));
    }
    const float under_root = UnderRoot(norm, sum);
    if (HWY_UNLIKELY(!IsSafe(under_root))) {
      unsafe_root = under_root;
      return i;
    }
    const float r = InverseRms(norm, under_root);
    StoreRow<kWhole, kStream>(ScaledRow(row, hn::Set(F32Tag(), r), weight), rows.Output<float>(i),
                              d);
    if (rows.rstd != nullptr) rows.rstd[i] = r;
    row = next;
    sum = next_sum;
  }
  return rows.count;
}

// Whether every row starts where a store past the caches may.
HWY_INLINE bool AreAligned(const void* first_row, ptrdiff_t stride) {
  return reinterpret_cast<uintptr_t>(first_row) % sizeof(F32Vec) == 0 &&
         stride % static_cast<ptrdiff_t>(kN) == 0;
}

// Rows that take kPairs pairs, whose elements come, when they are read first, from Sources, and
// then from rows.x.
template <size_t kPairs, class Sources>
HWY_INLINE void NormaliseHeldRows(const Norm& norm, const Rows& rows,
                                  const typename Sources::Given& given) {
  const bool whole = IsWhole<kPairs>(norm);
  const bool stream = rows.stream && AreAligned(rows.y, rows.y_stride);
  float unsafe_root = 0;
  for (size_t i = 0; i < rows.count; ++i) {
    i = !whole ? NormaliseSafeRows<kPairs, false, false, Sources>(norm, rows, given, i, unsafe_root)
        : stream
            ? NormaliseSafeRows<kPairs, true, true, Sources>(norm, rows, given, i, unsafe_root)
            : NormaliseSafeRows<kPairs, true, false, Sources>(norm, rows, given, i, unsafe_root);
    if (i == rows.count) return;
    const float r = NormaliseColdRow<float>(norm, rows.Input<float>(i), rows.Output<float>(i),
                                            unsafe_root, nullptr);
    if (rows.rstd != nullptr) rows.rstd[i] = r;
  }
}

// The pairs that such rows take, or 0 where they are not held.
HWY_INLINE size_t HeldPairs(const Norm& norm) {
  return norm.weight != nullptr && norm.d <= kLanes ? (norm.d + kPair - 1) / kPair : 0;
}

// The rows of x as they are: forward's.
struct InputRows {
  using Given = Rows;
  HWY_INLINE const float* First(size_t row) const { return rows.Input<float>(row); }
  Rows rows;
};

// ------------------------------------------------------------------ the way of each call

template <bool kSumsGiven, bool kCast, bool kWeighted, class X, class Y>
HWY_INLINE void NormaliseRows(const Norm& norm, const Rows& rows) {
  if constexpr (kSumsGiven) {
    if constexpr (kIsUsual<kWeighted, X, Y>) {
      if (norm.d * sizeof(X) <= kShortRowBytes) {
        return ScaleShortRows<kCast, kWeighted, X, Y>(norm, rows);
      }
    }
  } else {
    constexpr bool kUsual = kIsUsual<kWeighted, X, Y>;
    if constexpr (kUsual && kFitsRegisters<X>) {
      switch (HeldPairs(norm)) {
        case 1:
          return NormaliseHeldRows<1, InputRows>(norm, rows, rows);
        case 2:
          return NormaliseHeldRows<2, InputRows>(norm, rows, rows);
        case 3:
          return NormaliseHeldRows<3, InputRows>(norm, rows, rows);
        case 4:
          return NormaliseHeldRows<4, InputRows>(norm, rows, rows);
      }
    }
    if (rows.count >= 4) {
      if constexpr (kUsual && !kFitsRegisters<X>) {
        if (norm.d == 64) return NormaliseShortRows<64, kCast, kWeighted, X, Y>(norm, rows);
        if (norm.d == 128) return NormaliseShortRows<128, kCast, kWeighted, X, Y>(norm, rows);
      }
      if (norm.d * sizeof(X) <= kShortRowBytes) {
        return NormaliseShortRows<0, kCast, kWeighted, X, Y>(norm, rows);
      }
      if constexpr (kUsual) {
        if (norm.d >= kLongRow && !rows.stream) {
          return NormaliseLongRows<kCast, kWeighted, X, Y>(norm, rows);
        }
      }
    }
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
    const bool hot = IsSafeSum(sum, norm.divisor) || std::isnan(sum);
    rows.sums[row] = hot ? sum : ColdSumSquares(x, norm.d);
  }
}

template <class X>
void BlockSums(const Norm& norm, const Rows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    rows.sums[row] = SumSquares(rows.Input<X>(row), norm.d);
  }
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

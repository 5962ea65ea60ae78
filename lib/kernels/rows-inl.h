// SPDX-License-Identifier: Apache-2.0
// What the leaves of forward and of backward share beyond elements and sums, compiled for each
// target: rows of a run, and rows that stay in registers.

#if defined(RMSNORM_LIB_KERNELS_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_ROWS_INL_H_
#undef RMSNORM_LIB_KERNELS_ROWS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_ROWS_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "../thresholds.h"
#include "leaves.h"
#include "squares-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

constexpr size_t kCacheLine = 64;

// Into L2, not into L1, where the row being scaled and the weight are: 8192 x 4096 in f32 takes 5 %
// less time so, 2048 x 16384 15 %.
HWY_INLINE void PrefetchToL2(const void* from) { __builtin_prefetch(from, 0, 2); }

// Brings lines of y or dx into L1 before they are stored to, as a store waits for its line. For f32
// alone: rows of 16 bits take longer to compute than their lines to come. On a Xeon forward of
// 32 x 4096 takes 0.95 of the time so, of 64 x 512 on AVX2 0.65, and backward 0.9 of it, 0.8 on
// AVX2. Where the lines are in L1 anyway forward takes up to 7 % longer, and backward of a single
// row up to 30 %.
template <class T>
constexpr bool kMayFetch = sizeof(T) == 4;

// Where the last fetch of n elements in a row of d may begin. It goes past the end of the row only
// where another row follows: the lines there may else be another thread's, and backward of
// 12 x 4096 by two threads, in columns, took 1.3 times as long.
HWY_INLINE size_t LastFetch(bool row_follows, size_t d, size_t n) {
  return row_follows ? ~size_t{0} : d - n;
}

// Brings the lines of n elements into L1.
template <class T>
HWY_INLINE void Fetch(const T* from, size_t n) {
  for (size_t i = 0; i < n; i += kCacheLine / sizeof(T)) __builtin_prefetch(from + i, 0, 3);
}

// Fetches the lines of n elements that will be stored soon after those at j.
template <class T>
HWY_INLINE void FetchForStores(const T* row, size_t j, size_t n, size_t last) {
  constexpr size_t kAhead = 512 / sizeof(T);  // 1024 and 2048 bytes do as well
  Fetch(row + std::min(j + kAhead, last), n);
}

// Whether every row starts where a store past the caches may.
HWY_INLINE bool AreAligned(const Run& run, Operand operand) {
  constexpr uintptr_t kSize = sizeof(F32Vec);
  return (reinterpret_cast<uintptr_t>(run.data[operand]) |
          static_cast<uintptr_t>(run.stride[operand])) %
             kSize ==
         0;
}

// Whether four rows fit L1 with the weight.
HWY_INLINE bool IsShort(const Norm& norm, const Run& run) {
  return run.d * ElementSize(norm.dtype[kX]) <= kShortRowBytes;
}

// The rows of an operand. A copy of what a run says, which would be read again after each store.
template <class T>
struct RowsOf {
  RowsOf() = default;
  HWY_INLINE RowsOf(const Run& run, Operand operand)
      : data(run.data[operand]), stride(run.stride[operand]) {}
  HWY_INLINE T* operator[](size_t row) const {
    return reinterpret_cast<T*>(data + static_cast<ptrdiff_t>(row) * stride);
  }

  char* data = nullptr;
  ptrdiff_t stride = 0;
};

// ------------------------------------------------------------------ rows in registers

// Rows of up to four pairs of vectors, widened to f32, stay in registers: 128 elements on AVX-512,
// where two such rows take half of the registers, and 64 on AVX2.
constexpr bool kHoldsRows = kN >= 8;
constexpr size_t kLongestHeld = 4 * kPair;

// The pairs of registers that hold a row in kPairs pairs: the tree of sums has 1, 2 or 4 leaves.
template <size_t kPairs>
constexpr size_t kHeldPairs = kPairs == 3 ? 4 : kPairs;

// Tells the compiler what is known of the length of rows that take kPairs pairs, so that branches
// on it leave no code. With kWhole they fill the pairs.
template <size_t kPairs, bool kWhole>
HWY_INLINE void AssumeHeld(size_t& d) {
  if constexpr (kWhole) {
    d = kPairs * kPair;
  } else if (d <= (kPairs - 1) * kPair || d > kPairs * kPair) {
    __builtin_unreachable();
  }
}

// The first n elements, and then zeros. With kWhole n is a multiple of kPair.
template <bool kWhole, size_t kCount, class Source>
HWY_INLINE Lanes<kCount> LoadRow(Source x, size_t n) {
  if constexpr (kCount == 1) {
    return {kWhole ? Load(x) : LoadFirst(x, n)};
  } else {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) return {LoadRow<kWhole, kCount / 2>(x, n), ZeroLanes<kCount / 2>()};
    return {LoadRow<true, kCount / 2>(x, kHalf), LoadRow<kWhole, kCount / 2>(x + kHalf, n - kHalf)};
  }
}

template <size_t kCount>
HWY_INLINE float Sum(const Lanes<kCount>& lanes) {
  return FoldOne(FoldPairToFour<const float*>(FoldToPair(lanes)));
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

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ROWS_INL_H_

// SPDX-License-Identifier: Apache-2.0
// The rows of a run: where they are, whether they are short or aligned, fetching them into the
// caches, and keeping them in registers. Forward and backward share this file.
//
//   T       the type of the elements
//   kPairs  pairs of vectors that a row in registers takes, the last of which may be partly used
//   kCount  pairs in the tree that holds such a row: 1, 2 or 4
//   kWhole  such a row fills its pairs

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

// Fetches into L2, not into L1, which holds the row being scaled and the weight.
HWY_INLINE void PrefetchToL2(const void* from) { RMSNORM_FETCH_TO_L2(from); }

// Whether lines of y or dx may be fetched into L1 before they are stored to. Only for f32: rows of
// 16 bits take longer to compute than their lines take to come.
template <class T>
constexpr bool kMayFetch = sizeof(T) == 4;

// Where the last fetch of n elements in a row of d may begin. It goes past the row's end only where
// another row of the run follows, as the lines there may be another thread's.
HWY_INLINE size_t LastFetch(bool row_follows, size_t d, size_t n) {
  return row_follows ? ~size_t{0} : d - n;
}

// Brings the lines of n elements into L1.
template <class T>
HWY_INLINE void Fetch(const T* from, size_t n) {
  for (size_t i = 0; i < n; i += kCacheLine / sizeof(T)) RMSNORM_FETCH_TO_L1(from + i);
}

// Fetches the lines of n elements that will be stored soon after those at j. Only Intel's CPUs gain
// from it, so a test may not run it.
template <class T>
HWY_INLINE void FetchForStores(const T* row, size_t j, size_t n, size_t last) {  // GCOVR_EXCL_LINE
  constexpr size_t kAhead = 512 / sizeof(T);   // as good: 1024 and 2048. GCOVR_EXCL_LINE
  Fetch(row + std::min(j + kAhead, last), n);  // GCOVR_EXCL_LINE
}  // GCOVR_EXCL_LINE

// Whether every row starts where a store past the caches may.
HWY_INLINE bool AreAligned(const RowRun& run, Operand operand) {
  constexpr uintptr_t kSize = sizeof(F32Vec);
  return (reinterpret_cast<uintptr_t>(run.data[operand]) |
          static_cast<uintptr_t>(run.stride[operand])) %
             kSize ==
         0;
}

// Whether four rows fit L1 with the weight.
HWY_INLINE bool IsShort(const Norm& norm, const RowRun& run) {
  return run.d * ElementSize(norm.dtype[kX]) <= kShortRowBytes;
}

// The rows of an operand. A copy, as fields of the run would be loaded again after each store.
template <class T>
struct RowsOf {
  // Not the implicit constructor, which gcc compiles for the baseline and does not inline.
  HWY_INLINE RowsOf() : data(nullptr), stride(0) {}
  HWY_INLINE RowsOf(const RowRun& run, Operand operand)
      : data(run.data[operand]), stride(run.stride[operand]) {}
  HWY_INLINE T* operator[](size_t row) const {
    return reinterpret_cast<T*>(data + static_cast<ptrdiff_t>(row) * stride);
  }

  char* data;
  ptrdiff_t stride;
};

// ------------------------------------------------------------------ rows in registers, as f32

// Rows of up to four pairs of vectors stay in registers: 128 elements on AVX-512, where two such
// rows take half of the registers, and 64 on AVX2.
constexpr bool kHoldsRows = kN >= 8;
constexpr size_t kLongestHeld = 4 * kPair;

// The pairs of registers that hold a row in kPairs pairs: the tree of sums has 1, 2 or 4 leaves.
template <size_t kPairs>
constexpr size_t kHeldPairs = kPairs == 3 ? 4 : kPairs;

// Tells the compiler what is known of the row length, so that branches on it leave no code.
template <size_t kPairs, bool kWhole>
HWY_INLINE void AssumeHeld(size_t& d) {
  if constexpr (kWhole) {
    d = kPairs * kPair;
  } else if (d <= (kPairs - 1) * kPair || d > kPairs * kPair) {
    RMSNORM_UNREACHABLE();  // GCOVR_EXCL_LINE
  }
}

// Loads the first n elements, followed by zeros. With kWhole n is a multiple of kPair.
template <bool kWhole, size_t kCount, class T>
HWY_INLINE Lanes<kCount> LoadRow(const T* x, size_t n) {
  if constexpr (kCount == 1) {
    return {kWhole ? Load(x) : Load(x, First{n})};
  } else {
    constexpr size_t kHalf = kCount / 2 * kPair;
    if (n <= kHalf) return {LoadRow<kWhole, kCount / 2>(x, n), ZeroLanes<kCount / 2>()};
    return {LoadRow<true, kCount / 2>(x, kHalf), LoadRow<kWhole, kCount / 2>(x + kHalf, n - kHalf)};
  }
}

template <size_t kCount>
HWY_INLINE float SumOfLanes(const Lanes<kCount>& lanes) {
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
    Store(row.pair, to, First{n});
  } else if constexpr (kStream) {
    Stream(row.pair, to);
  } else {
    Store(row.pair, to);
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ROWS_INL_H_

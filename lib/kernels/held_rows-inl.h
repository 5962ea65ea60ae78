// SPDX-License-Identifier: Apache-2.0
// Rows that stay in registers, as f32. Forward and backward share this file.
//
//   kPairs  pairs of vectors that a row takes, the last of which may be partly used
//   kCount  pairs in the tree that holds the row: 1, 2 or 4
//   kWhole  the row fills its pairs

#if defined(RMSNORM_LIB_KERNELS_HELD_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_HELD_ROWS_INL_H_
#undef RMSNORM_LIB_KERNELS_HELD_ROWS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_HELD_ROWS_INL_H_
#endif

#include "squares-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

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
    __builtin_unreachable();
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

#endif  // RMSNORM_LIB_KERNELS_HELD_ROWS_INL_H_

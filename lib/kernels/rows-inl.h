// SPDX-License-Identifier: Apache-2.0
// The rows of a run: where they are, whether they are short or aligned, and fetching them into the
// caches. T is the type of the elements.

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
HWY_INLINE void PrefetchToL2(const void* from) { __builtin_prefetch(from, 0, 2); }

// Whether lines of y or dx are fetched into L1 before they are stored to, as a store waits for its
// line. Only for f32: rows of 16 bits take longer to compute than their lines take to come. It
// costs a little where the lines are in L1 already.
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

// The rows of an operand. A copy, as fields of the run would be loaded again after each store.
template <class T>
struct RowsOf {
  // Not the implicit constructor, which gcc compiles for the baseline and does not inline.
  HWY_INLINE RowsOf() : data(nullptr), stride(0) {}
  HWY_INLINE RowsOf(const Run& run, Operand operand)
      : data(run.data[operand]), stride(run.stride[operand]) {}
  HWY_INLINE T* operator[](size_t row) const {
    return reinterpret_cast<T*>(data + static_cast<ptrdiff_t>(row) * stride);
  }

  char* data;
  ptrdiff_t stride;
};

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ROWS_INL_H_

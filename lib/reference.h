// SPDX-License-Identifier: Apache-2.0
// The definition of every number this library gives, in plain loops.
#ifndef RMSNORM_LIB_REFERENCE_H_
#define RMSNORM_LIB_REFERENCE_H_

#include <algorithm>
#include <cmath>

#include "element.h"
#include "rows.h"

namespace rmsnorm::internal {

// The order of summation: a row is cut into blocks, and the elements of a block go to the lanes in
// turn.
constexpr size_t kLanes = 128;
constexpr size_t kBlock = 4096;

// A sum over d elements in that order. add(lane, j) is a lane with the term of element j added to
// it. Element j of a block is added to lane j mod 128; the lanes fold as a tree; the sums of the
// blocks add up in rising order.
template <class Real, class Add>
Real SumByLanes(size_t d, const Add& add) {
  Real total = 0;
  for (size_t begin = 0; begin < d; begin += kBlock) {
    const size_t size = std::min(kBlock, d - begin);
    Real lane[kLanes] = {};
    for (size_t j = 0; j < size; ++j) lane[j % kLanes] = add(lane[j % kLanes], begin + j);
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
    }
    total += lane[0];
  }
  return total;
}

// Step 1 of reference.cc. A block that is not full counts as padded with +0, which changes no lane.
// In binary64 the square is exact, so that fma and multiply-then-add agree. Static, as the two
// files of the reference are compiled with options of their own.
template <class Real, class X>
[[gnu::noinline]] static Real SumSquares(const X* x, size_t d) {
  return SumByLanes<Real>(d, [x](Real lane, size_t j) {
    const Real value = ToF32(x[j]);
    return std::fma(value, value, lane);
  });
}

// The kernels of the target "reference".
extern const KernelTable kReferenceTable;

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_REFERENCE_H_

// SPDX-License-Identifier: Apache-2.0
// The definition of every number this library gives, in plain loops.
#ifndef RMSNORM_LIB_REFERENCE_H_
#define RMSNORM_LIB_REFERENCE_H_

#include "rows.h"

namespace rmsnorm::internal {

// The order of summation: a row is cut into blocks, and the elements of a block go to the lanes in
// turn.
constexpr size_t kLanes = 128;
constexpr size_t kBlock = 4096;

// The kernels of the target "reference".
extern const KernelTable kReferenceTable;

// Scales one row, in place where x == y: for the rare rows that the kernels' own loops cannot take.
template <class X, class Y>
void HotScale(const Norm& norm, float r, const X* x, Y* y);

// The cold path, which the kernels of every target take for the rows that IsSafe() turns away. X
// and Y are element types.

// The sum of squares of one row in binary64.
template <class X>
double ColdSumSquares(const X* x, size_t d);

// Scales one row, in place where x == y, and returns 1 / RMS.
template <class X, class Y>
double ColdScale(const Norm& norm, double sum, const X* x, Y* y);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_REFERENCE_H_

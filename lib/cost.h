// SPDX-License-Identifier: Apache-2.0
// What work takes on one thread. It decides how a call is split, and no bit of a result.
#ifndef RMSNORM_LIB_COST_H_
#define RMSNORM_LIB_COST_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>

#include "kernel_table.h"

namespace rmsnorm::internal {

// Work on one target and one type of x.
struct Work {
  const KernelTable* kernels;
  rmsnorm_dtype dtype;
  size_t elements;  // of forward: an element of another operation counts as several, or as half one
};

// The work of `elements` elements of a forward call with these operands, counted in elements of a
// call by x and the weight alone.
size_t CostOfForward(OperandSet given, size_t elements);

// The same of a backward call: it takes 2.1 to 2.5 times as long as forward (8 x 4096, AVX2 and
// AVX-512, f32 and bf16).
constexpr size_t kCostOfBackward = 2;

// Picoseconds that forward takes for an element of rows in the second cache; at least 30. Work that
// is worth splitting does not fit the first. Forward of a few rows is timed for that once for each
// target and type, in its own floating-point state: an element took 50 on one machine with AVX-512
// and 550 on one with AVX2, in bf16. The timing takes 20 to 90 us on AVX2 and AVX-512, and 0.2 ms
// (f32) to 0.6 ms (f16) where the reference runs.
size_t PicosecondsOfElement(const Work& work);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_COST_H_

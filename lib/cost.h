// SPDX-License-Identifier: Apache-2.0
// What work takes on one thread. It decides how a call is split, and no bit of a result.
#ifndef RMSNORM_LIB_COST_H_
#define RMSNORM_LIB_COST_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>

#include "kernels.h"

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

// By how much a part must be larger where work is done in two steps, each of them handed out: a row
// that several threads share is summed and then scaled; the second step of backward reads x and dy
// again, and the two take 1.4 (bf16) to 1.5 times (f32) as long (8 x 4096, AVX2). Two threads then
// take 0.75 to 0.9 of one's time for backward of 12 x 4096 in f32 on a Xeon, and in 16 bits, whose
// rows take less, 0.85 to 1.15.
constexpr size_t kInSteps = 2;

// A row of x and a residual alone goes to at least this number of threads or to one: in two steps
// it goes by tiles, which take three (f32) to four times (bf16) as long as its leaves (1 x 65536,
// AVX-512).
constexpr size_t kThreadsOfAddedRow = 5;

// Picoseconds that forward takes for an element of rows in the second cache; at least 30. Work that
// is worth splitting does not fit the first. Forward of a few rows is timed for that once for each
// target and type, in its own floating-point state: an element took 50 on one machine with AVX-512
// and 550 on one with AVX2, in bf16. The timing takes 20 to 90 us on AVX2 and AVX-512, and 0.2 ms
// (f32) to 0.6 ms (f16) where the reference runs.
size_t PicosecondsOfElement(const Work& work);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_COST_H_

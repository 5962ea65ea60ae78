// SPDX-License-Identifier: Apache-2.0
// The loops over elements that a target's backward kernels call. Those of an element type serve
// rows whose x, dy and dx are of that type, and those of f32 the tiles of all others.
#ifndef RMSNORM_LIB_KERNELS_BACKWARD_LEAVES_H_
#define RMSNORM_LIB_KERNELS_BACKWARD_LEAVES_H_

#include "leaves.h"

namespace rmsnorm::internal {

// The lanes of a block's sums, folded to four.
struct FoldedDots {
  alignas(16) float dot[4];      // of c
  alignas(16) float squares[4];  // 0 where they are not asked for
};

// What is done with dx: nothing, it is written, added to what is there, or written past the caches.
enum class Dx { kNone, kStore, kAdd, kStream };
constexpr int kDxWays = 4;

// The terms of c of a block of n elements.
using DotLeaf = FoldedDots (*)(const void* x, const void* dy, const float* weight, size_t n);
// One row of a run by its terms, or two neighbouring ones.
using ApplyLeaf = void (*)(const Run& run, size_t row, const Terms<float>& terms);
using ApplyTwoLeaf = void (*)(const Run& run, size_t row, const Terms<float>& a_terms,
                              const Terms<float>& b_terms);

struct BackwardLeaves {
  DotLeaf dot[kDtypes][2];               // without and with the squares
  ApplyLeaf apply[kDtypes][kDxWays][2];  // without and with dw; none without either
  ApplyTwoLeaf apply_two[kDtypes][2];    // without and with dw; dx is written
  // Rows that fit registers, with dx, dw and rstd, and eps inside the root: those from `begin` on,
  // up to one that is not safe, by type and by the pairs of vectors that they take, less 1. Returns
  // the index of the first row that is not done. Null where registers are few.
  size_t (*held_rows[kDtypes][4])(const Norm& norm, const Run& run, size_t begin);
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNELS_BACKWARD_LEAVES_H_

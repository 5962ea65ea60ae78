// SPDX-License-Identifier: Apache-2.0
// The leaves of a target: everything of it that depends on element types. Drivers call them, and
// have no element types themselves.
//
// Rows in which x and all that have its shape are of one type have leaves of their own. Every other
// combination goes through tiles: f32 values of neighbouring elements, followed by zeros up to a
// multiple of kLanes, aligned to a vector.
#ifndef RMSNORM_LIB_KERNELS_LEAVES_H_
#define RMSNORM_LIB_KERNELS_LEAVES_H_

#include <cstddef>
#include <cstdint>

#include "../kernel_table.h"
#include "../quantised.h"

namespace rmsnorm::internal {

struct BackwardLeaves;  // backward_leaves.h

// A dtype's position in the tables of leaves.
constexpr int kDtypes = 3;
constexpr int DtypeIndex(rmsnorm_dtype dtype) { return dtype - RMSNORM_F32; }
constexpr int kF32 = DtypeIndex(RMSNORM_F32);

// The lengths of rows for which loops of known length pay, and 0 for any other.
constexpr size_t kShortLengths[] = {0, 64, 128};

// Writes y = x * r * weight for a row, with x * r rounded to its type or not. `next` is the row to
// fetch meanwhile, or x where there is none; `more` says that another row follows, whose y begins
// at the end of this one.
using ScaleLeaf = void (*)(const void* x, const float* weight, size_t d, float r, void* y,
                           const void* next, bool more);

// Scales four rows of x or, once it has been written, of residual_out, each load of the weight
// shared.
using ScaleFourLeaf = void (*)(const Run& run, Operand source, size_t row, const float* r);

using PostNormLeaf = void (*)(const Norm& norm, const Run& run, size_t row, float r);
using GateLeaf = void (*)(const Norm& norm, const Run& run, Operand source, size_t row, float r);

// Forward for the rows from `begin` on, up to some that are not safe. Returns the index of the
// first row that is not done.
using RowsLeaf = size_t (*)(const Norm& norm, const Run& run, size_t begin);

struct Leaves {
  // From n elements to a tile and, rounded, back.
  void (*widen[kDtypes])(const void* from, size_t n, float* tile);
  void (*narrow[kDtypes])(const float* tile, size_t n, void* to);
  // KernelTable::prepare of a type.
  void (*prepare[kDtypes])(const void* from, size_t d, float offset, float* prepared);

  // The f32 sum of squares of a row.
  float (*sum_squares[kDtypes])(const void* x, size_t d);
  // [type][whether x * r is rounded][whether past the caches]
  ScaleLeaf scale[kDtypes][2][2];
  ScaleFourLeaf scale_four[kDtypes][2];  // [type][whether x * r is rounded]
  // Rows of at most a block without a residual, by fours: [type][whether x * r is rounded][length].
  // Those of length 128 are not for rows past the caches.
  RowsLeaf short_rows[kDtypes][2][3];
  // f32 rows that fit registers, without a residual and with one, by the pairs of vectors that they
  // take, less 1. A residual has been added to the rows that are not done, too, up to one beyond
  // the row whose index is returned. Null where registers are few.
  RowsLeaf held_rows[2][4];
  // Writes residual_out = residual + x for a row, and returns the f32 sum of its squares.
  float (*add_row[kDtypes])(const void* x, const void* residual, void* residual_out, size_t d);
  // The same for rows of at most a block, a multiple of four.
  void (*add_by_fours[kDtypes])(const Run& run, size_t begin, size_t count, float* sums);

  // Writes residual_out = residual + x for a row of x that is normalised first, by its 1 / RMS.
  PostNormLeaf post_norm_add[kDtypes];
  // Writes y for a row of x or, once it has been written, of residual_out, with a gate after the
  // norm.
  GateLeaf scale_gated[kDtypes];
  // Makes a tile of n elements of x times the activation of a gate before the norm. What follows
  // them is not all zeros.
  void (*gate_tile[kDtypes])(rmsnorm_activation activation, const void* x, const void* gate,
                             size_t n, float* tile);
  // Writes y for a tile, by the 1 / RMS of its row.
  void (*scale_tile[kDtypes])(bool cast, const float* tile, const float* weight, size_t n, float r,
                              void* y);

  // Adds values to the range of a row, and writes the integers that stand for them. Not for rows
  // whose integers are 0, as they may not be finite.
  void (*add_to_range[kDtypes])(const void* values, size_t n, QuantisedRange& range);
  void (*quantise[kDtypes])(const void* values, size_t n, const QuantisedSteps& steps, int8_t* q);

  const BackwardLeaves* backward;
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNELS_LEAVES_H_

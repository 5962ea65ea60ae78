// SPDX-License-Identifier: Apache-2.0
// The leaves of a target: the loops over elements, and the only code that depends on element types.
// Drivers find the leaves of a run once, and call them row by row.
//
// Rows in which x and all operands of its shape have one type have leaves of that type. Every other
// combination goes through tiles: f32 values of neighbouring elements, aligned to a vector and
// followed by zeros up to a multiple of kLanes.
#ifndef RMSNORM_LIB_KERNELS_LEAVES_H_
#define RMSNORM_LIB_KERNELS_LEAVES_H_

#include <cstddef>
#include <cstdint>

#include "../gradient_terms.h"
#include "../kernel_table.h"
#include "../quantised.h"

namespace rmsnorm::internal {

// A dtype's position in the tables of leaves.
constexpr int kDtypes = 3;
constexpr int DtypeIndex(rmsnorm_dtype dtype) { return dtype - RMSNORM_F32; }
constexpr int kF32 = DtypeIndex(RMSNORM_F32);

// The row lengths for which loops of known length pay; 0 stands for every other length.
constexpr size_t kShortLengths[] = {0, 64, 128};

// ------------------------------------------------------------------ forward

// Returns the f32 sum of squares of a row of x, or of residual + x, which it then writes to
// residual_out. Without a residual only x and d are used.
using SumLeaf = float (*)(const void* x, const void* residual, void* residual_out, size_t d);

// Writes y = x * r * weight for a row. `next` is the row to fetch meanwhile, or x where there is
// none. `more` says that the memory after y is the next row of y.
using ScaleLeaf = void (*)(const void* x, const float* weight, size_t d, float r, void* y,
                           const void* next, bool more);

// Scales four rows of `source`, and loads the weight once for all of them.
using ScaleFourLeaf = void (*)(const RowRun& run, Operand source, size_t row, const float* r);

// Writes the outputs of a row of `source` from its 1 / RMS.
using RowLeaf = void (*)(const Norm& norm, const RowRun& run, Operand source, size_t row, float r);

// Writes the rotated part of `count` rows of y. The tables that they share have numbers in f32: for
// halves one for each pair, for neighbours one for each element, and the first of a pair has -sin.
// `normal` says that no number but zero becomes subnormal on the way from an x of 2^-63 or more,
// and that y is not the sum of two zeros.
using RotatedLeaf = void (*)(const Norm& norm, const RowRun& run, const float* cos,
                             const float* sin, size_t row, size_t count, const float* r,
                             bool normal);

// Runs forward or backward for the rows from `begin` on, and stops early at a row that f32 does not
// hold. Returns the index of the first row that is not done.
using RowsLeaf = size_t (*)(const Norm& norm, const RowRun& run, size_t begin);

// ------------------------------------------------------------------ backward

// A block's sums by lanes, folded to four lanes.
struct FoldedDots {
  alignas(16) float dot[4];      // of c
  alignas(16) float squares[4];  // 0 unless asked for
};

// What happens to dx. kStream writes it past the caches.
enum class Dx { kNone, kStore, kAdd, kStream };
constexpr int kDxWays = 4;

// Sums n elements, at most a block.
using DotLeaf = FoldedDots (*)(const void* x, const void* dy, const float* weight, size_t n);

// Writes the gradients of one row, or of two neighbouring rows, from their terms.
using ApplyLeaf = void (*)(const RowRun& run, size_t row, const Terms<float>& terms);
using ApplyTwoLeaf = void (*)(const RowRun& run, size_t row, const Terms<float>& a_terms,
                              const Terms<float>& b_terms);

struct BackwardLeaves {
  DotLeaf dot[kDtypes][2];               // [type][with the squares]
  ApplyLeaf apply[kDtypes][kDxWays][2];  // [type][dx][with dw]; null where neither is written
  ApplyTwoLeaf apply_two[kDtypes][2];    // [type][with dw]; they store dx
  // Rows that fit registers, with dx, dw and rstd, and eps inside the root:
  // [type][pairs of vectors - 1]. Null where registers are few.
  RowsLeaf held_rows[kDtypes][4];
};

// ------------------------------------------------------------------ all leaves of a target

struct Leaves {
  // Widens n elements to a tile.
  void (*widen[kDtypes])(const void* from, size_t n, float* tile);
  // Rounds a tile to n elements.
  void (*narrow[kDtypes])(const float* tile, size_t n, void* to);
  // KernelTable::add_offset for a type.
  void (*add_offset[kDtypes])(const void* from, size_t d, float offset, float* column);

  SumLeaf sum[kDtypes];
  SumLeaf add_and_sum[kDtypes];
  // Adds and sums `count` rows of at most a block each; `count` is a multiple of four.
  void (*add_and_sum_fours[kDtypes])(const RowRun& run, size_t begin, size_t count, float* sums);
  // Writes residual_out = residual + x * r * weight for a row of f32, and returns the sum of
  // squares of residual_out.
  float (*add_norm)(const float* x, float r, const float* weight, const float* residual,
                    float* residual_out, size_t d);
  // Writes residual_out = (residual + x * gate) * factor, and rounds each of the three. Without a
  // gate x alone is added.
  void (*add_step[kDtypes])(const void* x, const void* gate, const void* residual, float factor,
                            size_t n, void* residual_out);
  // Fills a tile with x times the activation of a gate. It may be x itself. The elements after the
  // n first ones are not all zeros.
  void (*gate_tile[kDtypes])(rmsnorm_activation activation, const void* x, const void* gate,
                             size_t n, float* tile);

  ScaleLeaf scale[kDtypes][2][2];        // [type][x * r is rounded][past the caches]
  ScaleFourLeaf scale_four[kDtypes][2];  // [type][x * r is rounded]
  RowLeaf scale_gated[kDtypes];          // with a gate after the norm
  RowLeaf scale_biased[kDtypes];         // with a bias
  // Writes y for the tile of a row; `cast` says that x * r is rounded.
  void (*scale_tile[kDtypes])(bool cast, const float* tile, const float* weight, size_t n, float r,
                              void* y);

  // Rows of at most a block, without a residual, four at a time:
  // [type][x * r is rounded][index in kShortLengths]. They return the first row of a four. Length
  // 128 is not for rows past the caches.
  RowsLeaf short_rows[kDtypes][2][3];
  // f32 rows that fit registers: [with a residual][pairs of vectors - 1]. They may already have
  // written residual_out for the row that they return and for the one after it. Null where
  // registers are few.
  RowsLeaf held_rows[2][4];

  // f32 rows that fit registers, with rotary positions: [pairs of vectors / 2 - 1].
  RowsLeaf held_rotated_rows[2];
  // With rotary positions: [type][each product and sum is rounded].
  RotatedLeaf rotate_scaled[kDtypes][2];

  // Writes values = x * r * weight, which may replace x, and adds them to the range of a
  // row. `cast` says that x * r is rounded.
  void (*scale_to_range[kDtypes])(bool cast, const void* x, const float* weight, size_t n, float r,
                                  void* values, QuantisedRange& range);
  // Adds a tile to the range of a row.
  void (*add_tile_to_range)(const float* tile, size_t n, QuantisedRange& range);
  // Writes the integers of values, which are finite if `steps.none` is false.
  void (*quantise[kDtypes])(const void* values, size_t n, const QuantisedSteps& steps, int8_t* q);
  // Writes y, if there is one, and the steps and the integers of the groups of a row.
  RowLeaf quantise_groups[kDtypes];

  const BackwardLeaves* backward;
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNELS_LEAVES_H_

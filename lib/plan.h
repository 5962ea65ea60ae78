// SPDX-License-Identifier: Apache-2.0
// How a call is cut up. A plan holds the kernel of a call, its norm, its rows, and the units of
// work that parts of it share out.
//
// Forward is cut by rows, and backward by the blocks of rows over which dw and db add up
// (reference.h). Neither a row nor its columns are ever cut.
#ifndef RMSNORM_LIB_PLAN_H_
#define RMSNORM_LIB_PLAN_H_

#include "checks.h"
#include "floats.h"
#include "walk.h"

namespace rmsnorm::internal {

// The gradient dw or db of a plan. The rows that share a row of the gradient are a group, and a
// group is cut into blocks of rows. One part alone adds the sums of each block to the total of its
// group as soon as they are there, so that all blocks share a place that stays in the caches.
// Several parts keep the sums of every block, and add them up at the end.
struct ColumnSums {
  Operand operand;
  rmsnorm_dtype dtype;
  bool add;          // the total is added to what the gradient holds
  bool in_gradient;  // the gradient itself holds the sums of a group's first block, and the total
  size_t groups;
  size_t blocks;  // in a group
  size_t stride;  // floats from one block's sums to the next block's
  float* data;    // the sums that are not in the gradient
};

struct Plan {
  Norm norm;
  Kernel kernel;
  size_t rows;
  size_t d;
  bool is_run;  // `run` holds the rows, and there is no walk
  Run run;
  Walk walk;
  bool has_sums;    // units are blocks of rows, else rows
  ColumnSums sums;  // where has_sums
  size_t parts;     // that share the work; set for backward alone

  size_t Units() const { return has_sums ? sums.groups * sums.blocks : rows; }
};

// The norm of a call whose row operands are all of one type.
void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
              rmsnorm_dtype dtype, Norm& norm);

// An estimate of how long forward takes for operands of x's type. Backward takes twice as long.
size_t PicosecondsOfForward(const KernelTable& kernels, rmsnorm_dtype x_dtype, OperandSet given,
                            size_t elements);

// Bytes of all operands that have the shape of x.
size_t RowBytes(const Operands& operands);

// Whether calls whose operands have these RowBytes() write y or dx past the caches.
bool IsPastCaches(const rmsnorm_context& context, size_t bytes);

// Each of these plans a call that has rows. They take scratch, and throw std::bad_alloc where there
// is none. `most_parts` is how many parts are worth their threads. Backward has one plan for dx and
// dw, and one for db, which is done first, since dx may replace dy.
void PlanForward(const Call& call, const KernelTable& kernels, bool past_caches, Scratch& scratch,
                 Plan& plan);
void PlanDb(const Call& call, const KernelTable& kernels, size_t most_parts, Scratch& scratch,
            Plan& plan);
void PlanDxAndDw(const Call& call, const KernelTable& kernels, bool past_caches, size_t most_parts,
                 Scratch& scratch, Plan& plan);

// Writes the gradients dw and db of a call without rows.
void StoreZeroGradients(const Operands& operands);

// Runs the units from `begin` up to `end`.
void RunUnits(const Plan& plan, size_t begin, size_t end);

// Several parts leave the sums of every block. Their totals are added up in units of columns: how
// many of these there are, and the totals of those from `begin` up to `end`.
size_t UnitsOfTotals(const Plan& plan);
void StoreTotals(const Plan& plan, size_t begin, size_t end);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_PLAN_H_

// SPDX-License-Identifier: Apache-2.0
// How a call is cut up. A plan holds the kernel of a call, its norm, its rows, and the units of
// work that parts of it share out.
//
// Forward is cut by rows, and backward by the blocks of rows over which dw and db add up
// (reference.h). Neither a row nor its columns are ever cut.
#ifndef RMSNORM_LIB_PLAN_H_
#define RMSNORM_LIB_PLAN_H_

#include "checks.h"
#include "scratch.h"
#include "walk.h"

namespace rmsnorm::internal {

// Where the sums of a group's blocks lie. One part alone adds the sums of each block to the total
// of the group as soon as they are there, so that all blocks share a row that stays in the caches.
// Several parts keep the sums of every block, and add them up at the end.
//
//                 first block of a group   its further blocks     the gradient is written
//   kGradient     the gradient             the one row            with the sums
//   kTwoRows      the first row: total     the second row         after the group's last block
//   kRowPerUnit   a row for each block                            at the end, by columns
enum class SumsAt { kNowhere, kGradient, kTwoRows, kRowPerUnit };

// The sums of dw or db in a plan.
struct ColumnSums {
  SumsAt at = SumsAt::kNowhere;  // a plan without dw and db
  Operand operand;
  rmsnorm_dtype dtype;
  bool add;  // the total is added to the values in the gradient
  size_t groups;
  size_t blocks;  // in a group
  size_t stride;  // floats from one row of sums to the next
  float* rows;
};

struct Plan {
  Norm norm;
  Kernel kernel;
  size_t rows;
  size_t d;
  bool is_run;  // `run` holds the rows, and there is no walk
  RowRun run;
  Walk walk;
  ColumnSums sums;     // with them, units are blocks of rows, else rows
  size_t picoseconds;  // an estimate of the work
  size_t parts;        // that share the work of this plan and those that run together with it

  bool HasSums() const { return sums.at != SumsAt::kNowhere; }
  size_t Units() const { return HasSums() ? sums.groups * sums.blocks : rows; }
  // The rows from `begin` on that are a run, up to `end` at most.
  RowRun RunFrom(size_t begin, size_t end) const;
};

// Where a call runs: its context, or the module's where it has none.
struct CallContext {
  const rmsnorm_context* context;
  const KernelTable* kernels;
  rmsnorm_context copy;  // of a caller's context that has another size
};

// The norm of a call whose row operands are all of one type; `changed` are the ChangedOptions().
void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, OptionSet changed,
              size_t d, rmsnorm_dtype dtype, Norm& norm);

// An estimate of the time that a call with these operands takes for elements of x.
size_t PicosecondsOf(const KernelTable& kernels, rmsnorm_dtype x_dtype, OperandSet given,
                     size_t elements);

// The weights and biases of a call that its plan takes in f32, converted to scratch.
inline OperandSet ColumnsToFill(const CheckedCall& call, const Plan& plan) {
  return call.operands.given & plan.run.given & kColumnsInF32;
}

// Converts them. Planning does so, too: a plan that is run again needs their values of then.
void FillColumns(const CheckedCall& call, const Plan& plan);

// Each of these plans a call that has rows. They take scratch, and throw std::bad_alloc where there
// is none. Backward has one plan for db, which is done first, since dx may replace dy, and one for
// dx and dw.
void PlanForward(const CheckedCall& call, const CallContext& context, Scratch& scratch, Plan& plan);
void PlanDb(const CheckedCall& call, const CallContext& context, Scratch& scratch, Plan& plan);
void PlanDxAndDw(const CheckedCall& call, const CallContext& context, Scratch& scratch, Plan& plan);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_PLAN_H_

// SPDX-License-Identifier: Apache-2.0
// How a call is cut up. A plan holds the kernel of a call, its norm, its rows, and the units of
// work that parts of it share out.
//
// Forward is cut by rows, and backward by the blocks of rows over which dw and db add up
// (reference.h). Neither a row nor its columns are ever cut.
#ifndef RMSNORM_LIB_PLAN_H_
#define RMSNORM_LIB_PLAN_H_

#include "checks.h"
#include "walk.h"

namespace rmsnorm::internal {

// Memory of a call in floats: its pieces are counted first, then taken in the same order. Each
// begins a cache line.
class Scratch {
 public:
  // Counts a piece. The sum saturates, so that no memory holds what cannot be counted.
  static size_t Add(size_t floats, size_t piece) {
    const size_t lines = piece / kLine + (piece % kLine != 0);
    return lines < (kMost - floats) / kLine ? floats + lines * kLine : kMost;
  }

  explicit Scratch(float* memory) : next_(memory) {}

  float* Take(size_t piece) {
    float* const taken = next_;
    next_ += Add(0, piece);
    return taken;
  }

 private:
  static constexpr size_t kLine = 16;
  static constexpr size_t kMost = PTRDIFF_MAX;

  float* next_;
};

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
  size_t floats;  // the scratch that all sums take
  float* data;    // the scratch
};

struct Plan {
  Plan() : run(0, 0) {}

  Norm norm;
  Kernel kernel;
  size_t rows;
  size_t d;
  size_t picoseconds;  // an estimate of the work
  size_t parts;        // that share the work; set for backward alone
  bool is_run;         // `run` holds the rows, and there is no walk
  Run run;
  Walk walk;
  bool has_sums;    // units are blocks of rows, else rows
  ColumnSums sums;  // where has_sums

  size_t Units() const { return has_sums ? sums.groups * sums.blocks : rows; }
};

// The norm of a call whose row operands are all of one type.
void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
              rmsnorm_dtype dtype, Norm& norm);

// An estimate of how long forward takes for operands of x's type.
size_t PicosecondsOfForward(const KernelTable& kernels, rmsnorm_dtype x_dtype, OperandSet given,
                            size_t elements);
size_t PicosecondsOfBackward(const KernelTable& kernels, rmsnorm_dtype x_dtype, size_t elements);

// Bytes of all operands that have the shape of x.
size_t RowBytes(const Operands& operands);

// The floats of scratch that a call's weight and bias take in f32.
size_t FloatsOfWeights(const Call& call);

// Plans a forward call that has rows, and prepares its weight and bias in the scratch. `bytes` are
// the RowBytes() of all calls that run together.
void PlanForward(const Call& call, const KernelTable& kernels, size_t bytes, Scratch& scratch,
                 Plan& plan);

// A backward call with rows has up to two plans. The first is done before the second begins, since
// dx may replace dy.
struct BackwardPlans {
  bool has_db;
  bool has_dx_or_dw;
  Plan db;
  Plan dx_dw;
};

// Plans a backward call in two steps: the sums of dw and db, and the rest with scratch of as many
// floats as the first step returns.
size_t PlanSums(const Call& call, const KernelTable& kernels, const rmsnorm_context& context,
                BackwardPlans& plans);
void PlanBackward(const Call& call, const KernelTable& kernels, Scratch& scratch,
                  BackwardPlans& plans);

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

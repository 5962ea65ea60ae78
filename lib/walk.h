// SPDX-License-Identifier: Apache-2.0
// The rows of a call's operands as nested loops, handed out as runs at constant distances.
#ifndef RMSNORM_LIB_WALK_H_
#define RMSNORM_LIB_WALK_H_

#include "kernel_table.h"

namespace rmsnorm::internal {

// Whether a dimension continues the next narrower one, so that both are one.
constexpr bool Continues(ptrdiff_t stride, ptrdiff_t inner_stride, size_t inner_count) {
  return static_cast<size_t>(stride) == static_cast<size_t>(inner_stride) * inner_count;
}

// Rows that share a row of the weight, of the bias and of their gradients are neighbours: a group.
// Within a group they follow in C order, unless the walk is in slabs. With a gate, all rows are one
// group, whatever they share. Dimensions that all operands walk evenly are one loop, so that dense
// or padded rows are a single run.
struct Walk {
  struct Loop {
    size_t count;
    ptrdiff_t stride[kOperands];  // bytes, for the given operands
  };

  int loops;                    // at least 1
  Loop loop[RMSNORM_MAX_DIMS];  // innermost first
  OperandSet given;
  char* data[kOperands];  // the first row of each given operand
  size_t d;
  size_t rows;
  size_t rows_of_group;

  size_t Groups() const { return rows / rows_of_group; }
};

// Makes the walk over the rows of `shape`, of which there may be none, through checked views. It is
// not returned, since a copy takes longer than a short row.
void MakeWalk(const rmsnorm_view& shape, const Views& views, Walk& walk);

// Reorders a walk whose rows may come in any order: some rows of each group, then the next rows of
// each group. In x[tokens][heads][d] with a weight for each head, the rows of one head lie far
// apart while rows of different heads are adjacent.
void WalkInSlabs(Walk& walk);

// The rows from `begin` on that are a run, up to `end` at most.
RowRun NextRun(const Walk& walk, size_t begin, size_t end);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_WALK_H_

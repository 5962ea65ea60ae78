// SPDX-License-Identifier: Apache-2.0
// The sums over rows that dw and db are. The rows that share a row of the gradient are a group, and
// a group is cut into blocks of rows (reference.h), whose sums add up in rising order.
#ifndef RMSNORM_LIB_COLUMN_SUMS_H_
#define RMSNORM_LIB_COLUMN_SUMS_H_

#include "checks.h"
#include "scratch.h"

namespace rmsnorm::internal {

struct Plan;

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

// Plans the sums of dw or db for `parts` parts, and sets plan.parts: no more than there are units.
// Throws std::bad_alloc where there is no scratch.
void PlanSums(Operand operand, const Operands& operands, size_t parts, Scratch& scratch,
              Plan& plan);

// Runs one unit of a plan with sums, a block of rows.
void RunBlockOfRows(const Plan& plan, size_t unit);

// With kRowPerUnit, the totals are added up in units of columns: how many of these there are, and
// the totals of those from `begin` up to `end`. Other plans have none.
size_t UnitsOfTotals(const Plan& plan);
void StoreTotals(const Plan& plan, size_t begin, size_t end);

// Writes the gradients dw and db of a call without rows.
void StoreZeroGradients(const Operands& operands);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_COLUMN_SUMS_H_

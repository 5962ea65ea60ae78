// SPDX-License-Identifier: Apache-2.0
// The sums over rows that dw and db are. The rows that share a row of the gradient are a group, and
// a group is cut into blocks of rows (reference.h), whose sums add up in rising order.
#ifndef RMSNORM_LIB_COLUMN_SUMS_H_
#define RMSNORM_LIB_COLUMN_SUMS_H_

#include "plan.h"

namespace rmsnorm::internal {

// Plans the sums of dw or db for plan.parts parts, and lowers these to the number of units. Throws
// std::bad_alloc where there is no scratch.
void PlanSums(Operand operand, const Operands& operands, Scratch& scratch, Plan& plan);

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

// SPDX-License-Identifier: Apache-2.0
#include "column_sums.h"

#include <algorithm>
#include <cstring>

#include "portable.h"
#include "reference.h"

namespace rmsnorm::internal {
namespace {

// Totals are added up in columns of this unit, a multiple of every vector length and of a cache
// line.
constexpr size_t kColumnUnit = 64;

size_t ColumnUnits(size_t d) { return (d + kColumnUnit - 1) / kColumnUnit; }

// The bit of add_to that stands for dw or db.
uint32_t AddTo(Operand gradient) { return gradient == kDw ? RMSNORM_ADD_TO_DW : RMSNORM_ADD_TO_DB; }

// The first row of a unit. The unit after the last begins after the last row.
size_t FirstRow(const Plan& plan, size_t unit) {
  const size_t rows = plan.rows / plan.sums.groups;
  return unit / plan.sums.blocks * rows +
         FirstRowOfBlock(rows, plan.sums.blocks, unit % plan.sums.blocks);
}

char* GradientOf(const Plan& plan, size_t group) {
  if (plan.is_run) return plan.run.data[plan.sums.operand];  // which all rows share
  const size_t row = group * (plan.rows / plan.sums.groups);
  return NextRun(plan.walk, row, row + 1).data[plan.sums.operand];
}

// Where the sums of a unit lie. `gradient` is its group's row of the gradient.
float* SumsOf(const Plan& plan, size_t unit, char* gradient) {
  const ColumnSums& sums = plan.sums;
  const bool is_first = unit % sums.blocks == 0;
  switch (sums.at) {
    case SumsAt::kGradient:
      return is_first ? reinterpret_cast<float*>(gradient) : sums.rows;
    case SumsAt::kTwoRows:
      return is_first ? sums.rows : sums.rows + sums.stride;
    default:
      return sums.rows + unit * sums.stride;
  }
}

// Adds the sums of a unit to the total of its group, and stores that after the last block.
void AddUp(const Plan& plan, size_t unit) {
  const ColumnSums& sums = plan.sums;
  const size_t block = unit % sums.blocks;
  if (block == 0 && sums.at == SumsAt::kGradient) return;  // the sums are the total
  const auto add_blocks = plan.norm.kernels->add_blocks;
  char* const gradient = GradientOf(plan, unit / sums.blocks);
  float* const total = SumsOf(plan, unit - block, gradient);
  if (block > 0) {
    add_blocks(SumsOf(plan, unit, gradient), sums.stride, 1, plan.d, true, RMSNORM_F32, total);
  }
  if (block + 1 == sums.blocks && sums.at == SumsAt::kTwoRows) {
    add_blocks(total, sums.stride, 1, plan.d, sums.add, sums.dtype, gradient);
  }
}

}  // namespace

void PlanSums(Operand operand, const Operands& operands, Scratch& scratch, Plan& plan) {
  const rmsnorm_view& view = operands[operand];
  ColumnSums& sums = plan.sums;
  sums.operand = operand;
  sums.dtype = view.dtype;
  sums.add = (operands.add_to & AddTo(operand)) != 0;
  sums.groups = view.ndim == 1 ? 1 : ElementsOf(view) / plan.d;
  sums.blocks = BlocksOfRows(view.ndim == 1 ? plan.rows : plan.rows / sums.groups);
  sums.stride = ColumnUnits(plan.d) * kColumnUnit;
  const size_t units = sums.groups * sums.blocks;
  plan.parts = std::min(plan.parts, units);
  const bool one_part = plan.parts == 1;
  size_t rows;
  if ((one_part || sums.blocks == 1) && !sums.add && sums.dtype == RMSNORM_F32) {
    sums.at = SumsAt::kGradient;
    rows = sums.blocks == 1 ? 0 : 1;
  } else if (one_part) {
    sums.at = SumsAt::kTwoRows;
    rows = sums.blocks == 1 ? 1 : 2;
  } else {
    sums.at = SumsAt::kRowPerUnit;
    rows = units;
  }
  size_t floats;
  if (MultiplyOverflows(rows, sums.stride, &floats)) floats = SIZE_MAX;
  sums.rows = scratch.Take(floats);
}

void RunBlockOfRows(const Plan& plan, size_t unit) {
  const size_t begin = FirstRow(plan, unit);
  const size_t end = FirstRow(plan, unit + 1);
  for (size_t row = begin; row < end;) {
    RowRun run = plan.RunFrom(row, end);
    // The kernel adds to the sums, and the walk leads to the gradient.
    char*& data = run.data[plan.sums.operand];
    data = reinterpret_cast<char*>(SumsOf(plan, unit, data));
    run.start_sums = row == begin;
    plan.kernel(plan.norm, run);
    row += run.count;
  }
  if (plan.sums.at != SumsAt::kRowPerUnit) AddUp(plan, unit);
}

size_t UnitsOfTotals(const Plan& plan) {
  return plan.sums.at == SumsAt::kRowPerUnit ? plan.sums.groups * ColumnUnits(plan.d) : 0;
}

void StoreTotals(const Plan& plan, size_t begin, size_t end) {
  const ColumnSums& sums = plan.sums;
  const size_t of_group = ColumnUnits(plan.d);
  while (begin < end) {
    const size_t group = begin / of_group;
    const size_t last = std::min(end, (group + 1) * of_group);
    const size_t first_column = begin % of_group * kColumnUnit;
    const size_t end_column = std::min(plan.d, (last - group * of_group) * kColumnUnit);
    plan.norm.kernels->add_blocks(SumsOf(plan, group * sums.blocks, nullptr) + first_column,
                                  sums.stride, sums.blocks, end_column - first_column, sums.add,
                                  sums.dtype,
                                  GradientOf(plan, group) + first_column * ElementSize(sums.dtype));
    begin = last;
  }
}

// All bits of +0 are 0 in every type.
void StoreZeroGradients(const Operands& operands) {
  for (const Operand operand : {kDw, kDb}) {
    if (!operands.Has(operand) || (operands.add_to & AddTo(operand)) != 0) continue;
    const rmsnorm_view& view = operands[operand];
    Views views;
    views.Set(operand, &view);
    Walk walk;
    MakeWalk(view, views, walk);
    for (size_t row = 0; row < walk.rows; ++row) {
      std::memset(NextRun(walk, row, row + 1).data[operand], 0, walk.d * ElementSize(view.dtype));
    }
  }
}

}  // namespace rmsnorm::internal

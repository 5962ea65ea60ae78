// SPDX-License-Identifier: Apache-2.0
// Backward: its entry point, its scratch, and how its rows and columns go to threads.
#include <algorithm>
#include <cstring>

#include "calls.h"
#include "gradient_terms.h"
#include "reference.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

// A gradient by columns adds up over so many rows at least, in so many blocks at most.
constexpr size_t kMinRowsPerBlock = 16;
constexpr size_t kMaxBlocks = 64;

// Columns of rows are given out by so many, a multiple of every vector and of a cache line.
constexpr size_t kColumnUnit = 64;

// dw or db: sums over the rows of each group, in blocks of rows.
struct ColumnSums {
  Operand operand;
  const KernelTable* kernels;
  const Walk* walk;  // in which the gradient has the first row's place for each group
  size_t blocks;     // of a group
  size_t stride;     // floats from the sums of one block to those of the next
  rmsnorm_dtype dtype;
  bool add;
  float* sums;  // of all blocks of all groups; null where the gradient's own memory holds them

  size_t Units() const { return walk->Groups() * blocks; }

  // Block i of `blocks` holds the rows floor(i rows / blocks) up to that of i + 1 of its group.
  size_t FirstRow(size_t unit) const {
    const size_t rows = walk->rows_of_group;
    const size_t block = unit % blocks;
    const size_t in_group = block * (rows / blocks) + block * (rows % blocks) / blocks;
    return unit / blocks * rows + in_group;  // no product overflows
  }
  size_t EndRow(size_t unit) const {
    return (unit + 1) % blocks == 0 ? (unit / blocks + 1) * walk->rows_of_group
                                    : FirstRow(unit + 1);
  }
};

// What is known of a gradient before there is scratch. Its walk has been made.
ColumnSums MakeColumnSums(Operand operand, const rmsnorm_view& view, const KernelTable& kernels,
                          const Walk& walk, bool add) {
  const size_t blocks = std::min(kMaxBlocks, (walk.rows_of_group - 1) / kMinRowsPerBlock + 1);
  const size_t stride = (walk.d + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
  return {operand, &kernels, &walk, blocks, stride, view.dtype, add, nullptr};
}

// The sums of a single block are the gradient itself, where it is of f32 and not added to.
bool NeedsScratch(const ColumnSums& sums) {
  return sums.blocks > 1 || sums.add || sums.dtype != RMSNORM_F32;
}

// Gives a run of a unit the sums that it adds to, from one of their columns on.
void SetSums(const ColumnSums& sums, size_t unit, size_t column, size_t row, Run& run) {
  char*& data = run.data[sums.operand];
  data = sums.sums != nullptr ? reinterpret_cast<char*>(sums.sums + unit * sums.stride + column)
                              : data + column * sizeof(float);
  run.start_sums = row == sums.FirstRow(unit);
}

struct Backward {
  Norm norm;
  Walk walk;  // with dw, if it is wanted
  bool has_dw;
  ColumnSums dw;
  RowTerms* terms;    // of each row, and the sums of each block of each row:
  RowSums* row_sums;  // for work in two steps

  size_t BlocksOfRow() const { return (walk.d + kBlock - 1) / kBlock; }
};

// ------------------------------------------------------------------ in one step

void RunPartOfBlocks(void* state, size_t part, size_t parts) {
  const Backward& call = *static_cast<const Backward*>(state);
  const KernelTable& kernels = *call.norm.kernels;
  const size_t units = call.has_dw ? call.dw.Units() : call.walk.rows;
  const size_t first = PartBegin(units, part, parts);
  const size_t last = PartBegin(units, part + 1, parts);
  if (!call.has_dw) {
    for (size_t row = first; row < last;) {
      const Run run = NextRun(call.walk, row, last);
      kernels.backward(call.norm, run);
      row += run.count;
    }
    return;
  }
  for (size_t unit = first; unit < last; ++unit) {
    const size_t end = call.dw.EndRow(unit);
    for (size_t row = call.dw.FirstRow(unit); row < end;) {
      Run run = NextRun(call.walk, row, end);
      SetSums(call.dw, unit, 0, row, run);
      kernels.backward(call.norm, run);
      row += run.count;
    }
  }
}

// ------------------------------------------------------------------ in two steps

// The terms of some rows.
void RunPartOfTerms(void* state, size_t part, size_t parts) {
  const Backward& call = *static_cast<const Backward*>(state);
  const size_t end = PartBegin(call.walk.rows, part + 1, parts);
  for (size_t row = PartBegin(call.walk.rows, part, parts); row < end;) {
    const Run run = NextRun(call.walk, row, end);
    call.norm.kernels->backward_terms(call.norm, run, call.terms + row);
    row += run.count;
  }
}

// The sums of some blocks of rows.
void RunPartOfSums(void* state, size_t part, size_t parts) {
  const Backward& call = *static_cast<const Backward*>(state);
  const size_t of_row = call.BlocksOfRow();
  const size_t end = PartBegin(call.walk.rows * of_row, part + 1, parts);
  for (size_t i = PartBegin(call.walk.rows * of_row, part, parts); i < end; ++i) {
    const size_t row = i / of_row;
    const size_t column = i % of_row * kBlock;
    const Run run = NextRun(call.walk, row, row + 1);
    call.row_sums[i] = call.norm.kernels->backward_sums(
        call.norm, Columns(call.norm, run, column, std::min(run.d, column + kBlock)));
  }
}

// The terms of all rows from the sums of their blocks.
void AddSums(const Backward& call) {
  const size_t of_row = call.BlocksOfRow();
  for (size_t row = 0; row < call.walk.rows; ++row) {
    RowSums total = {0, 0};
    for (size_t i = row * of_row; i < (row + 1) * of_row; ++i) {
      total.squares += call.row_sums[i].squares;
      total.dot += call.row_sums[i].dot;
    }
    const Run run = NextRun(call.walk, row, row + 1);
    const HotTerms hot =
        MakeHotTerms(call.norm, total, run.Has(kRstd) ? run.Row<float>(kRstd, 0) : nullptr);
    if (hot.cold == Cold::kNothing) {
      call.terms[row] = Widened(hot);
    } else {
      call.norm.kernels->backward_terms(call.norm, run, call.terms + row);
    }
  }
}

// The gradients of some columns of a unit: of a block of rows where there is a dw, else of a row.
void RunColumnsOfUnit(const Backward& call, size_t unit, size_t begin, size_t end) {
  const size_t last = call.has_dw ? call.dw.EndRow(unit) : unit + 1;
  for (size_t row = call.has_dw ? call.dw.FirstRow(unit) : unit; row < last;) {
    const Run run = NextRun(call.walk, row, last);
    Run columns = Columns(call.norm, run, begin, end);
    if (call.has_dw) {
      columns.data[kDw] = run.data[kDw];
      SetSums(call.dw, unit, begin, row, columns);
    }
    call.norm.kernels->backward_columns(call.norm, columns, call.terms + row);
    row += run.count;
  }
}

void RunPartOfColumns(void* state, size_t part, size_t parts) {
  const Backward& call = *static_cast<const Backward*>(state);
  const size_t units = call.has_dw ? call.dw.Units() : call.walk.rows;
  const size_t of_unit = (call.walk.d + kColumnUnit - 1) / kColumnUnit;
  const size_t end = PartBegin(units * of_unit, part + 1, parts);
  for (size_t i = PartBegin(units * of_unit, part, parts); i < end;) {
    const size_t unit = i / of_unit;
    const size_t last = std::min(end, (unit + 1) * of_unit);
    RunColumnsOfUnit(call, unit, i % of_unit * kColumnUnit,
                     std::min(call.walk.d, (last - unit * of_unit) * kColumnUnit));
    i = last;
  }
}

// Whole units at best, as their rows are then read once. In two steps, which read x and dy twice,
// where that would leave threads waiting: where there are fewer units than threads, or a few more.
void RunGradients(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                  Backward& call, size_t parts, bool two_steps) {
  if (!two_steps) return RunParts(environment, context, parts, RunPartOfBlocks, &call);
  if (call.row_sums != nullptr) {
    RunParts(environment, context, parts, RunPartOfSums, &call);
    AddSums(call);
  } else {
    RunParts(environment, context, parts, RunPartOfTerms, &call);
  }
  RunParts(environment, context, parts, RunPartOfColumns, &call);
}

// ------------------------------------------------------------------ dw and db

struct BiasSums {
  Norm norm;
  ColumnSums db;
};

// The sums of some blocks of rows of dy.
void RunPartOfBias(void* state, size_t part, size_t parts) {
  const BiasSums& call = *static_cast<const BiasSums*>(state);
  const size_t last = PartBegin(call.db.Units(), part + 1, parts);
  for (size_t unit = PartBegin(call.db.Units(), part, parts); unit < last; ++unit) {
    const size_t end = call.db.EndRow(unit);
    for (size_t row = call.db.FirstRow(unit); row < end;) {
      Run run = NextRun(*call.db.walk, row, end);
      SetSums(call.db, unit, 0, row, run);
      call.norm.kernels->add_rows(call.norm, run);
      row += run.count;
    }
  }
}

// The sums of the blocks for some columns of some groups.
void RunPartOfTotals(void* state, size_t part, size_t parts) {
  const ColumnSums& sums = *static_cast<const ColumnSums*>(state);
  const Walk& walk = *sums.walk;
  const size_t of_group = (walk.d + kColumnUnit - 1) / kColumnUnit;
  const size_t end = PartBegin(walk.Groups() * of_group, part + 1, parts);
  for (size_t i = PartBegin(walk.Groups() * of_group, part, parts); i < end;) {
    const size_t group = i / of_group;
    const size_t last = std::min(end, (group + 1) * of_group);
    const size_t begin = i % of_group * kColumnUnit;
    const size_t d = std::min(walk.d, (last - group * of_group) * kColumnUnit) - begin;
    const size_t row = group * walk.rows_of_group;
    char* const to = NextRun(walk, row, row + 1).data[sums.operand];
    sums.kernels->store_sums(sums.sums + group * sums.blocks * sums.stride + begin, sums.stride,
                             sums.blocks, d, sums.add, sums.dtype,
                             to + begin * ElementSize(sums.dtype));
    i = last;
  }
}

void StoreTotals(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                 ColumnSums& sums) {
  if (sums.sums == nullptr) return;
  const size_t parts = PartsOf(sums.Units() * sums.walk->d / 2, context);
  RunParts(environment, context, parts, RunPartOfTotals, &sums);
}

// The gradient of no rows. All bits of +0 are 0 in every type.
void StoreZeros(Operand operand, const rmsnorm_view& view) {
  if (std::find(view.shape, view.shape + view.ndim, size_t{0}) != view.shape + view.ndim) return;
  const rmsnorm_view* views[kOperands] = {};
  views[operand] = &view;
  const Walk walk = MakeWalk(view, views);
  for (size_t row = 0; row < walk.rows; ++row) {
    std::memset(NextRun(walk, row, row + 1).data[operand], 0, walk.d * ElementSize(view.dtype));
  }
}

}  // namespace

rmsnorm_status RunBackward(DefaultFloatEnvironment& environment, const Place& place,
                           const Call& call) {
  const Operands& operands = call.operands;
  const KernelTable& kernels = *place.kernels;
  const bool add_to_dw = (operands.add_to & RMSNORM_ADD_TO_DW) != 0;
  const bool add_to_db = (operands.add_to & RMSNORM_ADD_TO_DB) != 0;
  if (operands.rows == 0) {
    if (operands.Has(kDw) && !add_to_dw) StoreZeros(kDw, *operands.view[kDw]);
    if (operands.Has(kDb) && !add_to_db) StoreZeros(kDb, *operands.view[kDb]);
    return RMSNORM_OK;
  }

  // The shape of a weight is enough for the walks; its values follow where there is scratch.
  const bool has_gradients = operands.Has(kDx) || operands.Has(kDw);
  const rmsnorm_view& x = *operands.view[kX];
  rmsnorm_view weight = operands.Has(kWeight)
                            ? *operands.view[kWeight]
                            : rmsnorm_vector(call.own_weight, RMSNORM_F32, operands.d);
  const rmsnorm_view* views[kOperands];
  std::copy_n(operands.view, kOperands, views);
  views[kWeight] = &weight;
  views[kDb] = nullptr;
  const rmsnorm_view* bias_views[kOperands] = {};
  bias_views[kDy] = operands.view[kDy];
  bias_views[kDb] = operands.view[kDb];

  Backward backward = {MakeNorm(kernels, call.options, operands.d, views),
                       MakeWalk(x, views),
                       operands.Has(kDw),
                       {},
                       nullptr,
                       nullptr};
  const Walk& walk = backward.walk;
  const Walk bias_walk = MakeWalk(x, bias_views);
  BiasSums bias = {backward.norm, {}};
  if (operands.Has(kDw)) {
    backward.dw = MakeColumnSums(kDw, *operands.view[kDw], kernels, walk, add_to_dw);
  }
  if (operands.Has(kDb)) {
    bias.db = MakeColumnSums(kDb, *operands.view[kDb], kernels, bias_walk, add_to_db);
  }
  Norm& norm = backward.norm;
  norm.add_to_dx = (operands.add_to & RMSNORM_ADD_TO_DX) != 0;
  norm.stream = operands.Has(kDx) && operands.view[kDx]->data != operands.view[kDy]->data &&
                !norm.add_to_dx && RowBytes(operands) > StreamedBytes();

  const size_t parts = PartsOf(2 * walk.rows * walk.d, place.context);
  const size_t units = backward.has_dw ? backward.dw.Units() : walk.rows;
  const bool two_steps = has_gradients && units % parts != 0 && units < 4 * parts;
  const bool blocks_of_rows = two_steps && walk.rows < parts;
  const bool prepares = has_gradients && operands.Has(kWeight);
  const bool ones = has_gradients && weight.data == nullptr;
  const bool dw_scratch = backward.has_dw && NeedsScratch(backward.dw);
  const bool db_scratch = operands.Has(kDb) && NeedsScratch(bias.db);
  const size_t all_terms = two_steps ? walk.rows : 0;
  const size_t all_row_sums = blocks_of_rows ? walk.rows * backward.BlocksOfRow() : 0;
  Scratch scratch;
  if (prepares) AddColumns(weight, scratch);
  if (ones) scratch.Add(operands.d, sizeof(float));
  if (dw_scratch) scratch.Add(backward.dw.Units(), backward.dw.stride * sizeof(float));
  if (db_scratch) scratch.Add(bias.db.Units(), bias.db.stride * sizeof(float));
  scratch.Add(all_terms, sizeof(RowTerms));
  scratch.Add(all_row_sums, sizeof(RowSums));
  if (!scratch.Allocate()) {
    return Fail(RMSNORM_ERROR_MEMORY, "dw: no memory for the scratch of rows of %zu", operands.d);
  }
  if (prepares) weight = PrepareColumns(kernels, weight, call.options.weight_offset, scratch);
  if (ones) weight = PrepareOnes(operands.d, scratch);
  if (prepares || ones) backward.walk = MakeWalk(x, views);
  if (dw_scratch) backward.dw.sums = scratch.Take<float>(backward.dw.Units() * backward.dw.stride);
  if (db_scratch) bias.db.sums = scratch.Take<float>(bias.db.Units() * bias.db.stride);
  if (two_steps) backward.terms = scratch.Take<RowTerms>(all_terms);
  if (blocks_of_rows) backward.row_sums = scratch.Take<RowSums>(all_row_sums);

  // db before dx, which may be in the place of dy.
  if (operands.Has(kDb)) {
    const size_t bias_parts = PartsOf(walk.rows * walk.d, place.context);
    RunParts(environment, place.context, std::min(bias_parts, bias.db.Units()), RunPartOfBias,
             &bias);
    StoreTotals(environment, place.context, bias.db);
  }
  if (!has_gradients) return RMSNORM_OK;
  RunGradients(environment, place.context, backward, parts, two_steps);
  if (backward.has_dw) StoreTotals(environment, place.context, backward.dw);
  return RMSNORM_OK;
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_backward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                                const rmsnorm_context* context) noexcept {
  DefaultFloatEnvironment environment;
  Call call;
  Place place;
  RMSNORM_RETURN_IF_ERROR(CheckCall(Operation::kBackward, nullptr, operands, options, call));
  RMSNORM_RETURN_IF_ERROR(FindPlace(nullptr, context, place));
  return RunBackward(environment, place, call);
}

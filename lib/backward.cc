// SPDX-License-Identifier: Apache-2.0
// Backward: its entry point, its scratch, and how its rows and columns go to threads.
#include <algorithm>
#include <cstring>

#include "calls.h"
#include "gradient_terms.h"
#include "norm.h"
#include "reference.h"
#include "short_calls.h"
#include "status.h"

namespace rmsnorm::internal {
namespace {

// Columns of rows are given out by so many, a multiple of every vector and of a cache line.
constexpr size_t kColumnUnit = 64;

// dw or db: sums over the rows of each group, in blocks of rows. A thread alone adds the sums of
// each block to the total of its group as soon as they are there, so that all blocks share a place
// that stays in its caches. Several threads keep the sums of every block and add them up at the
// end.
struct ColumnSums {
  Operand operand;
  const KernelTable* kernels;
  const Walk* walk;  // in which the gradient has the first row's place for each group
  size_t blocks;     // of a group
  size_t stride;     // floats from the sums of one block to those of the next
  rmsnorm_dtype dtype;
  bool add;
  bool one_thread;
  bool in_gradient;  // the gradient itself holds the sums of a group's first block, and the total
  // A place for each block of each group. One thread has a place for a group's first block, which
  // becomes the total, and a place for any later block.
  float* sums;
  SumsScratch scratch;

  size_t Units() const { return walk->Groups() * blocks; }

  // Block i of `blocks` holds the rows floor(i rows / blocks) up to that of i + 1 of its group.
  size_t FirstRow(size_t unit) const { return FirstRow(unit / blocks, unit % blocks); }
  size_t EndRow(size_t unit) const { return FirstRow(unit / blocks, unit % blocks + 1); }

  // Gives a run that begins at a row of a unit the sums that it adds to.
  void SetSums(size_t unit, size_t row, Run& run) const {
    char*& data = run.data[operand];
    data = reinterpret_cast<char*>(SumsOf(unit, data));
    run.start_sums = row == FirstRow(unit);
  }

  // With one thread, when a unit is done: adds its sums to the total of its group, and stores that
  // after the last block.
  void AddUp(size_t unit) const {
    const size_t block = unit % blocks;
    char* const gradient = GradientOf(unit / blocks);
    float* const total = SumsOf(unit - block, gradient);
    if (block > 0) {
      kernels->store_sums(SumsOf(unit, gradient), stride, 1, walk->d, true, RMSNORM_F32, total);
    }
    if (block + 1 == blocks && !in_gradient) {
      kernels->store_sums(total, stride, 1, walk->d, add, dtype, gradient);
    }
  }

  char* GradientOf(size_t group) const {
    const size_t row = group * walk->rows_of_group;
    return NextRun(*walk, row, row + 1).data[operand];
  }

 private:
  size_t FirstRow(size_t group, size_t block) const {
    const size_t rows = walk->rows_of_group;
    // No product overflows.
    return group * rows + block * (rows / blocks) + block * (rows % blocks) / blocks;
  }

  float* SumsOf(size_t unit, char* gradient) const {
    const size_t block = unit % blocks;
    if (in_gradient && block == 0) return reinterpret_cast<float*>(gradient);
    return sums + (one_thread ? std::min<size_t>(block, 1) : unit) * stride;
  }
};

void MakeColumnSums(Operand operand, const Operands& operands, const KernelTable& kernels,
                    const Walk& walk, ColumnSums& sums) {
  sums.operand = operand;
  sums.kernels = &kernels;
  sums.walk = &walk;
  sums.blocks = std::min(kMaxBlocks, (walk.rows_of_group - 1) / kMinRowsPerBlock + 1);
  sums.stride = (walk.d + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
  sums.dtype = operands[operand].dtype;
  sums.add = (operands.add_to & (operand == kDw ? RMSNORM_ADD_TO_DW : RMSNORM_ADD_TO_DB)) != 0;
}

// Finds memory for the sums of a gradient, where `parts` threads share the call.
rmsnorm_status AllocateSums(size_t parts, ColumnSums& sums) {
  sums.one_thread = parts == 1;
  sums.in_gradient =
      (sums.one_thread || sums.blocks == 1) && !sums.add && sums.dtype == RMSNORM_F32;
  if (sums.in_gradient && sums.blocks == 1) return RMSNORM_OK;
  const size_t kept = sums.one_thread ? std::min<size_t>(sums.blocks, 2) : sums.Units();
  sums.scratch.Add(kept, sums.stride * sizeof(float));
  if (!sums.scratch.Allocate()) {
    return Fail(RMSNORM_ERROR_MEMORY, "%s: no memory for the sums of %zu blocks of rows",
                kOperandRules[sums.operand].name, kept);
  }
  sums.sums = sums.scratch.Take<float>(kept * sums.stride);
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ totals of dw and db

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
    sums.kernels->store_sums(sums.sums + group * sums.blocks * sums.stride + begin, sums.stride,
                             sums.blocks, d, sums.add, sums.dtype,
                             sums.GradientOf(group) + begin * ElementSize(sums.dtype));
    i = last;
  }
}

void StoreTotals(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                 ColumnSums& sums) {
  if (sums.one_thread || sums.in_gradient) return;
  const Work work = {sums.kernels, RMSNORM_F32, sums.Units() * sums.walk->d / 2};
  const size_t parts = PartsOf(work, context);
  RunParts(environment, context, parts, RunPartOfTotals, &sums);
}

// ------------------------------------------------------------------ dx and dw of a part

// dx and dw of a call.
struct Gradients {
  WeightScratch weight_scratch;
  Norm norm;
  Walk walk;  // with dw, if it is wanted
  bool has_dw;
  ColumnSums dw;
  size_t parts;

  // What is handed out to threads: blocks of rows, or rows where there is no dw.
  size_t Units() const { return has_dw ? dw.Units() : walk.rows; }
};

void RunPartOfBlocks(void* state, size_t part, size_t parts) {
  const Gradients& call = *static_cast<const Gradients*>(state);
  const KernelTable& kernels = *call.norm.kernels;
  const size_t first = PartBegin(call.Units(), part, parts);
  const size_t last = PartBegin(call.Units(), part + 1, parts);
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
      call.dw.SetSums(unit, row, run);
      kernels.backward(call.norm, run);
      row += run.count;
    }
    if (call.dw.one_thread) call.dw.AddUp(unit);
  }
}

// ------------------------------------------------------------------ dx and dw

// The operands receive the view of the prepared weight.
rmsnorm_status PrepareGradients(Call& call, const Place& place, Gradients& gradients) {
  Operands& operands = call.operands;
  operands.Remove(kDb);
  AddWeight(call, gradients.weight_scratch);
  if (!gradients.weight_scratch.Allocate()) return NoMemoryForWeight(operands.d);
  const rmsnorm_view weight = PrepareWeight(call, *place.kernels, gradients.weight_scratch);
  operands.Set(kWeight, &weight);

  Norm& norm = gradients.norm;
  MakeNormOfViews(*place.kernels, call.options, operands.d, operands, norm);
  norm.add_to_dx = (operands.add_to & RMSNORM_ADD_TO_DX) != 0;
  norm.stream = operands.Has(kDx) && operands[kDx].data != operands[kDy].data && !norm.add_to_dx &&
                RowBytes(operands) > StreamedBytes();
  MakeWalk(operands[kX], operands, gradients.walk);
  gradients.has_dw = operands.Has(kDw);
  if (gradients.has_dw) {
    MakeColumnSums(kDw, operands, *place.kernels, gradients.walk, gradients.dw);
  }
  const Work work = {norm.kernels, norm.dtype[kX],
                     kCostOfBackward * gradients.walk.rows * gradients.walk.d};
  gradients.parts = std::min(PartsOf(work, place.context), gradients.Units());
  return gradients.has_dw ? AllocateSums(gradients.parts, gradients.dw) : RMSNORM_OK;
}

void RunGradients(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                  Gradients& call) {
  RunParts(environment, context, call.parts, RunPartOfBlocks, &call);
  if (call.has_dw) StoreTotals(environment, context, call.dw);
}

// ------------------------------------------------------------------ db

// db of a call: a pass over dy.
struct BiasGradient {
  Norm norm;
  Walk walk;
  ColumnSums db;
  size_t parts;
};

// The sums of some blocks of rows.
void RunPartOfBias(void* state, size_t part, size_t parts) {
  const BiasGradient& call = *static_cast<const BiasGradient*>(state);
  const size_t last = PartBegin(call.db.Units(), part + 1, parts);
  for (size_t unit = PartBegin(call.db.Units(), part, parts); unit < last; ++unit) {
    const size_t end = call.db.EndRow(unit);
    for (size_t row = call.db.FirstRow(unit); row < end;) {
      Run run = NextRun(call.walk, row, end);
      call.db.SetSums(unit, row, run);
      call.norm.kernels->add_rows(call.norm, run);
      row += run.count;
    }
    if (call.db.one_thread) call.db.AddUp(unit);
  }
}

rmsnorm_status PrepareBias(const Call& call, const Place& place, BiasGradient& bias) {
  const rmsnorm_view& x = call.operands[kX];
  Views views;
  views.Set(kX, &x);
  views.Set(kDy, &call.operands[kDy]);
  views.Set(kDb, &call.operands[kDb]);
  MakeNormOfViews(*place.kernels, call.options, call.operands.d, views, bias.norm);
  MakeWalk(x, views, bias.walk);
  MakeColumnSums(kDb, call.operands, *place.kernels, bias.walk, bias.db);
  const Work work = {place.kernels, bias.norm.dtype[kDy], bias.walk.rows * bias.walk.d};
  bias.parts = std::min(PartsOf(work, place.context), bias.db.Units());
  return AllocateSums(bias.parts, bias.db);
}

void RunBias(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
             BiasGradient& call) {
  RunParts(environment, context, call.parts, RunPartOfBias, &call);
  StoreTotals(environment, context, call.db);
}

// ------------------------------------------------------------------ the call

// The gradient of no rows. All bits of +0 are 0 in every type.
void StoreZeros(Operand operand, const rmsnorm_view& view) {
  Views views;
  views.Set(operand, &view);
  Walk walk;
  MakeWalk(view, views, walk);
  for (size_t row = 0; row < walk.rows; ++row) {
    std::memset(NextRun(walk, row, row + 1).data[operand], 0, walk.d * ElementSize(view.dtype));
  }
}

// Fails, with nothing written, only where there is no memory for scratch. The call receives the
// view of the prepared weight.
rmsnorm_status RunBackward(DefaultFloatEnvironment& environment, const Place& place, Call& call) {
  const Operands& operands = call.operands;
  if (operands.rows == 0) {
    const bool adds_dw = (operands.add_to & RMSNORM_ADD_TO_DW) != 0;
    const bool adds_db = (operands.add_to & RMSNORM_ADD_TO_DB) != 0;
    if (operands.Has(kDw) && !adds_dw) StoreZeros(kDw, operands[kDw]);
    if (operands.Has(kDb) && !adds_db) StoreZeros(kDb, operands[kDb]);
    return RMSNORM_OK;
  }
  // db before dx, which may be in the place of dy.
  const bool has_gradients = operands.Has(kDx) || operands.Has(kDw);
  Gradients gradients;
  BiasGradient bias;
  const bool has_db = operands.Has(kDb);
  if (has_db) RMSNORM_RETURN_IF_ERROR(PrepareBias(call, place, bias));
  if (has_gradients) RMSNORM_RETURN_IF_ERROR(PrepareGradients(call, place, gradients));
  if (has_db) RunBias(environment, place.context, bias);
  if (has_gradients) RunGradients(environment, place.context, gradients);
  return RMSNORM_OK;
}

}  // namespace

rmsnorm_status CallBackward(const rmsnorm_module* module, const rmsnorm_operands* operands,
                            const rmsnorm_options* options, const rmsnorm_context* context) {
  DefaultFloatEnvironment environment;
  if (MakeShortCall(Operation::kBackward, module, operands, options, context)) return RMSNORM_OK;
  Call call;
  Place place;
  RMSNORM_RETURN_IF_ERROR(CheckCall(Operation::kBackward, module, operands, options, call));
  RMSNORM_RETURN_IF_ERROR(FindPlace(module, context, place));
  return RunBackward(environment, place, call);
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_backward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                                const rmsnorm_context* context) noexcept {
  return CallBackward(nullptr, operands, options, context);
}

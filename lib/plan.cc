// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <algorithm>
#include <cstring>

#include "module.h"
#include "options.h"
#include "portable.h"
#include "reference.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

// Totals are added up in columns of this unit, a multiple of every vector length and of a cache
// line.
constexpr size_t kColumnUnit = 64;

size_t ColumnUnits(size_t d) { return (d + kColumnUnit - 1) / kColumnUnit; }

size_t Elements(const rmsnorm_view& view) {
  size_t elements = 1;
  for (int i = 0; i < view.ndim; ++i) elements *= view.shape[i];
  return elements;
}

bool IsGiven(OperandSet given, Operand operand) { return (given & SetOf(operand)) != 0; }

// ------------------------------------------------------------------ rows

// Finds the distance in elements from each row of a view to the next, over its first `dims`
// dimensions. Returns false where there is more than one.
bool FindRowStride(const rmsnorm_view& view, int dims, ptrdiff_t& stride) {
  bool found = false;
  size_t next = 0;  // what the stride of the next wider dimension must be
  stride = 0;
  for (int i = dims - 1; i >= 0; --i) {
    if (view.shape[i] == 1) continue;
    if (!found) {
      stride = view.stride[i];
      found = true;
    } else if (static_cast<size_t>(view.stride[i]) != next) {
      return false;
    }
    next = static_cast<size_t>(view.stride[i]) * view.shape[i];
  }
  return true;
}

// Sets the operands of a run of all rows. Returns false where they need a walk. `like_x` are views
// with the type, the shape and the strides of x.
bool SetRun(const Views& views, OperandSet like_x, Run& run) {
  const auto find_stride = [](Operand operand, const rmsnorm_view& view, ptrdiff_t& bytes) {
    const bool found = FindRowStride(view, RowDimensions(operand, view), bytes);
    bytes *= static_cast<ptrdiff_t>(ElementSize(view.dtype));
    return found;
  };
  ptrdiff_t stride;
  bool even = find_stride(kX, views[kX], stride);
  ForEachOperand(views.given & like_x,
                 [&](Operand operand) { run.Set(operand, DataOf(views[operand]), stride); });
  ForEachOperand(views.given & ~like_x, [&](Operand operand) {
    const rmsnorm_view& view = views[operand];
    stride = 0;
    const bool is_even = kOperandRules[operand].shape == Shape::kColumns
                             ? view.ndim == 1 || Elements(view) == run.d
                             : find_stride(operand, view, stride);
    even = even && is_even;
    run.Set(operand, DataOf(view), stride);
  });
  return even;
}

// The rows from `begin` on that are a run, up to `end` at most.
Run NextRunOf(const Plan& plan, size_t begin, size_t end) {
  if (!plan.is_run) return NextRun(plan.walk, begin, end);
  Run run(end - begin, plan.d);
  ForEachOperand(plan.run.given, [&](Operand operand) {
    run.Set(operand, plan.run.Row<void>(operand, begin), plan.run.stride[operand]);
  });
  return run;
}

void RunRows(const Plan& plan, size_t begin, size_t end) {
  while (begin < end) {
    const Run run = NextRunOf(plan, begin, end);
    plan.kernel(plan.norm, run);
    begin += run.count;
  }
}

// ------------------------------------------------------------------ weights and biases in f32

// The operands that a call takes in f32, dense, one row after the other. A weight is among them
// wherever it matters, if only as ones.
OperandSet PreparedOperands(OperandSet given) {
  const OperandSet scaling =
      (given & kScaled) != 0 ? SetOf(kWeight) | (given & SetOf(kBias)) : OperandSet{0};
  return scaling | (given & SetOf(kPostNormWeight));
}

// Writes offset + value for each value of a view. An offset of -0 changes no value.
rmsnorm_view PrepareView(const KernelTable& kernels, const rmsnorm_view& view, float offset,
                         float* prepared) {
  const rmsnorm_view result = rmsnorm_tensor(prepared, RMSNORM_F32, view.ndim, view.shape, nullptr);
  // A dense view goes at once: a walk takes ten times as long for a head of 64.
  const size_t elements = Elements(view);
  const size_t d = view.shape[view.ndim - 1];
  ptrdiff_t stride;
  const bool is_even = FindRowStride(view, view.ndim - 1, stride);
  if (elements == d || (is_even && stride == static_cast<ptrdiff_t>(d))) {
    kernels.prepare(view.dtype, view.data, elements, offset, prepared);
    return result;
  }
  // A walk from each row of the view to its place in the result, as from a weight to its gradient.
  Views views;
  views.Set(kWeight, &view);
  views.Set(kDw, &result);
  Walk walk;
  MakeWalk(view, views, walk);
  for (size_t row = 0; row < walk.rows; ++row) {
    const Run run = NextRun(walk, row, row + 1);
    kernels.prepare(view.dtype, run.data[kWeight], walk.d, offset, run.Row<float>(kDw, 0));
  }
  return result;
}

// Replaces the caller's views of weights and biases by views of the prepared ones, up to three,
// which `prepared` receives, or by the module's. Those that do not matter are removed.
void PrepareColumns(const Call& call, const KernelTable& kernels, Scratch& scratch, Views& views,
                    rmsnorm_view* prepared) {
  const OperandSet wanted = PreparedOperands(views.given | call.own);
  views.given &= ~kPrepared;
  ForEachOperand(wanted, [&](Operand operand) {
    if ((call.own & SetOf(operand)) != 0) {
      return views.Set(operand, &call.module->Prepared(operand));
    }
    rmsnorm_view& view = *prepared++;
    if (call.operands.Has(operand)) {
      const rmsnorm_view& given = call.operands[operand];
      view = PrepareView(kernels, given, OffsetOf(call.options, operand),
                         scratch.Take(Elements(given)));
    } else {
      float* const ones = scratch.Take(call.operands.d);
      std::fill_n(ones, call.operands.d, 1.0f);
      view = rmsnorm_vector(ones, RMSNORM_F32, call.operands.d);
    }
    views.Set(operand, &view);
  });
}

// ------------------------------------------------------------------ rows, weights and norm

// Plans the rows of a call with these views, and its norm. There are no sums yet.
void PlanRows(const Call& call, const KernelTable& kernels, Kernel kernel, Views views,
              Scratch& scratch, Plan& plan) {
  const Operands& operands = call.operands;
  rmsnorm_view prepared[3];
  PrepareColumns(call, kernels, scratch, views, prepared);
  plan.kernel = kernel;
  plan.rows = plan.run.count = operands.rows;
  plan.d = plan.run.d = operands.d;
  plan.run.start_sums = true;
  plan.is_run = SetRun(views, operands.like_x, plan.run);
  if (!plan.is_run) MakeWalk(operands[kX], views, plan.walk);
  plan.has_sums = false;

  Norm& norm = plan.norm;
  const rmsnorm_dtype x_dtype = operands[kX].dtype;
  if (call.module != nullptr) {
    norm = call.module->NormOf(x_dtype);
    norm.kernels = &kernels;
  } else {
    MakeNorm(kernels, call.options, operands.d, x_dtype, norm);
  }
  constexpr OperandSet kOfAnyType = OperandsWhere(
      [](const OperandRule& rule) { return rule.shape == Shape::kRows && rule.dtype == 0; });
  ForEachOperand(views.given & kOfAnyType & ~operands.like_x, [&](Operand operand) {
    if (views[operand].dtype == x_dtype) return;
    norm.dtype[operand] = views[operand].dtype;
    norm.one_type = norm.has_leaves = false;
  });
}

// ------------------------------------------------------------------ dw and db

// The bit of add_to that stands for dw or db.
uint32_t AddTo(Operand gradient) { return gradient == kDw ? RMSNORM_ADD_TO_DW : RMSNORM_ADD_TO_DB; }

// Plans the sums of dw or db, which up to `most_parts` parts share.
void PlanSums(Operand operand, const Operands& operands, size_t most_parts, Scratch& scratch,
              Plan& plan) {
  const rmsnorm_view& view = operands[operand];
  ColumnSums& sums = plan.sums;
  plan.has_sums = true;
  sums.operand = operand;
  sums.dtype = view.dtype;
  sums.add = (operands.add_to & AddTo(operand)) != 0;
  sums.groups = view.ndim == 1 ? 1 : Elements(view) / plan.d;
  sums.blocks = BlocksOfRows(view.ndim == 1 ? plan.rows : plan.rows / sums.groups);
  sums.stride = ColumnUnits(plan.d) * kColumnUnit;
  plan.parts = std::min(most_parts, plan.Units());
  const bool one_part = plan.parts == 1;
  sums.in_gradient = (one_part || sums.blocks == 1) && !sums.add && sums.dtype == RMSNORM_F32;
  const size_t kept = sums.in_gradient && sums.blocks == 1 ? 0
                      : one_part                           ? std::min<size_t>(sums.blocks, 2)
                                                           : plan.Units();
  size_t floats;
  if (MultiplyOverflows(kept, sums.stride, &floats)) floats = SIZE_MAX;
  sums.data = scratch.Take(floats);
}

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

// Where the sums of a unit are. `gradient` is the row of the gradient that its group has.
float* SumsOf(const Plan& plan, size_t unit, char* gradient) {
  const ColumnSums& sums = plan.sums;
  const size_t block = unit % sums.blocks;
  if (sums.in_gradient && block == 0) return reinterpret_cast<float*>(gradient);
  return sums.data + (plan.parts == 1 ? std::min<size_t>(block, 1) : unit) * sums.stride;
}

// Where one part has done a unit: adds its sums to the total of its group, and stores that after
// the last block.
void AddUp(const Plan& plan, size_t unit) {
  const ColumnSums& sums = plan.sums;
  const auto store_sums = plan.norm.kernels->store_sums;
  const size_t block = unit % sums.blocks;
  if (block == 0 && sums.in_gradient) return;  // the sums are the total
  char* const gradient = GradientOf(plan, unit / sums.blocks);
  float* const total = SumsOf(plan, unit - block, gradient);
  if (block > 0) {
    store_sums(SumsOf(plan, unit, gradient), sums.stride, 1, plan.d, true, RMSNORM_F32, total);
  }
  if (block + 1 == sums.blocks && !sums.in_gradient) {
    store_sums(total, sums.stride, 1, plan.d, sums.add, sums.dtype, gradient);
  }
}

void RunBlockOfRows(const Plan& plan, size_t unit) {
  const size_t begin = FirstRow(plan, unit);
  const size_t end = FirstRow(plan, unit + 1);
  for (size_t row = begin; row < end;) {
    Run run = NextRunOf(plan, row, end);
    char*& data = run.data[plan.sums.operand];
    data = reinterpret_cast<char*>(SumsOf(plan, unit, data));
    run.start_sums = row == begin;
    plan.kernel(plan.norm, run);
    row += run.count;
  }
  if (plan.parts == 1) AddUp(plan, unit);
}

}  // namespace

void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
              rmsnorm_dtype dtype, Norm& norm) {
  norm.kernels = &kernels;
  norm.root.eps = options.eps;
  norm.root.divisor = DivisorOf(options, d);
  norm.root.inverse_divisor = 1 / norm.root.divisor;
  norm.root.eps_placement = options.eps_placement;
  norm.rounding = options.rounding;
  norm.norm_unrounded = options.residual_rounding == RMSNORM_RESIDUAL_UNROUNDED;
  norm.factor = FactorOf(options);
  norm.activation = options.activation;
  norm.gate_placement = options.gate_placement;
  norm.gate_rounding = options.gate_rounding;
  norm.add_to_dx = false;
  norm.one_type = true;
  norm.has_leaves = options.rounding != RMSNORM_ROUND_INVERSE && norm.factor == 1.0f;
  norm.stream = false;
// The rules are constants, so that each type costs one store instead of ten instructions.
#pragma GCC unroll 32
  for (int i = 0; i < kOperands; ++i) {
    const OperandRule& rule = kOperandRules[i];
    norm.dtype[i] = rule.dtype != 0 ? rule.dtype : rule.shape == Shape::kRows ? dtype : RMSNORM_F32;
  }
}

size_t PicosecondsOfForward(const KernelTable& kernels, rmsnorm_dtype x_dtype, OperandSet given,
                            size_t elements) {
  constexpr size_t kMost = size_t{1} << 40;  // elements, so that nothing overflows
  const size_t half_steps = 2 + (IsGiven(given, kPostNormWeight) ? 2 : 0) +
                            (IsGiven(given, kGate) ? 4 : 0) + (IsGiven(given, kQ) ? 2 : 0) +
                            (IsGiven(given, kResidual) ? 1 : 0);
  return std::min(elements, kMost) * kernels.picoseconds[x_dtype - RMSNORM_F32] * half_steps / 2;
}

size_t RowBytes(const Operands& operands) {
  constexpr OperandSet kRowOperands =
      OperandsWhere([](const OperandRule& rule) { return rule.shape == Shape::kRows; });
  const size_t of_x = ElementSize(operands[kX].dtype);
  size_t bytes_of_element = 0;
  ForEachOperand(operands.given & kRowOperands, [&](Operand operand) {
    const bool is_like_x = (operands.like_x & SetOf(operand)) != 0;
    bytes_of_element += is_like_x ? of_x : ElementSize(operands[operand].dtype);
  });
  return operands.rows * operands.d * bytes_of_element;
}

bool IsPastCaches(const rmsnorm_context& context, size_t bytes) {
  if (context.stores != RMSNORM_STORES_USUAL) return context.stores == RMSNORM_STORES_STREAMED;
  return bytes > StreamedBytes();
}

void PlanForward(const Call& call, const KernelTable& kernels, bool past_caches, Scratch& scratch,
                 Plan& plan) {
  const Operands& operands = call.operands;
  PlanRows(call, kernels, kernels.forward, operands, scratch, plan);
  if (!plan.is_run) WalkInSlabs(plan.walk);
  plan.norm.stream = past_caches && operands.Has(kY) && operands[kY].data != operands[kX].data;
}

void PlanDb(const Call& call, const KernelTable& kernels, size_t most_parts, Scratch& scratch,
            Plan& plan) {
  const Operands& operands = call.operands;
  Views views;
  for (const Operand operand : {kX, kDy, kDb}) views.Set(operand, &operands[operand]);
  PlanRows(call, kernels, kernels.add_rows, views, scratch, plan);
  PlanSums(kDb, operands, most_parts, scratch, plan);
}

void PlanDxAndDw(const Call& call, const KernelTable& kernels, bool past_caches, size_t most_parts,
                 Scratch& scratch, Plan& plan) {
  const Operands& operands = call.operands;
  Views views = operands;
  views.given &= ~SetOf(kDb);
  PlanRows(call, kernels, kernels.backward, views, scratch, plan);
  plan.norm.add_to_dx = (operands.add_to & RMSNORM_ADD_TO_DX) != 0;
  plan.norm.stream = past_caches && operands.Has(kDx) && operands[kDx].data != operands[kDy].data &&
                     !plan.norm.add_to_dx;
  plan.parts = std::min(most_parts, plan.rows);
  if (operands.Has(kDw)) PlanSums(kDw, operands, most_parts, scratch, plan);
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

void RunUnits(const Plan& plan, size_t begin, size_t end) {
  // A single block of rows adds up in the gradient itself, which the run holds.
  const bool is_all = plan.is_run && begin == 0 && end == plan.Units();
  if (is_all && (!plan.has_sums || (end == 1 && plan.sums.in_gradient))) {
    return plan.kernel(plan.norm, plan.run);
  }
  if (!plan.has_sums) return RunRows(plan, begin, end);
  for (size_t unit = begin; unit < end; ++unit) RunBlockOfRows(plan, unit);
}

size_t UnitsOfTotals(const Plan& plan) {
  const bool are_kept = plan.has_sums && plan.parts > 1 && !plan.sums.in_gradient;
  return are_kept ? plan.sums.groups * ColumnUnits(plan.d) : 0;
}

void StoreTotals(const Plan& plan, size_t begin, size_t end) {
  const ColumnSums& sums = plan.sums;
  const size_t of_group = ColumnUnits(plan.d);
  while (begin < end) {
    const size_t group = begin / of_group;
    const size_t last = std::min(end, (group + 1) * of_group);
    const size_t first_column = begin % of_group * kColumnUnit;
    const size_t end_column = std::min(plan.d, (last - group * of_group) * kColumnUnit);
    plan.norm.kernels->store_sums(sums.data + group * sums.blocks * sums.stride + first_column,
                                  sums.stride, sums.blocks, end_column - first_column, sums.add,
                                  sums.dtype,
                                  GradientOf(plan, group) + first_column * ElementSize(sums.dtype));
    begin = last;
  }
}

}  // namespace rmsnorm::internal

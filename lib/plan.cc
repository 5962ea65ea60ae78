// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <algorithm>
#include <new>

#include "module.h"
#include "options.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

// ------------------------------------------------------------------ rows

// Finds the distance in elements from each row of a view to the next, over its first `dims`
// dimensions. Returns false where there is more than one.
bool FindRowStride(const rmsnorm_view& view, int dims, ptrdiff_t& stride) {
  size_t count = 1;  // of the rows that share the stride so far
  stride = 0;
  for (int i = dims - 1; i >= 0; --i) {
    if (view.shape[i] == 1) continue;
    if (count == 1) {
      stride = view.stride[i];
    } else if (!Continues(view.stride[i], stride, count)) {
      return false;
    }
    count *= view.shape[i];
  }
  return true;
}

// Sets the operands of a run of all rows. Returns false where they need a walk. `like_x` are views
// with the type, the shape and the strides of x.
bool SetRun(const Views& views, OperandSet like_x, RowRun& run) {
  const int row_dimensions = views[kX].ndim - 1;
  const auto find_stride = [=](const rmsnorm_view& view, ptrdiff_t& bytes) {
    const bool found = FindRowStride(view, row_dimensions, bytes);
    bytes *= static_cast<ptrdiff_t>(ElementSize(view.dtype));
    return found;
  };
  ptrdiff_t stride;
  bool even = find_stride(views[kX], stride);
  ForEachOperand(views.given & like_x,
                 [&](Operand operand) { run.Set(operand, DataOf(views[operand]), stride); });
  ForEachOperand(views.given & ~like_x, [&](Operand operand) {
    const rmsnorm_view& view = views[operand];
    stride = 0;
    const bool is_even = kOperandRules[operand].leading == Leading::kShared
                             ? view.ndim == 1 || ElementsOf(view) == view.shape[view.ndim - 1]
                             : find_stride(view, stride);
    even = even && is_even;
    run.Set(operand, DataOf(view), stride);
  });
  return even;
}

// ------------------------------------------------------------------ weights and biases in f32

// The operands that a call takes in f32, dense, one row after the other. A weight is among them
// wherever it matters, if only as ones.
OperandSet WantedColumns(OperandSet given) {
  const OperandSet scaling =
      (given & kScaled) != 0 ? SetOf(kWeight) | (given & SetOf(kBias)) : OperandSet{0};
  return scaling | (given & SetOf(kPostNormWeight));
}

// Writes offset + value for each value of a view, one row after the other. An offset of -0 changes
// no value.
void FillColumn(const KernelTable& kernels, const rmsnorm_view& view, float offset, float* column) {
  // A dense view is read at once: for one head, making a walk would take most of the time.
  const size_t elements = ElementsOf(view);
  const size_t d = view.shape[view.ndim - 1];
  ptrdiff_t stride;
  const bool is_even = FindRowStride(view, view.ndim - 1, stride);
  if (elements == d || (is_even && stride == static_cast<ptrdiff_t>(d))) {
    return kernels.add_offset(view.dtype, view.data, elements, offset, column);
  }
  // A walk from each row of the view to its place in the result, as from a weight to its gradient.
  const rmsnorm_view result = rmsnorm_tensor(column, RMSNORM_F32, view.ndim, view.shape, nullptr);
  Views views;
  views.Set(kWeight, &view);
  views.Set(kDw, &result);
  Walk walk;
  MakeWalk(view, views, walk);
  for (size_t row = 0; row < walk.rows; ++row) {
    const RowRun run = NextRun(walk, row, row + 1);
    kernels.add_offset(view.dtype, run.data[kWeight], walk.d, offset, run.Row<float>(kDw, 0));
  }
}

// The views of a call's kernel: the caller's, but for weights and biases. In place of those that
// matter it has the module's, or views of scratch for their values in f32.
class KernelViews : public Views {
 public:
  KernelViews(const CheckedCall& call, const Views& views, Scratch& scratch) : Views(views) {
    rmsnorm_view* next = columns_;
    given &= ~kColumnsInF32;
    ForEachOperand(WantedColumns(views.given | call.own), [&](Operand operand) {
      if ((call.own & SetOf(operand)) != 0) return Set(operand, &call.module->ColumnOf(operand));
      if (call.operands.Has(operand)) {
        const rmsnorm_view& column = call.operands[operand];
        // Made in place: a copy would load what was stored in smaller pieces, which takes long.
        new (next) rmsnorm_view(rmsnorm_tensor(scratch.Take(ElementsOf(column)), RMSNORM_F32,
                                               column.ndim, column.shape, nullptr));
      } else {
        float* const ones = scratch.Take(call.operands.d);
        std::fill_n(ones, call.operands.d, 1.0f);
        *next = rmsnorm_vector(ones, RMSNORM_F32, call.operands.d);
      }
      Set(operand, next++);
    });
  }
  KernelViews(const KernelViews&) = delete;

 private:
  rmsnorm_view columns_[3];
};

// ------------------------------------------------------------------ rows and norm

// Plans where the rows of a call lie, from one to the next.
void PlanRows(const Operands& operands, const Views& views, Plan& plan) {
  plan.rows = plan.run.count = operands.rows;
  plan.d = plan.run.d = operands.d;
  plan.run.start_sums = true;
  plan.is_run = SetRun(views, operands.like_x, plan.run);
  if (!plan.is_run) MakeWalk(operands[kX], views, plan.walk);
}

// Plans the norm of a call, and the types of its operands.
void PlanNorm(const CheckedCall& call, const KernelTable& kernels, const Views& views, Norm& norm) {
  const Operands& operands = call.operands;
  const rmsnorm_dtype x_dtype = operands[kX].dtype;
  if (call.module != nullptr) {
    norm = call.module->NormOf(x_dtype);
    norm.kernels = &kernels;
  } else {
    MakeNorm(kernels, call.options, call.changed_options, operands.d, x_dtype, norm);
  }
  ForEachOperand(views.given & kRowsOfAnyType & ~operands.like_x, [&](Operand operand) {
    if (views[operand].dtype == x_dtype) return;
    norm.dtype[operand] = views[operand].dtype;
    norm.has_leaves = norm.has_backward_leaves = norm.has_step_leaves = false;
  });
  if (!views.Has(kCos)) return;
  norm.rotated = 2 * views[kCos].shape[views[kCos].ndim - 1];
  for (const Operand operand : {kCos, kSin}) norm.dtype[operand] = views[operand].dtype;
}

// Plans a kernel for these views of a call. There are no sums yet.
void PlanKernel(const CheckedCall& call, const KernelTable& kernels, Kernel kernel,
                const Views& views, Scratch& scratch, Plan& plan) {
  const Operands& operands = call.operands;
  plan.kernel = kernel;
  plan.picoseconds = PicosecondsOf(kernels, operands[kX].dtype, views.given | call.own,
                                   operands.rows * operands.d);
  const KernelViews kernel_views(call, views, scratch);
  PlanRows(operands, kernel_views, plan);
  PlanNorm(call, kernels, kernel_views, plan.norm);
  FillColumns(call, plan);
}

// Whether an output is written past the caches. It is not where it replaces `input`.
bool GoesPastCaches(const Operands& operands, Operand output, Operand input,
                    const CallContext& context) {
  const rmsnorm_stores stores = context.context->stores;
  if (stores == RMSNORM_STORES_CACHED || !operands.Has(output)) return false;
  const rmsnorm_view& view = operands[output];
  if (view.data == operands[input].data) return false;
  const size_t row = operands.d * ElementSize(view.dtype);
  return stores == RMSNORM_STORES_STREAMED ||
         (row >= kLeastStreamedRow && operands.rows * row >= kLeastStreamed);
}

}  // namespace

RowRun Plan::RunFrom(size_t begin, size_t end) const {
  if (!is_run) return NextRun(walk, begin, end);
  return run.From(begin, end - begin);
}

void FillColumns(const CheckedCall& call, const Plan& plan) {
  ForEachOperand(ColumnsToFill(call, plan), [&](Operand operand) {
    FillColumn(*plan.norm.kernels, call.operands[operand], OffsetOf(call.options, operand),
               plan.run.Row<float>(operand, 0));
  });
}

void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, OptionSet changed,
              size_t d, rmsnorm_dtype dtype, Norm& norm) {
  norm.kernels = &kernels;
  norm.root.eps = options.eps;
  norm.root.divisor = DivisorOf(options, d);
  norm.root.inverse_divisor = 1 / norm.root.divisor;
  norm.root.eps_placement = options.eps_placement;
  norm.rounding = options.rounding;
  norm.norm_unrounded = options.residual_rounding == RMSNORM_RESIDUAL_UNROUNDED;
  norm.factor = FactorOr1(options.factor);
  norm.residual_factor = FactorOr1(options.residual_factor);
  norm.activation = options.activation;
  norm.gate_placement = options.gate_placement;
  norm.gate_rounding = options.gate_rounding;
  norm.group = options.group != 0 ? static_cast<size_t>(options.group) : d;
  norm.rotated = 0;
  norm.rotary_pairs = options.rotary_pairs;
  norm.rotary_part = options.rotary_part;
  norm.rotary_rounding = options.rotary_rounding;
  norm.add_to_dx = false;
  norm.has_leaves = LeavesServe<Operation::kForward>(options, changed);
  norm.has_backward_leaves = LeavesServe<Operation::kBackward>(options, changed);
  norm.has_step_leaves = LeavesServe<Operation::kForward>(
      options, changed & ~(SetOf(kResidualFactor) | SetOf(kActivation)));
  norm.stream = false;
// The rules are constants, so that each type costs one store instead of ten instructions.
#pragma GCC unroll 32
  for (int i = 0; i < kOperands; ++i) {
    const OperandRule& rule = kOperandRules[i];
    norm.dtype[i] = rule.dtype != 0 ? rule.dtype : rule.HasShapeOfX() ? dtype : RMSNORM_F32;
  }
}

size_t PicosecondsOf(const KernelTable& kernels, rmsnorm_dtype x_dtype, OperandSet given,
                     size_t elements) {
  constexpr size_t kMost = size_t{1} << 40;  // elements, so that nothing overflows
  const auto has = [given](Operand operand) -> size_t { return given >> operand & 1; };
  const size_t half_steps = 2 + 2 * has(kPostNormWeight) + 4 * has(kGate) + 2 * has(kQ) +
                            has(kResidual) + 2 * has(kCos) + 2 * (has(kDx) | has(kDw));
  return std::min(elements, kMost) * kernels.picoseconds[x_dtype - RMSNORM_F32] * half_steps / 2;
}

void PlanForward(const CheckedCall& call, const CallContext& context, Scratch& scratch,
                 Plan& plan) {
  const Operands& operands = call.operands;
  PlanKernel(call, *context.kernels, context.kernels->forward, operands, scratch, plan);
  if (!plan.is_run) WalkInSlabs(plan.walk);
  plan.norm.stream = GoesPastCaches(operands, kY, kX, context);
}

void PlanDb(const CheckedCall& call, const CallContext& context, Scratch& scratch, Plan& plan) {
  const Operands& operands = call.operands;
  Views views = operands;
  views.given &= SetOf(kX) | SetOf(kDy) | SetOf(kDb) | kRotation;
  PlanKernel(call, *context.kernels, context.kernels->add_rows, views, scratch, plan);
}

void PlanDxAndDw(const CheckedCall& call, const CallContext& context, Scratch& scratch,
                 Plan& plan) {
  const Operands& operands = call.operands;
  Views views = operands;
  views.given &= ~SetOf(kDb);
  PlanKernel(call, *context.kernels, context.kernels->backward, views, scratch, plan);
  plan.norm.add_to_dx = (operands.add_to & RMSNORM_ADD_TO_DX) != 0;
  plan.norm.stream = !plan.norm.add_to_dx && GoesPastCaches(operands, kDx, kDy, context);
}

}  // namespace rmsnorm::internal

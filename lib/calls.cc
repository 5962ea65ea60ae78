// SPDX-License-Identifier: Apache-2.0
// The entry points of calls by views. Each enters the default floating-point state, checks its
// arguments, plans, and runs the plan.
#include "calls.h"

#include <algorithm>
#include <new>

#include "checks.h"
#include "column_sums.h"
#include "float_environment.h"
#include "module.h"
#include "plan.h"
#include "portable.h"
#include "spread.h"
#include "status.h"
#include "target.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

// Neither of these is inlined: a call that goes through one of them would otherwise have the
// scratch and the plans of the other on its stack as well.
template <size_t kFloats, class F>
RMSNORM_NOINLINE void RunWithStack(const F& run) {
  alignas(64) float memory[kFloats];
  Scratch scratch(memory, kFloats);
  run(scratch);
}

template <class F>
RMSNORM_NOINLINE void RunWithHeap(const F& run) {
  Scratch scratch(nullptr, 0);
  run(scratch);
}

// Calls run(scratch) with kFloats of it on the stack, unless rows have more elements, or are
// rotated, which takes the stack for a row. Fails where there is no memory; `run` takes all of its
// scratch before it writes anything.
template <size_t kFloats, class F>
rmsnorm_status RunWithScratch(size_t d, bool rotates, const F& run) {
  try {
    if (d <= kFloats && !rotates) {
      RunWithStack<kFloats>(run);
    } else {
      RunWithHeap(run);
    }
    return RMSNORM_OK;
  } catch (const std::bad_alloc&) {
    return Fail(RMSNORM_ERROR_MEMORY, "x: no memory for the scratch of rows of %zu elements", d);
  }
}

// Runs `count` checked calls together. `plans` has room for as many. kCalls of them may lie on the
// stack, which leaves less of it for scratch.
template <size_t kCalls>
rmsnorm_status RunForward(DefaultFloatEnvironment& environment, const CallContext& context,
                          const CheckedCall* calls, Plan* plans, size_t count) {
  size_t longest = 0;
  bool rotates = false;
  for (size_t i = 0; i < count; ++i) {
    longest = std::max(longest, calls[i].operands.d);
    rotates = rotates || calls[i].operands.Has(kCos);
  }
  return RunWithScratch<kScratchOnStack / kCalls>(longest, rotates, [&](Scratch& scratch) {
    const size_t planned = PlanTogether(calls, count, context, scratch, plans);
    RunPlans(environment, *context.context, Operation::kForward, plans, planned);
  });
}

rmsnorm_status RunBackward(DefaultFloatEnvironment& environment, const CallContext& context,
                           const CheckedCall& call) {
  const Operands& operands = call.operands;
  if (operands.rows == 0) {
    StoreZeroGradients(operands);
    return RMSNORM_OK;
  }
  return RunWithScratch<kScratchOnStack>(operands.d, operands.Has(kCos), [&](Scratch& scratch) {
    Plan plans[kMostBackwardPlans];
    const size_t planned = PlanBackward(call, context, scratch, plans);
    RunPlans(environment, *context.context, Operation::kBackward, plans, planned);
  });
}

// Decides how many parts share a plan of backward, and where the sums of its gradient lie.
void PlanPartsAndSums(Operand gradient, const Operands& operands, const CallContext& context,
                      Scratch& scratch, Plan& plan) {
  plan.parts = PartsOf(&plan, 1, *context.context);
  if (operands.Has(gradient)) PlanSums(gradient, operands, scratch, plan);
}

}  // namespace

rmsnorm_status NoMemoryForCalls(size_t count) {
  return Fail(RMSNORM_ERROR_MEMORY, "calls: no memory for %zu of them", count);
}

rmsnorm_status CheckCalls(const rmsnorm_call* calls, size_t count, CheckedCall* checked) {
  for (size_t i = 0; i < count; ++i) {
    const rmsnorm_status status = CheckCall(Operation::kForward, calls[i].module, calls[i].operands,
                                            calls[i].options, checked[i]);
    if (status != RMSNORM_OK) return FailOfCall(i, status);
  }
  return CheckCallsApart(checked, count);
}

size_t PlanTogether(const CheckedCall* calls, size_t count, const CallContext& context,
                    Scratch& scratch, Plan* plans) {
  size_t planned = 0;
  for (size_t i = 0; i < count; ++i) {
    if (calls[i].operands.rows == 0) continue;
    PlanForward(calls[i], context, scratch, plans[planned++]);
  }
  if (planned > 0) plans->parts = PartsOf(plans, planned, *context.context);
  return planned;
}

size_t PlanBackward(const CheckedCall& call, const CallContext& context, Scratch& scratch,
                    Plan* plans) {
  const Operands& operands = call.operands;
  Plan* next = plans;
  if (operands.Has(kDb)) {
    PlanDb(call, context, scratch, *next);
    PlanPartsAndSums(kDb, operands, context, scratch, *next++);
  }
  if (operands.Has(kDx) || operands.Has(kDw)) {
    PlanDxAndDw(call, context, scratch, *next);
    PlanPartsAndSums(kDw, operands, context, scratch, *next++);
  }
  return static_cast<size_t>(next - plans);
}

rmsnorm_status FindContext(const rmsnorm_module* module, const rmsnorm_context* given,
                           CallContext& context) {
  if (module != nullptr && given == nullptr) {
    context.context = &module->context;
    context.kernels = module->kernels;
    return RMSNORM_OK;
  }
  RMSNORM_RETURN_IF_ERROR(ReadContext(given, context.copy, context.context));
  return FindKernels(context.context->target, context.kernels);
}

rmsnorm_status RunCall(Operation operation, const rmsnorm_module* module,
                       const rmsnorm_operands* operands, const rmsnorm_options* options,
                       const rmsnorm_context* context) {
  DefaultFloatEnvironment environment;
  CheckedCall call;
  CallContext call_context;
  RMSNORM_RETURN_IF_ERROR(CheckCall(operation, module, operands, options, call));
  RMSNORM_RETURN_IF_ERROR(FindContext(module, context, call_context));
  if (operation == Operation::kBackward) return RunBackward(environment, call_context, call);
  Plan plan;
  return RunForward<1>(environment, call_context, &call, &plan, 1);
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_forward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                               const rmsnorm_context* context) noexcept {
  return RunCall(Operation::kForward, nullptr, operands, options, context);
}

rmsnorm_status rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                   const rmsnorm_context* context) noexcept {
  DefaultFloatEnvironment environment;
  if (calls == nullptr && count > 0) return Fail(RMSNORM_ERROR_NULL, "calls: the pointer is null");
  Array<CheckedCall, kCallsOnStack> checked(count);
  Array<Plan, kCallsOnStack> plans(count);
  if (checked.get() == nullptr || plans.get() == nullptr) return NoMemoryForCalls(count);
  RMSNORM_RETURN_IF_ERROR(CheckCalls(calls, count, checked.get()));
  CallContext call_context;
  RMSNORM_RETURN_IF_ERROR(FindContext(nullptr, context, call_context));
  return RunForward<kCallsOnStack>(environment, call_context, checked.get(), plans.get(), count);
}

rmsnorm_status rmsnorm_backward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                                const rmsnorm_context* context) noexcept {
  return RunCall(Operation::kBackward, nullptr, operands, options, context);
}

// Short forms, which name the operands as parameters.

rmsnorm_status rmsnorm_norm(const rmsnorm_view* x, const rmsnorm_view* weight,
                            const rmsnorm_view* y, const rmsnorm_options* options) noexcept {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = x;
  operands.weight = weight;
  operands.y = y;
  return rmsnorm_forward(&operands, options, nullptr);
}

rmsnorm_status rmsnorm_add_norm(const rmsnorm_view* x, const rmsnorm_view* residual,
                                const rmsnorm_view* weight, const rmsnorm_view* residual_out,
                                const rmsnorm_view* y, const rmsnorm_options* options) noexcept {
  rmsnorm_operands operands = rmsnorm_no_operands();
  operands.x = x;
  operands.residual = residual;
  operands.weight = weight;
  operands.residual_out = residual_out;
  operands.y = y;
  return rmsnorm_forward(&operands, options, nullptr);
}

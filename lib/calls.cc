// SPDX-License-Identifier: Apache-2.0
// The entry points of calls by views. Each enters the default floating-point state, checks its
// arguments, plans, and runs the plan.
#include "calls.h"

#include <memory>
#include <new>

#include "checks.h"
#include "float_environment.h"
#include "floats.h"
#include "module.h"
#include "plan.h"
#include "spread.h"
#include "status.h"
#include "target.h"

namespace rmsnorm::internal {
namespace {

// ------------------------------------------------------------------ memory

// `count` items, on the stack where they are few.
template <class T, size_t kFew>
class FewOrMany {
 public:
  explicit FewOrMany(size_t count) {
    if (count <= kFew) return;
    many_.reset(new (std::nothrow) T[count]);
    data_ = many_.get();
  }
  FewOrMany(const FewOrMany&) = delete;
  FewOrMany& operator=(const FewOrMany&) = delete;

  T* data() const { return data_; }  // null where there is no memory

 private:
  T few_[kFew];
  std::unique_ptr<T[]> many_;
  T* data_ = few_;
};

// Not inlined, so that a call which needs no scratch, or more of it, leaves the stack to its
// kernels.
template <size_t kFloats, class F>
[[gnu::noinline]] void RunWithScratchOnStack(const F& run) {
  alignas(64) float memory[kFloats];
  Scratch scratch(memory);
  run(scratch);
}

// Calls run(scratch) with that many floats of scratch, on the stack up to kOnStack. Fails, with
// nothing run, where there is no memory for them.
template <size_t kOnStack, class F>
rmsnorm_status RunWithScratch(size_t floats, const F& run) {
  if (floats > 0 && floats <= kOnStack) {
    RunWithScratchOnStack<kOnStack>(run);
    return RMSNORM_OK;
  }
  const Floats memory = floats > 0 ? MakeFloats(floats) : nullptr;
  if (floats > 0 && memory == nullptr) {
    return Fail(RMSNORM_ERROR_MEMORY,
                "x: no memory for the %zu floats of scratch that its rows need", floats);
  }
  Scratch scratch(memory.get());
  run(scratch);
  return RMSNORM_OK;
}

// ------------------------------------------------------------------ checked calls

// Runs `count` checked calls together, at most kCalls of them with plans on the stack. Fails, with
// nothing written, where there is no memory.
template <size_t kCalls>
rmsnorm_status RunForward(DefaultFloatEnvironment& environment, const Place& place,
                          const Call* calls, size_t count) {
  size_t floats = 0;
  size_t bytes = 0;
  for (size_t i = 0; i < count; ++i) {
    if (calls[i].operands.rows > 0) floats = Scratch::Add(floats, FloatsOfWeights(calls[i]));
    bytes += RowBytes(calls[i].operands);
  }
  const FewOrMany<Plan, kCalls> few_or_many(count);
  Plan* const plans = few_or_many.data();
  if (plans == nullptr)
    return Fail(RMSNORM_ERROR_MEMORY, "calls: no memory for %zu of them", count);
  return RunWithScratch<kScratchOnStack / kCalls>(floats, [&](Scratch& scratch) {
    size_t planned = 0;
    size_t rows = 0;
    size_t picoseconds = 0;
    for (size_t i = 0; i < count; ++i) {
      if (calls[i].operands.rows == 0) continue;
      Plan& plan = plans[planned++];
      PlanForward(calls[i], *place.kernels, bytes, scratch, plan);
      rows += plan.rows;
      picoseconds += plan.picoseconds;
    }
    if (planned == 0) return;
    RunPlans(environment, place.context, PartsOf(picoseconds, rows, place.context), plans, planned);
  });
}

rmsnorm_status RunBackward(DefaultFloatEnvironment& environment, const Place& place,
                           const Call& call) {
  if (call.operands.rows == 0) {
    StoreZeroGradients(call.operands);
    return RMSNORM_OK;
  }
  BackwardPlans plans;
  const size_t floats = PlanSums(call, *place.kernels, place.context, plans);
  return RunWithScratch<kScratchOnStack>(floats, [&](Scratch& scratch) {
    PlanBackward(call, *place.kernels, scratch, plans);
    if (plans.has_db) RunPlans(environment, place.context, plans.db.parts, &plans.db, 1);
    if (plans.has_dx_or_dw)
      RunPlans(environment, place.context, plans.dx_dw.parts, &plans.dx_dw, 1);
  });
}

}  // namespace

rmsnorm_status FindPlace(const rmsnorm_module* module, const rmsnorm_context* given, Place& place) {
  if (module != nullptr && given == nullptr) {
    place = {module->context, module->kernels};
    return RMSNORM_OK;
  }
  RMSNORM_RETURN_IF_ERROR(ReadContext(given, place.context));
  return FindKernels(place.context.target, place.kernels);
}

rmsnorm_status CallForward(const rmsnorm_module* module, const rmsnorm_operands* operands,
                           const rmsnorm_options* options, const rmsnorm_context* context) {
  DefaultFloatEnvironment environment;
  Call call;
  Place place;
  RMSNORM_RETURN_IF_ERROR(CheckCall(Operation::kForward, module, operands, options, call));
  RMSNORM_RETURN_IF_ERROR(FindPlace(module, context, place));
  return RunForward<1>(environment, place, &call, 1);
}

rmsnorm_status CallBackward(const rmsnorm_module* module, const rmsnorm_operands* operands,
                            const rmsnorm_options* options, const rmsnorm_context* context) {
  DefaultFloatEnvironment environment;
  Call call;
  Place place;
  RMSNORM_RETURN_IF_ERROR(CheckCall(Operation::kBackward, module, operands, options, call));
  RMSNORM_RETURN_IF_ERROR(FindPlace(module, context, place));
  return RunBackward(environment, place, call);
}

}  // namespace rmsnorm::internal

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_forward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                               const rmsnorm_context* context) noexcept {
  return CallForward(nullptr, operands, options, context);
}

rmsnorm_status rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                   const rmsnorm_context* context) noexcept {
  DefaultFloatEnvironment environment;
  if (calls == nullptr && count > 0) return Fail(RMSNORM_ERROR_NULL, "calls: the pointer is null");
  const FewOrMany<Call, kPlansOnStack> few_or_many(count);
  Call* const checked = few_or_many.data();
  if (checked == nullptr) {
    return Fail(RMSNORM_ERROR_MEMORY, "calls: no memory for %zu of them", count);
  }
  for (size_t i = 0; i < count; ++i) {
    const rmsnorm_status status = CheckCall(Operation::kForward, calls[i].module, calls[i].operands,
                                            calls[i].options, checked[i]);
    if (status != RMSNORM_OK) return FailOfCall(i, status);
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 0; j < count; ++j) {
      if (i == j) continue;
      const rmsnorm_status status = CheckApart(checked[i].operands, checked[j].operands, j);
      if (status != RMSNORM_OK) return FailOfCall(i, status);
    }
  }
  Place place;
  RMSNORM_RETURN_IF_ERROR(FindPlace(nullptr, context, place));
  return RunForward<kPlansOnStack>(environment, place, checked, count);
}

rmsnorm_status rmsnorm_backward(const rmsnorm_operands* operands, const rmsnorm_options* options,
                                const rmsnorm_context* context) noexcept {
  return CallBackward(nullptr, operands, options, context);
}

// SPDX-License-Identifier: Apache-2.0
// Prepared calls: a checked and planned call, kept with its scratch.
#include <algorithm>
#include <memory>
#include <new>
#include <vector>

#include "calls.h"
#include "column_sums.h"
#include "float_environment.h"
#include "spread.h"
#include "status.h"
#include "thresholds.h"

using namespace rmsnorm::internal;

namespace {

// The operands whose views a run needs beside its plan.
constexpr OperandSet kKept = kColumnsInF32 | SetOf(kDw) | SetOf(kDb);

// A call without the caller's views, which need not stay.
struct KeptCall : CheckedCall {
  KeptCall() = default;
  KeptCall(const KeptCall&) = delete;

  void Keep(const CheckedCall& call) {
    static_cast<CheckedCall&>(*this) = call;
    operands.given &= kKept;
    rmsnorm_view* next = views;
    ForEachOperand(operands.given, [&](Operand operand) {
      *next = call.operands[operand];
      operands.view[operand] = next++;
    });
  }

 private:
  rmsnorm_view views[5];
};

rmsnorm_status NullPrepared() { return Fail(RMSNORM_ERROR_NULL, "prepared: the pointer is null"); }

}  // namespace

struct rmsnorm_prepared {
  explicit rmsnorm_prepared(size_t calls) : call(new KeptCall[calls]) {}

  rmsnorm_context context;      // its target is in the plans
  Scratch scratch{nullptr, 0};  // on the heap
  std::vector<Plan> plans;
  std::unique_ptr<KeptCall[]> call;  // of each plan; a backward call without rows has no plan
  Operation operation;
};

namespace {

// Makes a prepared call of up to `count` calls; plan(made, call_context) plans them. The module may
// be null.
template <class F>
rmsnorm_status Prepare(const rmsnorm_module* module, const rmsnorm_context* context, size_t count,
                       rmsnorm_prepared** prepared, const F& plan) {
  CallContext call_context;
  RMSNORM_RETURN_IF_ERROR(FindContext(module, context, call_context));
  try {
    auto made = std::make_unique<rmsnorm_prepared>(count);
    made->context = *call_context.context;
    made->context.target = nullptr;  // the caller's text, which need not stay
    made->plans.resize(count);
    plan(*made, call_context);
    *prepared = made.release();
    return RMSNORM_OK;
  } catch (const std::bad_alloc&) {
    return Fail(RMSNORM_ERROR_MEMORY, "prepared: no memory for plans and scratch");
  }
}

}  // namespace

rmsnorm_status rmsnorm_prepare(rmsnorm_prepared** prepared, const rmsnorm_call* calls, size_t count,
                               const rmsnorm_context* context) noexcept {
  const DefaultFloatEnvironment environment;
  if (prepared == nullptr) return NullPrepared();
  *prepared = nullptr;
  if (calls == nullptr && count > 0) return Fail(RMSNORM_ERROR_NULL, "calls: the pointer is null");
  Array<CheckedCall, kCallsOnStack> checked(count);
  if (checked.get() == nullptr) return NoMemoryForCalls(count);
  RMSNORM_RETURN_IF_ERROR(count == 1
                              ? CheckCall(Operation::kForward, calls[0].module, calls[0].operands,
                                          calls[0].options, *checked.get())
                              : CheckCalls(calls, count, checked.get()));
  // Calls without rows have nothing to do.
  CheckedCall* const end =
      std::remove_if(checked.get(), checked.get() + count,
                     [](const CheckedCall& call) { return call.operands.rows == 0; });
  const size_t planned = static_cast<size_t>(end - checked.get());
  return Prepare(count == 1 ? calls[0].module : nullptr, context, planned, prepared,
                 [&](rmsnorm_prepared& made, const CallContext& where) {
                   PlanTogether(checked.get(), planned, where, made.scratch, made.plans.data());
                   made.operation = Operation::kForward;
                   for (size_t i = 0; i < planned; ++i) made.call[i].Keep(checked.get()[i]);
                 });
}

rmsnorm_status rmsnorm_prepare_backward(rmsnorm_prepared** prepared, const rmsnorm_call* call,
                                        const rmsnorm_context* context) noexcept {
  const DefaultFloatEnvironment environment;
  if (prepared == nullptr) return NullPrepared();
  *prepared = nullptr;
  if (call == nullptr) return Fail(RMSNORM_ERROR_NULL, "call: the pointer is null");
  CheckedCall checked;
  RMSNORM_RETURN_IF_ERROR(
      CheckCall(Operation::kBackward, call->module, call->operands, call->options, checked));
  return Prepare(
      call->module, context, kMostBackwardPlans, prepared,
      [&](rmsnorm_prepared& made, const CallContext& where) {
        const bool has_rows = checked.operands.rows > 0;
        made.plans.resize(has_rows ? PlanBackward(checked, where, made.scratch, made.plans.data())
                                   : 0);
        made.operation = Operation::kBackward;
        for (size_t i = 0; i < kMostBackwardPlans; ++i) made.call[i].Keep(checked);
      });
}

rmsnorm_status rmsnorm_run(rmsnorm_prepared* prepared) noexcept {
  DefaultFloatEnvironment environment;
  if (prepared == nullptr) return NullPrepared();
  const Plan* const plans = prepared->plans.data();
  const size_t count = prepared->plans.size();
  for (size_t i = 0; i < count; ++i) {
    if (ColumnsToFill(prepared->call[i], plans[i]) != 0) FillColumns(prepared->call[i], plans[i]);
  }
  if (count == 0 && prepared->operation == Operation::kBackward) {
    StoreZeroGradients(prepared->call[0].operands);
  }
  RunPlans(environment, prepared->context, prepared->operation, plans, count);
  return RMSNORM_OK;
}

void rmsnorm_prepared_destroy(rmsnorm_prepared* prepared) noexcept { delete prepared; }

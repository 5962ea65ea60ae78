// SPDX-License-Identifier: Apache-2.0
// How plans are spread over threads: OpenMP's, an executor's, or the calling thread alone.
#ifndef RMSNORM_LIB_SPREAD_H_
#define RMSNORM_LIB_SPREAD_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>

#include "float_environment.h"
#include "plan.h"

namespace rmsnorm::internal {

// How many parts share the work of plans that run together; at least 1.
size_t PartsOf(const Plan* plans, size_t count, const rmsnorm_context& context);

// The two cases of RunTogether() that take longer than a call of one short row.
void RunOnThisThread(const Plan& plan);
void RunInParts(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                const Plan* plans, size_t count);

// Runs the units of all plans, at least one, in parts of about equal work, as many as the first
// plan says, and returns when all are done. A plan with sums must be the only one. Kernels run in
// the default floating-point state, and an executor or OpenMP's runtime in the caller's.
inline void RunTogether(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                        const Plan* plans, size_t count) {
  if (plans->parts > 1) return RunInParts(environment, context, plans, count);
  for (size_t i = 0; i < count; ++i) {
    const Plan& plan = plans[i];
    if (plan.is_run && !plan.HasSums()) {
      plan.kernel(plan.norm, plan.run);
    } else {
      RunOnThisThread(plan);
    }
  }
}

// Runs the plans of forward calls together, and those of a backward call one after the other. There
// may be none.
inline void RunPlans(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                     Operation operation, const Plan* plans, size_t count) {
  const size_t together = operation == Operation::kForward ? count : 1;
  for (size_t i = 0; i < count; i += together) {
    RunTogether(environment, context, &plans[i], together);
  }
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_SPREAD_H_

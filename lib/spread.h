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

// Runs the units of all plans, at least one, in `parts` parts of about equal work, and returns when
// all are done. A plan with sums must be the only one, and `parts` must be its `parts`. Kernels run
// in the default floating-point state, and an executor or OpenMP's runtime in the caller's.
void RunPlans(DefaultFloatEnvironment& environment, const rmsnorm_context& context, size_t parts,
              const Plan* plans, size_t count);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_SPREAD_H_

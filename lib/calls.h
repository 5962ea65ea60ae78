// SPDX-License-Identifier: Apache-2.0
// Calls by views, with or without a module.
#ifndef RMSNORM_LIB_CALLS_H_
#define RMSNORM_LIB_CALLS_H_

#include "plan.h"

namespace rmsnorm::internal {

// Reads the context that is given or, if that is null, takes the module's.
rmsnorm_status FindContext(const rmsnorm_module* module, const rmsnorm_context* given,
                           CallContext& context);

// A call by a module or, where that is null, by `options`.
rmsnorm_status RunCall(Operation operation, const rmsnorm_module* module,
                       const rmsnorm_operands* operands, const rmsnorm_options* options,
                       const rmsnorm_context* context);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CALLS_H_

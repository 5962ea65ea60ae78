// SPDX-License-Identifier: Apache-2.0
// Calls by views, with or without a module.
#ifndef RMSNORM_LIB_CALLS_H_
#define RMSNORM_LIB_CALLS_H_

#include "kernel_table.h"

namespace rmsnorm::internal {

// Where a call runs: in the context that is given or, where that is null, in the module's.
struct Place {
  rmsnorm_context context;
  const KernelTable* kernels;
};
rmsnorm_status FindPlace(const rmsnorm_module* module, const rmsnorm_context* given, Place& place);

// A call by a module or, where that is null, by `options`.
rmsnorm_status RunCall(Operation operation, const rmsnorm_module* module,
                       const rmsnorm_operands* operands, const rmsnorm_options* options,
                       const rmsnorm_context* context);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CALLS_H_

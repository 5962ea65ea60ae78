// SPDX-License-Identifier: Apache-2.0
// Which target's kernels a call uses.
#ifndef RMSNORM_LIB_TARGET_H_
#define RMSNORM_LIB_TARGET_H_

#include <rmsnorm/rmsnorm.h>

#include "kernel_table.h"

namespace rmsnorm::internal {

// Finds the kernels of the target `name`. Where that is null, it finds the kernels of the process:
// RMSNORM_TARGET as it was at the first call, or else the best target this CPU runs.
rmsnorm_status FindKernels(const char* name, const KernelTable*& kernels);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_TARGET_H_

// SPDX-License-Identifier: Apache-2.0
// The targets of this build, and whether this CPU runs them.
#ifndef RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_
#define RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_

#include <cstdint>

#include "../kernel_table.h"

namespace rmsnorm::internal {

struct CompiledTarget {
  int64_t bit;  // Highway's; 0 for the reference, which every CPU runs
  const KernelTable* kernels;
};

// The best target comes first, then the others, the reference, and an entry without kernels.
extern const CompiledTarget kCompiledTargets[];

bool IsSupported(const CompiledTarget& target);

// Returns a text such as "1.0.3".
const char* HighwayVersion();

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_

// SPDX-License-Identifier: Apache-2.0
// The targets that are compiled into this build, and which of them this CPU runs.
#ifndef RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_
#define RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_

#include <cstdint>

#include "../kernel_table.h"

namespace rmsnorm::internal {

struct CompiledTarget {
  int64_t bit;  // Highway's; 0 for the reference, which every CPU runs
  const KernelTable* kernels;
};

// Best first, the reference last; then an entry without kernels.
extern const CompiledTarget kCompiledTargets[];

bool IsSupported(const CompiledTarget& target);

// Such as "1.0.3".
const char* HighwayVersion();

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_

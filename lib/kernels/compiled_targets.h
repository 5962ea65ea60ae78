// SPDX-License-Identifier: Apache-2.0
// The SIMD targets that are compiled into this build.
#ifndef RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_
#define RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_

#include <cstdint>

#include "../kernels.h"

namespace rmsnorm::internal {

struct CompiledTarget {
  int64_t bit;  // Highway's
  const KernelTable* kernels;
};

// Best first; the last entry has no kernels.
extern const CompiledTarget kCompiledTargets[];

// The bits of the targets that this CPU runs.
int64_t SupportedTargets();

// Such as "1.0.3".
const char* HighwayVersion();

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_KERNELS_COMPILED_TARGETS_H_

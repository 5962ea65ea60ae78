// SPDX-License-Identifier: Apache-2.0
#include "compiled_targets.h"

#include "highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/compiled_targets.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

#if HWY_NATIVE_FMA  // as in forward.cc
#include "targets-inl.h"
#endif

#if HWY_ONCE
#include "../reference.h"

namespace rmsnorm::internal {

const CompiledTarget kCompiledTargets[] = {
#if HWY_TARGETS & HWY_AVX3_DL
    {HWY_AVX3_DL, &N_AVX3_DL::kKernels},
#endif
#if HWY_TARGETS & HWY_AVX3
    {HWY_AVX3, &N_AVX3::kKernels},
#endif
#if HWY_TARGETS & HWY_AVX2
    {HWY_AVX2, &N_AVX2::kKernels},
#endif
#if HWY_TARGETS & RMSNORM_HWY_NEON
    {RMSNORM_HWY_NEON, &RMSNORM_N_NEON::kKernels},
#endif
    {0, &kReferenceTable},
    {0, nullptr},
};

bool IsSupported(const CompiledTarget& target) {
  static const int64_t supported = [] {
    int64_t targets = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3_DL
    if (!__builtin_cpu_supports("avx512bf16")) targets &= ~HWY_AVX3_DL;
#endif
    return targets;
  }();
  return (target.bit & ~supported) == 0;
}

const char* HighwayVersion() {
  return RMSNORM_STRING(HWY_MAJOR) "." RMSNORM_STRING(HWY_MINOR) "." RMSNORM_STRING(HWY_PATCH);
}

}  // namespace rmsnorm::internal
#endif  // HWY_ONCE

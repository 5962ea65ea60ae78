// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels once for each target and lists the tables. Nothing else belongs here.
#include "highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/forward.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

// The baseline pass of a build for any x86-64 or arm CPU has no fma; nothing is made of it.
#if HWY_NATIVE_FMA
#include "add-inl.h"
#include "forward-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {
constexpr AddTable kAddKernels = RMSNORM_ADD_TABLE();
extern const GradientTable kGradientKernels;  // of backward.cc
extern const KernelTable kKernels;
constexpr KernelTable kKernels = RMSNORM_KERNEL_TABLE(RMSNORM_TARGET_NAME);
}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // HWY_NATIVE_FMA

#if HWY_ONCE
#include "compiled_targets.h"

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
    {0, nullptr},
};

int64_t SupportedTargets() {
  int64_t targets = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX3_DL
  if (!__builtin_cpu_supports("avx512bf16")) targets &= ~HWY_AVX3_DL;
#endif
  return targets;
}

const char* HighwayVersion() {
  return RMSNORM_STRING(HWY_MAJOR) "." RMSNORM_STRING(HWY_MINOR) "." RMSNORM_STRING(HWY_PATCH);
}

}  // namespace rmsnorm::internal
#endif  // HWY_ONCE

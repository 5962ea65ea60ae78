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
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "../reference.h"

namespace rmsnorm::internal {
namespace {

// The targets that this CPU and the operating system run, by the same features as
// hwy::SupportedTargets(). That function would be the only need for Highway's library.
int64_t SupportedTargets() {
#ifdef __x86_64__
  // These have no names in clang 14. __builtin_cpu_supports() is false where the system does not
  // keep the registers.
  unsigned a, b, c, d;
  const bool f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c >> 29 & 1) != 0;
  const bool lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) != 0 && (c >> 5 & 1) != 0;
  const bool vaes = __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (c >> 9 & 1) != 0;
  const bool avx2 = f16c && lzcnt && __builtin_cpu_supports("avx2") &&
                    __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                    __builtin_cpu_supports("bmi2");
  const bool avx3 = avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd");
  const bool avx3_dl =
      avx3 && vaes && __builtin_cpu_supports("avx512vnni") &&
      __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512vbmi") &&
      __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512bitalg") &&
      __builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("gfni") &&
      __builtin_cpu_supports("avx512bf16");
  return (avx2 ? HWY_AVX2 : 0) | (avx3 ? HWY_AVX3 : 0) | (avx3_dl ? HWY_AVX3_DL : 0);
#else
  return RMSNORM_HWY_NEON;  // every CPU of this architecture has it
#endif
}

}  // namespace

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
  static const int64_t supported = SupportedTargets();
  return (target.bit & ~supported) == 0;
}

const char* HighwayVersion() {
  return RMSNORM_STRING(HWY_MAJOR) "." RMSNORM_STRING(HWY_MINOR) "." RMSNORM_STRING(HWY_PATCH);
}

}  // namespace rmsnorm::internal
#endif  // HWY_ONCE

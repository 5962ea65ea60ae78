// SPDX-License-Identifier: Apache-2.0
#include "compiled_targets.h"

#include <algorithm>
#include <atomic>
#include <initializer_list>

#include "../portable.h"
#include "../reference.h"

#if RMSNORM_HAVE_KERNELS

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
namespace rmsnorm::internal {
namespace {

// The targets that this CPU and the operating system run, by the same features as
// hwy::SupportedTargets(). That function would be the only need for Highway's library.
int64_t SupportedTargets() {
#if RMSNORM_X86_64
  const auto has = [](unsigned bits, std::initializer_list<int> features) {
    return std::all_of(features.begin(), features.end(),
                       [bits](int feature) { return (bits >> feature & 1) != 0; });
  };
  const unsigned first = Cpuid(1, 0).ecx;
  const CpuidRegisters features = Cpuid(7, 0);
  const uint64_t kept = has(first, {27}) ? Xgetbv(0) : 0;  // OSXSAVE
  // xmm and ymm; also k, and zmm in two parts.
  const bool keeps_avx = (kept & 0x6) == 0x6;
  const bool keeps_avx512 = (kept & 0xE6) == 0xE6;
  const bool avx2 = keeps_avx && has(first, {12, 29}) &&  // FMA, F16C
                    has(features.ebx, {3, 5, 8}) &&       // BMI, AVX2, BMI2
                    has(Cpuid(0x80000001, 0).ecx, {5});   // LZCNT
  const bool avx3 =
      avx2 && keeps_avx512 && has(features.ebx, {16, 17, 28, 30, 31});  // AVX512F, DQ, CD, BW, VL
  const bool avx3_dl = avx3 &&
                       // VBMI, VBMI2, GFNI, VAES, VPCLMULQDQ, VNNI, BITALG, VPOPCNTDQ
                       has(features.ecx, {1, 6, 8, 9, 10, 11, 12, 14}) &&
                       has(Cpuid(7, 1).eax, {5});  // AVX512_BF16
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
  // Hypervisors make Cpuid() slow. A constant would need a lock (see target.cc), or be computed
  // when the library is loaded, which may be after the first call: constructors of a program call,
  // too.
  constexpr int64_t kUnknown = -1;
  static std::atomic<int64_t> known{kUnknown};
  int64_t supported = known.load(std::memory_order_relaxed);
  if (supported == kUnknown) known.store(supported = SupportedTargets(), std::memory_order_relaxed);
  return (target.bit & ~supported) == 0;
}

const char* HighwayVersion() {
  return RMSNORM_STRING(HWY_MAJOR) "." RMSNORM_STRING(HWY_MINOR) "." RMSNORM_STRING(HWY_PATCH);
}

}  // namespace rmsnorm::internal
#endif  // HWY_ONCE

#else  // RMSNORM_HAVE_KERNELS

namespace rmsnorm::internal {

const CompiledTarget kCompiledTargets[] = {{0, &kReferenceTable}, {0, nullptr}};

bool IsSupported(const CompiledTarget&) { return true; }

const char* HighwayVersion() { return "none"; }

}  // namespace rmsnorm::internal

#endif  // RMSNORM_HAVE_KERNELS

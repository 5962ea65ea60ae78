// SPDX-License-Identifier: Apache-2.0
// What a call must leave in a thread's vector unit: the register that governs arithmetic (rounding,
// subnormals, traps) as it was, and on x86 the upper halves of vectors unused.
#ifndef RMSNORM_CASES_FLOAT_CONTROL_H_
#define RMSNORM_CASES_FLOAT_CONTROL_H_

#include <cfenv>
#include <cstdint>

#include "../lib/portable.h"

#if RMSNORM_X86_64
#include <xmmintrin.h>
#endif

namespace rmsnorm::cases {

#if RMSNORM_X86_64
// MXCSR without its flags: they record past exceptions and control nothing.
inline uint32_t Control() { return _mm_getcsr() & ~0x3Fu; }
inline void SetControl(uint32_t control) { _mm_setcsr(control); }
constexpr uint32_t kDefaultControl = 0x1F80;
#elif RMSNORM_ARM64
inline uint32_t Control() { return static_cast<uint32_t>(internal::ReadFpcr()); }
inline void SetControl(uint32_t control) { internal::WriteFpcr(control); }
constexpr uint32_t kDefaultControl = 0;
#else
inline uint32_t Control() { return static_cast<uint32_t>(std::fegetround()); }
inline void SetControl(uint32_t control) { std::fesetround(static_cast<int>(control)); }
constexpr uint32_t kDefaultControl = FE_TONEAREST;
#endif

// Any state: each rounding mode, subnormals kept or flushed, and traps if the CPU has them.
template <class Random>
uint32_t RandomControl(Random& random) {
#if RMSNORM_X86_64
  const uint32_t masks[] = {0x1F80, 0x1F80, 0, random.Bits() & 0x1F80};
  return masks[random.Below(4)] | (random.Bits() & 0xE040);  // rounding, FTZ, DAZ
#elif RMSNORM_ARM64
  const uint32_t traps[] = {0, 0, 0x9F00, random.Bits() & 0x9F00};
  return traps[random.Below(4)] | (random.Bits() & 0x03C80000);  // DN, FZ, rounding, FZ16
#else
  const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  return static_cast<uint32_t>(modes[random.Below(4)]);
#endif
}

// On Intel, code that mixes SSE with AVX takes 35 times as long while the upper halves of vector
// registers are in use. Such code is common: a program that is compiled for every x86-64 and calls
// exp(), which glibc has for AVX2, too. At -O0 gcc does not clear them, so nothing is looked at.
#if RMSNORM_X86_64 && defined(__GNUC__) && defined(__OPTIMIZE__)
inline void ClearUpperHalvesWithAvx() {
  asm volatile("vzeroupper" ::
                   : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
                     "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
inline bool AreUpperHalvesUsedWithAvx() {
  constexpr uint64_t kUpperHalves = 1u << 2 | 1u << 6;  // of 256 and of 512 bits
  return (internal::Xgetbv(1) & kUpperHalves) != 0;
}
// Whether the CPU tells. Some say "in use" from the first use on, and so do emulated ones.
inline bool TellsUpperHalves() {
  static const bool tells = [] {
    constexpr unsigned kOsxsaveAndAvx = 3u << 27, kXgetbv1 = 1u << 2;
    if ((internal::Cpuid(1, 0).ecx & kOsxsaveAndAvx) != kOsxsaveAndAvx) return false;
    if ((internal::Cpuid(0xD, 1).eax & kXgetbv1) == 0) return false;
    // Sets all bits. A comparison of floats might trap: the register holds any.
    asm volatile(
        "vpcmpeqd %%xmm0, %%xmm0, %%xmm0\n\t"
        "vinsertf128 $1, %%xmm0, %%ymm0, %%ymm0" ::
            : "xmm0");
    const bool after_use = AreUpperHalvesUsedWithAvx();
    ClearUpperHalvesWithAvx();
    return after_use && !AreUpperHalvesUsedWithAvx();
  }();
  return tells;
}
inline bool AreUpperHalvesUsed() { return TellsUpperHalves() && AreUpperHalvesUsedWithAvx(); }
inline void ClearUpperHalves() {
  if (TellsUpperHalves()) ClearUpperHalvesWithAvx();
}
#else
inline bool AreUpperHalvesUsed() { return false; }
inline void ClearUpperHalves() {}
#endif

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_FLOAT_CONTROL_H_

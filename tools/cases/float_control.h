// SPDX-License-Identifier: Apache-2.0
// The register that governs vector arithmetic: rounding, subnormals, traps.
#ifndef RMSNORM_TOOLS_CASES_FLOAT_CONTROL_H_
#define RMSNORM_TOOLS_CASES_FLOAT_CONTROL_H_

#include <cfenv>
#include <cstdint>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace rmsnorm::cases {

#if defined(__x86_64__)
// MXCSR without its flags: they record past exceptions and control nothing.
inline uint32_t Control() { return _mm_getcsr() & ~0x3Fu; }
inline void SetControl(uint32_t control) { _mm_setcsr(control); }
constexpr uint32_t kDefaultControl = 0x1F80;
#elif defined(__aarch64__)
inline uint32_t Control() {
  uint64_t fpcr;
  asm volatile("mrs %0, fpcr" : "=r"(fpcr));
  return static_cast<uint32_t>(fpcr);
}
inline void SetControl(uint32_t control) {
  asm volatile("msr fpcr, %0" : : "r"(static_cast<uint64_t>(control)) : "memory");
}
constexpr uint32_t kDefaultControl = 0;
#else
inline uint32_t Control() { return static_cast<uint32_t>(std::fegetround()); }
inline void SetControl(uint32_t control) { std::fesetround(static_cast<int>(control)); }
constexpr uint32_t kDefaultControl = FE_TONEAREST;
#endif

// Any state: each rounding mode, subnormals kept or flushed, and traps if the CPU has them.
template <class Random>
uint32_t RandomControl(Random& random) {
#if defined(__x86_64__)
  const uint32_t masks[] = {0x1F80, 0x1F80, 0, random.Bits() & 0x1F80};
  return masks[random.Below(4)] | (random.Bits() & 0xE040);  // rounding, FTZ, DAZ
#elif defined(__aarch64__)
  const uint32_t traps[] = {0, 0, 0x9F00, random.Bits() & 0x9F00};
  return traps[random.Below(4)] | (random.Bits() & 0x03C80000);  // DN, FZ, rounding, FZ16
#else
  const int modes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
  return static_cast<uint32_t>(modes[random.Below(4)]);
#endif
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_FLOAT_CONTROL_H_

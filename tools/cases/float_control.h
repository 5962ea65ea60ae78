// SPDX-License-Identifier: Apache-2.0
// The register that governs vector arithmetic: rounding, subnormals, traps.
#ifndef RMSNORM_TOOLS_CASES_FLOAT_CONTROL_H_
#define RMSNORM_TOOLS_CASES_FLOAT_CONTROL_H_

#include <cfenv>
#include <cstdint>

#include "../../lib/portable.h"

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

}  // namespace rmsnorm::cases

#endif  // RMSNORM_TOOLS_CASES_FLOAT_CONTROL_H_

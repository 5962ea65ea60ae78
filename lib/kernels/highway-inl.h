// SPDX-License-Identifier: Apache-2.0
// The differences between targets and between Highway's versions.

// The guard is toggled by Highway, so that each target includes this once.
#if defined(RMSNORM_LIB_KERNELS_HIGHWAY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_HIGHWAY_INL_H_
#undef RMSNORM_LIB_KERNELS_HIGHWAY_INL_H_
#else
#define RMSNORM_LIB_KERNELS_HIGHWAY_INL_H_
#endif

#include <hwy/highway.h>

#include "highway_config.h"

// Open and close the kernels' namespace, for the target's instructions. A lambda with vectors needs
// RMSNORM_LAMBDA after its parameters, as clang does not give it the target of its namespace.
#undef RMSNORM_NATIVE_BF16
#undef RMSNORM_LAMBDA
#undef RMSNORM_BEFORE_NAMESPACE
#define RMSNORM_AFTER_NAMESPACE() HWY_AFTER_NAMESPACE()
#if HWY_TARGET == HWY_AVX3_DL && !HWY_COMPILER_MSVC
#define RMSNORM_NATIVE_BF16 1
#define RMSNORM_BEFORE_NAMESPACE() \
  HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16") static_assert(true, "")
#define RMSNORM_LAMBDA \
  __attribute__((target(HWY_TARGET_STR ",avx512bf16"))) RMSNORM_ALWAYS_INLINE_LAMBDA
#else
#define RMSNORM_NATIVE_BF16 0
#define RMSNORM_BEFORE_NAMESPACE() HWY_BEFORE_NAMESPACE()
#define RMSNORM_LAMBDA HWY_ATTR RMSNORM_ALWAYS_INLINE_LAMBDA
#endif

// Highway's name of the target, except that NEON is NEON in every version. It is taken from the
// name of the namespace, without its N_, as a constant: a table filled at run time would be empty
// for code that runs before main().
#undef RMSNORM_TARGET_NAME
#if HWY_TARGET == RMSNORM_HWY_NEON
#define RMSNORM_TARGET_NAME "NEON"
#else
#define RMSNORM_TARGET_NAME &RMSNORM_STRING(HWY_NAMESPACE)[2]
#endif

#if RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

using NativeBF16 = hwy::HWY_NAMESPACE::Vec512<uint16_t>;

// Rounds both vectors to bf16, `lower` first. The instruction takes subnormals for zero. LLVM 19
// must not know that these are bf16 values: it would turn HasZero() into 32 scalar compares.
HWY_INLINE NativeBF16 NativeNarrow(hwy::HWY_NAMESPACE::Vec512<float> lower,
                                   hwy::HWY_NAMESPACE::Vec512<float> upper) {
  __m512i bits = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(upper.raw, lower.raw));
  RMSNORM_HIDE_ORIGIN(bits);
  return {bits};
}

// Interleaves the elements of the two halves.
HWY_INLINE NativeBF16 InterleaveHalves(NativeBF16 value) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return {_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), value.raw)};
}

// Whether one of the two holds a zero of either sign, with one branch for both.
HWY_INLINE bool HasZero(NativeBF16 a, NativeBF16 b) {
  const __m512i magnitude = _mm512_set1_epi16(0x7FFF);
  return _kortestz_mask32_u8(_mm512_testn_epi16_mask(a.raw, magnitude),
                             _mm512_testn_epi16_mask(b.raw, magnitude)) == 0;
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_HIGHWAY_INL_H_

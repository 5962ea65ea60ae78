// SPDX-License-Identifier: Apache-2.0
// Which targets Highway compiles the kernels for. With highway-inl.h the place of every difference
// between Highway's versions, 1.0.3 and later. Include before any header of Highway.
#ifndef RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_
#define RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_

// 1.0.3 compiles AVX3_DL only on request.
#define HWY_WANT_AVX3_DL 1

// Every target but these is off: older x86 lacks fma, scalable vectors are served by NEON. The
// baseline pass cannot be switched off; it makes no kernels (see HWY_NATIVE_FMA in the dispatch
// units).
#define HWY_DISABLED_TARGETS                                                                       \
  (~(HWY_SCALAR | HWY_EMU128 | HWY_AVX2 | HWY_AVX3 | RMSNORM_HWY_AVX3_DL | RMSNORM_HWY_AVX3_ZEN4 | \
     RMSNORM_HWY_AVX3_SPR | HWY_NEON | RMSNORM_HWY_NEON_WITHOUT_AES))

#include <hwy/detect_targets.h>

// Targets that 1.0.3 does not know.
#ifdef HWY_AVX3_ZEN4
#define RMSNORM_HWY_AVX3_ZEN4 HWY_AVX3_ZEN4
#else
#define RMSNORM_HWY_AVX3_ZEN4 0
#endif
#ifdef HWY_AVX3_SPR
#define RMSNORM_HWY_AVX3_SPR HWY_AVX3_SPR
#else
#define RMSNORM_HWY_AVX3_SPR 0
#endif
#ifdef HWY_NEON_WITHOUT_AES
#define RMSNORM_HWY_NEON_WITHOUT_AES HWY_NEON_WITHOUT_AES
#else
#define RMSNORM_HWY_NEON_WITHOUT_AES 0
#endif

// A Highway without targets for native bf16 gets one: AVX3_DL is compiled with avx512bf16 on top,
// and chosen only where the CPU has it. Ice Lake, which has not, loses nothing by running AVX3; nor
// does it with a Highway that has them, so there AVX3_DL is off.
#if RMSNORM_HWY_AVX3_ZEN4
#define RMSNORM_HWY_AVX3_DL 0
#else
#define RMSNORM_HWY_AVX3_DL HWY_AVX3_DL
#endif

#endif  // RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_

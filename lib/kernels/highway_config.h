// SPDX-License-Identifier: Apache-2.0
// Which targets Highway compiles the kernels for. With highway-inl.h the place of every difference
// between Highway's versions, 1.0.3 and later. Include before any header of Highway.
#ifndef RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_
#define RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_

// Every target but these is off: older x86 lacks fma, scalable vectors are served by NEON. The
// baseline pass cannot be switched off; it makes no kernels (see HWY_NATIVE_FMA in the dispatch
// units).
//
// Native bf16 is AVX3_DL's: it is compiled with avx512bf16 on top and chosen only where the CPU has
// that. Ice Lake, which has not, loses nothing by running AVX3. Later versions have AVX3_ZEN4 and
// AVX3_SPR for it, but choose the one on AMD's CPUs alone and the other where there is AVX512-FP16
// as well, so that it would take both, and 0.5 MB more, to serve what one does.
#define HWY_DISABLED_TARGETS \
  (~(HWY_SCALAR | HWY_EMU128 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | RMSNORM_HWY_NEON))

// All of these, whatever -m flags make the baseline: with those for Ice Lake only AVX3_DL would be
// left, which it cannot run.
#ifdef __x86_64__
#define HWY_BASELINE_TARGETS HWY_BASELINE_SCALAR
#endif

// 1.0.3 and 1.2 have AVX3_DL only on request.
#define HWY_WANT_AVX3_DL 1

#include <hwy/detect_targets.h>

// What later versions call NEON takes AES besides, which is of no use here and which some CPUs
// lack.
#ifdef HWY_NEON_WITHOUT_AES
#define RMSNORM_HWY_NEON HWY_NEON_WITHOUT_AES
#define RMSNORM_N_NEON N_NEON_WITHOUT_AES
#else
#define RMSNORM_HWY_NEON HWY_NEON
#define RMSNORM_N_NEON N_NEON
#endif

// What a macro stands for, as a string.
#define RMSNORM_STRING(x) RMSNORM_STRING_OF(x)
#define RMSNORM_STRING_OF(x) #x

#endif  // RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_

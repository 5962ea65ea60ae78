// SPDX-License-Identifier: Apache-2.0
// The targets that Highway compiles the kernels for. All differences between Highway's versions,
// from 1.0.3 on, are here and in highway-inl.h. Include it before any header of Highway.
#ifndef RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_
#define RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_

#include "../portable.h"

// Every other target is off: older x86 lacks fma, and NEON serves CPUs with scalable vectors. The
// baseline pass cannot be switched off, and makes no kernels (see HWY_NATIVE_FMA in the dispatch
// units).
//
// Native bf16 is AVX3_DL's: that target is compiled with avx512bf16 on top and chosen only where
// the CPU has it. Ice Lake has no native bf16 and loses nothing by running AVX3. Later versions of
// Highway have AVX3_ZEN4 and AVX3_SPR with native bf16, but choose AVX3_ZEN4 on AMD's CPUs alone
// and AVX3_SPR only with AVX512-FP16. Both would be needed, and 0.5 MB more.
#define HWY_DISABLED_TARGETS \
  (~(HWY_SCALAR | HWY_EMU128 | HWY_AVX2 | HWY_AVX3 | HWY_AVX3_DL | RMSNORM_HWY_NEON))

// All of them are compiled whatever the -m flags say: with the flags of Ice Lake only AVX3_DL would
// be left, which it cannot run.
#if RMSNORM_X86_64
#define HWY_BASELINE_TARGETS HWY_BASELINE_SCALAR
#endif

// Versions 1.0.3 and 1.2 have AVX3_DL only on request.
#define HWY_WANT_AVX3_DL 1

// Only the headers of Highway are used; its assertions would need its library.
#define HWY_IS_DEBUG_BUILD 0

#include <hwy/detect_targets.h>

// Later versions mean NEON with AES by NEON. AES is of no use here, and some CPUs lack it.
#ifdef HWY_NEON_WITHOUT_AES
#define RMSNORM_HWY_NEON HWY_NEON_WITHOUT_AES
#define RMSNORM_N_NEON N_NEON_WITHOUT_AES
#else
#define RMSNORM_HWY_NEON HWY_NEON
#define RMSNORM_N_NEON N_NEON
#endif

// The value of a macro as a string.
#define RMSNORM_STRING(x) RMSNORM_STRING_OF(x)
#define RMSNORM_STRING_OF(x) #x

#endif  // RMSNORM_LIB_KERNELS_HIGHWAY_CONFIG_H_

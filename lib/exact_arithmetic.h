// SPDX-License-Identifier: Apache-2.0
// Stops the compiler where its options change results and it says so. clang has a macro for
// -ffast-math and -ffinite-math-only alone, and no compiler has one for -ffp-contract.
#ifndef RMSNORM_LIB_EXACT_ARITHMETIC_H_
#define RMSNORM_LIB_EXACT_ARITHMETIC_H_

#include <cfloat>

#if defined(__FAST_MATH__) || defined(_M_FP_FAST) || defined(__ASSOCIATIVE_MATH__) || \
    defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__) ||                   \
    (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "-ffast-math, or a part of it, changes results: build this library without it"
#endif
static_assert(FLT_EVAL_METHOD == 0, "f32 arithmetic must be done in f32");
static_assert(sizeof(1.0) == sizeof(double), "-fsingle-precision-constant changes results");

#endif  // RMSNORM_LIB_EXACT_ARITHMETIC_H_

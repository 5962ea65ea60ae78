// SPDX-License-Identifier: Apache-2.0
// The bounds of definition 15: how far results may be from exact arithmetic.
#ifndef RMSNORM_TEST_ERROR_BOUNDS_H_
#define RMSNORM_TEST_ERROR_BOUNDS_H_

#include <cstddef>

#include "cases/case.h"

namespace rmsnorm::test {

// The largest relative error of a rounding to f32.
constexpr double kUnit = 0x1p-24;

// m, the roundings between an element and the sum of its row.
double RoundingsOfSum(size_t d);

// E * 2^-24, for a row of d elements and a divisor of at least 1. A computed value is the exact one
// times e^theta; definition 15 writes t.
double InverseRmsTheta(size_t d, int eps_placement);

// The relative error that this allows.
double InverseRmsBound(size_t d, int eps_placement);

// The bound of an output's error, in ulp of the larger of the result and the size that exact.h
// gives. For q it is in steps of the scale. Rows must be in the ordinary range of definition 15,
// and rstd and sums_out must come from a call without a post-norm.
double ErrorBound(const cases::Case& c, cases::Operand output);

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ERROR_BOUNDS_H_

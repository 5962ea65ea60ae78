// SPDX-License-Identifier: Apache-2.0
// The definition of the gradients, in plain loops.
#ifndef RMSNORM_LIB_REFERENCE_BACKWARD_H_
#define RMSNORM_LIB_REFERENCE_BACKWARD_H_

#include "gradient_rows.h"

namespace rmsnorm::internal {

// The kernels of the target "reference".
extern const GradientTable kGradientKernels;

// The cold path, which the kernels of every target take for the rows whose terms f32 cannot hold.

// The terms of one row in binary64.
template <class X, class Y>
Terms<double> ColdTerms(const Norm& norm, const GradientRows& rows, size_t row);

// Writes or adds to dx, of type Z, and adds to dw, for norm.d elements of one row.
template <class X, class Y, class Z>
void ColdGradient(const Norm& norm, const Terms<double>& terms, const GradientRows& rows,
                  size_t row);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_REFERENCE_BACKWARD_H_

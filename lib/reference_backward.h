// SPDX-License-Identifier: Apache-2.0
// The definition of the gradients, in plain loops.
#ifndef RMSNORM_LIB_REFERENCE_BACKWARD_H_
#define RMSNORM_LIB_REFERENCE_BACKWARD_H_

#include "gradient_rows.h"

namespace rmsnorm::internal {

// The kernels of the target "reference".
extern const GradientTable kGradientKernels;

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_REFERENCE_BACKWARD_H_

// SPDX-License-Identifier: Apache-2.0
// The options and the types of a call as the kernels use them.
#ifndef RMSNORM_LIB_NORM_H_
#define RMSNORM_LIB_NORM_H_

#include "kernel_table.h"

namespace rmsnorm::internal {

// For operands of f32. A divisor of 0 becomes float(d).
void MakeNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d, Norm& norm);

// For views of any types.
void MakeNormOfViews(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
                     const Views& views, Norm& norm);

// For dense rows of one type.
void MakeDenseNorm(const KernelTable& kernels, const rmsnorm_options& options, size_t d,
                   rmsnorm_dtype dtype, Norm& norm);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_NORM_H_

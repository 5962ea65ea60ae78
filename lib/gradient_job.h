// SPDX-License-Identifier: Apache-2.0
// A checked call of the backward pass, from its scratch to its threads.
#ifndef RMSNORM_LIB_GRADIENT_JOB_H_
#define RMSNORM_LIB_GRADIENT_JOB_H_

#include <rmsnorm/rmsnorm.h>

#include "partition.h"
#include "rows.h"

namespace rmsnorm::internal {

struct BackwardCall {
  const rmsnorm_view* dy;
  const rmsnorm_view* x;
  const rmsnorm_view* weight;  // null for ones, or where the Norm has a weight already
  float weight_offset;
  const float* rstd;
  const rmsnorm_view* dx;
  const rmsnorm_view* dw;
  uint32_t flags;
};

// Does it, for so many rows. Fails, with nothing written, only where there is no memory for
// scratch.
rmsnorm_status RunBackward(DefaultFloatEnvironment& environment, const KernelTable& kernels,
                           const Norm& norm, const BackwardCall& call, size_t rows,
                           const Threading& threading);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_GRADIENT_JOB_H_

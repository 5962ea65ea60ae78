// SPDX-License-Identifier: Apache-2.0
// A checked call of the residual add, from its tiles to its threads.
#ifndef RMSNORM_LIB_ADD_JOB_H_
#define RMSNORM_LIB_ADD_JOB_H_

#include <rmsnorm/rmsnorm.h>

#include "partition.h"
#include "rows.h"

namespace rmsnorm::internal {

struct AddForwardCall {
  const rmsnorm_view* x;
  const rmsnorm_view* residual;
  const rmsnorm_view* residual_out;
  const rmsnorm_view* y;
  float* rstd;  // or null
  rmsnorm_residual_rounding rounding;
};

// Does it, for so many rows.
void RunAddForward(DefaultFloatEnvironment& environment, const KernelTable& kernels,
                   const Norm& norm, const AddForwardCall& call, size_t rows,
                   const Threading& threading);

// Does one plain row of a single type (IsPlainAddForward()), whose norm is of residual_out, on the
// calling thread.
void RunAddForwardRow(const KernelTable& kernels, const Norm& norm, const rmsnorm_view& x,
                      const rmsnorm_view& residual, const rmsnorm_view& residual_out,
                      const rmsnorm_view& y);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_ADD_JOB_H_

// SPDX-License-Identifier: Apache-2.0
// The entry point of the backward pass: check, look up, run.
#include "check.h"
#include "float_environment.h"
#include "gradient_job.h"
#include "job.h"
#include "target.h"

using namespace rmsnorm::internal;

rmsnorm_status rmsnorm_backward(const rmsnorm_view* dy, const rmsnorm_view* x,
                                const rmsnorm_view* weight, const float* rstd,
                                const rmsnorm_view* dx, const rmsnorm_view* dw, uint32_t flags,
                                const rmsnorm_options* given_options) noexcept {
  DefaultFloatEnvironment environment;
  const rmsnorm_options defaults = rmsnorm_default_options();
  // Not a copy: a struct of another size may end before the last field.
  const rmsnorm_options& options = given_options != nullptr ? *given_options : defaults;
  size_t rows;
  const KernelTable* kernels;
  RMSNORM_RETURN_IF_ERROR(CheckOptions(options, weight != nullptr));
  RMSNORM_RETURN_IF_ERROR(CheckBackward(dy, x, weight, rstd, dx, dw, flags, rows));
  RMSNORM_RETURN_IF_ERROR(FindKernels(options.target, kernels));
  return RunBackward(environment, *kernels, MakeNorm(options, x->shape[x->ndim - 1], nullptr),
                     {dy, x, weight, options.weight_offset, rstd, dx, dw, flags}, rows,
                     MakeThreading(options));
}

// SPDX-License-Identifier: Apache-2.0
// The entry points that keep no state: check, look up, partition.
#include "add_job.h"
#include "check.h"
#include "float_environment.h"
#include "floats.h"
#include "job.h"
#include "target.h"
#include "thresholds.h"

using namespace rmsnorm::internal;

namespace {

// The values w' = offset + w for the time of a call: on the stack or, for long rows, on the heap.
class PreparedWeight {
 public:
  rmsnorm_status Fill(const rmsnorm_view* weight, float offset, const KernelTable& kernels) {
    if (weight == nullptr) return RMSNORM_OK;
    const size_t d = weight->shape[0];
    float* prepared = on_stack_;
    if (d > kWeightOnStack) {
      on_heap_ = MakeFloats(d);
      if (!on_heap_) return Fail(RMSNORM_ERROR_MEMORY, "weight: no memory for %zu elements", d);
      prepared = on_heap_.get();
    }
    PrepareWeight(kernels, weight->dtype, weight->data, d, offset, prepared);
    data_ = prepared;
    return RMSNORM_OK;
  }

  // Null where there is no weight.
  const float* data() const { return data_; }

 private:
  const float* data_ = nullptr;
  Floats on_heap_;
  alignas(64) float on_stack_[kWeightOnStack];
};

// rmsnorm_forward(), and rmsnorm_scale() where `sums` is not null.
rmsnorm_status Normalise(const rmsnorm_view* x, const double* sums, const rmsnorm_view* weight,
                         const rmsnorm_view* y, float* rstd, const rmsnorm_options& options) {
  DefaultFloatEnvironment environment;
  size_t rows;
  const KernelTable* kernels;
  RMSNORM_RETURN_IF_ERROR(CheckOptions(options, weight != nullptr));
  RMSNORM_RETURN_IF_ERROR(CheckForward(x, sums, weight, y, rstd, rows));
  RMSNORM_RETURN_IF_ERROR(FindKernels(options.target, kernels));
  if (rows == 0) return RMSNORM_OK;

  PreparedWeight prepared;
  RMSNORM_RETURN_IF_ERROR(prepared.Fill(weight, options.weight_offset, *kernels));
  const JobKernels job_kernels = sums != nullptr ? ScaleKernels(*kernels, x->dtype, y->dtype)
                                                 : ForwardKernels(*kernels, x->dtype, y->dtype);
  const Norm norm = MakeNorm(options, x->shape[x->ndim - 1], prepared.data());
  // The kernels of `scale` only read the sums.
  RunJob(environment, MakeJob(job_kernels, norm, *x, y, rows, rstd, const_cast<double*>(sums)),
         MakeThreading(options));
  return RMSNORM_OK;
}

// Not a copy: a struct of another size may end before the last field.
const rmsnorm_options& OptionsOrDefault(const rmsnorm_options* options) {
  static const rmsnorm_options defaults = rmsnorm_default_options();
  return options != nullptr ? *options : defaults;
}

}  // namespace

rmsnorm_status rmsnorm_forward(const rmsnorm_view* x, const rmsnorm_view* weight,
                               const rmsnorm_view* y, float* rstd,
                               const rmsnorm_options* options) noexcept {
  return Normalise(x, nullptr, weight, y, rstd, OptionsOrDefault(options));
}

rmsnorm_status rmsnorm_add_forward(const rmsnorm_view* x, const rmsnorm_view* residual,
                                   const rmsnorm_view* weight, const rmsnorm_view* residual_out,
                                   const rmsnorm_view* y, float* rstd,
                                   const rmsnorm_options* given_options) noexcept {
  const rmsnorm_options& options = OptionsOrDefault(given_options);
  DefaultFloatEnvironment environment;
  size_t rows;
  const KernelTable* kernels;
  RMSNORM_RETURN_IF_ERROR(CheckOptions(options, weight != nullptr));
  RMSNORM_RETURN_IF_ERROR(CheckAddForward(x, residual, weight, residual_out, y, rstd, rows));
  RMSNORM_RETURN_IF_ERROR(FindKernels(options.target, kernels));
  if (rows == 0) return RMSNORM_OK;

  PreparedWeight prepared;
  RMSNORM_RETURN_IF_ERROR(prepared.Fill(weight, options.weight_offset, *kernels));
  RunAddForward(environment, *kernels, MakeNorm(options, x->shape[x->ndim - 1], prepared.data()),
                {x, residual, residual_out, y, rstd, options.residual_rounding}, rows,
                MakeThreading(options));
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_scale(const rmsnorm_view* x, const double* sums, const rmsnorm_view* weight,
                             const rmsnorm_view* y, float* rstd,
                             const rmsnorm_options* options) noexcept {
  if (sums == nullptr) return Fail(RMSNORM_ERROR_NULL, "sums: the pointer is null");
  return Normalise(x, sums, weight, y, rstd, OptionsOrDefault(options));
}

rmsnorm_status rmsnorm_sum_squares(const rmsnorm_view* x, double* sums,
                                   const rmsnorm_options* given_options) noexcept {
  const rmsnorm_options& options = OptionsOrDefault(given_options);
  DefaultFloatEnvironment environment;
  size_t rows;
  const KernelTable* kernels;
  RMSNORM_RETURN_IF_ERROR(CheckOptions(options, true));  // an offset is no matter here
  RMSNORM_RETURN_IF_ERROR(CheckSumSquares(x, sums, rows));
  RMSNORM_RETURN_IF_ERROR(FindKernels(options.target, kernels));
  if (rows == 0) return RMSNORM_OK;

  const Norm norm = MakeNorm(options, x->shape[x->ndim - 1], nullptr);
  RunJob(environment,
         MakeJob(SumSquaresKernels(*kernels, x->dtype), norm, *x, nullptr, rows, nullptr, sums),
         MakeThreading(options));
  return RMSNORM_OK;
}

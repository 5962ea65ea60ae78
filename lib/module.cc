// SPDX-License-Identifier: Apache-2.0
// The module: a weight prepared once, with the kernels and options that go with it.
#include <charconv>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <string>

#include "add_job.h"
#include "check.h"
#include "element.h"
#include "float_environment.h"
#include "floats.h"
#include "gradient_job.h"
#include "job.h"
#include "target.h"
#include "thresholds.h"

using namespace rmsnorm::internal;

struct rmsnorm_module {
  const KernelTable* kernels;
  Norm norm;  // its weight is `prepared`
  Threading threading;
  rmsnorm_dtype dtype;
  rmsnorm_residual_rounding residual_rounding;
  float weight_offset;
  Floats weight;    // rounded to dtype
  Floats prepared;  // offset + weight
  std::string description;
};

namespace {

// As "%g" prints it, but with a point in every locale.
std::string Text(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value, std::chars_format::general, 6);
  return std::string(text, end.ptr);
}

std::string Describe(size_t d, rmsnorm_dtype dtype, const rmsnorm_options& options) {
  std::string text = "RmsNorm(" + std::to_string(d) + ", eps=" + Text(options.eps) + ", " +
                     rmsnorm_dtype_name(dtype);
  if (options.eps_placement == RMSNORM_EPS_OUTSIDE) text += ", eps_placement=outside";
  if (options.rounding == RMSNORM_CAST_THEN_SCALE) text += ", rounding=cast-then-scale";
  if (options.residual_rounding == RMSNORM_NORM_THEN_CAST) {
    text += ", residual_rounding=norm-then-cast";
  }
  if (options.weight_offset != 0.0f) text += ", weight_offset=" + Text(options.weight_offset);
  if (options.divisor != 0.0f) text += ", divisor=" + Text(options.divisor);
  if (options.threads != 0) text += ", threads=" + std::to_string(options.threads);
  if (options.parallel_for != nullptr) text += ", parallel_for";
  if (options.target != nullptr) text += std::string(", target=") + options.target;
  return text + ")";
}

float RoundTo(rmsnorm_dtype dtype, float value) {
  switch (dtype) {
    case RMSNORM_F16:
      return ToF32(CastTo<F16>(value));
    case RMSNORM_BF16:
      return ToF32(CastTo<BF16>(value));
    default:
      return value;
  }
}

template <class T>
void CopyTo(T* to, const float* from, size_t count) {
  for (size_t i = 0; i < count; ++i) to[i] = CastTo<T>(from[i]);
}

rmsnorm_status CheckRowLength(const rmsnorm_module& module, const rmsnorm_view& x) {
  const size_t d = x.shape[x.ndim - 1];
  if (d == module.norm.d) return RMSNORM_OK;
  return Fail(RMSNORM_ERROR_SHAPE, "x: rows of %zu, but the module is for %zu", d, module.norm.d);
}

// rmsnorm_module_forward() with every check. A function of its own, so that the way around it has
// no part in its stack frame.
[[gnu::noinline]] rmsnorm_status ForwardChecked(const rmsnorm_module* module, const rmsnorm_view* x,
                                                const rmsnorm_view* y, float* rstd) {
  DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  size_t rows;
  RMSNORM_RETURN_IF_ERROR(CheckForward(x, nullptr, nullptr, y, rstd, rows));
  RMSNORM_RETURN_IF_ERROR(CheckRowLength(*module, *x));
  if (rows == 0) return RMSNORM_OK;

  const JobKernels kernels = ForwardKernels(*module->kernels, x->dtype, y->dtype);
  RunJob(environment, MakeJob(kernels, module->norm, *x, y, rows, rstd, nullptr),
         module->threading);
  return RMSNORM_OK;
}

// rmsnorm_module_add_forward() likewise.
[[gnu::noinline]] rmsnorm_status AddForwardChecked(const rmsnorm_module* module,
                                                   const rmsnorm_view* x,
                                                   const rmsnorm_view* residual,
                                                   const rmsnorm_view* residual_out,
                                                   const rmsnorm_view* y, float* rstd) {
  DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  size_t rows;
  RMSNORM_RETURN_IF_ERROR(CheckAddForward(x, residual, nullptr, residual_out, y, rstd, rows));
  RMSNORM_RETURN_IF_ERROR(CheckRowLength(*module, *x));
  if (rows == 0) return RMSNORM_OK;

  RunAddForward(environment, *module->kernels, module->norm,
                {x, residual, residual_out, y, rstd, module->residual_rounding}, rows,
                module->threading);
  return RMSNORM_OK;
}

void PrepareOwnWeight(rmsnorm_module& module) {
  PrepareWeight(*module.kernels, RMSNORM_F32, module.weight.get(), module.norm.d,
                module.weight_offset, module.prepared.get());
}

}  // namespace

rmsnorm_status rmsnorm_module_create(rmsnorm_module** module, size_t d, rmsnorm_dtype dtype,
                                     const rmsnorm_options* given_options) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  *module = nullptr;
  const rmsnorm_options defaults = rmsnorm_default_options();
  // Not a copy: a struct of another size may end before the last field.
  const rmsnorm_options& options = given_options != nullptr ? *given_options : defaults;
  const KernelTable* kernels;
  RMSNORM_RETURN_IF_ERROR(CheckOptions(options, true));
  if (d == 0) return Fail(RMSNORM_ERROR_SHAPE, "d: it is 0");
  if (ElementSize(dtype) == 0) {
    return Fail(RMSNORM_ERROR_DTYPE, "dtype: unknown dtype %d", dtype);
  }
  RMSNORM_RETURN_IF_ERROR(FindKernels(options.target, kernels));
  try {
    std::unique_ptr<rmsnorm_module> made(new rmsnorm_module);
    made->weight = MakeFloats(d);
    made->prepared = MakeFloats(d);
    if (!made->weight || !made->prepared) throw std::bad_alloc();
    made->kernels = kernels;
    made->norm = MakeNorm(options, d, made->prepared.get());
    made->threading = MakeThreading(options);
    made->dtype = dtype;
    made->residual_rounding = options.residual_rounding;
    made->weight_offset = options.weight_offset;
    made->description = Describe(d, dtype, options);
    *module = made.release();
  } catch (const std::exception&) {
    return Fail(RMSNORM_ERROR_MEMORY, "d: no memory for a weight of %zu elements", d);
  }
  return rmsnorm_module_reset_weight(*module);
}

void rmsnorm_module_destroy(rmsnorm_module* module) noexcept { delete module; }

rmsnorm_status rmsnorm_module_set_weight(rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  const size_t d = module->norm.d;
  Extent extent;
  RMSNORM_RETURN_IF_ERROR(CheckWeight(weight, d, extent));

  float* own = module->weight.get();
  switch (weight->dtype) {
    case RMSNORM_F16:
      for (size_t j = 0; j < d; ++j) own[j] = ToF32(static_cast<const F16*>(weight->data)[j]);
      break;
    case RMSNORM_BF16:
      for (size_t j = 0; j < d; ++j) own[j] = ToF32(static_cast<const BF16*>(weight->data)[j]);
      break;
    default:
      for (size_t j = 0; j < d; ++j) own[j] = static_cast<const float*>(weight->data)[j];
  }
  for (size_t j = 0; j < d; ++j) own[j] = RoundTo(module->dtype, own[j]);
  PrepareOwnWeight(*module);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_get_weight(const rmsnorm_module* module,
                                         const rmsnorm_view* weight) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  const size_t d = module->norm.d;
  Extent extent;
  RMSNORM_RETURN_IF_ERROR(CheckWeight(weight, d, extent));

  switch (weight->dtype) {
    case RMSNORM_F16:
      CopyTo(static_cast<F16*>(weight->data), module->weight.get(), d);
      break;
    case RMSNORM_BF16:
      CopyTo(static_cast<BF16*>(weight->data), module->weight.get(), d);
      break;
    default:
      CopyTo(static_cast<float*>(weight->data), module->weight.get(), d);
  }
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_reset_weight(rmsnorm_module* module) noexcept {
  const DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  for (size_t j = 0; j < module->norm.d; ++j) module->weight[j] = 1.0f;
  PrepareOwnWeight(*module);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_forward(const rmsnorm_module* module, const rmsnorm_view* x,
                                      const rmsnorm_view* y, float* rstd) noexcept {
  if (module == nullptr || rstd != nullptr || module->norm.d > kMaxPlainRow ||
      !IsPlainForward(x, y, module->norm.d)) {
    return ForwardChecked(module, x, y, rstd);
  }
  const DefaultFloatEnvironment environment;
  RunRow(ForwardKernels(*module->kernels, x->dtype, y->dtype).rows, module->norm, x->data, y->data);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_add_forward(const rmsnorm_module* module, const rmsnorm_view* x,
                                          const rmsnorm_view* residual,
                                          const rmsnorm_view* residual_out, const rmsnorm_view* y,
                                          float* rstd) noexcept {
  if (module == nullptr || rstd != nullptr || module->norm.d > kMaxPlainRow ||
      module->residual_rounding != RMSNORM_CAST_THEN_NORM ||
      !IsPlainAddForward(x, residual, residual_out, y, module->norm.d)) {
    return AddForwardChecked(module, x, residual, residual_out, y, rstd);
  }
  const DefaultFloatEnvironment environment;
  RunAddForwardRow(*module->kernels, module->norm, *x, *residual, *residual_out, *y);
  return RMSNORM_OK;
}

rmsnorm_status rmsnorm_module_backward(const rmsnorm_module* module, const rmsnorm_view* dy,
                                       const rmsnorm_view* x, const float* rstd,
                                       const rmsnorm_view* dx, const rmsnorm_view* dw,
                                       uint32_t flags) noexcept {
  DefaultFloatEnvironment environment;
  if (module == nullptr) return Fail(RMSNORM_ERROR_NULL, "module: the pointer is null");
  size_t rows;
  RMSNORM_RETURN_IF_ERROR(CheckBackward(dy, x, nullptr, rstd, dx, dw, flags, rows));
  RMSNORM_RETURN_IF_ERROR(CheckRowLength(*module, *x));
  return RunBackward(environment, *module->kernels, module->norm,
                     {dy, x, nullptr, 0, rstd, dx, dw, flags}, rows, module->threading);
}

const char* rmsnorm_module_describe(const rmsnorm_module* module) noexcept {
  return module != nullptr ? module->description.c_str() : "";
}

// SPDX-License-Identifier: Apache-2.0
// Calls every function of the C interface, outputs uninitialised: the header compiles alone, and no
// compiler warns.
#include <rmsnorm/rmsnorm.h>

enum { kRows = 4, kD = 16 };

int calls(const float* x, size_t rows, size_t d);
int calls(const float* x, size_t rows, size_t d) {
  float y[kRows * kD];
  float h[kRows * kD];
  float dx[kRows * kD];
  size_t shape[] = {kRows, kD};
  ptrdiff_t stride[] = {kD, 1};
  ptrdiff_t* const strides[] = {stride};
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, rows, d, (ptrdiff_t)d);
  const rmsnorm_view weight = rmsnorm_vector(x, RMSNORM_F32, d);
  const rmsnorm_view sum = rmsnorm_tensor(h, RMSNORM_F32, 2, shape, stride);
  const rmsnorm_view out = rmsnorm_tensor(y, RMSNORM_F32, 2, shape, NULL);
  const rmsnorm_view gradient = rmsnorm_rows(dx, RMSNORM_F32, rows, d, (ptrdiff_t)d);
  const rmsnorm_options options = rmsnorm_default_options();
  const rmsnorm_context context = rmsnorm_default_context();
  rmsnorm_operands operands = rmsnorm_no_operands();
  const rmsnorm_call call = {NULL, &operands, &options};
  rmsnorm_prepared* prepared;
  int failed = 0;
  operands.x = operands.dy = &in;
  operands.y = &out;
  operands.dx = &gradient;
  failed |= rmsnorm_norm(&in, &weight, &out, NULL);
  failed |= rmsnorm_add_norm(&in, &in, &weight, &sum, &out, &options);
  failed |= rmsnorm_forward(&operands, &options, &context);
  failed |= rmsnorm_backward(&operands, &options, &context);
  failed |= rmsnorm_forward_all(&call, 1, &context);
  failed |= rmsnorm_prepare(&prepared, &call, 1, &context);
  failed |= rmsnorm_run(prepared);
  rmsnorm_prepared_destroy(prepared);
  failed |= rmsnorm_prepare_backward(&prepared, &call, NULL);
  rmsnorm_prepared_destroy(prepared);
  return failed | rmsnorm_merge_dims(2, shape, strides, 1) | (y[0] + h[0] + dx[0] > 0);
}

int calls_of_a_module(const float* x, size_t rows, size_t d);
int calls_of_a_module(const float* x, size_t rows, size_t d) {
  float y[kRows * kD];
  float h[kRows * kD];
  float dx[kRows * kD];
  float rstd[kRows];
  float dw[kD];
  const rmsnorm_view weight = rmsnorm_vector(x, RMSNORM_F32, d);
  const rmsnorm_view copy = rmsnorm_vector(dw, RMSNORM_F32, d);
  const rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_module* module;
  int failed = rmsnorm_module_create(&module, d, RMSNORM_F32, NULL, NULL);
  failed |= rmsnorm_module_set_weight(module, &weight);
  failed |= rmsnorm_module_get_weight(module, &copy);
  failed |= rmsnorm_module_set_bias(module, &weight);
  failed |= rmsnorm_module_set_post_norm_weight(module, NULL);
  failed |= rmsnorm_module_reset_weight(module);
  failed |= rmsnorm_module_forward(module, &operands, NULL);
  failed |= rmsnorm_module_backward(module, &operands, NULL);
  failed |= rmsnorm_module_norm_rows(module, RMSNORM_F32, rows, x, y, rstd, NULL);
  failed |=
      rmsnorm_module_add_norm_rows(module, RMSNORM_F32, RMSNORM_F32, rows, x, x, h, y, rstd, NULL);
  failed |= rmsnorm_module_backward_rows(module, RMSNORM_F32, rows, x, x, rstd, dx, dw, NULL);
  failed |= rmsnorm_module_d(module) != d || rmsnorm_module_describe(module)[0] == '\0';
  failed |= rmsnorm_module_dtype(module) != (int32_t)rmsnorm_module_options(module)->size;
  rmsnorm_module_destroy(module);
  return failed | (y[0] + h[0] + dx[0] + rstd[0] + dw[0] > 0);
}

const char* answers_of_the_library(size_t index, const char** name);
const char* answers_of_the_library(size_t index, const char** name) {
  if (rmsnorm_find_target(rmsnorm_target_name(index), name)) return rmsnorm_error_message();
  if (rmsnorm_has_openmp() && rmsnorm_max_threads() > 1) return rmsnorm_highway_version();
  if (rmsnorm_dtype_size(RMSNORM_F32) == 4) return rmsnorm_dtype_name(RMSNORM_F32);
  return index == 0 ? rmsnorm_version() : rmsnorm_status_text(RMSNORM_OK);
}

// SPDX-License-Identifier: Apache-2.0
// Calls every function of the C interface as a program would, outputs uninitialised. The header
// compiles alone, no compiler warns, and the calls work from C.
#include <rmsnorm/rmsnorm.h>

enum { kRows = 4, kD = 16 };

static void in_order(void* context, size_t count, rmsnorm_task task, void* state) {
  size_t i;
  (void)context;
  for (i = 0; i < count; ++i) task(state, i);
}

// Whether a number is 1, but for eps.
static int is_one(float y) { return y > 0.999f && y < 1.001f; }

int calls_of_functions(const float* x, float* out, size_t rows, size_t d);
int calls_of_functions(const float* x, float* out, size_t rows, size_t d) {
  float y[kRows * kD];
  float h[kRows * kD];
  size_t shape[] = {kRows, kD};
  ptrdiff_t stride[] = {kD, 1};
  ptrdiff_t* const strides[] = {stride};
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, rows, d, (ptrdiff_t)d);
  const rmsnorm_view weight = rmsnorm_vector(x, RMSNORM_F32, d);
  const rmsnorm_view sum = rmsnorm_tensor(h, RMSNORM_F32, 2, shape, stride);
  const rmsnorm_view dense = rmsnorm_tensor(y, RMSNORM_F32, 2, shape, NULL);
  const rmsnorm_view result = rmsnorm_rows(out, RMSNORM_F32, rows, d, (ptrdiff_t)d);
  rmsnorm_options options = rmsnorm_default_options();
  rmsnorm_context context = rmsnorm_default_context();
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_operands gradients = rmsnorm_no_operands();
  rmsnorm_prepared* prepared = NULL;
  rmsnorm_call call;
  int done;

  options.eps = 1e-6f;
  context.parallel_for = in_order;
  operands.x = &in;
  operands.y = &dense;
  gradients.x = &in;
  gradients.dy = &sum;
  gradients.dx = &result;
  call.module = NULL;
  call.operands = &operands;
  call.options = &options;
  done = rmsnorm_norm(&in, &weight, &dense, NULL) == RMSNORM_OK && y[0] > 1.999f &&
         rmsnorm_add_norm(&in, &in, &weight, &sum, &dense, &options) == RMSNORM_OK && h[0] == 4 &&
         rmsnorm_forward(&operands, &options, &context) == RMSNORM_OK && is_one(y[0]) &&
         rmsnorm_forward_all(&call, 1, &context) == RMSNORM_OK &&
         rmsnorm_prepare(&prepared, &call, 1, &context) == RMSNORM_OK &&
         rmsnorm_run(prepared) == RMSNORM_OK && is_one(y[kRows * kD - 1]);
  rmsnorm_prepared_destroy(prepared);
  prepared = NULL;
  call.operands = &gradients;
  done = done && rmsnorm_backward(&gradients, &options, NULL) == RMSNORM_OK &&
         rmsnorm_prepare_backward(&prepared, &call, NULL) == RMSNORM_OK;
  rmsnorm_prepared_destroy(prepared);
  return done && rmsnorm_merge_dims(2, shape, strides, 1) == 1;
}

int calls_of_a_module(const float* x, size_t rows, size_t d);
int calls_of_a_module(const float* x, size_t rows, size_t d) {
  float y[kRows * kD];
  float h[kRows * kD];
  float rstd[kRows];
  float dw[kD];
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, rows, d, (ptrdiff_t)d);
  const rmsnorm_view out = rmsnorm_rows(y, RMSNORM_F32, rows, d, (ptrdiff_t)d);
  const rmsnorm_view weight = rmsnorm_vector(dw, RMSNORM_F32, d);
  const rmsnorm_view twos = rmsnorm_vector(x, RMSNORM_F32, d);
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_operands gradients = rmsnorm_no_operands();
  rmsnorm_module* module;
  int done;

  if (rmsnorm_module_create(&module, d, RMSNORM_F32, NULL, NULL) != RMSNORM_OK) return 0;
  operands.x = gradients.x = gradients.dy = &in;
  operands.y = gradients.dx = &out;
  done = rmsnorm_module_set_weight(module, &twos) == RMSNORM_OK &&
         rmsnorm_module_get_weight(module, &weight) == RMSNORM_OK && dw[d - 1] == 2 &&
         rmsnorm_module_set_bias(module, &weight) == RMSNORM_OK &&
         rmsnorm_module_forward(module, &operands, NULL) == RMSNORM_OK && y[0] > 3.999f &&
         rmsnorm_module_set_bias(module, NULL) == RMSNORM_OK &&
         rmsnorm_module_set_post_norm_weight(module, NULL) == RMSNORM_OK &&
         rmsnorm_module_reset_weight(module) == RMSNORM_OK && rmsnorm_module_d(module) == d &&
         rmsnorm_module_dtype(module) == RMSNORM_F32 && rmsnorm_module_options(module)->size > 0 &&
         rmsnorm_module_describe(module)[0] != '\0' &&
         rmsnorm_module_norm_rows(module, RMSNORM_F32, rows, x, y, rstd, NULL) == RMSNORM_OK &&
         rmsnorm_module_add_norm_rows(module, RMSNORM_F32, RMSNORM_F32, rows, x, x, h, y, rstd,
                                      NULL) == RMSNORM_OK &&
         rmsnorm_module_backward_rows(module, RMSNORM_F32, rows, x, x, rstd, h, dw, NULL) ==
             RMSNORM_OK &&
         is_one(y[0]) && rmsnorm_module_backward(module, &gradients, NULL) == RMSNORM_OK;
  rmsnorm_module_destroy(module);
  return done;
}

const char* answers_of_the_library(size_t index, const char* name);
const char* answers_of_the_library(size_t index, const char* name) {
  const char* target;
  if (rmsnorm_find_target(name, &target) == RMSNORM_OK) return target;
  if (rmsnorm_has_openmp() && rmsnorm_max_threads() > 1) return rmsnorm_highway_version();
  if (rmsnorm_dtype_size(RMSNORM_F32) != 4) return rmsnorm_dtype_name(RMSNORM_F32);
  if (index == 0) return rmsnorm_version();
  if (index == 1) return rmsnorm_status_text(RMSNORM_OK);
  return index == 2 ? rmsnorm_error_message() : rmsnorm_target_name(index);
}

int main(void) {
  float x[kRows * kD];
  float dx[kRows * kD];
  int i;
  for (i = 0; i < kRows * kD; ++i) x[i] = 2;
  if (!calls_of_functions(x, dx, kRows, kD)) return 1;
  if (!calls_of_a_module(x, kRows, kD)) return 2;
  return answers_of_the_library(0, "none such") ? 0 : 3;
}

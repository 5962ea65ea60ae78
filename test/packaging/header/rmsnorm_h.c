// SPDX-License-Identifier: Apache-2.0
// The C interface compiles alone, and works from C.
#include <rmsnorm/rmsnorm.h>

// Whether y is {1, 2} divided by its RMS of 1.58114.
static int is_right(const float y[2]) {
  return y[0] > 0.63245f && y[0] < 0.63246f && y[1] > 1.2649f && y[1] < 1.26492f;
}

int main(void) {
  const float x[] = {1.0f, 2.0f};
  float y[2] = {0.0f, 0.0f};
  float h[2];
  const size_t shape[] = {1, 2};
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
  const rmsnorm_view sum = rmsnorm_rows(h, RMSNORM_F32, 1, 2, 2);
  const rmsnorm_view out = rmsnorm_tensor(y, RMSNORM_F32, 2, shape, NULL);
  const rmsnorm_options options = rmsnorm_default_options();
  const rmsnorm_context context = rmsnorm_default_context();
  rmsnorm_operands operands = rmsnorm_no_operands();
  rmsnorm_call call;

  if (rmsnorm_norm(&in, NULL, &out, &options) != RMSNORM_OK || !is_right(y)) return 1;
  if (rmsnorm_add_norm(&in, &in, NULL, &sum, &out, &options) != RMSNORM_OK) return 1;
  if (h[1] != 4.0f || !is_right(y)) return 1;

  y[0] = 0.0f;
  operands.x = &in;
  operands.y = &out;
  call.module = NULL;
  call.operands = &operands;
  call.options = &options;
  return rmsnorm_forward_all(&call, 1, &context) == RMSNORM_OK && is_right(y) ? 0 : 1;
}

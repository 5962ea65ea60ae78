// SPDX-License-Identifier: Apache-2.0
// The C interface compiles alone, twice over, and works from C.
#include <rmsnorm/rmsnorm.h>

int main(void) {
  const float x[] = {1.0f, 2.0f};
  float y[2] = {0.0f, 0.0f};
  const rmsnorm_options options = rmsnorm_default_options();
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
  const size_t shape[] = {1, 2};
  const rmsnorm_view out = rmsnorm_tensor(y, RMSNORM_F32, 2, shape, NULL);
  if (rmsnorm_forward(&in, NULL, &out, NULL, &options) != RMSNORM_OK) return 1;
  return y[0] > 0.63245f && y[0] < 0.63246f && y[1] > 1.2649f && y[1] < 1.26492f ? 0 : 1;
}

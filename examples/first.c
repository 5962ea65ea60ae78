// SPDX-License-Identifier: Apache-2.0
#include <rmsnorm/rmsnorm.h>
#include <stdio.h>

int main(void) {
  const float x[2] = {1, 2}, weight[2] = {1, 1};
  float y[2];
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
  const rmsnorm_view out = rmsnorm_rows(y, RMSNORM_F32, 1, 2, 2);
  const size_t d = 2;
  const rmsnorm_view w = rmsnorm_tensor(weight, RMSNORM_F32, 1, &d, NULL);
  if (rmsnorm_forward(&in, &w, &out, NULL, NULL) != RMSNORM_OK) {
    fprintf(stderr, "%s\n", rmsnorm_error_message());
    return 1;
  }
  printf("%.4f %.4f\n", y[0], y[1]);  // 0.6325 1.2649
  return 0;
}

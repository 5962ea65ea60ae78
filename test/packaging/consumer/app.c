/* SPDX-License-Identifier: Apache-2.0 */
#include <rmsnorm/rmsnorm.h>
#include <stdio.h>

int main(void) {
  const float x[] = {3, 4};
  float y[2];
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
  const rmsnorm_view out = rmsnorm_rows(y, RMSNORM_F32, 1, 2, 2);
  if (rmsnorm_norm(&in, NULL, &out, NULL) != RMSNORM_OK) {
    fprintf(stderr, "%s\n", rmsnorm_error_message());
    return 1;
  }
  printf("rmsnorm %s: %.4f %.4f\n", rmsnorm_version(), y[0], y[1]);
  return 0;
}

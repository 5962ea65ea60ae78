// SPDX-License-Identifier: Apache-2.0
// Without exceptions the C functions report errors; those of rmsnorm.hpp would end the program.
#include <cstdio>
#include <rmsnorm/rmsnorm.hpp>

int main() {
  const float x[] = {3, 4};
  float y[2];
  const rmsnorm_view in = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
  const rmsnorm_view out = rmsnorm_rows(y, RMSNORM_F32, 1, 2, 2);
  const rmsnorm_options options = rmsnorm::Options().get();
  if (rmsnorm_norm(&in, nullptr, &out, &options) != RMSNORM_OK) {
    std::fprintf(stderr, "%s\n", rmsnorm_error_message());
    return 1;
  }
  std::printf("rmsnorm %s: %.4f %.4f\n", rmsnorm_version(), static_cast<double>(y[0]),
              static_cast<double>(y[1]));
  return 0;
}

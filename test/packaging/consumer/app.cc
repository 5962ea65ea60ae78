// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <rmsnorm/rmsnorm.hpp>

int main() {
  const float x[] = {3, 4};
  float y[2];
  rmsnorm::norm({x, 1, 2}, {}, {y, 1, 2});
  std::printf("rmsnorm %s: %.4f %.4f\n", rmsnorm_version(), y[0], y[1]);
}

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

int main() {
  const std::size_t rows = 2, d = 4;
  const std::vector<float> x = {1, 2, 3, 4, 5, 6, 7, 8}, weight = {1, 1, 1, 2};
  std::vector<float> y(rows * d);
  rmsnorm::forward({x.data(), rows, d}, {weight.data(), d}, {y.data(), rows, d});
  for (float value : y) std::printf("%.4f\n", value);
}

// SPDX-License-Identifier: Apache-2.0
// Replaces a consumer's program: norms rows on each target, and compares every bit with the results
// in a file that cmake_test.py makes from data/. Prints how many rows it compared.
#include <rmsnorm/rmsnorm.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace {

// The head of a case in the file. The elements of x, weight, bias and y follow it. A type of 0
// means that the operand is absent.
struct Case {
  int32_t x_dtype, weight_dtype, bias_dtype, y_dtype;
  int32_t rows, d;
  int32_t eps_placement, rounding;
  float eps, weight_offset, divisor;
};

std::vector<char> Read(std::istream& file, rmsnorm_dtype dtype, size_t count) {
  std::vector<char> elements(count * rmsnorm_dtype_size(dtype));
  file.read(elements.data(), static_cast<std::streamsize>(elements.size()));
  return elements;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  size_t compared = 0, wrong = 0;
  for (Case c; file.read(reinterpret_cast<char*>(&c), sizeof c);) {
    const size_t rows = static_cast<size_t>(c.rows), d = static_cast<size_t>(c.d);
    const auto stride = static_cast<ptrdiff_t>(d);
    const std::vector<char> x = Read(file, c.x_dtype, rows * d);
    const std::vector<char> weight = Read(file, c.weight_dtype, d);
    const std::vector<char> bias = Read(file, c.bias_dtype, d);
    const std::vector<char> expected = Read(file, c.y_dtype, rows * d);
    std::vector<char> y(expected.size());

    const rmsnorm_view x_view = rmsnorm_rows(x.data(), c.x_dtype, rows, d, stride);
    const rmsnorm_view weight_view = rmsnorm_vector(weight.data(), c.weight_dtype, d);
    const rmsnorm_view bias_view = rmsnorm_vector(bias.data(), c.bias_dtype, d);
    const rmsnorm_view y_view = rmsnorm_rows(y.data(), c.y_dtype, rows, d, stride);
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.x = &x_view;
    if (c.weight_dtype != 0) operands.weight = &weight_view;
    if (c.bias_dtype != 0) operands.bias = &bias_view;
    operands.y = &y_view;
    rmsnorm_options options = rmsnorm_default_options();
    options.eps_placement = c.eps_placement;
    options.rounding = c.rounding;
    options.eps = c.eps;
    options.weight_offset = c.weight_offset;
    options.divisor = c.divisor;

    for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
      rmsnorm_context context = rmsnorm_default_context();
      context.target = rmsnorm_target_name(i);
      const char* exact;
      if (rmsnorm_find_target(context.target, &exact) != RMSNORM_OK) continue;
      if (rmsnorm_forward(&operands, &options, &context) != RMSNORM_OK) {
        std::fprintf(stderr, "%s: %s\n", context.target, rmsnorm_error_message());
        return 1;
      }
      compared += rows;
      const size_t size = y.size() / rows;
      for (size_t row = 0; row < rows; ++row)
        wrong += std::memcmp(&y[row * size], &expected[row * size], size) != 0;
    }
  }
  std::printf("%zu rows, %zu wrong\n", compared, wrong);
  return wrong == 0 && compared > 0 ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_CELL_H_
#define RMSNORM_BENCH_CELL_H_

#include <cstddef>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

namespace rmsnorm::bench {

// One cell of the table: what is computed, and with what.
struct Cell {
  Dtype dtype;  // of x, the weight and y
  size_t rows;
  size_t d;
  int threads;
  std::string target;

  size_t elements() const { return rows * d; }
  size_t bytes() const {
    return elements() * rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  }
  const char* type_name() const { return rmsnorm_dtype_name(static_cast<rmsnorm_dtype>(dtype)); }
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CELL_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_CELL_H_
#define RMSNORM_BENCH_CELL_H_

#include <cstddef>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

namespace rmsnorm::bench {

// One cell of the table: what is computed, and with what.
struct Cell {
  std::string operation;  // a name from operations.h
  Dtype dtype;            // of x, the weight and y
  size_t rows;
  size_t d;
  int threads;
  std::string target;
  bool cold = false;  // each call finds x and y in memory, not in the caches

  size_t elements() const { return rows * d; }
  // Of x, and of y.
  size_t bytes() const {
    return elements() * rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  }
  const char* type_name() const { return rmsnorm_dtype_name(static_cast<rmsnorm_dtype>(dtype)); }

  // Such as "forward/f32/1x4096/threads:1/target:AVX2", and "/cold" after that. Results are
  // compared over time by this name.
  std::string name() const {
    return operation + "/" + type_name() + "/" + std::to_string(rows) + "x" + std::to_string(d) +
           "/threads:" + std::to_string(threads) + "/target:" + target + (cold ? "/cold" : "");
  }
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CELL_H_

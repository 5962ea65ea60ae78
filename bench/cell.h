// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_CELL_H_
#define RMSNORM_BENCH_CELL_H_

#include <cstddef>
#include <cstdint>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "peers/peer.h"

namespace rmsnorm::bench {

// What can be timed.
struct Operation {
  const char* name;
  int32_t code;    // of peers/peer.h
  size_t tensors;  // of the size of x that it reads and writes
};

constexpr Operation kOperations[] = {
    {"forward", RMSNORM_PEER_FORWARD, 2},         {"add_forward", RMSNORM_PEER_ADD_FORWARD, 4},
    {"backward", RMSNORM_PEER_BACKWARD, 3},       {"forward_call", RMSNORM_PEER_FORWARD_CALL, 2},
    {"sum_squares", RMSNORM_PEER_SUM_SQUARES, 1}, {"scale", RMSNORM_PEER_SCALE, 2},
    {"latent", RMSNORM_PEER_LATENT, 2},           {"layernorm", RMSNORM_PEER_LAYERNORM, 2},
};

// The rows of "latent", as in DeepSeek-V3 and Kimi-K2: the compressed q, the compressed k and v,
// and 64 elements that are not normalised.
constexpr size_t kLatentQ = 1536;
constexpr size_t kLatentKv = 512;
constexpr size_t kLatentRow = kLatentQ + kLatentKv + 64;

// One cell of the table: what is computed, and with what.
struct Cell {
  const Operation* operation;
  Dtype dtype;  // of x, the weight and y
  size_t rows;
  size_t d;
  int threads;
  std::string target;

  size_t elements() const { return rows * d; }
  size_t element_bytes() const { return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype)); }
  // Of x, and of y.
  size_t bytes() const { return elements() * element_bytes(); }
  const char* type_name() const { return rmsnorm_dtype_name(static_cast<rmsnorm_dtype>(dtype)); }

  // Such as "forward/f32/1x4096/threads:1/target:AVX2". Results are compared over time by this
  // name.
  std::string name() const {
    return std::string(operation->name) + "/" + type_name() + "/" + std::to_string(rows) + "x" +
           std::to_string(d) + "/threads:" + std::to_string(threads) + "/target:" + target;
  }
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CELL_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_BENCH_CELL_H_
#define RMSNORM_BENCH_CELL_H_

#include <cstddef>
#include <cstdint>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "peers/peer.h"

namespace rmsnorm::bench {

// A row of "q_and_k" has heads of 64 elements, or of a multiple.
constexpr size_t kHeadsRow = 64 * RMSNORM_PEER_HEADS;

// The operands of an operation in addition to x and the weight.
enum Operands : unsigned {
  kY = 1,
  kResidual = 2,  // updated in place
  kPostNormWeight = 4,
  kGate = 8,
  kInt8 = 16,       // q and scale
  kGradients = 32,  // dy, rstd, dx and dw
  kSums = 64,
  kSumsOut = 128,
  kBias = 256
};

// The operations that can be timed.
struct Operation {
  const char* name;
  int32_t code;       // from peers/peer.h
  size_t tensors;     // tensors as large as x that it reads or writes
  unsigned operands;  // a set of Operands
  size_t row = 1;     // d is a multiple of this

  bool Has(unsigned any) const { return (operands & any) != 0; }
};

constexpr Operation kOperations[] = {
    {"norm", RMSNORM_PEER_NORM, 2, kY},
    {"add_norm", RMSNORM_PEER_ADD_NORM, 4, kY | kResidual},
    {"backward", RMSNORM_PEER_BACKWARD, 3, kGradients},
    {"norm_call", RMSNORM_PEER_NORM_CALL, 2, kY},
    {"sum_squares", RMSNORM_PEER_SUM_SQUARES, 1, kSumsOut},
    {"scale", RMSNORM_PEER_SCALE, 2, kY | kSums},
    {"latent", RMSNORM_PEER_LATENT, 2, kY, RMSNORM_PEER_LATENT_ROW},
    {"q_and_k", RMSNORM_PEER_Q_AND_K, 2, kY, kHeadsRow},
    {"post_norm", RMSNORM_PEER_POST_NORM, 4, kY | kResidual | kPostNormWeight},
    {"post_add", RMSNORM_PEER_POST_ADD, 3, kResidual | kPostNormWeight},
    {"gate_after", RMSNORM_PEER_GATE_AFTER, 3, kY | kGate},
    {"gate_before", RMSNORM_PEER_GATE_BEFORE, 3, kY | kGate, RMSNORM_PEER_GROUP},
    {"int8", RMSNORM_PEER_INT8, 2, kY | kInt8},
    {"int8_alone", RMSNORM_PEER_INT8_ALONE, 1, kInt8},
    {"layernorm", RMSNORM_PEER_LAYERNORM, 2, kY | kBias},
};

// One cell of the table: an operation and its parameters.
struct Cell {
  const Operation* operation;
  Dtype dtype;  // of x, the weight and y
  size_t rows;
  size_t d;
  int threads;
  std::string target;

  size_t elements() const { return rows * d; }
  size_t element_bytes() const { return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype)); }
  // The bytes of x; y has the same size.
  size_t bytes() const { return elements() * element_bytes(); }
  // The bytes that the operation reads and writes.
  size_t moved_bytes() const {
    return operation->tensors * bytes() + (operation->Has(kInt8) ? elements() : 0);
  }
  const char* type_name() const { return rmsnorm_dtype_name(static_cast<rmsnorm_dtype>(dtype)); }

  // Such as "norm/f32/1x4096/threads:1/target:AVX2". This name identifies results over time.
  std::string name() const {
    return std::string(operation->name) + "/" + type_name() + "/" + std::to_string(rows) + "x" +
           std::to_string(d) + "/threads:" + std::to_string(threads) + "/target:" + target;
  }
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_CELL_H_

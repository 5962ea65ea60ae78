// SPDX-License-Identifier: Apache-2.0
// The definition of every number this library gives, in plain loops.
#ifndef RMSNORM_LIB_REFERENCE_H_
#define RMSNORM_LIB_REFERENCE_H_

#include "kernel_table.h"

namespace rmsnorm::internal {

// The order of summation: a row is cut into blocks, and the elements of a block go to the lanes in
// turn.
constexpr size_t kLanes = 128;
constexpr size_t kBlock = 4096;

// The rows over which a gradient dw or db adds up are cut into blocks of rows. The sums of the
// blocks add up in rising order.
constexpr size_t kMinRowsPerBlock = 16;
constexpr size_t kMaxBlocks = 64;

constexpr size_t BlocksOfRows(size_t rows) {
  const size_t blocks = (rows - 1) / kMinRowsPerBlock + 1;
  return blocks < kMaxBlocks ? blocks : kMaxBlocks;
}

// floor(block * rows / blocks), without a product that overflows. Block `blocks` begins after the
// last row.
constexpr size_t FirstRowOfBlock(size_t rows, size_t blocks, size_t block) {
  return block * (rows / blocks) + block * (rows % blocks) / blocks;
}

// The kernels of the target "reference".
extern const KernelTable kReferenceTable;

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_REFERENCE_H_

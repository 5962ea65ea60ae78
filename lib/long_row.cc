// SPDX-License-Identifier: Apache-2.0
#include "long_row.h"

#include <algorithm>

#include "inverse_rms.h"
#include "reference.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

struct LongRow {
  const Job& job;
  Rows row;            // the one
  size_t first_block;  // of a batch,
  size_t blocks;       // how many,
  float* sums;         // and their sums
};

// The elements of some blocks of the row as rows of their own, with no output but y.
Rows Elements(const LongRow& row, size_t begin_block) {
  Rows rows = AtColumn(row.job, row.row, begin_block * kBlock);
  rows.rstd = nullptr;
  rows.sums = nullptr;
  return rows;
}

// Sums part of a batch's blocks.
void SumPart(void* state, size_t part, size_t parts) {
  LongRow& row = *static_cast<LongRow*>(state);
  const size_t begin = PartBegin(row.blocks, part, parts);
  const size_t end = PartBegin(row.blocks, part + 1, parts);
  for (size_t block = begin; block < end; ++block) {
    const size_t of_row = row.first_block + block;
    Norm norm = row.job.norm;
    norm.d = std::min(kBlock, row.job.norm.d - of_row * kBlock);
    Rows rows = Elements(row, of_row);
    double sum;
    rows.sums = &sum;
    row.job.kernels.block_sums(norm, rows);
    row.sums[block] = static_cast<float>(sum);
  }
}

float SumInParts(DefaultFloatEnvironment& environment, LongRow& row, size_t parts,
                 const Threading& threading) {
  const size_t all_blocks = (row.job.norm.d + kBlock - 1) / kBlock;
  float sums[kBatchBlocks];
  row.sums = sums;
  float total = 0;
  for (row.first_block = 0; row.first_block < all_blocks; row.first_block += kBatchBlocks) {
    row.blocks = std::min(kBatchBlocks, all_blocks - row.first_block);
    RunParts(environment, threading, parts, SumPart, &row);
    for (size_t block = 0; block < row.blocks; ++block) total += row.sums[block];
  }
  return total;
}

// Scales part of the row by the sum in `row.row.sums`.
void ScalePart(void* state, size_t part, size_t parts) {
  const LongRow& row = *static_cast<const LongRow*>(state);
  const size_t d = row.job.norm.d;
  const size_t all_blocks = (d + kBlock - 1) / kBlock;
  const size_t begin = PartBegin(all_blocks, part, parts);
  const size_t end = PartBegin(all_blocks, part + 1, parts);
  if (begin == end) return;
  Norm norm = row.job.norm;  // its divisor stays that of the whole row
  norm.d = std::min(d, end * kBlock) - begin * kBlock;
  if (norm.weight != nullptr) norm.weight += begin * kBlock;
  Rows rows = Elements(row, begin);
  rows.sums = row.row.sums;
  if (part == 0) rows.rstd = row.row.rstd;
  row.job.kernels.scale(norm, rows);
}

}  // namespace

void RunLongRow(DefaultFloatEnvironment& environment, const Job& job, size_t index, size_t parts,
                const Threading& threading) {
  LongRow row = {job, NextRows(job, index, index + 1), 0, 0, nullptr};
  double sum;
  if (job.kernels.block_sums != nullptr) {
    const float total = SumInParts(environment, row, parts, threading);
    sum = static_cast<double>(total);
    const bool safe = job.kernels.scale != nullptr ? IsSafe(UnderRoot(job.norm, total))
                                                   : IsSafeSum(total, job.norm.divisor);
    if (!safe) return RunRows(job, index, index + 1);  // in binary64, which is rare
    if (job.kernels.scale == nullptr) {
      *row.row.sums = sum;
      return;
    }
    row.row.sums = &sum;
  }
  RunParts(environment, threading, parts, ScalePart, &row);
}

}  // namespace rmsnorm::internal

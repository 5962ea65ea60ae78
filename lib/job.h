// SPDX-License-Identifier: Apache-2.0
// A checked call as the layers below the entry points see it: rows to work through, and with what.
#ifndef RMSNORM_LIB_JOB_H_
#define RMSNORM_LIB_JOB_H_

#include <rmsnorm/rmsnorm.h>

#include "partition.h"
#include "rows.h"

namespace rmsnorm::internal {

// The options as the kernels use them. A divisor of 0 becomes float(d).
Norm MakeNorm(const rmsnorm_options& options, size_t d, const float* prepared_weight);

// Writes w' = offset + w for d elements. As defined, a weight of -0 becomes +0 even with offset 0.
void PrepareWeight(const KernelTable& kernels, rmsnorm_dtype dtype, const void* weight, size_t d,
                   float offset, float* prepared);

// The rows of x, and of y where there is one, as nested loops in C order. Dimensions that walk
// evenly through both are one loop, so that dense or padded rows are a single run.
struct Loops {
  struct Loop {
    size_t count;
    ptrdiff_t x_stride;  // in elements
    ptrdiff_t y_stride;
  };
  int size;                         // at least 1
  Loop loop[RMSNORM_MAX_DIMS - 1];  // innermost first
};

// What does a job. `rows` does whole rows; where there are few and long ones, `block_sums` and then
// `scale` do the blocks of a row. The job of sum_squares has no `scale`, that of scale no
// `block_sums`.
struct JobKernels {
  Kernel rows;
  Kernel block_sums;
  Kernel scale;
};

inline JobKernels ForwardKernels(const KernelTable& table, rmsnorm_dtype x, rmsnorm_dtype y) {
  return {table.forward[DtypeIndex(x)][DtypeIndex(y)], table.block_sums[DtypeIndex(x)],
          table.scale[DtypeIndex(x)][DtypeIndex(y)]};
}

inline JobKernels SumSquaresKernels(const KernelTable& table, rmsnorm_dtype x) {
  return {table.sum_squares[DtypeIndex(x)], table.block_sums[DtypeIndex(x)], nullptr};
}

inline JobKernels ScaleKernels(const KernelTable& table, rmsnorm_dtype x, rmsnorm_dtype y) {
  const Kernel scale = table.scale[DtypeIndex(x)][DtypeIndex(y)];
  return {scale, nullptr, scale};
}

struct Job {
  JobKernels kernels;
  Norm norm;
  size_t rows;
  Loops loops;
  const void* x;
  ptrdiff_t x_element_size;  // in bytes
  void* y;                   // null, with size 0, for a call that only reads x
  ptrdiff_t y_element_size;
  float* rstd;   // indexed by row, or null
  double* sums;  // indexed by row, or null
  bool stream;   // see Rows
};

// The rows of checked views of equal shape; `y` is null for a call that only reads x.
Job MakeJob(const JobKernels& kernels, const Norm& norm, const rmsnorm_view& x,
            const rmsnorm_view* y, size_t rows, float* rstd, double* sums);

// Does one row by a kernel of the table `forward`, on the calling thread.
inline void RunRow(Kernel kernel, const Norm& norm, const void* x, void* y) {
  kernel(norm, {1, x, 0, y, 0, nullptr, nullptr, false, false});
}

// The rows from `begin` on that lie at constant distances, up to `end` at most.
Rows NextRows(const Job& job, size_t begin, size_t end);

// The same rows from one of their columns on.
inline Rows AtColumn(const Job& job, Rows rows, size_t column) {
  rows.x = static_cast<const char*>(rows.x) + static_cast<ptrdiff_t>(column) * job.x_element_size;
  rows.y = static_cast<char*>(rows.y) + static_cast<ptrdiff_t>(column) * job.y_element_size;
  return rows;
}

// Works through the rows from `begin` up to `end` on the calling thread.
void RunRows(const Job& job, size_t begin, size_t end);

// How rows are spread over threads: whole ones or, where there are too few, the blocks of each.
struct Spread {
  size_t parts;  // as many as pay; of each row, where they are of blocks
  bool by_blocks;
};
Spread SpreadRows(size_t rows, size_t d, const Threading& threading);

// Works through all rows, on as many threads as pay, and returns when they are done.
void RunJob(DefaultFloatEnvironment& environment, const Job& job, const Threading& threading);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_JOB_H_

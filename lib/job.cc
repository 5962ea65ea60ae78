// SPDX-License-Identifier: Apache-2.0
#include "job.h"

#include <algorithm>

#include "long_row.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

Loops MergeLoops(const rmsnorm_view& x, const rmsnorm_view* y) {
  Loops loops;
  loops.size = 0;
  for (int i = x.ndim - 2; i >= 0; --i) {
    if (x.shape[i] == 1) continue;
    const Loops::Loop outer = {x.shape[i], x.stride[i], y != nullptr ? y->stride[i] : 0};
    if (loops.size > 0) {
      Loops::Loop& inner = loops.loop[loops.size - 1];
      const ptrdiff_t count = static_cast<ptrdiff_t>(inner.count);
      if (outer.x_stride == inner.x_stride * count && outer.y_stride == inner.y_stride * count) {
        inner.count *= outer.count;
        continue;
      }
    }
    loops.loop[loops.size++] = outer;
  }
  if (loops.size == 0) loops.loop[loops.size++] = {1, 0, 0};
  return loops;
}

}  // namespace

Norm MakeNorm(const rmsnorm_options& options, size_t d, const float* prepared_weight) {
  Norm norm;
  norm.d = d;
  norm.weight = prepared_weight;
  norm.eps = options.eps;
  norm.divisor = options.divisor != 0.0f ? options.divisor : static_cast<float>(d);
  norm.eps_outside = options.eps_placement == RMSNORM_EPS_OUTSIDE;
  norm.cast_then_scale = options.rounding == RMSNORM_CAST_THEN_SCALE;
  return norm;
}

void PrepareWeight(const KernelTable& kernels, rmsnorm_dtype dtype, const void* weight, size_t d,
                   float offset, float* prepared) {
  kernels.prepare_weight[DtypeIndex(dtype)](weight, d, offset, prepared);
}

Job MakeJob(const JobKernels& kernels, const Norm& norm, const rmsnorm_view& x,
            const rmsnorm_view* y, size_t rows, float* rstd, double* sums) {
  return {kernels,
          norm,
          rows,
          MergeLoops(x, y),
          x.data,
          static_cast<ptrdiff_t>(ElementSize(x.dtype)),
          y != nullptr ? y->data : nullptr,
          y != nullptr ? static_cast<ptrdiff_t>(ElementSize(y->dtype)) : 0,
          rstd,
          sums,
          y != nullptr && y->data != x.data &&
              rows * norm.d * (ElementSize(x.dtype) + ElementSize(y->dtype)) > StreamedBytes()};
}

Rows NextRows(const Job& job, size_t begin, size_t end) {
  // The index of the first row in each loop; the outermost takes what is left.
  const Loops::Loop& inner = job.loops.loop[0];
  size_t index = begin;
  ptrdiff_t x = 0;
  ptrdiff_t y = 0;
  if (job.loops.size > 1) {
    size_t rest = begin / inner.count;
    index = begin % inner.count;
    for (int i = 1; i < job.loops.size; ++i) {
      const Loops::Loop& loop = job.loops.loop[i];
      const bool outermost = i + 1 == job.loops.size;
      const ptrdiff_t here = static_cast<ptrdiff_t>(outermost ? rest : rest % loop.count);
      if (!outermost) rest /= loop.count;
      x += here * loop.x_stride;
      y += here * loop.y_stride;
    }
  }
  x += static_cast<ptrdiff_t>(index) * inner.x_stride;
  y += static_cast<ptrdiff_t>(index) * inner.y_stride;

  Rows rows;
  rows.count = std::min(inner.count - index, end - begin);
  rows.x = static_cast<const char*>(job.x) + x * job.x_element_size;
  rows.x_stride = inner.x_stride;
  rows.y = static_cast<char*>(job.y) + y * job.y_element_size;
  rows.y_stride = inner.y_stride;
  rows.rstd = job.rstd != nullptr ? job.rstd + begin : nullptr;
  rows.sums = job.sums != nullptr ? job.sums + begin : nullptr;
  rows.stream = job.stream;
  rows.hot_sums = false;
  return rows;
}

void RunRows(const Job& job, size_t begin, size_t end) {
  while (begin < end) {
    const Rows rows = NextRows(job, begin, end);
    job.kernels.rows(job.norm, rows);
    begin += rows.count;
  }
}

namespace {

void RunPart(void* state, size_t part, size_t parts) {
  const Job& job = *static_cast<const Job*>(state);
  RunRows(job, PartBegin(job.rows, part, parts), PartBegin(job.rows, part + 1, parts));
}

}  // namespace

Spread SpreadRows(size_t rows, size_t d, const Threading& threading) {
  // Small work is decided on first, as even asking OpenMP costs more than a short row.
  size_t parts = rows * d / kMinElementsPerPart;
  if (parts > 1) parts = std::min(parts, MaxThreads(threading));
  const size_t parts_of_row = std::min(parts, d / kMinElementsPerPart);
  if (parts_of_row > rows) return {parts_of_row, true};
  return {std::min(parts, rows), false};
}

void RunJob(DefaultFloatEnvironment& environment, const Job& job, const Threading& threading) {
  const Spread spread = SpreadRows(job.rows, job.norm.d, threading);
  if (spread.by_blocks) {
    for (size_t row = 0; row < job.rows; ++row) {
      RunLongRow(environment, job, row, spread.parts, threading);
    }
  } else {
    RunParts(environment, threading, spread.parts, RunPart, const_cast<Job*>(&job));
  }
}

}  // namespace rmsnorm::internal

// SPDX-License-Identifier: Apache-2.0
#include "gradient_job.h"

#include <algorithm>
#include <cstring>

#include "floats.h"
#include "gradient_rows.h"
#include "gradient_terms.h"
#include "job.h"
#include "reference.h"
#include "status.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

// dw is summed over so many rows at least, in so many blocks at most.
constexpr size_t kMinRowsPerBlock = 16;
constexpr size_t kMaxBlocks = 64;

// Block i of `blocks` holds the rows floor(i rows / blocks) up to that of i + 1.
size_t FirstRow(size_t rows, size_t block, size_t blocks) {
  return block * (rows / blocks) + block * (rows % blocks) / blocks;  // no product overflows
}

// Columns of rows are given out by so many, a multiple of every vector and of a cache line.
constexpr size_t kColumns = 64;

struct GradientJob {
  const GradientTable& kernels;
  GradientKernel rows_kernel;  // those for the type of dx
  ColumnsKernel columns_kernel;
  Norm norm;
  size_t rows;
  int x_type;  // positions in the tables
  int dy_type;
  int dw_type;
  // The rows of x with those of dy, and with those of dx where there is one.
  Job inputs;
  Job outputs;
  bool add_dx;
  bool add_dw;
  bool stream;
  size_t blocks;  // of rows
  size_t stride;  // from the sums of one block to those of the next
  void* dw;
  // In scratch.
  float* dw_sums;     // of nothing where dw is not wanted
  RowTerms* terms;    // of each row, and the sums of each block of each row:
  RowSums* row_sums;  // for work in two steps
};

// The rows from `begin` on that lie at constant distances, up to `end` at most, in the columns from
// `column` on.
GradientRows NextRows(const GradientJob& job, size_t begin, size_t end, size_t column) {
  const Rows inputs = AtColumn(job.inputs, NextRows(job.inputs, begin, end), column);
  const Rows outputs =
      AtColumn(job.outputs, NextRows(job.outputs, begin, begin + inputs.count), column);
  GradientRows rows;
  rows.count = outputs.count;
  rows.x = inputs.x;
  rows.x_stride = inputs.x_stride;
  rows.dy = inputs.y;
  rows.dy_stride = inputs.y_stride;
  rows.dx = outputs.y;
  rows.dx_stride = outputs.y_stride;
  rows.rstd = inputs.rstd;
  rows.dw = nullptr;
  rows.start_dw = false;
  rows.add_dx = job.add_dx;
  rows.stream = job.stream;
  return rows;
}

// ------------------------------------------------------------------ in one step

// The rows from `begin` up to `end`, which are of one block if there are sums of dw to add to.
void RunRows(const GradientJob& job, size_t begin, size_t end, float* dw_sums) {
  bool start_dw = true;
  while (begin < end) {
    GradientRows rows = NextRows(job, begin, end, 0);
    rows.dw = dw_sums;
    rows.start_dw = start_dw;
    start_dw = false;
    job.rows_kernel(job.norm, rows);
    begin += rows.count;
  }
}

void RunBlocks(void* state, size_t part, size_t parts) {
  const GradientJob& job = *static_cast<const GradientJob*>(state);
  if (job.dw == nullptr) {
    return RunRows(job, PartBegin(job.rows, part, parts), PartBegin(job.rows, part + 1, parts),
                   nullptr);
  }
  const size_t end = PartBegin(job.blocks, part + 1, parts);
  for (size_t block = PartBegin(job.blocks, part, parts); block < end; ++block) {
    RunRows(job, FirstRow(job.rows, block, job.blocks), FirstRow(job.rows, block + 1, job.blocks),
            job.dw_sums + block * job.stride);
  }
}

// ------------------------------------------------------------------ in two steps

// The terms of some rows.
void RunTerms(void* state, size_t part, size_t parts) {
  const GradientJob& job = *static_cast<const GradientJob*>(state);
  const size_t end = PartBegin(job.rows, part + 1, parts);
  for (size_t row = PartBegin(job.rows, part, parts); row < end;) {
    const GradientRows rows = NextRows(job, row, end, 0);
    job.kernels.terms[job.x_type][job.dy_type](job.norm, rows, job.terms + row);
    row += rows.count;
  }
}

size_t BlocksOfRow(const GradientJob& job) { return (job.norm.d + kBlock - 1) / kBlock; }

// The sums of some blocks of rows.
void RunSums(void* state, size_t part, size_t parts) {
  const GradientJob& job = *static_cast<const GradientJob*>(state);
  const size_t of_row = BlocksOfRow(job);
  const size_t end = PartBegin(job.rows * of_row, part + 1, parts);
  for (size_t i = PartBegin(job.rows * of_row, part, parts); i < end; ++i) {
    const size_t row = i / of_row;
    const size_t column = i % of_row * kBlock;
    Norm norm = job.norm;
    norm.d = std::min(kBlock, norm.d - column);
    norm.weight += column;
    job.row_sums[i] =
        job.kernels.sums[job.x_type][job.dy_type](norm, NextRows(job, row, row + 1, column));
  }
}

// The terms of all rows from the sums of their blocks.
void AddSums(const GradientJob& job) {
  const size_t of_row = BlocksOfRow(job);
  for (size_t row = 0; row < job.rows; ++row) {
    RowSums total = {0, 0};
    for (size_t i = row * of_row; i < (row + 1) * of_row; ++i) {
      total.squares += job.row_sums[i].squares;
      total.dot += job.row_sums[i].dot;
    }
    const GradientRows rows = NextRows(job, row, row + 1, 0);
    const HotTerms hot = MakeHotTerms(job.norm, total, rows.rstd);
    if (hot.cold == Cold::kNothing) {
      job.terms[row] = Widened(hot.terms);
    } else {
      job.kernels.terms[job.x_type][job.dy_type](job.norm, rows, job.terms + row);
    }
  }
}

void RunColumnsOfBlock(const GradientJob& job, size_t block, size_t begin, size_t end) {
  Norm norm = job.norm;
  norm.d = end - begin;
  norm.weight += begin;
  float* const sums = job.dw != nullptr ? job.dw_sums + block * job.stride + begin : nullptr;
  const size_t first = FirstRow(job.rows, block, job.blocks);
  const size_t last = FirstRow(job.rows, block + 1, job.blocks);
  for (size_t row = first; row < last;) {
    GradientRows rows = NextRows(job, row, last, begin);
    rows.dw = sums;
    rows.start_dw = row == first;
    job.columns_kernel(norm, rows, job.terms + row);
    row += rows.count;
  }
}

// The gradients of some columns of some blocks of rows.
void RunColumns(void* state, size_t part, size_t parts) {
  const GradientJob& job = *static_cast<const GradientJob*>(state);
  const size_t of_block = (job.norm.d + kColumns - 1) / kColumns;
  const size_t end = PartBegin(job.blocks * of_block, part + 1, parts);
  for (size_t i = PartBegin(job.blocks * of_block, part, parts); i < end;) {
    const size_t block = i / of_block;
    const size_t last = std::min(end, (block + 1) * of_block);
    RunColumnsOfBlock(job, block, i % of_block * kColumns,
                      std::min(job.norm.d, (last - block * of_block) * kColumns));
    i = last;
  }
}

// ------------------------------------------------------------------ dw, threads, scratch

// The sum of the blocks of rows for some columns.
void RunFinish(void* state, size_t part, size_t parts) {
  const GradientJob& job = *static_cast<const GradientJob*>(state);
  const size_t units = (job.norm.d + kColumns - 1) / kColumns;
  const size_t begin = PartBegin(units, part, parts) * kColumns;
  const size_t end = std::min(job.norm.d, PartBegin(units, part + 1, parts) * kColumns);
  if (begin >= end) return;
  const size_t size = job.dw_type == DtypeIndex(RMSNORM_F32) ? 4 : 2;
  job.kernels.finish[job.dw_type](job.dw_sums + begin, job.stride, job.blocks, end - begin,
                                  job.add_dw, static_cast<char*>(job.dw) + begin * size);
}

// How the work is spread.
struct Plan {
  size_t parts;
  bool two_steps;
};

// Whole blocks of rows at best, as their rows are then read once. In two steps, which read x and dy
// twice, where that would leave threads waiting: where there are fewer blocks than threads, or a
// few more.
Plan MakePlan(size_t rows, size_t d, size_t blocks, bool has_dw, const Threading& threading) {
  size_t parts = rows * d / kMinGradientElementsPerPart;
  if (parts > 1) parts = std::min(parts, MaxThreads(threading));
  parts = std::max<size_t>(parts, 1);
  const size_t units = has_dw ? blocks : rows;
  return {parts, units % parts != 0 && units < 4 * parts};
}

// The scratch of a call, its pieces aligned to cache lines: counted first, then handed out.
class Scratch {
 public:
  // Room for `count` items of so many bytes; false where no address counts so many.
  bool Add(size_t count, size_t item) {
    size_t bytes;
    return !__builtin_mul_overflow(count, item, &bytes) &&
           !__builtin_add_overflow(bytes, kLine - 1, &bytes) &&
           !__builtin_add_overflow(size_, bytes / kLine * kLine, &size_);
  }

  bool Allocate() {
    if (size_ <= sizeof on_stack_) {
      next_ = reinterpret_cast<char*>(on_stack_);
      return true;
    }
    on_heap_ = MakeFloats(size_ / sizeof(float));
    next_ = reinterpret_cast<char*>(on_heap_.get());
    return next_ != nullptr;
  }

  // In the order of Add().
  template <class T>
  T* Take(size_t count) {
    char* const taken = next_;
    next_ += (count * sizeof(T) + kLine - 1) / kLine * kLine;
    return reinterpret_cast<T*>(taken);
  }

 private:
  static constexpr size_t kLine = 64;

  size_t size_ = 0;
  char* next_ = nullptr;
  Floats on_heap_;
  alignas(kLine) float on_stack_[kScratchOnStack];
};

}  // namespace

rmsnorm_status RunBackward(DefaultFloatEnvironment& environment, const KernelTable& kernels,
                           const Norm& norm, const BackwardCall& call, size_t rows,
                           const Threading& threading) {
  const size_t d = norm.d;
  const bool add_dw = (call.flags & RMSNORM_ADD_TO_DW) != 0;
  if (rows == 0) {
    // All bits of +0 are 0 in every type.
    if (call.dw != nullptr && !add_dw) {
      std::memset(call.dw->data, 0, d * ElementSize(call.dw->dtype));
    }
    return RMSNORM_OK;
  }

  const size_t blocks = std::min(kMaxBlocks, (rows - 1) / kMinRowsPerBlock + 1);
  const size_t stride = (d + kColumns - 1) / kColumns * kColumns;
  const Plan plan = MakePlan(rows, d, blocks, call.dw != nullptr, threading);
  const size_t own_weight = norm.weight == nullptr ? d : 0;
  // The sums of a single block are dw itself, where it is of f32 and not added to.
  const bool in_dw = call.dw != nullptr && blocks == 1 && !add_dw && call.dw->dtype == RMSNORM_F32;
  const size_t sums_of_dw = call.dw != nullptr && !in_dw ? stride : 0;
  const bool blocks_of_rows = plan.two_steps && rows < plan.parts;
  const size_t all_row_sums = blocks_of_rows ? rows * ((d + kBlock - 1) / kBlock) : 0;
  const size_t all_terms = plan.two_steps ? rows : 0;
  Scratch scratch;
  if (!scratch.Add(own_weight, sizeof(float)) || !scratch.Add(sums_of_dw, blocks * sizeof(float)) ||
      !scratch.Add(all_terms, sizeof(RowTerms)) || !scratch.Add(all_row_sums, sizeof(RowSums)) ||
      !scratch.Allocate()) {
    return Fail(RMSNORM_ERROR_MEMORY, "dw: no memory for the scratch of rows of %zu", d);
  }

  Norm with_weight = norm;
  if (norm.weight == nullptr) {
    float* const weight = scratch.Take<float>(d);
    if (call.weight != nullptr) {
      PrepareWeight(kernels, call.weight->dtype, call.weight->data, d, call.weight_offset, weight);
    } else {
      std::fill_n(weight, d, 1.0f);
    }
    with_weight.weight = weight;
  }
  const bool add_dx = (call.flags & RMSNORM_ADD_TO_DX) != 0;
  float* const rstd = const_cast<float*>(call.rstd);  // only read
  const rmsnorm_dtype dx_dtype = call.dx != nullptr ? call.dx->dtype : call.dy->dtype;
  const size_t bytes =
      rows * d * (ElementSize(call.x->dtype) + ElementSize(call.dy->dtype) + ElementSize(dx_dtype));
  const GradientTable& table = *kernels.gradient;
  const int x_type = DtypeIndex(call.x->dtype);
  const int dy_type = DtypeIndex(call.dy->dtype);
  const bool like_dy = dx_dtype == call.dy->dtype;
  GradientJob job = {
      table,
      like_dy ? table.rows[x_type][dy_type] : table.f32_rows[dy_type],
      like_dy ? table.columns[x_type][dy_type] : table.f32_columns[dy_type],
      with_weight,
      rows,
      x_type,
      dy_type,
      call.dw != nullptr ? DtypeIndex(call.dw->dtype) : 0,
      MakeJob({}, with_weight, *call.x, call.dy, rows, rstd, nullptr),
      MakeJob({}, with_weight, *call.x, call.dx, rows, nullptr, nullptr),
      add_dx,
      add_dw,
      call.dx != nullptr && call.dx->data != call.dy->data && !add_dx && bytes > StreamedBytes(),
      blocks,
      stride,
      call.dw != nullptr ? call.dw->data : nullptr,
      in_dw ? static_cast<float*>(call.dw->data) : scratch.Take<float>(blocks * sums_of_dw),
      scratch.Take<RowTerms>(all_terms),
      scratch.Take<RowSums>(all_row_sums)};
  if (!plan.two_steps) {
    RunParts(environment, threading, plan.parts, RunBlocks, &job);
  } else {
    if (blocks_of_rows) {
      RunParts(environment, threading, plan.parts, RunSums, &job);
      AddSums(job);
    } else {
      RunParts(environment, threading, plan.parts, RunTerms, &job);
    }
    RunParts(environment, threading, plan.parts, RunColumns, &job);
  }
  if (sums_of_dw != 0) {
    const size_t parts = std::max<size_t>(blocks * d / (4 * kMinGradientElementsPerPart), 1);
    RunParts(environment, threading, std::min(plan.parts, parts), RunFinish, &job);
  }
  return RMSNORM_OK;
}

}  // namespace rmsnorm::internal

// SPDX-License-Identifier: Apache-2.0
// The residual add in two steps, adding and scaling. They take turns over tiles, some rows that
// stay in L1 from one step to the other, so that memory is passed through once.
#include "add_job.h"

#include <algorithm>

#include "addend_rows.h"
#include "element.h"
#include "inverse_rms.h"
#include "job.h"
#include "reference.h"
#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

static_assert(kAddTile <= kBlock);  // RunUnroundedTile() keeps a tile in a block of h

struct AddJob {
  Norm norm;
  size_t rows;
  Job x_and_y;
  Job residuals;              // residual in the place of x, and residual_out in that of y
  AddKernel add;              // residual_out = residual + x
  AddKernel add_f32;          // h = residual + x, where the norm is of that; else null
  Kernel scale;               // of residual_out or h
  AddForwardKernel one_pass;  // does both, where there is one; else null
  double (*cold_sum)(const float* h, size_t d);
  void (*cold_scale)(const Norm& norm, double r, const float* h, void* y);
};

AddendRows Addends(const AddJob& job, const Rows& rows, const Rows& residuals) {
  return {rows.count,  job.norm.d,         rows.x,      rows.x_stride,
          residuals.x, residuals.x_stride, residuals.y, residuals.y_stride};
}

// The block of one row that begins at a column.
AddendRows AddendsOfBlock(const AddJob& job, const Rows& row, const Rows& residual, size_t column) {
  AddendRows addends =
      Addends(job, AtColumn(job.x_and_y, row, column), AtColumn(job.residuals, residual, column));
  addends.d = std::min(kBlock, job.norm.d - column);
  return addends;
}

// The same rows of y, from what was added up.
Rows FromSums(Rows rows, const AddendRows& addends) {
  rows.x = addends.sum;
  rows.x_stride = addends.sum_stride;
  return rows;
}

// Scales what was added up, by the sums of squares that came with it, to the rows' y.
void ScaleSums(const AddJob& job, Rows rows, const AddendRows& addends, double* squares) {
  rows = FromSums(rows, addends);
  rows.sums = squares;
  rows.hot_sums = true;
  job.scale(job.norm, rows);
}

// ------------------------------------------------------------------ the norm of residual_out

void RunTile(const AddJob& job, const Rows& rows, const Rows& residuals) {
  double squares[kAddTileRows];
  const AddendRows addends = Addends(job, rows, residuals);
  job.add(addends, squares);
  ScaleSums(job, rows, addends, squares);
}

// ------------------------------------------------------------------ the norm of h

// Rows of no more than a block.
void RunUnroundedTile(const AddJob& job, const Rows& rows, const Rows& residuals) {
  alignas(64) float h[kBlock];
  double squares[kAddTileRows];
  double unused[kAddTileRows];
  AddendRows addends = Addends(job, rows, residuals);
  addends.sum = h;
  addends.sum_stride = static_cast<ptrdiff_t>(job.norm.d);
  job.add_f32(addends, squares);
  job.add(Addends(job, rows, residuals), unused);  // after h, as it may be in place
  ScaleSums(job, rows, addends, squares);
}

// One row of several blocks. It may be of any length, so that h is added up again for each pass.
class UnroundedRow {
 public:
  UnroundedRow(const AddJob& job, const Rows& row, const Rows& residual)
      : job_(job), row_(row), residual_(residual) {}

  void Run() {
    const size_t d = job_.norm.d;
    float hot_sum = 0;
    for (size_t begin = 0; begin < d; begin += kBlock) {
      hot_sum += static_cast<float>(AddBlock(begin));
    }
    const bool hot = IsSafe(UnderRoot(job_.norm, hot_sum));
    double sum = static_cast<double>(hot_sum);
    if (!hot) {
      sum = 0;
      for (size_t begin = 0; begin < d; begin += kBlock) {
        AddBlock(begin);
        sum += job_.cold_sum(h_, NormOf(begin).d);
      }
    }
    for (size_t begin = 0; begin < d; begin += kBlock) {
      AddBlock(begin);
      StoreBlock(begin);  // after h, as it may be in place
      const float r = ScaleBlock(begin, sum, hot);
      if (row_.rstd != nullptr) *row_.rstd = r;
    }
  }

 private:
  // The Norm of the block from `begin` on. Its divisor stays that of the whole row.
  Norm NormOf(size_t begin) const {
    Norm norm = job_.norm;
    norm.d = std::min(kBlock, norm.d - begin);
    if (norm.weight != nullptr) norm.weight += begin;
    return norm;
  }

  AddendRows AddendsOf(size_t begin) const { return AddendsOfBlock(job_, row_, residual_, begin); }

  // Writes h of a block, and returns the sum of its squares.
  double AddBlock(size_t begin) {
    AddendRows addends = AddendsOf(begin);
    addends.sum = h_;
    double squares;
    job_.add_f32(addends, &squares);
    return squares;
  }

  // Writes residual_out.
  void StoreBlock(size_t begin) const {
    double unused;
    job_.add(AddendsOf(begin), &unused);
  }

  // Writes y and returns rstd.
  float ScaleBlock(size_t begin, double sum, bool hot) const {
    const Norm norm = NormOf(begin);
    void* const y = AtColumn(job_.x_and_y, row_, begin).y;
    if (hot) {
      float r;
      job_.scale(norm, {1, h_, 0, y, 0, &r, &sum, row_.stream, true});
      return r;
    }
    const double r = InverseRms(norm, UnderRoot(norm, sum));
    job_.cold_scale(norm, r, h_, y);
    return static_cast<float>(r);
  }

  const AddJob& job_;
  const Rows& row_;
  const Rows& residual_;
  alignas(64) float h_[kBlock];
};

// ------------------------------------------------------------------ threads

void RunRows(const AddJob& job, size_t begin, size_t end) {
  const size_t d = job.norm.d;
  const bool rounded = job.add_f32 == nullptr;
  const size_t rows_of_tile =
      job.one_pass != nullptr ? end - begin : std::clamp<size_t>(kAddTile / d, 1, kAddTileRows);
  while (begin < end) {
    Rows rows = NextRows(job.x_and_y, begin, std::min(end, begin + rows_of_tile));
    const Rows residuals = NextRows(job.residuals, begin, begin + rows.count);
    rows.count = residuals.count;
    if (job.one_pass != nullptr) {
      const AddendRows addends = Addends(job, rows, residuals);
      job.one_pass(job.norm, addends, FromSums(rows, addends));
    } else if (rounded) {
      RunTile(job, rows, residuals);
    } else if (d <= kBlock) {
      RunUnroundedTile(job, rows, residuals);
    } else {
      UnroundedRow(job, rows, residuals).Run();
    }
    begin += rows.count;
  }
}

void RunPart(void* state, size_t part, size_t parts) {
  const AddJob& job = *static_cast<const AddJob*>(state);
  RunRows(job, PartBegin(job.rows, part, parts), PartBegin(job.rows, part + 1, parts));
}

// Adds some blocks of rows.
void AddPart(void* state, size_t part, size_t parts) {
  const AddJob& job = *static_cast<const AddJob*>(state);
  const size_t of_row = (job.norm.d + kBlock - 1) / kBlock;
  const size_t end = PartBegin(job.rows * of_row, part + 1, parts);
  for (size_t i = PartBegin(job.rows * of_row, part, parts); i < end; ++i) {
    const size_t row = i / of_row;
    double unused;
    job.add(AddendsOfBlock(job, NextRows(job.x_and_y, row, row + 1),
                           NextRows(job.residuals, row, row + 1), i % of_row * kBlock),
            &unused);
  }
}

}  // namespace

void RunAddForward(DefaultFloatEnvironment& environment, const KernelTable& kernels,
                   const Norm& norm, const AddForwardCall& call, size_t rows,
                   const Threading& threading) {
  const bool own_residual = call.residual->dtype == call.x->dtype;
  // h is residual_out where that is f32.
  const bool rounded =
      call.rounding == RMSNORM_CAST_THEN_NORM || call.residual->dtype == RMSNORM_F32;
  const bool all_f32 = own_residual && call.x->dtype == RMSNORM_F32 && call.y->dtype == RMSNORM_F32;
  const int x_type = DtypeIndex(call.x->dtype);
  const AddTable& add = *kernels.add;
  const JobKernels norm_kernels =
      ForwardKernels(kernels, rounded ? call.residual->dtype : RMSNORM_F32, call.y->dtype);
  AddJob job = {norm,
                rows,
                MakeJob({}, norm, *call.x, call.y, rows, call.rstd, nullptr),
                MakeJob({}, norm, *call.residual, call.residual_out, rows, nullptr, nullptr),
                own_residual ? add.same[x_type] : add.f32_residual[x_type],
                rounded ? nullptr : add.f32_sum[x_type],
                norm_kernels.scale,
                all_f32 ? add.one_pass(norm) : nullptr,
                add.cold_sum,
                add.cold_scale[DtypeIndex(call.y->dtype)]};

  const Spread spread = SpreadRows(rows, norm.d, threading);
  if (spread.by_blocks && rounded) {
    RunParts(environment, threading, spread.parts, AddPart, &job);
    RunJob(environment,
           MakeJob(norm_kernels, norm, *call.residual_out, call.y, rows, call.rstd, nullptr),
           threading);
  } else {
    RunParts(environment, threading, std::min(spread.parts, rows), RunPart, &job);
  }
}

void RunAddForwardRow(const KernelTable& kernels, const Norm& norm, const rmsnorm_view& x,
                      const rmsnorm_view& residual, const rmsnorm_view& residual_out,
                      const rmsnorm_view& y) {
  double squares;
  kernels.add->same[DtypeIndex(x.dtype)](
      {1, norm.d, x.data, 0, residual.data, 0, residual_out.data, 0}, &squares);
  ScaleKernels(kernels, x.dtype, y.dtype)
      .rows(norm, {1, residual_out.data, 0, y.data, 0, nullptr, &squares, false, true});
}

}  // namespace rmsnorm::internal

// SPDX-License-Identifier: Apache-2.0
// RMSNorm as this library defines it, operation by operation. Every target gives these bits.
//
// All arithmetic is IEEE, rounded to nearest even, subnormals kept; no operation may be contracted,
// reordered or replaced by an estimate. Real is float. It is double on the cold path, for rows
// whose squares overflow or vanish in f32.
#include "reference.h"

#include <cfloat>
#include <cmath>

#include "addend_rows.h"
#include "element.h"
#include "inverse_rms.h"
#include "reference_backward.h"

#ifdef __FAST_MATH__
#error "-ffast-math changes results: build this library without it"
#endif
static_assert(FLT_EVAL_METHOD == 0, "f32 arithmetic must be done in f32");

namespace rmsnorm::internal {
namespace {

// Step 1, the sum of squares, is in reference.h.

// Step 2, from the sum to the inverse RMS r, is in inverse_rms.h.

// Step 3. The product with r is rounded to f32, once; then the weight, before or after a rounding
// to the type of x; then the type of y.
template <class Real, class X, class Y>
void Scale(const Norm& norm, Real r, const X* x, Y* y) {
  for (size_t j = 0; j < norm.d; ++j) {
    float n = static_cast<float>(static_cast<Real>(ToF32(x[j])) * r);
    if (norm.cast_then_scale) n = ToF32(CastTo<X>(n));
    if (norm.weight != nullptr) n *= norm.weight[j];
    y[j] = CastTo<Y>(n);
  }
}

// All steps, row by row. The sums are computed, or given in binary64.
template <bool kSumsGiven, class X, class Y>
void Normalise(const Norm& norm, const Rows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    const X* x = rows.Input<X>(row);
    Y* y = rows.Output<Y>(row);
    const float sum =
        kSumsGiven ? static_cast<float>(rows.sums[row]) : SumSquares<float>(x, norm.d);
    const float under_root = UnderRoot(norm, sum);
    float r;
    if (IsSafe(under_root)) {
      r = InverseRms(norm, under_root);
      Scale(norm, r, x, y);
    } else {
      const bool use_given = kSumsGiven && !rows.hot_sums;
      const double cold_sum = use_given ? rows.sums[row] : SumSquares<double>(x, norm.d);
      const double cold_r = InverseRms(norm, UnderRoot(norm, cold_sum));
      Scale(norm, cold_r, x, y);
      r = static_cast<float>(cold_r);
    }
    if (rows.rstd != nullptr) rows.rstd[row] = r;
  }
}

template <class X, class Y>
void ForwardRows(const Norm& norm, const Rows& rows) {
  Normalise<false, X, Y>(norm, rows);
}

template <class X, class Y>
void ScaleRows(const Norm& norm, const Rows& rows) {
  Normalise<true, X, Y>(norm, rows);
}

template <class X>
void SumSquaresRows(const Norm& norm, const Rows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    const X* x = rows.Input<X>(row);
    const float sum = SumSquares<float>(x, norm.d);
    rows.sums[row] = IsSafeSum(sum, norm.divisor) ? sum : SumSquares<double>(x, norm.d);
  }
}

template <class X>
void BlockSums(const Norm& norm, const Rows& rows) {
  for (size_t row = 0; row < rows.count; ++row) {
    rows.sums[row] = SumSquares<float>(rows.Input<X>(row), norm.d);
  }
}

template <class W>
void PrepareWeight(const void* weight, size_t d, float offset, float* prepared) {
  for (size_t j = 0; j < d; ++j) prepared[j] = offset + ToF32(static_cast<const W*>(weight)[j]);
}

// The residual add: h = residual + x in f32, handed out in the type of the sum. It is then a row
// like any other to the steps above.
template <class X, class R, class S>
void AddRows(const AddendRows& rows, double* squares) {
  for (size_t row = 0; row < rows.count; ++row) {
    S* sum = rows.Sum<S>(row);
    for (size_t j = 0; j < rows.d; ++j) {
      sum[j] = CastTo<S>(ToF32(rows.Residual<R>(row)[j]) + ToF32(rows.Input<X>(row)[j]));
    }
    squares[row] = SumSquares<float>(sum, rows.d);
  }
}

template <class X>
double ColdSumSquares(const X* x, size_t d) {
  return SumSquares<double>(x, d);
}

template <class X, class Y>
void ColdScale(const Norm& norm, double r, const X* x, void* y) {
  Scale(norm, r, x, static_cast<Y*>(y));
}

AddForwardKernel OnePassKernel(const Norm&) { return nullptr; }

const AddTable kAddKernels = RMSNORM_ADD_TABLE();

}  // namespace

const KernelTable kReferenceTable = RMSNORM_KERNEL_TABLE("reference");

}  // namespace rmsnorm::internal

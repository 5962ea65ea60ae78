// SPDX-License-Identifier: Apache-2.0
// What a kernel of the residual add is given, and the table of them that each target provides.
#ifndef RMSNORM_LIB_ADDEND_ROWS_H_
#define RMSNORM_LIB_ADDEND_ROWS_H_

#include "rows.h"

namespace rmsnorm::internal {

// Some rows of d elements at constant distances, counted in elements.
struct AddendRows {
  size_t count;
  size_t d;
  const void* x;
  ptrdiff_t x_stride;
  const void* residual;
  ptrdiff_t residual_stride;
  void* sum;  // residual itself when in place; else it shares no byte with it or with x
  ptrdiff_t sum_stride;

  template <class X>
  const X* Input(size_t row) const {
    return static_cast<const X*>(x) + static_cast<ptrdiff_t>(row) * x_stride;
  }
  template <class R>
  const R* Residual(size_t row) const {
    return static_cast<const R*>(residual) + static_cast<ptrdiff_t>(row) * residual_stride;
  }
  template <class S>
  S* Sum(size_t row) const {
    return static_cast<S*>(sum) + static_cast<ptrdiff_t>(row) * sum_stride;
  }
};

// Writes sum = residual + x, added in f32 and rounded to the type of the sum, and for each row the
// sum of squares of what was written, as block_sums does.
using AddKernel = void (*)(const AddendRows& rows, double* squares);

// The same for f32, and the norm of what was written in one pass. `rows` has it as x.
using AddForwardKernel = void (*)(const Norm& norm, const AddendRows& addends, const Rows& rows);

// The kernels of one target, by the type of x.
struct AddTable {
  AddKernel same[kDtypes];          // residual and sum of the type of x
  AddKernel f32_residual[kDtypes];  // residual and sum of f32
  AddKernel f32_sum[kDtypes];       // residual of the type of x, sum of f32
  // The kernel in one pass for rows that the registers hold; null for others.
  AddForwardKernel (*one_pass)(const Norm& norm);
  // For the norm of h: its sum of squares in binary64, and h scaled by an inverse RMS in binary64,
  // by the type of y.
  double (*cold_sum)(const float* h, size_t d);
  void (*cold_scale[kDtypes])(const Norm& norm, double r, const float* h, void* y);
};

}  // namespace rmsnorm::internal

// The table from the templates AddRows<X, Residual, Sum>, ColdSumSquares<X> and ColdScale<X, Y>,
// and from OnePassKernel(), in scope.
#define RMSNORM_ADD_TABLE()                                                                      \
  {                                                                                              \
    {AddRows<float, float, float>, AddRows<F16, F16, F16>, AddRows<BF16, BF16, BF16>},           \
        {AddRows<float, float, float>, AddRows<F16, float, float>, AddRows<BF16, float, float>}, \
        {AddRows<float, float, float>, AddRows<F16, F16, float>, AddRows<BF16, BF16, float>},    \
        OnePassKernel, ColdSumSquares<float>,                                                    \
        {ColdScale<float, float>, ColdScale<float, F16>, ColdScale<float, BF16>},                \
  }

#endif  // RMSNORM_LIB_ADDEND_ROWS_H_

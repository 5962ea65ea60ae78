// SPDX-License-Identifier: Apache-2.0
// What a kernel is given, and the table of kernels that each target provides.
#ifndef RMSNORM_LIB_ROWS_H_
#define RMSNORM_LIB_ROWS_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>

namespace rmsnorm::internal {

// What is the same for every row of a call. All of it has been checked.
struct Norm {
  size_t d;             // elements of a row, at least 1
  const float* weight;  // d prepared values w' = offset + w, or null for none
  float eps;
  float divisor;
  bool eps_outside;
  bool cast_then_scale;
};

// Some rows at constant distances, counted in elements. A kernel works through them in rising order
// on the calling thread, in the default rounding mode with subnormals kept.
struct Rows {
  size_t count;
  const void* x;
  ptrdiff_t x_stride;
  void* y;  // x itself when in place; else they share no byte
  ptrdiff_t y_stride;
  float* rstd;   // one for each row, or null
  double* sums;  // one for each row: written by sum_squares, read by scale
  bool stream;   // whether y is better written past the caches; never in place
  // Whether the sums that scale reads are those of block_sums: then a row whose sum is not safe has
  // to be summed again. Else they may be of more than x.
  bool hot_sums;

  template <class X>
  const X* Input(size_t row) const {
    return static_cast<const X*>(x) + static_cast<ptrdiff_t>(row) * x_stride;
  }
  template <class Y>
  Y* Output(size_t row) const {
    return static_cast<Y*>(y) + static_cast<ptrdiff_t>(row) * y_stride;
  }
};

using Kernel = void (*)(const Norm& norm, const Rows& rows);

// Writes w' = offset + w for d elements.
using WeightKernel = void (*)(const void* weight, size_t d, float offset, float* prepared);

constexpr int kDtypes = 3;

// Position of a dtype in the tables below.
constexpr int DtypeIndex(rmsnorm_dtype dtype) { return dtype - RMSNORM_F32; }

constexpr bool IsDtype(rmsnorm_dtype dtype) {
  return dtype >= RMSNORM_F32 && dtype < RMSNORM_F32 + kDtypes;
}

// Bytes of an element, or 0 for an unknown dtype.
constexpr size_t ElementSize(rmsnorm_dtype dtype) {
  return dtype == RMSNORM_F32 ? 4 : IsDtype(dtype) ? 2 : 0;
}

struct AddTable;       // addend_rows.h
struct GradientTable;  // gradient_rows.h

// The kernels of one target, by the type of x and then of y.
struct KernelTable {
  const char* target;
  Kernel forward[kDtypes][kDtypes];
  Kernel sum_squares[kDtypes];
  Kernel block_sums[kDtypes];  // as sum_squares, but the f32 sum as it is
  Kernel scale[kDtypes][kDtypes];
  WeightKernel prepare_weight[kDtypes];  // by the type of the weight
  const AddTable* add;
  const GradientTable* gradient;
};

}  // namespace rmsnorm::internal

// The table of the target `name` from the templates ForwardRows<X, Y>, SumSquaresRows<X>,
// BlockSums<X>, ScaleRows<X, Y> and PrepareWeight<W>, and the tables kAddKernels and
// kGradientKernels, in scope.
#define RMSNORM_KERNEL_TABLE(name)                                                                 \
  {                                                                                                \
    name, RMSNORM_BY_X_AND_Y(ForwardRows), RMSNORM_BY_TYPE(SumSquaresRows),                        \
        RMSNORM_BY_TYPE(BlockSums), RMSNORM_BY_X_AND_Y(ScaleRows), RMSNORM_BY_TYPE(PrepareWeight), \
        &kAddKernels, &kGradientKernels                                                            \
  }
#define RMSNORM_BY_TYPE(kernel) \
  { kernel<float>, kernel<F16>, kernel<BF16> }
#define RMSNORM_BY_X_AND_Y(kernel)                                    \
  {                                                                   \
    {kernel<float, float>, kernel<float, F16>, kernel<float, BF16>},  \
        {kernel<F16, float>, kernel<F16, F16>, kernel<F16, BF16>},    \
        {kernel<BF16, float>, kernel<BF16, F16>, kernel<BF16, BF16>}, \
  }

#endif  // RMSNORM_LIB_ROWS_H_

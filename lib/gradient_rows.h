// SPDX-License-Identifier: Apache-2.0
// What a kernel of the backward pass is given, and the table of them that each target provides.
#ifndef RMSNORM_LIB_GRADIENT_ROWS_H_
#define RMSNORM_LIB_GRADIENT_ROWS_H_

#include "rows.h"

namespace rmsnorm::internal {

// Some rows of x, dy and dx at constant distances, as Rows. The weight of their Norm is never null:
// where there is none it is ones.
struct GradientRows {
  size_t count;
  const void* x;
  ptrdiff_t x_stride;
  const void* dy;
  ptrdiff_t dy_stride;
  void* dx;  // null where it is not wanted; dy itself when in place; else they share no byte
  ptrdiff_t dx_stride;
  const float* rstd;  // one for each row, or null
  float* dw;          // d sums to add to, or null
  bool start_dw;      // whether they are +0 before the first of these rows, whatever dw holds
  bool add_dx;        // to what dx holds
  bool stream;        // whether dx is better written past the caches; never where it is read

  template <class X>
  const X* Input(size_t row) const {
    return static_cast<const X*>(x) + static_cast<ptrdiff_t>(row) * x_stride;
  }
  template <class Y>
  const Y* Gradient(size_t row) const {
    return static_cast<const Y*>(dy) + static_cast<ptrdiff_t>(row) * dy_stride;
  }
  template <class Y>
  Y* Output(size_t row) const {
    return static_cast<Y*>(dx) + static_cast<ptrdiff_t>(row) * dx_stride;
  }
};

// What a row's gradient is made of: dx = r * (g - (x * k) * q).
template <class Real>
struct Terms {
  Real r;
  Real k;
  Real q;
};

// What of a row f32 cannot hold: all of it, where forward computes it in binary64, or dx alone,
// where c is not finite.
enum class Cold { kNothing, kDx, kAll };

// The terms of a row, in f32 and widened where nothing is cold, and r in f32.
struct RowTerms {
  Terms<double> terms;
  float r;
  Cold cold;
};

// The sums in f32 of a row, or of a block of one.
struct RowSums {
  float squares;  // 0 where it is not needed
  float dot;      // c
};

// Whole rows: writes or adds to dx, and adds to dw.
using GradientKernel = void (*)(const Norm&, const GradientRows&);
// The same for any columns of rows whose terms are known.
using ColumnsKernel = void (*)(const Norm&, const GradientRows&, const RowTerms*);

// The kernels of one target, by the type of x and then of dy.
struct GradientTable {
  // dx is of the type of dy,
  GradientKernel rows[kDtypes][kDtypes];
  ColumnsKernel columns[kDtypes][kDtypes];
  // or of f32 as x; then by the type of dy alone.
  GradientKernel f32_rows[kDtypes];
  ColumnsKernel f32_columns[kDtypes];
  // The terms of whole rows.
  void (*terms[kDtypes][kDtypes])(const Norm&, const GradientRows&, RowTerms*);
  // The sums of one block.
  RowSums (*sums[kDtypes][kDtypes])(const Norm&, const GradientRows&);
  // By the type of dw: writes, or adds to d elements, the sum of `blocks` rows of partial sums.
  void (*finish[kDtypes])(const float* sums, size_t stride, size_t blocks, size_t d, bool add,
                          void* dw);
};

}  // namespace rmsnorm::internal

// The table from the templates BackwardRows<X, Y, Z>, BackwardColumns<X, Y, Z>, TermsOfRows<X, Y>,
// SumsOfBlock<X, Y> and StoreSum<W> in scope; Z, the type of dx, is Y by default.
#define RMSNORM_GRADIENT_TABLE()                                           \
  {                                                                        \
    RMSNORM_BY_X_AND_Y(BackwardRows), RMSNORM_BY_X_AND_Y(BackwardColumns), \
        RMSNORM_F32_BY_Y(BackwardRows), RMSNORM_F32_BY_Y(BackwardColumns), \
        RMSNORM_BY_X_AND_Y(TermsOfRows), RMSNORM_BY_X_AND_Y(SumsOfBlock),  \
        RMSNORM_BY_TYPE(StoreSum)                                          \
  }
#define RMSNORM_F32_BY_Y(kernel) \
  { kernel<float, float, float>, kernel<float, F16, float>, kernel<float, BF16, float> }

#endif  // RMSNORM_LIB_GRADIENT_ROWS_H_

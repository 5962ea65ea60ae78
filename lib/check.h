// SPDX-License-Identifier: Apache-2.0
// Every argument of a public call is checked here, once; the layers below trust what they get.
#ifndef RMSNORM_LIB_CHECK_H_
#define RMSNORM_LIB_CHECK_H_

#include <rmsnorm/rmsnorm.h>

#include "rows.h"
#include "status.h"

namespace rmsnorm::internal {

// The bytes from `begin` up to `end` that an argument spans, with gaps between its rows.
struct Extent {
  uintptr_t begin;
  uintptr_t end;
};

// Checks all fields but `target`, and that an offset comes with a weight.
rmsnorm_status CheckOptions(const rmsnorm_options& options, bool has_weight);

// Checks a view by itself. `name` is the argument's; `rows` receives how many it has, `extent` what
// it spans (nothing where it has no rows).
rmsnorm_status CheckView(const char* name, const rmsnorm_view* view, size_t& rows, Extent& extent);

// Checks a weight of d elements: one dimension.
rmsnorm_status CheckWeight(const rmsnorm_view* weight, size_t d, Extent& extent);

// Checks the tensors of a forward call: each by itself, then that they fit together and that no
// output overlaps another argument, but for y in place of x. `sums` (null unless they are given),
// `weight` and `rstd` may be null. `rows` receives how many there are.
rmsnorm_status CheckForward(const rmsnorm_view* x, const double* sums, const rmsnorm_view* weight,
                            const rmsnorm_view* y, const float* rstd, size_t& rows);

// Whether x and y are plainly one row of d elements each that CheckForward() would pass, with no
// other tensors: then that call, a third of the time of a row of 64, need not be made. Says no
// where it is not plain. d times any element's size must be below PTRDIFF_MAX.
inline bool IsPlainRow(const rmsnorm_view* x, const rmsnorm_view* y, size_t d) {
  if (x == nullptr || y == nullptr) return false;
  if (x->size != sizeof *x || y->size != sizeof *y) return false;
  if (!IsDtype(x->dtype) || !IsDtype(y->dtype)) return false;
  if (x->ndim != y->ndim || (x->ndim != 1 && x->ndim != 2)) return false;
  const int last = x->ndim - 1;
  if (last == 1 && (x->shape[0] != 1 || y->shape[0] != 1)) return false;
  if (x->shape[last] != d || y->shape[last] != d) return false;
  if (x->stride[last] != 1 || y->stride[last] != 1) return false;

  const size_t x_size = x->dtype == RMSNORM_F32 ? 4 : 2;
  const size_t y_size = y->dtype == RMSNORM_F32 ? 4 : 2;
  const uintptr_t x_begin = reinterpret_cast<uintptr_t>(x->data);
  const uintptr_t y_begin = reinterpret_cast<uintptr_t>(y->data);
  if (x_begin == 0 || y_begin == 0) return false;
  if ((x_begin & (x_size - 1)) != 0 || (y_begin & (y_size - 1)) != 0) return false;
  const uintptr_t x_end = x_begin + d * x_size;
  const uintptr_t y_end = y_begin + d * y_size;
  if (x_end < x_begin || y_end < y_begin) return false;
  return x_end <= y_begin || y_end <= x_begin || (x_begin == y_begin && x_size == y_size);
}

// Checks the tensors of rmsnorm_backward(), as CheckForward(): no output overlaps another argument,
// but for dx in place of dy. `weight`, `rstd`, and one of dx and dw may be null.
rmsnorm_status CheckBackward(const rmsnorm_view* dy, const rmsnorm_view* x,
                             const rmsnorm_view* weight, const float* rstd, const rmsnorm_view* dx,
                             const rmsnorm_view* dw, uint32_t flags, size_t& rows);

// Checks the tensors of rmsnorm_sum_squares().
rmsnorm_status CheckSumSquares(const rmsnorm_view* x, const double* sums, size_t& rows);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CHECK_H_

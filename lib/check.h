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

inline bool Disjoint(const Extent& a, const Extent& b) {
  return a.end <= b.begin || b.end <= a.begin || a.begin == a.end || b.begin == b.end;
}

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

// Where a view is plainly one row of d elements, the bytes it spans; else the empty extent, and
// CheckView() has to be asked. d times any element's size must be below PTRDIFF_MAX.
inline Extent PlainRow(const rmsnorm_view* view, size_t d) {
  constexpr Extent kNotPlain = {0, 0};
  if (view == nullptr || view->size != sizeof *view || !IsDtype(view->dtype)) return kNotPlain;
  if (view->ndim != 1 && (view->ndim != 2 || view->shape[0] != 1)) return kNotPlain;
  const int last = view->ndim - 1;
  if (view->shape[last] != d || view->stride[last] != 1) return kNotPlain;
  const size_t size = view->dtype == RMSNORM_F32 ? 4 : 2;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(view->data);
  const uintptr_t end = begin + d * size;
  if (begin == 0 || (begin & (size - 1)) != 0 || end < begin) return kNotPlain;
  return {begin, end};
}

inline bool DisjointOrEqual(const Extent& a, const Extent& b) {
  return Disjoint(a, b) || (a.begin == b.begin && a.end == b.end);
}

// Whether x and y are plainly one row of d elements each that CheckForward() would pass, with no
// other tensors: then that call, a third of the time of a row of 64, need not be made. Says no
// where it is not plain.
inline bool IsPlainForward(const rmsnorm_view* x, const rmsnorm_view* y, size_t d) {
  const Extent x_row = PlainRow(x, d);
  const Extent y_row = PlainRow(y, d);
  if (x_row.end == 0 || y_row.end == 0 || x->ndim != y->ndim) return false;
  return DisjointOrEqual(x_row, y_row);
}

// The same for CheckAddForward(), where the dtypes of residual and residual_out are that of x.
inline bool IsPlainAddForward(const rmsnorm_view* x, const rmsnorm_view* residual,
                              const rmsnorm_view* residual_out, const rmsnorm_view* y, size_t d) {
  const Extent residual_row = PlainRow(residual, d);
  const Extent out_row = PlainRow(residual_out, d);
  if (!IsPlainForward(x, y, d) || residual_row.end == 0 || out_row.end == 0) return false;
  if (residual->ndim != x->ndim || residual_out->ndim != x->ndim) return false;
  if (residual->dtype != x->dtype || residual_out->dtype != x->dtype) return false;
  const Extent x_row = PlainRow(x, d);
  const Extent y_row = PlainRow(y, d);
  return DisjointOrEqual(residual_row, out_row) && Disjoint(x_row, out_row) &&
         Disjoint(residual_row, y_row) && Disjoint(out_row, y_row);
}

// Checks the tensors of rmsnorm_add_forward(), as CheckForward(): residual_out may be in place of
// residual, and y in place of x.
rmsnorm_status CheckAddForward(const rmsnorm_view* x, const rmsnorm_view* residual,
                               const rmsnorm_view* weight, const rmsnorm_view* residual_out,
                               const rmsnorm_view* y, const float* rstd, size_t& rows);

// Checks the tensors of rmsnorm_backward(), as CheckForward(): no output overlaps another argument,
// but for dx in place of dy. `weight`, `rstd`, and one of dx and dw may be null.
rmsnorm_status CheckBackward(const rmsnorm_view* dy, const rmsnorm_view* x,
                             const rmsnorm_view* weight, const float* rstd, const rmsnorm_view* dx,
                             const rmsnorm_view* dw, uint32_t flags, size_t& rows);

// Checks the tensors of rmsnorm_sum_squares().
rmsnorm_status CheckSumSquares(const rmsnorm_view* x, const double* sums, size_t& rows);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CHECK_H_

// SPDX-License-Identifier: Apache-2.0
// Every argument of a public call is checked here, once; the layers below trust what they get.
#ifndef RMSNORM_LIB_CHECK_H_
#define RMSNORM_LIB_CHECK_H_

#include <rmsnorm/rmsnorm.h>

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

// Checks the tensors of rmsnorm_sum_squares().
rmsnorm_status CheckSumSquares(const rmsnorm_view* x, const double* sums, size_t& rows);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CHECK_H_

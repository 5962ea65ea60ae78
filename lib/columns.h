// SPDX-License-Identifier: Apache-2.0
// A weight or a bias as the kernels take it: f32, dense, one row after the other.
#ifndef RMSNORM_LIB_COLUMNS_H_
#define RMSNORM_LIB_COLUMNS_H_

#include "kernel_table.h"
#include "scratch.h"

namespace rmsnorm::internal {

// Adds room for a view's values to the scratch.
void AddColumns(const rmsnorm_view& view, WeightScratch& scratch);

// Writes offset + value for each value of a view to that room, and returns the view of what was
// written. An offset of -0 leaves the values as they are.
rmsnorm_view PrepareColumns(const KernelTable& kernels, const rmsnorm_view& view, float offset,
                            WeightScratch& scratch);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_COLUMNS_H_

// SPDX-License-Identifier: Apache-2.0
// The definition of every number this library gives, in plain loops.
#ifndef RMSNORM_LIB_REFERENCE_H_
#define RMSNORM_LIB_REFERENCE_H_

#include "kernel_table.h"

namespace rmsnorm::internal {

// The order of summation: a row is cut into blocks, and the elements of a block go to the lanes in
// turn.
constexpr size_t kLanes = 128;
constexpr size_t kBlock = 4096;

// The kernels of the target "reference".
extern const KernelTable kReferenceTable;

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_REFERENCE_H_

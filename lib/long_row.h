// SPDX-License-Identifier: Apache-2.0
// One row over threads, for calls with fewer rows than threads.
#ifndef RMSNORM_LIB_LONG_ROW_H_
#define RMSNORM_LIB_LONG_ROW_H_

#include "job.h"

namespace rmsnorm::internal {

// Does one row of a job in so many parts of whole blocks, with the bits of RunRows(): each block is
// summed apart by definition, and the sums are added in order.
void RunLongRow(DefaultFloatEnvironment& environment, const Job& job, size_t row, size_t parts,
                const Threading& threading);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_LONG_ROW_H_

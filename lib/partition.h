// SPDX-License-Identifier: Apache-2.0
// The rows of a job over threads.
#ifndef RMSNORM_LIB_PARTITION_H_
#define RMSNORM_LIB_PARTITION_H_

#include <rmsnorm/rmsnorm.h>

#include "job.h"

namespace rmsnorm::internal {

// Who runs the parts of a job; the fields of rmsnorm_options.
struct Threading {
  int threads;
  rmsnorm_parallel_for parallel_for;
  void* parallel_context;
};

inline Threading MakeThreading(const rmsnorm_options& options) {
  return {options.threads, options.parallel_for, options.parallel_context};
}

// Works through all rows of the job and returns when they are done.
void RunJob(const Job& job, const Threading& threading);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_PARTITION_H_

// SPDX-License-Identifier: Apache-2.0
// What can be timed.
#ifndef RMSNORM_BENCH_OPERATIONS_H_
#define RMSNORM_BENCH_OPERATIONS_H_

#include <memory>
#include <string>
#include <vector>

#include "job.h"

namespace rmsnorm::bench {

struct Operation {
  std::string name;
  std::unique_ptr<Job> (*make)(const Cell& cell);
  bool takes_f16 = true;
};

const std::vector<Operation>& Operations();

// Makes a job of the cell's operation, which Operations() has.
std::unique_ptr<Job> MakeJob(const Cell& cell);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_OPERATIONS_H_

// SPDX-License-Identifier: Apache-2.0
// The two phases of RMSNorm on their own: forward that gives the sums of squares alone, and forward
// that takes them.
#ifndef RMSNORM_BENCH_PHASES_JOB_H_
#define RMSNORM_BENCH_PHASES_JOB_H_

#include <vector>

#include "job.h"

namespace rmsnorm::bench {

// The copies of a cold cell share the sums: 8 bytes beside a row.
class SumSquaresJob final : public Job {
 public:
  explicit SumSquaresJob(const Cell& cell);
  int passes() const override { return 1; }

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;

  // The sums of squares of the current copy.
  void Run(std::vector<double>& sums, const Context& context);

  std::vector<double> sums_;
  const Context library_;
  const Context reference_;
};

// In a cold cell all copies of x are scaled by the sums of the first.
class ScaleJob final : public Job {
 public:
  explicit ScaleJob(const Cell& cell);

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;

  // Some rows of the current copy.
  void Scale(size_t first_row, size_t rows, uint8_t* y, const Context& context);
  void Run(const Context& context) { Scale(0, cell_.rows, tensors_.y(), context); }

  std::vector<double> sums_;
  const Context library_;
  const Context reference_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_PHASES_JOB_H_

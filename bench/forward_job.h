// SPDX-License-Identifier: Apache-2.0
// Forward RMSNorm.
#ifndef RMSNORM_BENCH_FORWARD_JOB_H_
#define RMSNORM_BENCH_FORWARD_JOB_H_

#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "job.h"

namespace rmsnorm::bench {

// By modules, of dense rows, as an engine does it.
class ForwardJob final : public Job {
 public:
  explicit ForwardJob(const Cell& cell);

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;
  std::optional<rmsnorm_peer_case> DescribeForPeer() override;
  std::string FindFaultOfPeer(const std::function<void()>& run) override;

  void Run(const RmsNorm& module);

  const RmsNorm library_;
  const RmsNorm reference_;
};

// By calls of forward() alone, which prepare the weight each time.
class ForwardCallJob final : public Job {
 public:
  explicit ForwardCallJob(const Cell& cell);

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;

  // Some rows of the current copy.
  void Call(size_t first_row, size_t rows, uint8_t* y, const Context& context) const;
  void Run(const Context& context) { Call(0, cell_.rows, tensors_.y(), context); }

  const Context library_;
  const Context reference_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_FORWARD_JOB_H_

// SPDX-License-Identifier: Apache-2.0
// The residual add and RMSNorm in one pass.
#ifndef RMSNORM_BENCH_ADD_FORWARD_JOB_H_
#define RMSNORM_BENCH_ADD_FORWARD_JOB_H_

#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "job.h"

namespace rmsnorm::bench {

// By modules, of dense rows, with the residual updated in place. So each call adds x once more,
// until x is less than half a last place of the residual: after at most 2^8 calls in bf16, 2^11 in
// f16 and 2^24 in f32 or so, where the squares of a row are still far from overflow.
class AddForwardJob final : public Job {
 public:
  explicit AddForwardJob(const Cell& cell);
  // Reads x and the residual, writes the residual and y.
  int passes() const override { return 4; }

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;
  std::optional<rmsnorm_peer_case> DescribeForPeer() override;
  std::string FindFaultOfPeer(const std::function<void()>& run) override;

  // The residual, from some row on, is added to and replaced.
  void AddForward(const RmsNorm& module, size_t rows, const void* x, void* residual, void* y) const;
  void Run(const RmsNorm& module);
  // Does `run`, then has y and the residual compared with the reference's. `compare_residual` is
  // for all rows at once.
  std::string FindFaultOf(const std::function<void()>& run, const Compare& compare_y,
                          const Compare& compare_residual);

  const RmsNorm library_;
  const RmsNorm reference_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_ADD_FORWARD_JOB_H_

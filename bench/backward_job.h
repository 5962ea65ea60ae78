// SPDX-License-Identifier: Apache-2.0
// The gradients of RMSNorm.
#ifndef RMSNORM_BENCH_BACKWARD_JOB_H_
#define RMSNORM_BENCH_BACKWARD_JOB_H_

#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "job.h"

namespace rmsnorm::bench {

// By modules, from a saved 1 / RMS: dx, of the type of x, into y, and dw in f32. So in f32 it is
// the call of dense rows. The copies of a cold cell share dw, as they do the weight.
class BackwardJob final : public Job {
 public:
  explicit BackwardJob(const Cell& cell);
  // Reads dy and x, writes dx.
  int passes() const override { return 3; }
  const std::vector<float>& dw() const { return dw_; }

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;
  std::optional<rmsnorm_peer_case> DescribeForPeer() override;
  std::string FindFaultOfPeer(const std::function<void()>& run) override;

  const float* rstd() const { return rstd_.data() + tensors_.copy() * cell_.rows; }
  // The gradients of some rows of the current copy; dx or dw may be null.
  void Backward(const RmsNorm& module, size_t first_row, size_t rows, uint8_t* dx, float* dw) const;
  void Run(const RmsNorm& module) { Backward(module, 0, cell_.rows, tensors_.y(), dw_.data()); }
  void RunPlainLoops();

  // Fills y and dw with NaNs.
  void SpoilGradients();
  // The reference's.
  Expect ExpectDx() const;
  std::vector<float> ExpectedDw() const;

  const RmsNorm library_;
  const RmsNorm reference_;
  std::vector<float> rstd_;  // by copy, then by row
  std::vector<float> dw_;
  std::vector<float> sums_;  // of the plain loops' threads but the first, each of d
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BACKWARD_JOB_H_

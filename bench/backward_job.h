// SPDX-License-Identifier: Apache-2.0
// The gradients of RMSNorm.
#ifndef RMSNORM_BENCH_BACKWARD_JOB_H_
#define RMSNORM_BENCH_BACKWARD_JOB_H_

#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "job.h"

namespace rmsnorm::bench {

// By modules, from a saved 1 / RMS: dx, of the type of x, into y, and dw in f32. The copies of a
// cold cell share dw, as they do the weight.
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

  const View& dy() const { return tensors_.third_view(); }
  const float* rstd() const { return rstd_.data() + tensors_.copy() * cell_.rows; }
  Gradients BothGradients();
  void Run(const RmsNorm& module);
  void RunPlainLoops();

  // Fills y and dw with NaNs.
  void SpoilGradients();
  // The reference's dx of some rows.
  void ExpectDx(const ConstView& x, size_t first_row, const View& dx);
  std::vector<float> ExpectedDw();

  const RmsNorm library_;
  const RmsNorm reference_;
  std::vector<float> rstd_;  // by copy, then by row
  std::vector<float> dw_;
  std::vector<float> sums_;  // of the plain loops' threads but the first, each of d
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_BACKWARD_JOB_H_

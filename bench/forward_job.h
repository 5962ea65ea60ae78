// SPDX-License-Identifier: Apache-2.0
// Forward RMSNorm.
#ifndef RMSNORM_BENCH_FORWARD_JOB_H_
#define RMSNORM_BENCH_FORWARD_JOB_H_

#include <memory>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "job.h"
#include "peer.h"

namespace rmsnorm::bench {

// By modules, as an engine does it.
class ForwardJob final : public Job {
 public:
  explicit ForwardJob(const Cell& cell);
  std::vector<Contender> Contenders() override;
  bool AddPeer(const Peer& peer, PeerProblem* problem) override;

 private:
  std::string FindFaultInCopy() override;
  std::string FindFaultOfPeer(const PeerCases& cases);

  const RmsNorm library_;
  const RmsNorm reference_;
  std::vector<std::unique_ptr<PeerCases>> peers_;
};

// By calls of forward() alone, which prepare the weight each time.
class ForwardCallJob final : public Job {
 public:
  explicit ForwardCallJob(const Cell& cell);
  std::vector<Contender> Contenders() override;

 private:
  std::string FindFaultInCopy() override;

  const Options library_;
  const Options reference_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_FORWARD_JOB_H_

// SPDX-License-Identifier: Apache-2.0
// LayerNorm, and RMSNorm beside it.
#ifndef RMSNORM_BENCH_LAYER_NORM_JOB_H_
#define RMSNORM_BENCH_LAYER_NORM_JOB_H_

#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "job.h"
#include "layer_norm.h"

namespace rmsnorm::bench {

// By modules that keep their parameters, both of them. LayerNorm, in the library's place, splits
// the rows over threads as the library does, but no row: where those are fewer than the threads,
// RMSNorm may have more threads.
class LayerNormJob final : public Job {
 public:
  // Throws rmsnorm::Error for f16.
  explicit LayerNormJob(const Cell& cell);

 private:
  std::vector<Contender> OwnContenders() override;
  std::string FindFaultInCopy() override;
  std::string FindFaultOfLayerNorm();
  std::string FindFaultOfRmsNorm();

  // All rows, in parts.
  void RunLayerNorm();
  void RunRmsNorm(const RmsNorm& module);

  const Buffer bias_;
  const LayerNorm layer_norm_;
  const LayerNorm layer_norm_reference_;
  const RmsNorm rms_norm_;
  const RmsNorm rms_norm_reference_;
  const bool streams_;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_LAYER_NORM_JOB_H_

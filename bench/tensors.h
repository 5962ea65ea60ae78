// SPDX-License-Identifier: Apache-2.0
// What a case is computed from, and what it gives, in the same buffers for all contenders.
#ifndef RMSNORM_BENCH_TENSORS_H_
#define RMSNORM_BENCH_TENSORS_H_

#include <vector>

#include "buffer.h"
#include "cell.h"

namespace rmsnorm::bench {

// Rounds numbers to a type, or widens them.
void Convert(Dtype from_type, const void* from, Dtype to_type, void* to, size_t count);

// Normal numbers. The residual, which is dy and the gate as well, is 0.25 + x / 2, rounded. So it
// neither looks like x nor is it independent of x, and gradients have no term that is small by
// chance: a result that lacks one is far off.
struct Inputs {
  explicit Inputs(const Cell& cell);

  Buffer x;
  Buffer weight;
  Buffer bias;
  Buffer post_norm_weight;
  Buffer residual;
  // What the reference gives for x, where an operation takes it.
  std::vector<float> rstd;
  std::vector<double> sums;
};

struct Results {
  explicit Results(const Cell& cell);
  // Puts the residual there, and fills the others with what no result is: NaNs, and -128 in q.
  void Reset(const Inputs& inputs);

  Buffer y;  // or dx
  Buffer residual;
  std::vector<float> dw;
  std::vector<double> sums;
  std::vector<int8_t> q;
  std::vector<float> scale;
};

rmsnorm_peer_case Describe(const Cell& cell, const Inputs& inputs, Results& results);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_TENSORS_H_

// SPDX-License-Identifier: Apache-2.0
// The inputs and the results of a case, in the same buffers for all contenders.
#ifndef RMSNORM_BENCH_TENSORS_H_
#define RMSNORM_BENCH_TENSORS_H_

#include <vector>

#include "buffer.h"
#include "cell.h"

namespace rmsnorm::bench {

// Converts numbers between types, and rounds if necessary.
void Convert(Dtype from_type, const void* from, Dtype to_type, void* to, size_t count);

// Normal numbers. One buffer serves as residual, dy and gate: 0.25 + x / 2, rounded. It differs
// from x but depends on it, so no term of a gradient is small by chance: a result without that term
// is far off.
struct Inputs {
  explicit Inputs(const Cell& cell);

  Buffer x;
  Buffer weight;
  Buffer bias;
  Buffer post_norm_weight;
  Buffer residual;
  // The reference's results for x, for the operations that take them as inputs.
  std::vector<float> rstd;
  std::vector<double> sums;
};

struct Results {
  explicit Results(const Cell& cell);
  // Copies the residual, and fills the others with values that no result has: NaNs, and -128 in q.
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

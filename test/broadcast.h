// SPDX-License-Identifier: Apache-2.0
// Weights and biases that rows share.
#ifndef RMSNORM_TEST_BROADCAST_H_
#define RMSNORM_TEST_BROADCAST_H_

#include <cstddef>
#include <functional>
#include <numeric>

#include "random_rows.h"
#include "tensor.h"

namespace rmsnorm::test {

inline size_t Product(const SizeList& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{1}, std::multiplies<>());
}

// Leading dimensions of a weight for an x with these: each is kept or 1, and those of 1 at the
// front may be absent.
inline SizeList DrawShared(Random& random, const SizeList& leading) {
  SizeList shared = leading;
  for (size_t& size : shared) {
    if (random.Below(2) == 0) size = 1;
  }
  while (!shared.empty() && shared[0] == 1 && random.Below(2) == 0) shared.erase(shared.begin());
  return shared;
}

// Which row of such a weight a row of x takes.
inline size_t SharedRow(const SizeList& leading, const SizeList& shared, size_t row) {
  size_t result = 0;
  size_t step = 1;
  for (size_t i = 0; i < shared.size(); ++i) {
    const size_t size = leading[leading.size() - 1 - i];
    const size_t kept = shared[shared.size() - 1 - i];
    result += row % size % kept * step;
    row /= size;
    step *= kept;
  }
  return result;
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_BROADCAST_H_

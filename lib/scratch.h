// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_LIB_SCRATCH_H_
#define RMSNORM_LIB_SCRATCH_H_

#include <cstddef>
#include <vector>

#include "floats.h"

namespace rmsnorm::internal {

// The scratch of a call, taken piece by piece: from the memory given while that lasts, then from
// the heap. Each piece begins a cache line.
class Scratch {
 public:
  // `floats` fill whole cache lines.
  Scratch(float* memory, size_t floats) : next_(memory), left_(floats) {}

  // Throws std::bad_alloc where there is no memory.
  float* Take(size_t count) {
    constexpr size_t kLine = 64 / sizeof(float);
    if (count > left_) return heap_.emplace_back(MakeFloats(count)).get();
    const size_t padded = (count + kLine - 1) / kLine * kLine;
    float* const taken = next_;
    next_ += padded;
    left_ -= padded;
    return taken;
  }

 private:
  float* next_;
  size_t left_;
  std::vector<Floats> heap_;
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_SCRATCH_H_

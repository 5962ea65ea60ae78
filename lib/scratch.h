// SPDX-License-Identifier: Apache-2.0
// Memory for the time of a call.
#ifndef RMSNORM_LIB_SCRATCH_H_
#define RMSNORM_LIB_SCRATCH_H_

#include <cstddef>

#include "floats.h"
#include "thresholds.h"

namespace rmsnorm::internal {

// Pieces aligned to cache lines: counted first, then handed out in the same order. They are on the
// stack up to kOnStack floats in all.
template <size_t kOnStack>
class Scratch {
 public:
  // Room for `count` items of so many bytes. Allocate() fails where no address counts all of them.
  void Add(size_t count, size_t item) {
    size_t bytes;
    fits_ = fits_ && !__builtin_mul_overflow(count, item, &bytes) &&
            !__builtin_add_overflow(bytes, kLine - 1, &bytes) &&
            !__builtin_add_overflow(size_, bytes / kLine * kLine, &size_);
  }

  bool Allocate() {
    if (fits_ && size_ <= sizeof on_stack_) {
      next_ = reinterpret_cast<char*>(on_stack_);
    } else if (fits_) {
      on_heap_ = MakeFloats(size_ / sizeof(float));
      next_ = reinterpret_cast<char*>(on_heap_.get());
    }
    return next_ != nullptr;
  }

  template <class T>
  T* Take(size_t count) {
    char* const taken = next_;
    next_ += (count * sizeof(T) + kLine - 1) / kLine * kLine;
    return reinterpret_cast<T*>(taken);
  }

 private:
  static constexpr size_t kLine = 64;

  bool fits_ = true;
  size_t size_ = 0;
  char* next_ = nullptr;
  Floats on_heap_;
  alignas(kLine) float on_stack_[kOnStack];
};

using WeightScratch = Scratch<kWeightOnStack>;
using SumsScratch = Scratch<kSumsOnStack>;

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_SCRATCH_H_

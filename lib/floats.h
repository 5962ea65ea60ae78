// SPDX-License-Identifier: Apache-2.0
// Arrays of f32, aligned to a cache line, so that no vector straddles two.
#ifndef RMSNORM_LIB_FLOATS_H_
#define RMSNORM_LIB_FLOATS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace rmsnorm::internal {

struct AlignedDelete {
  void operator()(float* data) const { ::operator delete[](data, std::align_val_t(64)); }
};
using Floats = std::unique_ptr<float[], AlignedDelete>;

// Throws std::bad_alloc. An operator new that throws would abort under AddressSanitizer.
inline Floats MakeFloats(size_t count) {
  // No product overflows, nor the sum with what operator new adds for the alignment.
  const size_t bytes = count <= PTRDIFF_MAX / sizeof(float) ? count * sizeof(float) : PTRDIFF_MAX;
  void* const data = ::operator new[](bytes, std::align_val_t(64), std::nothrow);
  if (data == nullptr) throw std::bad_alloc();
  return Floats(static_cast<float*>(data));
}

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

#endif  // RMSNORM_LIB_FLOATS_H_

// SPDX-License-Identifier: Apache-2.0
// Arrays of f32, aligned to a cache line, so that no vector straddles two.
#ifndef RMSNORM_LIB_FLOATS_H_
#define RMSNORM_LIB_FLOATS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

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

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_FLOATS_H_

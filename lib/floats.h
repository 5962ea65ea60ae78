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

// Null where there is no memory.
inline Floats MakeFloats(size_t count) {
  // Before the product, or what operator new adds for the alignment, overflows.
  if (count > PTRDIFF_MAX / sizeof(float)) return nullptr;
  void* data = ::operator new[](count * sizeof(float), std::align_val_t(64), std::nothrow);
  return Floats(static_cast<float*>(data));
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_FLOATS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_CASES_GUARDED_MEMORY_H_
#define RMSNORM_CASES_GUARDED_MEMORY_H_

#include <cstddef>
#include <cstdint>

namespace rmsnorm::cases {

// Memory between inaccessible pages: a byte read or written too far is a crash.
class GuardedMemory {
 public:
  GuardedMemory() = default;
  ~GuardedMemory();
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;

  // `bytes` bytes after an inaccessible page, or before one. Their earlier contents may be lost.
  // Throws std::bad_alloc.
  uint8_t* After(size_t bytes);
  uint8_t* Before(size_t bytes);

 private:
  void Reserve(size_t bytes);
  void Free();

  uint8_t* mapped_ = nullptr;
  size_t size_ = 0;
  size_t page_ = 0;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_GUARDED_MEMORY_H_

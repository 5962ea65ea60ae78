// SPDX-License-Identifier: Apache-2.0
// Memory between inaccessible pages: a byte read or written too far is a crash.
#ifndef RMSNORM_TEST_GUARDED_BUFFER_H_
#define RMSNORM_TEST_GUARDED_BUFFER_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <stdexcept>

namespace rmsnorm::test {

class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t capacity)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        size_((capacity + page_ - 1) / page_ * page_) {
    void* const memory =
        mmap(nullptr, size_ + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap failed");
    mapped_ = static_cast<char*>(memory);
    if (mprotect(mapped_ + page_, size_, PROT_READ | PROT_WRITE) != 0) {
      throw std::runtime_error("mprotect failed");
    }
  }
  ~GuardedBuffer() { munmap(mapped_, size_ + 2 * page_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  // The first bytes, after a guard page.
  void* AtBegin() const { return mapped_ + page_; }
  // The last `bytes` bytes, before a guard page.
  void* AtEnd(size_t bytes) const { return mapped_ + page_ + size_ - bytes; }

 private:
  const size_t page_;
  const size_t size_;
  char* mapped_;
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_GUARDED_BUFFER_H_

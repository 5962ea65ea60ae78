// SPDX-License-Identifier: Apache-2.0
#include "allocation_counter.h"

#include <atomic>
#include <cerrno>
#include <cstddef>

namespace {

std::atomic<int> allocations{0};
std::atomic<bool> fails{false};

}  // namespace

namespace rmsnorm::test {

int Allocations() { return allocations; }
void FailAligned(bool fail) { fails = fail; }

}  // namespace rmsnorm::test

// The linker prefers a program's own functions to the ones in shared libraries. The GNU C library
// exports its originals under these names.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) {
  ++allocations;
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  ++allocations;
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  ++allocations;
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  ++allocations;
  return fails ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, size_t alignment, size_t size) {
  *memory = memalign(alignment, size);
  return *memory != nullptr ? 0 : ENOMEM;
}
}

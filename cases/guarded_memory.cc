// SPDX-License-Identifier: Apache-2.0
#include "guarded_memory.h"

#include <new>

#ifdef _WIN32
#define NOMINMAX 1  // as libstdc++ defines it
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace rmsnorm::cases {
namespace {

#ifdef _WIN32

size_t PageSize() {
  SYSTEM_INFO system;
  GetSystemInfo(&system);
  return system.dwPageSize;
}

// Inaccessible pages, or null.
void* MapPages(size_t bytes) {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_NOACCESS);
}

bool MakeAccessible(void* pages, size_t bytes) {
  DWORD before;
  return VirtualProtect(pages, bytes, PAGE_READWRITE, &before) != 0;
}

void UnmapPages(void* pages, size_t) { VirtualFree(pages, 0, MEM_RELEASE); }

#else

size_t PageSize() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// Inaccessible pages, or null.
void* MapPages(size_t bytes) {
  void* const pages = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

bool MakeAccessible(void* pages, size_t bytes) {
  return mprotect(pages, bytes, PROT_READ | PROT_WRITE) == 0;
}

void UnmapPages(void* pages, size_t bytes) { munmap(pages, bytes); }

#endif

}  // namespace

GuardedMemory::~GuardedMemory() { Free(); }

void GuardedMemory::Free() {
  if (mapped_ != nullptr) UnmapPages(mapped_, size_ + 2 * page_);
  mapped_ = nullptr;
}

void GuardedMemory::Reserve(size_t bytes) {
  if (mapped_ != nullptr && bytes <= size_) return;
  Free();
  page_ = PageSize();
  size_ = (bytes + page_ - 1) / page_ * page_;
  mapped_ = static_cast<uint8_t*>(MapPages(size_ + 2 * page_));
  if (mapped_ == nullptr || (size_ > 0 && !MakeAccessible(mapped_ + page_, size_))) {
    throw std::bad_alloc();
  }
}

uint8_t* GuardedMemory::After(size_t bytes) {
  Reserve(bytes);
  return mapped_ + page_;
}

uint8_t* GuardedMemory::Before(size_t bytes) {
  Reserve(bytes);
  return mapped_ + page_ + size_ - bytes;
}

}  // namespace rmsnorm::cases

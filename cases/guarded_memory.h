// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_CASES_GUARDED_MEMORY_H_
#define RMSNORM_CASES_GUARDED_MEMORY_H_

#ifndef _WIN32
#include <pthread.h>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <system_error>

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

// A thread with a small stack, which shows how much of it a call uses.
#ifdef _WIN32
class SmallStack {
 public:
  size_t Run(const std::function<void()>&) {
    throw std::runtime_error("Windows has no such stack");
  }
};
#else
class SmallStack {
 public:
  // Runs a function on a thread. Returns the bytes of stack that the function used.
  size_t Run(const std::function<void()>& run) { return Touched(run) - idle_; }

 private:
  static constexpr size_t kSize = 128 << 10;  // the least that glibc accepts on arm64
  static constexpr int kUntouched = 0xA5;

  size_t Touched(const std::function<void()>& run) {
    std::memset(stack_, kUntouched, kSize);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    int error = pthread_attr_setstack(&attributes, stack_, kSize);
    pthread_t thread;
    const auto start = [](void* function) -> void* {
      (*static_cast<const std::function<void()>*>(function))();
      return nullptr;
    };
    if (error == 0) {
      error = pthread_create(&thread, &attributes, start,
                             const_cast<void*>(static_cast<const void*>(&run)));
    }
    pthread_attr_destroy(&attributes);
    if (error != 0) throw std::system_error(error, std::generic_category(), "no thread");
    pthread_join(thread, nullptr);
    const uint8_t* const end = stack_ + kSize;
    return static_cast<size_t>(end - std::find_if(static_cast<const uint8_t*>(stack_), end,
                                                  [](uint8_t byte) { return byte != kUntouched; }));
  }

  GuardedMemory memory_;
  uint8_t* const stack_ = memory_.After(kSize);
  const size_t idle_ = Touched([] {});
};
#endif

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_GUARDED_MEMORY_H_

// SPDX-License-Identifier: Apache-2.0
#include "thread_counter.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace {

std::atomic<int> started{0};

}  // namespace

namespace rmsnorm::test {

int ThreadsStarted() { return started; }

}  // namespace rmsnorm::test

// The linker prefers a program's own function to the ones in shared libraries, so the C++ library
// and the OpenMP runtime call this one.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  ++started;
  return create(thread, attributes, run, argument);
}

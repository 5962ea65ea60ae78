// SPDX-License-Identifier: Apache-2.0
// Calls with as many threads as asked for, on any CPU.
#ifndef RMSNORM_TEST_WITH_THREADS_H_
#define RMSNORM_TEST_WITH_THREADS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

namespace rmsnorm::test {

// An executor that runs each part on a thread of its own. Its context is the largest number of
// parts so far.
inline void RunOnThreads(void* most_parts, size_t count, rmsnorm_task task, void* state) {
  size_t& parts = *static_cast<size_t*>(most_parts);
  parts = std::max(parts, count);
  std::vector<std::thread> threads;
  for (size_t part = 0; part < count; ++part) threads.emplace_back(task, state, part);
  for (std::thread& thread : threads) thread.join();
}

// Calls run(context, repeats) on a target with 1, 2 and 5 threads: with the rows of a case once,
// and with as many times these as give each thread work. How many that are depends on the CPU. Of
// rows of one element they are an hour of an emulator's, so those stay few.
template <class Run>
void RunWithThreads(const std::string& target, size_t rows, size_t d, const Run& run) {
  constexpr size_t kMostElements = 4 << 20;
  for (const size_t threads : {size_t{1}, size_t{2}, size_t{5}}) {
    size_t parts = 0;
    for (size_t repeats = 1; parts < threads; repeats *= 4) {
      if (repeats > 1 && d == 1) break;
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::to_string(repeats) + " repeats");
      ASSERT_LE(repeats * rows * d, kMostElements);
      parts = 1;
      Context context;
      context.threads = static_cast<int32_t>(threads);
      context.parallel_for = RunOnThreads;
      context.parallel_context = &parts;
      context.target = target.c_str();
      run(context, repeats);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_WITH_THREADS_H_

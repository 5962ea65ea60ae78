// SPDX-License-Identifier: Apache-2.0
// Calls with a given number of threads, on any CPU.
#ifndef RMSNORM_TEST_WITH_THREADS_H_
#define RMSNORM_TEST_WITH_THREADS_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "executor.h"
#include "targets.h"

namespace rmsnorm::test {

// Calls run(context, repeats) on a target with 1, 2 and 5 threads: once with the rows of a case,
// and then with enough repeats to give each thread work. The number of repeats depends on the CPU.
// With rows of one element they would take an hour in an emulator, so those rows are not repeated.
template <class Run>
void RunWithThreads(const std::string& target, size_t rows, size_t d, const Run& run) {
  constexpr size_t kMostElements = 4 << 20;
  for (const size_t threads : {size_t{1}, size_t{2}, size_t{5}}) {
    bool is_split = false;
    for (size_t repeats = 1; !is_split; repeats *= 4) {
      if (repeats > 1 && d == 1) break;
      SCOPED_TRACE(std::to_string(threads) + " threads, " + std::to_string(repeats) + " repeats");
      ASSERT_LE(repeats * rows * d, kMostElements);
      Executor executor(OnThreads);
      Context context = OnTarget(target, static_cast<int32_t>(threads));
      executor.SetIn(context);
      run(context, repeats);
      is_split = threads == 1 || executor.most_parts() == threads;
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_WITH_THREADS_H_

// SPDX-License-Identifier: Apache-2.0
// The caller's executors, which run the parts of a call.
#ifndef RMSNORM_TEST_EXECUTOR_H_
#define RMSNORM_TEST_EXECUTOR_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace rmsnorm::test {

// Counts calls and parts, and how often each part ran.
class Executor {
 public:
  using Run = std::function<void(size_t count, const std::function<void(size_t)>& part)>;

  explicit Executor(Run run) : run_(std::move(run)) {}

  void SetIn(Context& context) {
    context.parallel_for = &Executor::ParallelFor;
    context.parallel_context = this;
  }

  int calls() const { return calls_; }
  size_t most_parts() const { return most_parts_; }

 private:
  static void ParallelFor(void* context, size_t count, rmsnorm_task task, void* state) {
    Executor& executor = *static_cast<Executor*>(context);
    ++executor.calls_;
    executor.most_parts_ = std::max(executor.most_parts_, count);
    std::vector<std::atomic<int>> ran(count);
    executor.run_(count, [&](size_t part) {
      ++ran[part];
      task(state, part);
    });
    for (size_t part = 0; part < count; ++part) EXPECT_EQ(1, ran[part]) << "the executor is wrong";
  }

  Run run_;
  int calls_ = 0;
  size_t most_parts_ = 0;
};

inline void InReverse(size_t count, const std::function<void(size_t)>& part) {
  for (size_t i = count; i-- > 0;) part(i);
}

// Starts a thread for each part, last part first.
inline void OnThreads(size_t count, const std::function<void(size_t)>& part) {
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(part, i);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_EXECUTOR_H_

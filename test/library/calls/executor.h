// SPDX-License-Identifier: Apache-2.0
// A caller's executor.
#ifndef RMSNORM_TEST_EXECUTOR_H_
#define RMSNORM_TEST_EXECUTOR_H_

#include <algorithm>
#include <cstddef>
#include <rmsnorm/rmsnorm.hpp>

namespace rmsnorm::test {

// Counts calls and parts, and runs the last part first.
struct CountingExecutor {
  int calls = 0;
  size_t most_parts = 0;

  // The context must not outlive this object.
  void SetIn(Context& context) {
    context.parallel_context = this;
    context.parallel_for = [](void* own, size_t count, rmsnorm_task task, void* state) {
      CountingExecutor& executor = *static_cast<CountingExecutor*>(own);
      ++executor.calls;
      executor.most_parts = std::max(executor.most_parts, count);
      for (size_t i = count; i-- > 0;) task(state, i);
    };
  }
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_EXECUTOR_H_

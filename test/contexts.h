// SPDX-License-Identifier: Apache-2.0
// Contexts of calls: the targets that this CPU runs, and a caller's executor.
#ifndef RMSNORM_TEST_CONTEXTS_H_
#define RMSNORM_TEST_CONTEXTS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "cases/run.h"

namespace rmsnorm::test {

using cases::SupportedTargets;

constexpr const char* kReference = "reference";

// A context with this target; its name must outlive the context.
inline Context OnTarget(const std::string& target, int32_t threads = 0) {
  Context context;
  context.target = target.c_str();
  context.threads = threads;
  return context;
}

// Names the instances of a test that has a target as its parameter.
inline std::string Name(const testing::TestParamInfo<std::string>& target) { return target.param; }

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

#endif  // RMSNORM_TEST_CONTEXTS_H_

// SPDX-License-Identifier: Apache-2.0
// The targets that this CPU can run.
#ifndef RMSNORM_TEST_TARGETS_H_
#define RMSNORM_TEST_TARGETS_H_

#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

namespace rmsnorm::test {

constexpr const char* kReference = "reference";

// The best target comes first, the reference last.
inline std::vector<std::string> SupportedTargets() {
  std::vector<std::string> targets;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const char* exact;
    if (rmsnorm_find_target(rmsnorm_target_name(i), &exact) == RMSNORM_OK)
      targets.emplace_back(exact);
  }
  return targets;
}

// The targets to compare with the reference.
inline std::vector<std::string> SimdTargets() {
  std::vector<std::string> targets = SupportedTargets();
  targets.pop_back();
  return targets;
}

// A context with this target; its name must outlive the context.
inline Context OnTarget(const std::string& target, int32_t threads = 0) {
  Context context;
  context.target = target.c_str();
  context.threads = threads;
  return context;
}

// Names the instances of a test that has a target as its parameter.
inline std::string Name(const testing::TestParamInfo<std::string>& target) { return target.param; }

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_TARGETS_H_

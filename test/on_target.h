// SPDX-License-Identifier: Apache-2.0
// The targets that this CPU can run, for tests that go through all of them.
#ifndef RMSNORM_TEST_ON_TARGET_H_
#define RMSNORM_TEST_ON_TARGET_H_

#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/targets.h"

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

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ON_TARGET_H_

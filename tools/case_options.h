// SPDX-License-Identifier: Apache-2.0
// The library's options from the fields that all cases of `rmsnorm check` have.
#ifndef RMSNORM_TOOLS_CASE_OPTIONS_H_
#define RMSNORM_TOOLS_CASE_OPTIONS_H_

#include <rmsnorm/rmsnorm.h>

#include <thread>
#include <vector>

namespace rmsnorm::tools {

// An executor whose parts are all under way at once, the last one started first.
inline void RunOnThreads(void* /*context*/, size_t count, rmsnorm_task task, void* state) {
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(task, state, i);
  for (std::thread& thread : threads) thread.join();
}

template <class Case>
rmsnorm_options LibraryOptions(const Case& c, const char* target) {
  rmsnorm_options options = rmsnorm_default_options();
  options.eps = c.eps;
  options.eps_placement = c.eps_outside ? RMSNORM_EPS_OUTSIDE : RMSNORM_EPS_INSIDE;
  options.rounding = c.cast_then_scale ? RMSNORM_CAST_THEN_SCALE : RMSNORM_SCALE_THEN_CAST;
  options.weight_offset = c.weight_offset;
  options.divisor = c.divisor;
  options.threads = c.threads;
  options.parallel_for = c.executor ? RunOnThreads : nullptr;
  options.target = target;
  return options;
}

// Those of the call that says what is right: on one thread.
template <class Case>
rmsnorm_options ReferenceOptions(const Case& c) {
  rmsnorm_options options = LibraryOptions(c, "reference");
  options.threads = 1;
  options.parallel_for = nullptr;
  return options;
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CASE_OPTIONS_H_

// SPDX-License-Identifier: Apache-2.0
// What all cases of `rmsnorm check` have: options, threads, and how inputs are made.
#ifndef RMSNORM_TOOLS_CASE_OPTIONS_H_
#define RMSNORM_TOOLS_CASE_OPTIONS_H_

#include <rmsnorm/rmsnorm.hpp>
#include <thread>
#include <vector>

#include "case_values.h"

namespace rmsnorm::tools {

struct CaseOptions {
  Options options;
  int threads = 1;
  bool executor = false;  // an executor of the caller's in place of OpenMP

  Values values = Values::kNormal;  // of x
  bool special_weight = false;      // NaN, infinities, zeros and extreme numbers in weight and bias
  unsigned seed = 0;
};

// Visits each field with its name in the text.
template <class Case, class Visitor>
void VisitOptions(Case& c, const Visitor& visit) {
  visit("eps", c.options.eps);
  visit("eps_placement", c.options.eps_placement);
  visit("rounding", c.options.rounding);
  visit("weight_offset", c.options.weight_offset);
  visit("divisor", c.options.divisor);
  visit("threads", c.threads);
  visit("executor", c.executor);
  visit("values", c.values);
  visit("special_weight", c.special_weight);
  visit("seed", c.seed);
}

// An executor whose parts are all under way at once, the last one started first.
inline void RunOnThreads(void* /*context*/, size_t count, rmsnorm_task task, void* state) {
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(task, state, i);
  for (std::thread& thread : threads) thread.join();
}

inline Context ContextOf(const CaseOptions& c, const char* target) {
  Context context;
  context.threads = c.threads;
  context.parallel_for = c.executor ? RunOnThreads : nullptr;
  context.target = target;
  return context;
}

// That of the call that says what is right: on one thread.
inline Context ReferenceContext() {
  Context context;
  context.threads = 1;
  context.target = "reference";
  return context;
}

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CASE_OPTIONS_H_

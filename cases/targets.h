// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_CASES_TARGETS_H_
#define RMSNORM_CASES_TARGETS_H_

#include <rmsnorm/rmsnorm.h>

#include <string>
#include <vector>

namespace rmsnorm::cases {

// The exact names of the targets that this CPU runs, best first, the reference last.
inline std::vector<std::string> SupportedTargets() {
  std::vector<std::string> targets;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const char* exact_name;
    if (rmsnorm_find_target(rmsnorm_target_name(i), &exact_name) == RMSNORM_OK) {
      targets.emplace_back(exact_name);
    }
  }
  return targets;
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_TARGETS_H_

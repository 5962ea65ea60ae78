// SPDX-License-Identifier: Apache-2.0
#include "targets.h"

#include <rmsnorm/rmsnorm.h>

namespace rmsnorm::cases {

std::vector<std::string> SupportedTargets() {
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

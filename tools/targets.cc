// SPDX-License-Identifier: Apache-2.0
#include "targets.h"

#include <rmsnorm/rmsnorm.hpp>

namespace rmsnorm::tools {

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

std::vector<std::string> FindTargets(const std::vector<std::string>& names) {
  std::vector<std::string> targets;
  for (const std::string& name : names) {
    const char* exact_name;
    check(rmsnorm_find_target(name.c_str(), &exact_name));
    targets.emplace_back(exact_name);
  }
  return targets;
}

}  // namespace rmsnorm::tools

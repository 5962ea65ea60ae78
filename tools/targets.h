// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_TOOLS_TARGETS_H_
#define RMSNORM_TOOLS_TARGETS_H_

#include <string>
#include <vector>

namespace rmsnorm::tools {

// The exact names of the targets that this CPU runs, best first, the reference last.
std::vector<std::string> SupportedTargets();

// The exact names of targets that a user named. Throws rmsnorm::Error if this CPU runs no such
// target.
std::vector<std::string> FindTargets(const std::vector<std::string>& names);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TARGETS_H_

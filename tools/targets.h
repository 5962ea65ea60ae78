// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_TOOLS_TARGETS_H_
#define RMSNORM_TOOLS_TARGETS_H_

#include <string>
#include <vector>

namespace rmsnorm::tools {

// The exact names of the targets that this CPU runs, best first, the reference last.
std::vector<std::string> SupportedTargets();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_TARGETS_H_

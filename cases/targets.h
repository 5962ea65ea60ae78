// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_CASES_TARGETS_H_
#define RMSNORM_CASES_TARGETS_H_

#include <string>
#include <vector>

namespace rmsnorm::cases {

// The exact names of the targets that this CPU runs, best first, the reference last.
std::vector<std::string> SupportedTargets();

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_TARGETS_H_

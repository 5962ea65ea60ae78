// SPDX-License-Identifier: Apache-2.0
// The work of `rmsnorm check`, apart from its command line.
#ifndef RMSNORM_TOOLS_CHECK_H_
#define RMSNORM_TOOLS_CHECK_H_

#include <iosfwd>
#include <string>
#include <vector>

#include "forward_case.h"

namespace rmsnorm::tools {

// Checks each case on each target. Writes two lines for each failure, what is wrong and a command
// that repeats it, and a line that counts. Returns the status to exit with.
int CheckForward(const std::vector<ForwardCase>& cases, const std::vector<std::string>& targets,
                 std::ostream& out);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CHECK_H_

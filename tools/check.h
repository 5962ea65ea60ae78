// SPDX-License-Identifier: Apache-2.0
// The work of `rmsnorm check`, apart from its command line.
#ifndef RMSNORM_TOOLS_CHECK_H_
#define RMSNORM_TOOLS_CHECK_H_

#include <iosfwd>
#include <string>
#include <variant>
#include <vector>

#include "backward_case.h"
#include "forward_case.h"

namespace rmsnorm::tools {

// A case of any kind.
using Case = std::variant<ForwardCase, BackwardCase>;

// The case that a text describes; its first word names the kind. Throws UserError if there is none.
Case ParseCase(const std::string& text);

// Checks each case on each target. Writes two lines for each failure, what is wrong and a command
// that repeats it, and a line that counts. Returns the status to exit with.
int CheckCases(const std::vector<Case>& cases, const std::vector<std::string>& targets,
               std::ostream& out);

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_CHECK_H_

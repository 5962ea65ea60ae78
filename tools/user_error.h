// SPDX-License-Identifier: Apache-2.0
// The exception for a request that cannot be fulfilled.
#ifndef RMSNORM_TOOLS_USER_ERROR_H_
#define RMSNORM_TOOLS_USER_ERROR_H_

#include <stdexcept>

namespace rmsnorm::tools {

// A mistake that the user can fix. main() prints it as one line and exits with kUserError.
class UserError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_USER_ERROR_H_

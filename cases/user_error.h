// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_CASES_USER_ERROR_H_
#define RMSNORM_CASES_USER_ERROR_H_

#include <stdexcept>

namespace rmsnorm::cases {

// A mistake that the user can fix. main() prints it as one line and exits with kUserError.
class UserError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_USER_ERROR_H_

// SPDX-License-Identifier: Apache-2.0
// The exception for a request that cannot be fulfilled.
#ifndef RMSNORM_CASES_USER_ERROR_H_
#define RMSNORM_CASES_USER_ERROR_H_

#include <stdexcept>
#include <string>

namespace rmsnorm::cases {

// A mistake that the user can fix. main() prints it as one line and exits with kUserError.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message) : std::runtime_error(message), message_(message) {}
  // Names in files may hold a NUL, where what() ends.
  const std::string& message() const { return message_; }

 private:
  std::string message_;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_USER_ERROR_H_

// SPDX-License-Identifier: Apache-2.0
// The exception for a request that cannot be fulfilled.
#ifndef RMSNORM_TOOLS_USER_ERROR_H_
#define RMSNORM_TOOLS_USER_ERROR_H_

#include <exception>
#include <string>
#include <utility>

namespace rmsnorm::tools {

// A mistake that the user can fix. main() prints it as one line and exits with kUserError.
class UserError : public std::exception {
 public:
  explicit UserError(std::string message) : message_(std::move(message)) {}
  // Names in files may hold a NUL, where what() ends.
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_USER_ERROR_H_

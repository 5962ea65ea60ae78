// SPDX-License-Identifier: Apache-2.0
#include "status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace rmsnorm::internal {
namespace {

// Its size is fixed, so an error report needs no memory. A longer text is cut.
thread_local char message[256] = "";

}  // namespace

rmsnorm_status Fail(rmsnorm_status status, const char* format, ...) {
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(message, sizeof message, format, arguments);
  va_end(arguments);
  return status;
}

rmsnorm_status FailOfCall(size_t index, rmsnorm_status status) {
  char text[sizeof message];
  std::memcpy(text, message, sizeof message);
  return Fail(status, "calls[%zu].%s", index, text);
}

ShortText& ShortText::Add(const char* format, ...) {
  const size_t length = std::strlen(text_);
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text_ + length, sizeof text_ - length, format, arguments);
  va_end(arguments);
  return *this;
}

}  // namespace rmsnorm::internal

const char* rmsnorm_error_message() noexcept { return rmsnorm::internal::message; }

const char* rmsnorm_status_text(rmsnorm_status status) noexcept {
  // In the order of the statuses, which count from 0.
  constexpr const char* kTexts[] = {
      "success",
      "a required pointer is null",
      "a struct has no known size, or holds fields that this library does not know",
      "an element type that the operand cannot have",
      "a shape is empty, has a wrong number of dimensions, or does not match",
      "strides, alignment or size do not fit the view",
      "an output shares memory with another argument",
      "an option or a field of a context has no possible value",
      "operands exclude or lack each other",
      "the target is unknown, or this CPU cannot run it",
      "out of memory",
      "a tensor lies in memory of another device",
  };
  static_assert(sizeof kTexts / sizeof *kTexts == RMSNORM_ERROR_DEVICE + 1);
  const bool is_known = RMSNORM_OK <= status && status <= RMSNORM_ERROR_DEVICE;
  return is_known ? kTexts[status] : "an unknown status";
}

const char* rmsnorm_version() noexcept { return RMSNORM_VERSION; }

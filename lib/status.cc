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

KeptErrorMessage::KeptErrorMessage() {
  static_assert(sizeof text_ == sizeof message);
  std::memcpy(text_, message, sizeof message);
}

KeptErrorMessage::~KeptErrorMessage() { std::memcpy(message, text_, sizeof message); }

}  // namespace rmsnorm::internal

const char* rmsnorm_error_message() noexcept { return rmsnorm::internal::message; }

const char* rmsnorm_status_text(rmsnorm_status status) noexcept {
  switch (status) {
    case RMSNORM_OK:
      return "success";
    case RMSNORM_ERROR_NULL:
      return "a required pointer is null";
    case RMSNORM_ERROR_STRUCT_SIZE:
      return "a struct has no known size, or holds fields that this library does not know";
    case RMSNORM_ERROR_DTYPE:
      return "an element type that the operand cannot have";
    case RMSNORM_ERROR_SHAPE:
      return "a shape is empty, has a wrong number of dimensions, or does not match";
    case RMSNORM_ERROR_LAYOUT:
      return "strides, alignment or size do not fit the view";
    case RMSNORM_ERROR_OVERLAP:
      return "an output shares memory with another argument";
    case RMSNORM_ERROR_OPTION:
      return "an option or a field of a context has no possible value";
    case RMSNORM_ERROR_OPERAND:
      return "operands exclude or lack each other";
    case RMSNORM_ERROR_TARGET:
      return "the target is unknown, or this CPU cannot run it";
    case RMSNORM_ERROR_MEMORY:
      return "out of memory";
    case RMSNORM_ERROR_DEVICE:
      return "a tensor lies in memory of another device";
    default:
      return "an unknown status";
  }
}

const char* rmsnorm_version() noexcept { return RMSNORM_VERSION; }

// SPDX-License-Identifier: Apache-2.0
#include "status.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace rmsnorm::internal {
namespace {

// Of fixed size, so that reporting an error needs no memory. A longer text is cut.
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
      return "a struct has no known size, or holds what this library does not know";
    case RMSNORM_ERROR_DTYPE:
      return "an unknown element type";
    case RMSNORM_ERROR_SHAPE:
      return "a shape is empty, has a wrong number of dimensions, or does not match";
    case RMSNORM_ERROR_STRIDE:
      return "the last dimension is not contiguous, or strides do not tell an output's rows apart";
    case RMSNORM_ERROR_SIZE_OVERFLOW:
      return "a view spans more bytes than an address can count";
    case RMSNORM_ERROR_ALIGNMENT:
      return "a pointer is not aligned to its element";
    case RMSNORM_ERROR_OVERLAP:
      return "an output shares memory with another argument";
    case RMSNORM_ERROR_EPS:
      return "eps is negative or not finite";
    case RMSNORM_ERROR_EPS_PLACEMENT:
      return "an unknown place for eps";
    case RMSNORM_ERROR_ROUNDING:
      return "an unknown rounding order";
    case RMSNORM_ERROR_WEIGHT_OFFSET:
      return "the weight offset is not finite, or there is no weight";
    case RMSNORM_ERROR_DIVISOR:
      return "the divisor or its inverse is not a normal f32 number";
    case RMSNORM_ERROR_THREADS:
      return "the number of threads is negative";
    case RMSNORM_ERROR_TARGET:
      return "the target is unknown, or this CPU cannot run it";
    case RMSNORM_ERROR_MEMORY:
      return "out of memory";
    case RMSNORM_ERROR_FLAGS:
      return "a flag is unknown";
    case RMSNORM_ERROR_DEVICE:
      return "a tensor lies in memory of another device";
    case RMSNORM_ERROR_READ_ONLY:
      return "an output may only be read";
    case RMSNORM_ERROR_FACTOR:
      return "a factor that is not finite";
    case RMSNORM_ERROR_GATE:
      return "an unknown way to gate, or one without a gate";
    case RMSNORM_ERROR_OPERAND:
      return "operands exclude or lack each other";
    default:
      return "an unknown status";
  }
}

const char* rmsnorm_version() noexcept { return RMSNORM_VERSION; }

// SPDX-License-Identifier: Apache-2.0
// How a call reports an error.
#ifndef RMSNORM_LIB_STATUS_H_
#define RMSNORM_LIB_STATUS_H_

#include <rmsnorm/rmsnorm.h>

#include "portable.h"

namespace rmsnorm::internal {

// Keeps the formatted text for rmsnorm_error_message() of this thread and returns `status`.
RMSNORM_COLD RMSNORM_PRINTF(2, 3) rmsnorm_status
    Fail(rmsnorm_status status, const char* format, ...);

// Puts "calls[index]." before the text of the last Fail(), and returns `status`.
rmsnorm_status FailOfCall(size_t index, rmsnorm_status status);

// A short text for a message. It takes no memory of the heap, and what does not fit is cut.
class ShortText {
 public:
  RMSNORM_PRINTF(2, 3) ShortText& Add(const char* format, ...);
  const char* c_str() const { return text_; }

 private:
  char text_[128] = "";
};

}  // namespace rmsnorm::internal

// Returns from the calling function if `call` failed.
#define RMSNORM_RETURN_IF_ERROR(call)                        \
  do {                                                       \
    const rmsnorm_status status_of_call = (call);            \
    if (status_of_call != RMSNORM_OK) return status_of_call; \
  } while (false)

#endif  // RMSNORM_LIB_STATUS_H_

// SPDX-License-Identifier: Apache-2.0
// A bar on standard error, for long work on a terminal.
#ifndef RMSNORM_TOOLS_PROGRESS_H_
#define RMSNORM_TOOLS_PROGRESS_H_

#include <chrono>
#include <cstddef>

namespace rmsnorm::tools {

// The bar shows only on a terminal and only after half a second. It disappears with the object.
class Progress {
 public:
  explicit Progress(size_t total);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(size_t done);

 private:
  using Clock = std::chrono::steady_clock;

  size_t total_;
  bool terminal_;
  bool shown_ = false;
  Clock::time_point next_;
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_PROGRESS_H_

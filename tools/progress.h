// SPDX-License-Identifier: Apache-2.0
// A percentage on standard error, for long work on a terminal.
#ifndef RMSNORM_TOOLS_PROGRESS_H_
#define RMSNORM_TOOLS_PROGRESS_H_

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdio>

namespace rmsnorm::tools {

// It shows only on a terminal and only after half a second. It disappears with the object.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}
  ~Progress() {
    if (shown_) std::fputs("\r     \r", stderr);
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Update(size_t done) {
    if (!is_terminal_ || Clock::now() < next_) return;
    next_ = Clock::now() + std::chrono::milliseconds(100);
    std::fprintf(stderr, "\r%3.0f %%",
                 100 * static_cast<double>(done) / static_cast<double>(total_));
    shown_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;

  size_t total_;
  bool is_terminal_ = isatty(STDERR_FILENO) != 0;
  bool shown_ = false;
  Clock::time_point next_ = Clock::now() + std::chrono::milliseconds(500);
};

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_PROGRESS_H_

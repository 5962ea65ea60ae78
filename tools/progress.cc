// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <cstdio>
#include <string>

#include "system_file.h"

namespace rmsnorm::tools {
namespace {

constexpr size_t kWidth = 40;  // of the bar; brackets and a percentage are another 8

}  // namespace

Progress::Progress(size_t total)
    : total_(total),
      terminal_(StderrIsTerminal()),
      next_(Clock::now() + std::chrono::milliseconds(500)) {}

Progress::~Progress() {
  if (shown_) std::fprintf(stderr, "\r%*s\r", static_cast<int>(kWidth + 8), "");
}

void Progress::Update(size_t done) {
  if (!terminal_ || Clock::now() < next_) return;
  next_ = Clock::now() + std::chrono::milliseconds(100);
  const double fraction = static_cast<double>(done) / static_cast<double>(total_);
  const size_t filled = static_cast<size_t>(fraction * kWidth);
  const std::string bar = std::string(filled, '#') + std::string(kWidth - filled, ' ');
  std::fprintf(stderr, "\r[%s] %3.0f %%", bar.c_str(), 100 * fraction);
  shown_ = true;
}

}  // namespace rmsnorm::tools

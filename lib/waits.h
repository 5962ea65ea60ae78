// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_LIB_WAITS_H_
#define RMSNORM_LIB_WAITS_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "thresholds.h"

namespace rmsnorm::internal {

// Decides when calls with work for several threads stay on their own. Where other programs keep the
// CPUs busy, or a quota of CPU time is used up, the scheduler leaves threads out for milliseconds,
// and the calling thread waits for them. Calls then stay on their thread for the time that was
// lost, which doubles with each loss, and which gains pay back (doc/design.md, "OpenMP"). Threads
// that call at once share this.
class Waits {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  // Whether a call should stay on its thread. It then reports its time to Stayed().
  bool ShouldStay() const { return stay_.load(std::memory_order_relaxed) > 0; }
  void Stayed(Nanoseconds time) { stay_.fetch_sub(time.count(), std::memory_order_relaxed); }

  // After a region of some threads, which have about equal work: how long the calling thread
  // worked, and how long the region took. One thread alone would have worked once for each of them.
  void Report(int threads, Nanoseconds worked, Nanoseconds took) {
    const int64_t lost = (took - threads * worked).count();
    const int64_t before = lost_.load(std::memory_order_relaxed);
    if (lost < kLeast) {
      // The calling thread may have been left out while it worked, which is no gain of that size.
      const int64_t gained = std::clamp<int64_t>(-lost, 0, before / 8);
      return lost_.store(before - gained, std::memory_order_relaxed);
    }
    const int64_t now = std::min(2 * before + lost, kMost);
    lost_.store(now, std::memory_order_relaxed);
    stay_.store(now, std::memory_order_relaxed);
  }

 private:
  // Nanoseconds. A sleeping thread wakes in less than kLeast. After kMost a call tries its threads
  // again; in a build for fuzzing it always does.
  static constexpr int64_t kLeast = 200'000;
  static constexpr int64_t kMost = static_cast<int64_t>(Threshold(2000000000, 0));

  std::atomic<int64_t> lost_{0};  // that gains have not paid back
  std::atomic<int64_t> stay_{0};
};

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_WAITS_H_

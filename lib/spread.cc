// SPDX-License-Identifier: Apache-2.0
// The only file that knows of OpenMP.
#include "spread.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "thresholds.h"

#ifdef _OPENMP
#include <omp.h>
#include <pthread.h>

#include <atomic>
#endif

namespace rmsnorm::internal {
namespace {

// The parts as the caller's executor gets them.
struct Parts {
  PartTask task;
  void* state;
  size_t count;
};

void RunPart(void* state, size_t part) {
  const DefaultFloatEnvironment environment;
  const Parts& parts = *static_cast<const Parts*>(state);
  parts.task(parts.state, part, parts.count);
}

#ifdef _OPENMP
// Whether this process was forked from one in which OpenMP had run parts. Its threads did not come
// along, and libgomp would wait for them for good.
std::atomic<bool> lost_threads{false};
#endif

void RunWithOpenMp(Parts& parts) {
#ifdef _OPENMP
  [[maybe_unused]] static const int registered =
      pthread_atfork(nullptr, nullptr, [] { lost_threads = true; });
  // The runtime may give fewer threads than asked for. LLVM's allocates for a `parallel for`. Two
  // or four parts for each thread, handed out as threads ask for them, took up to 40 % longer where
  // rows lie in a core's own cache, and gained nothing for long rows beside other load.
#pragma omp parallel num_threads(static_cast <int>(parts.count))
  for (size_t part = static_cast<size_t>(omp_get_thread_num()); part < parts.count;
       part += static_cast<size_t>(omp_get_num_threads())) {
    RunPart(&parts, part);
  }
#else
  for (size_t part = 0; part < parts.count; ++part) RunPart(&parts, part);
#endif
}

// Into how many parts work is worth splitting, however large it is; at least 1.
size_t MaxThreads(const rmsnorm_context& context) {
  int threads = context.threads;
  if (threads == 1) return 1;
  if (context.parallel_for != nullptr) {
    if (threads == 0) threads = static_cast<int>(std::thread::hardware_concurrency());
  } else {
#ifdef _OPENMP
    if (omp_in_parallel() || lost_threads) return 1;
    const int usual = omp_get_max_threads();
    if (threads == 0) threads = usual;
    // libgomp asks the kernel for the number of CPUs.
    if (threads > usual) threads = std::min(threads, std::max(usual, omp_get_num_procs()));
    threads = std::min(threads, omp_get_thread_limit());
#else
    return 1;
#endif
  }
  return static_cast<size_t>(std::max(threads, 1));
}

// Nanoseconds below which a part is not worth a thread of its own, whatever it takes to hand it
// out: an executor's cost is not known, and a region of OpenMP takes 0.65 to 2.1 us with two
// threads that spin (libgomp 12 and libomp 14, AMD Zen).
constexpr size_t kLeastOfPart = 1500;

#ifdef _OPENMP
// Nanoseconds that a region counts as at most, as a busy machine may have no time for its threads.
// Threads that sleep are awake after 20 to 30 us: always with OMP_WAIT_POLICY=passive, and else
// some milliseconds after the last region.
constexpr size_t kMostOfRegion = 20000;

// Nanoseconds of a region of OpenMP without work, which the first one with work finds out behind
// itself; 0 before.
std::atomic<size_t> region_cost{0};

void TimeRegion(size_t threads) {
  using Clock = std::chrono::steady_clock;
  Parts parts = {[](void*, size_t, size_t) {}, nullptr, threads};
  size_t least = kMostOfRegion;
  for (int i = 0; i < 4; ++i) {
    const Clock::time_point start = Clock::now();
    RunWithOpenMp(parts);
    const auto taken = std::chrono::nanoseconds(Clock::now() - start);
    least = std::min(least, static_cast<size_t>(taken.count()));
  }
  region_cost.store(least, std::memory_order_relaxed);
}
#endif

// Nanoseconds of the least part that is worth a thread. With work a region costs more than without,
// as threads wait for lines of memory that others have written: 2.1 to 2.8 us where it is 1.35 us
// without (forward of 2 to 16 rows of 4096 in bf16, AMD Zen), 1.5 to 2.6 us where it is 0.9 us
// (f32, Intel Xeon).
size_t LeastOfPart([[maybe_unused]] const rmsnorm_context& context) {
#ifdef _OPENMP
  if (context.parallel_for == nullptr) {
    return kLeastOfPart + region_cost.load(std::memory_order_relaxed);
  }
#endif
  return kLeastOfPart;
}

}  // namespace

size_t PartsOfLargeWork(const Work& work, const rmsnorm_context& context) {
  constexpr size_t kPicoseconds = 1000;
  const size_t least =
      Threshold(LeastOfPart(context) * kPicoseconds / PicosecondsOfElement(work) + 1, 64);
  const size_t parts = work.elements / least;
  // Asking OpenMP takes 20 to 40 ns.
  return parts > 1 ? std::min(parts, MaxThreads(context)) : 1;
}

void RunOnThreads(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                  size_t parts, PartTask task, void* state) {
  Parts all = {task, state, parts};
  environment.Leave();
  if (context.parallel_for != nullptr) {
    context.parallel_for(context.parallel_context, parts, RunPart, &all);
  } else {
    RunWithOpenMp(all);
#ifdef _OPENMP
    if (region_cost.load(std::memory_order_relaxed) == 0) TimeRegion(parts);
#endif
  }
  environment.Enter();
}

}  // namespace rmsnorm::internal

int32_t rmsnorm_max_threads() noexcept {
#ifdef _OPENMP
  return rmsnorm::internal::lost_threads ? 1 : omp_get_max_threads();
#else
  return 1;
#endif
}

int32_t rmsnorm_has_openmp() noexcept {
#ifdef _OPENMP
  return 1;
#else
  return 0;
#endif
}

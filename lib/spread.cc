// SPDX-License-Identifier: Apache-2.0
// The only file that knows of OpenMP.
#include "spread.h"

#include <algorithm>
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

}  // namespace

size_t PartsOf(size_t work, const rmsnorm_context& context) {
  // Small work is decided on first, as even asking OpenMP costs more than a short row.
  const size_t parts = work / kMinWorkOfPart;
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

// SPDX-License-Identifier: Apache-2.0
// Threads for work, each on its CPU.
#ifndef RMSNORM_BENCH_THREADS_H_
#define RMSNORM_BENCH_THREADS_H_

#include <sched.h>

#include <cstddef>
#include <functional>

namespace rmsnorm::bench {

// Runs function(i) for each i below `count`, each on a separate thread of the library's OpenMP, so
// that no pool of threads waits while another one works. A single one runs on the calling thread,
// and so do all without OpenMP.
void RunOnThreads(size_t count, const std::function<void(size_t)>& function);

// Binds the calling thread and its OpenMP threads, each to a different CPU available to the
// process: one CPU of each core before a second of any. The destructor restores the earlier state.
// It binds nothing if the system refuses, or if OpenMP was told to bind (OMP_PROC_BIND).
class BoundThreads {
 public:
  explicit BoundThreads(int threads);
  ~BoundThreads();
  BoundThreads(const BoundThreads&) = delete;
  BoundThreads& operator=(const BoundThreads&) = delete;

 private:
  const int threads_;
  cpu_set_t before_;
  bool bound_ = false;
};

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_THREADS_H_

// SPDX-License-Identifier: Apache-2.0
// Keeps threads from disturbing what is timed.
#ifndef RMSNORM_BENCH_THREADS_H_
#define RMSNORM_BENCH_THREADS_H_

#include <sched.h>

#include <set>
#include <string>

namespace rmsnorm::bench {

// Binds the calling thread and the OpenMP threads that would work with it, each to another CPU of
// those the process may use: one of each core before a second of any. The destructor puts back what
// was. Nothing is bound where the system refuses it, or where OpenMP was told to bind
// (OMP_PROC_BIND).
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

// The ids of the process's other threads.
std::set<std::string> OtherThreads();

// Waits until no other thread of the process runs: OpenMP's look for more work before they sleep,
// libgomp's for some milliseconds and libomp's for 200, as do those of other libraries. Gives up
// after a second, and then returns false.
bool WaitUntilOthersSleep();

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_THREADS_H_

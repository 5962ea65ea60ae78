// SPDX-License-Identifier: Apache-2.0
// Times several ways of doing a job side by side, and runs work on threads, each on its CPU.
//
// On a shared machine, a clock rate or a neighbour can change from one second to the next. So each
// of many rounds times all contenders, in an order that changes from round to round, and the
// comparison uses medians over the rounds, of times and of ratios. Work that may find its data in
// the caches runs once before each timing, so that it finds only its own data there.
//
// Google Benchmark can shuffle the repetitions of benchmarks, but not in rounds: its ratios are of
// times that were taken far apart, and vary two to seven times as much (doc/design.md).
#ifndef RMSNORM_BENCH_ROUNDS_H_
#define RMSNORM_BENCH_ROUNDS_H_

#include <sched.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace rmsnorm::bench {

// One of the contenders that take turns.
struct Turn {
  std::string name;
  std::function<void(size_t times)> repeat;
  // The thread pool that works; empty for this program's OpenMP threads.
  std::string pool = {};
};

struct Spread {
  double lower_quartile;
  double median;
  double upper_quartile;
};

// The quartiles of an odd number of numbers.
Spread SpreadOf(std::vector<double> numbers);

// Seconds on the machine's steady clock, from an arbitrary start.
double SteadySeconds();

// Seconds for doing the work once: by turn, for each round. If the previous turn used another pool,
// all other threads are asleep before this turn starts, and it runs once, untimed, to wake its own
// threads. Turns of the same pool follow each other without a pause. TimeInRounds() calls
// `next_round` before each round. Tests pass a different `clock`.
std::vector<std::vector<double>> TimeInRounds(const std::vector<Turn>& turns,
                                              const std::function<void()>& next_round,
                                              const std::function<double()>& clock = SteadySeconds);

// ---------------------------------------------------------------------------------------- threads

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

#endif  // RMSNORM_BENCH_ROUNDS_H_

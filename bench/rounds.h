// SPDX-License-Identifier: Apache-2.0
// Times several ways of doing a job side by side.
//
// On a machine that others use too, a clock rate or a neighbour can change from one second to the
// next. So all contenders are timed in each of many rounds, in an order that changes from round to
// round, and medians over the rounds, of times and of ratios, are compared. Work that may find its
// data in the caches is done once before each time it is timed, so that it finds what it has left
// there itself.
//
// Google Benchmark could shuffle the repetitions of contenders that are benchmarks of their own
// (--benchmark_enable_random_interleaving). But it shuffles the repetitions of all cells, so that
// two contenders of a cell would be timed minutes apart, with the buffers of all cells in memory.
// So a cell is one benchmark, and these rounds are in it.
#ifndef RMSNORM_BENCH_ROUNDS_H_
#define RMSNORM_BENCH_ROUNDS_H_

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace rmsnorm::bench {

// One of those that take turns.
struct Turn {
  std::string name;
  std::function<void(size_t times)> repeat;
  // Whose threads work; empty for this program's OpenMP threads.
  std::string pool = {};
};

struct Spread {
  double lower_quartile;
  double median;
  double upper_quartile;
};

// The quartiles of some numbers, of which there is an odd number.
Spread SpreadOf(std::vector<double> numbers);

// Seconds since some moment, by the machine's steady clock.
double SteadySeconds();

// Seconds for doing the work once: by round, for each of the turns. Where one follows another of
// another pool, all other threads are asleep before it starts, and it runs once to wake its own
// before it is timed. Those of one pool follow each other without a pause. `next_round` is called
// before each round. A test has a clock of its own.
std::vector<std::vector<double>> TimeInRounds(const std::vector<Turn>& turns,
                                              const std::function<void()>& next_round,
                                              const std::function<double()>& clock = SteadySeconds);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_ROUNDS_H_

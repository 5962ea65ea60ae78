// SPDX-License-Identifier: Apache-2.0
// Times several ways of doing a job side by side.
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

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_ROUNDS_H_

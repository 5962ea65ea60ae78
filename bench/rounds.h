// SPDX-License-Identifier: Apache-2.0
// Times several ways of doing a job side by side.
//
// On a machine that others use too, a clock rate or a neighbour can change from one second to the
// next. So all contenders are timed in turn in each of many rounds, and medians over the rounds are
// compared. Work that may find its data in the caches is done once before each time it is timed, so
// that it finds what it has left there itself.
#ifndef RMSNORM_BENCH_ROUNDS_H_
#define RMSNORM_BENCH_ROUNDS_H_

#include <benchmark/benchmark.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace rmsnorm::bench {

struct Contender {
  std::string name;
  std::function<void(size_t times)> repeat;
  // Whose threads work; empty for this program's OpenMP threads.
  std::string pool = {};
};

// A contender from one that does its work once. The loop is in here, so that what is timed has no
// more than the call of `work` itself.
template <class Work>
Contender MakeContender(std::string name, Work work) {
  return {std::move(name), [work](size_t times) {
            for (size_t i = 0; i < times; ++i) {
              work();
              benchmark::ClobberMemory();
            }
          }};
}

// Seconds for doing the work once, over the rounds.
struct Spread {
  double lower_quartile;
  double median;
  double upper_quartile;
};

// The quartiles of some numbers, of which there is an odd number.
Spread SpreadOf(std::vector<double> seconds);

struct Timings {
  size_t rounds;
  std::vector<Spread> spreads;  // in the order of the contenders
};

// Seconds since some moment, by the machine's steady clock.
double SteadySeconds();

// Where a contender follows one of another pool, all other threads are asleep before it starts, and
// it runs once to wake its own before it is timed. Contenders of one pool follow each other without
// a pause.
// `round_done` is called after each round with the number of rounds done and of all. A test has a
// clock of its own.
Timings TimeInRounds(const std::vector<Contender>& contenders,
                     const std::function<void(size_t done, size_t rounds)>& round_done,
                     const std::function<double()>& clock = SteadySeconds);

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_ROUNDS_H_

// SPDX-License-Identifier: Apache-2.0
// How `rmsnorm bench` measures times: the order of turns, and the CPUs. No test depends on timings.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "parallel.h"
#include "rounds.h"
#include "threads.h"

namespace rmsnorm::test {
namespace {

TEST(BenchSpread, QuartilesOfAnOddNumber) {
  const bench::Spread spread = bench::SpreadOf({9, 1, 8, 2, 7, 3, 6, 4, 5});
  EXPECT_EQ(spread.lower_quartile, 3);
  EXPECT_EQ(spread.median, 5);
  EXPECT_EQ(spread.upper_quartile, 7);
}

// Turns whose work takes a given time, on a clock that only they advance.
class BenchRounds : public testing::Test {
 protected:
  bench::Turn Make(const char* name, double seconds, const char* pool = "") {
    const auto repeat = [this, name, seconds](size_t times) {
      for (size_t i = 0; i < times; ++i) calls_ += name;
      now_ += seconds * static_cast<double>(times);
    };
    return {name, repeat, pool};
  }

  // Seconds by round, for the first turn.
  std::vector<double> Time(const std::vector<bench::Turn>& turns) {
    const std::vector<std::vector<double>> seconds = bench::TimeInRounds(
        turns, [this] { calls_ += '|'; }, [this] { return now_; });
    EXPECT_EQ(seconds.size(), turns.size());
    rounds_ = seconds[0].size();
    EXPECT_GE(rounds_, 9u);
    EXPECT_EQ(rounds_ % 2, 1u);
    EXPECT_EQ(seconds.back().size(), rounds_);
    return seconds[0];
  }

  // The turns in each round; before the rounds, each is warmed up and timed once to find its pace.
  std::vector<std::string> Rounds() const {
    std::istringstream calls(calls_);
    std::string round;
    std::getline(calls, round, '|');
    EXPECT_EQ(round, "aabbcc");
    std::vector<std::string> rounds;
    while (std::getline(calls, round, '|')) rounds.push_back(round);
    EXPECT_EQ(rounds.size(), rounds_);
    return rounds;
  }

  // The order of the turns in a round.
  static std::string Order(std::string round) {
    round.erase(std::unique(round.begin(), round.end()), round.end());
    return round;
  }

  std::string calls_;
  double now_ = 0;
  size_t rounds_ = 0;
};

TEST_F(BenchRounds, ContendersTakeTurns) {
  for (const double seconds : Time({Make("a", 2e-3), Make("b", 3e-3), Make("c", 4e-3)})) {
    EXPECT_NEAR(seconds, 2e-3, 1e-9);
  }
  // This work is long enough to run just once a round, without a warm-up. Every turn follows every
  // other.
  std::set<std::string> pairs;
  for (std::string round : Rounds()) {
    for (size_t i = 0; i + 1 < round.size(); ++i) pairs.insert(round.substr(i, 2));
    std::sort(round.begin(), round.end());
    EXPECT_EQ(round, "abc");
  }
  EXPECT_EQ(pairs, (std::set<std::string>{"ab", "ac", "ba", "bc", "ca", "cb"}));
}

TEST_F(BenchRounds, ShortWorkIsRepeated) {
  for (const double seconds : Time({Make("s", 1e-6)})) EXPECT_NEAR(seconds, 1e-6, 1e-12);
  EXPECT_GT(calls_.size(), 100 * rounds_);
}

// Uses the machine's clock, the default.
TEST_F(BenchRounds, TheSteadyClockMovesOn) {
  volatile size_t calls = 0;
  const auto count = [&calls](size_t times) {
    for (size_t i = 0; i < times; ++i) calls = calls + 1;
  };
  bench::TimeInRounds({{"short", count}}, [] {});
  EXPECT_GT(calls, 900u);
}

TEST_F(BenchRounds, WorkInTheCachesFollowsItself) {
  Time({Make("a", 800e-6), Make("b", 1900e-6), Make("c", 2100e-6)});
  for (const std::string& round : Rounds()) {
    std::string expected;
    for (const char name : Order(round)) expected += name == 'c' ? "c" : std::string(2, name);
    EXPECT_EQ(round, expected);
  }
}

TEST_F(BenchRounds, AnotherPoolIsWokenBeforeItIsTimed) {
  Time({Make("a", 3e-3), Make("b", 3e-3), Make("c", 3e-3, "other")});
  char before = 'c';  // the last turn of the previous round
  for (const std::string& round : Rounds()) {
    std::string expected;
    for (const char name : Order(round)) {
      expected += std::string((name == 'c') == (before == 'c') ? 1 : 2, name);
      before = name;
    }
    EXPECT_EQ(round, expected);
  }
}

cpu_set_t Affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

// The affinities of the threads that work on `parts` parts.
std::vector<cpu_set_t> Affinities(size_t parts) {
  std::vector<cpu_set_t> sets(parts);
  bench::ForRangesInParts(parts, parts, [&](size_t part, size_t) { sets[part] = Affinity(); });
  return sets;
}

TEST(BenchThreads, AreBoundEachToACpuAndThenFree) {
  const cpu_set_t before = Affinity();
  for (const size_t threads : {size_t{1}, static_cast<size_t>(rmsnorm_max_threads())}) {
    {
      const bench::BoundThreads bound(static_cast<int>(threads));
      cpu_set_t all;
      CPU_ZERO(&all);
      for (const cpu_set_t& set : Affinities(threads)) {
        EXPECT_EQ(CPU_COUNT(&set), 1);
        CPU_OR(&all, &all, &set);
      }
      EXPECT_EQ(CPU_COUNT(&all), std::min(static_cast<int>(threads), CPU_COUNT(&before)));
    }
    for (const cpu_set_t& set : Affinities(threads)) EXPECT_TRUE(CPU_EQUAL(&set, &before));
  }
}

TEST(BenchThreads, OneThatSpinsIsWaitedFor) {
  std::atomic<bool> spins = false;
  std::atomic<bool> has_spun = false;
  std::atomic<bool> end = false;
  std::thread spinner([&] {
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(30);
    spins = true;
    while (std::chrono::steady_clock::now() < until) {
    }
    has_spun = true;
    while (!end) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  });
  while (!spins) std::this_thread::yield();
  EXPECT_TRUE(bench::WaitUntilOthersSleep());
  EXPECT_TRUE(has_spun);
  end = true;
  spinner.join();
}

TEST(BenchThreads, OneThatNeverSleepsIsGivenUp) {
  std::atomic<bool> end = false;
  std::thread spinner([&] {
    while (!end) {
    }
  });
  EXPECT_FALSE(bench::WaitUntilOthersSleep());
  end = true;
  spinner.join();
}

}  // namespace
}  // namespace rmsnorm::test

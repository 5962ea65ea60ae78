// SPDX-License-Identifier: Apache-2.0
// How `rmsnorm bench` takes times: whose turn it is, and on which CPUs. No test looks at how long
// something took.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <rmsnorm/rmsnorm.hpp>
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

// Contenders whose work takes as long as is said, by a clock that nothing else moves on.
class BenchRounds : public testing::Test {
 protected:
  bench::Contender Make(const char* name, double seconds, const char* pool = "") {
    bench::Contender contender = bench::MakeContender(name, [this, name, seconds] {
      calls_ += name;
      now_ += seconds;
    });
    contender.pool = pool;
    return contender;
  }

  bench::Timings Time(const std::vector<bench::Contender>& contenders) {
    return bench::TimeInRounds(
        contenders,
        [this](size_t round, size_t rounds) {
          done_.push_back(round);
          EXPECT_GE(rounds, 9u);
        },
        [this] { return now_; });
  }

  // `begin` and then `round` again and again.
  static std::string Rounds(std::string begin, const char* round, size_t rounds) {
    for (size_t i = 0; i < rounds; ++i) begin += round;
    return begin;
  }

  std::string calls_;
  double now_ = 0;
  std::vector<size_t> done_;
};

TEST_F(BenchRounds, ContendersTakeTurns) {
  const bench::Timings timings = Time({Make("a", 2e-3), Make("b", 3e-3), Make("c", 4e-3)});
  EXPECT_GE(timings.rounds, 9u);
  EXPECT_EQ(timings.rounds % 2, 1u);
  ASSERT_EQ(timings.spreads.size(), 3u);
  EXPECT_NEAR(timings.spreads[0].median, 2e-3, 1e-9);
  EXPECT_NEAR(timings.spreads[2].upper_quartile, 4e-3, 1e-9);
  ASSERT_EQ(done_.size(), timings.rounds);
  EXPECT_EQ(done_.back(), timings.rounds);
  // Each is warmed up and timed once to find its pace. This work is long enough to be done just
  // once a round, without a rehearsal.
  EXPECT_EQ(calls_, Rounds("aabbcc", "abc", timings.rounds));
}

TEST_F(BenchRounds, ShortWorkIsRepeated) {
  const bench::Timings timings = Time({Make("s", 1e-6)});
  EXPECT_GT(calls_.size(), 100 * timings.rounds);
  EXPECT_NEAR(timings.spreads[0].median, 1e-6, 1e-12);
}

// By the machine's clock, as is the default.
TEST_F(BenchRounds, TheSteadyClockMovesOn) {
  size_t calls = 0;
  const bench::Timings timings = bench::TimeInRounds(
      {bench::MakeContender("short", [&calls] { ++calls; })}, [](size_t, size_t) {});
  EXPECT_GT(calls, 100 * timings.rounds);
}

TEST_F(BenchRounds, WorkInTheCachesFollowsItself) {
  const bench::Timings timings = Time({Make("a", 800e-6), Make("b", 1900e-6), Make("c", 2100e-6)});
  EXPECT_EQ(calls_, Rounds("aabbcc", "aabbc", timings.rounds));
}

TEST_F(BenchRounds, AnotherPoolIsWokenBeforeItIsTimed) {
  const bench::Timings timings = Time({Make("a", 3e-3), Make("b", 3e-3), Make("c", 3e-3, "other")});
  EXPECT_EQ(calls_, Rounds("aabbcc", "aabcc", timings.rounds));
}

cpu_set_t Affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

// Of each thread that works on so many parts.
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

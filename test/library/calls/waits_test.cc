// SPDX-License-Identifier: Apache-2.0
// When calls stay on their thread: by reported times, without a clock.
#include "../../../lib/waits.h"

#include <gtest/gtest.h>

namespace rmsnorm::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// How long calls of 1 ms stay on their thread.
int MillisecondsOfStaying(Waits& waits) {
  int stayed = 0;
  for (; waits.ShouldStay(); ++stayed) waits.Stayed(milliseconds(1));
  return stayed;
}

TEST(Waits, CallsBeginWithThreads) { EXPECT_FALSE(Waits().ShouldStay()); }

TEST(Waits, ARegionThatTakesAsLongAsOneThreadLosesNothing) {
  Waits waits;
  waits.Report(4, milliseconds(1), milliseconds(4));
  EXPECT_FALSE(waits.ShouldStay());
  waits.Report(4, milliseconds(1), milliseconds(5));
  EXPECT_EQ(1, MillisecondsOfStaying(waits));
}

// A thread that sleeps takes some tens of microseconds to wake.
TEST(Waits, AWakingThreadIsNoLoss) {
  Waits waits;
  for (int i = 0; i < 1000; ++i) waits.Report(2, microseconds(5), microseconds(100));
  EXPECT_FALSE(waits.ShouldStay());
}

TEST(Waits, LossesThatFollowEachOtherDoubleTheTime) {
  Waits waits;
  for (const int stays : {10, 30, 70, 150, 310, 630, 1270, 2000, 2000}) {
    waits.Report(2, microseconds(10), microseconds(10'020));
    EXPECT_EQ(stays, MillisecondsOfStaying(waits));
  }
}

TEST(Waits, GainsPayALossBack) {
  Waits waits;
  waits.Report(2, microseconds(10), microseconds(10'020));
  MillisecondsOfStaying(waits);
  for (int i = 0; i < 1100; ++i) waits.Report(2, microseconds(10), microseconds(10));
  waits.Report(2, microseconds(10), microseconds(10'020));
  EXPECT_LE(MillisecondsOfStaying(waits), 11);
}

// A calling thread that is left out for 50 ms seems to have gained them.
TEST(Waits, OneGainPaysBackLittle) {
  Waits waits;
  waits.Report(2, microseconds(10), microseconds(10'020));
  MillisecondsOfStaying(waits);
  waits.Report(2, milliseconds(50), milliseconds(50));
  waits.Report(2, microseconds(10), microseconds(10'020));
  EXPECT_EQ(28, MillisecondsOfStaying(waits));
}

}  // namespace
}  // namespace rmsnorm::internal

// SPDX-License-Identifier: Apache-2.0
// Children of a process that has called the library with several threads: fork() does not copy
// OpenMP's threads. An alarm ends a child that hangs.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <thread>
#include <vector>

#include "executor.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

// Whether `holds` returns true in a child of this process. The child has 60 seconds.
bool InChild(const std::function<bool()>& holds) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(holds() ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_TRUE(WIFEXITED(status)) << "ended by signal " << WTERMSIG(status);
  return status == 0;
}

// A fork while another thread makes the first call of the process must not copy a lock that this
// thread holds. This test comes first, since each of its children must make a first call.
TEST(Fork, DuringTheFirstCall) {
  using std::chrono::microseconds;
  using std::chrono::steady_clock;
  constexpr size_t kRows = 256;  // enough for two threads
  constexpr size_t kD = 512;
  const std::vector<float> x(kRows * kD, 1.0f);
  const auto call = [&x] {
    std::vector<float> y(kRows * kD);
    norm({x.data(), kRows, kD}, {}, {y.data(), kRows, kD});
    return y.front() > 0 && y.front() == y.back() && rmsnorm_max_threads() >= 1;
  };
  for (microseconds delay{0}; delay.count() < 500; delay += microseconds(2)) {
    ASSERT_TRUE(InChild([&] {
      std::thread caller(call);
      for (const auto begin = steady_clock::now(); steady_clock::now() - begin < delay;) {
      }
      const bool holds = InChild(call);
      caller.join();
      return holds;
    })) << "forked after "
        << delay.count() << " microseconds";
  }
}

// Enough rows for four parts on every target.
class ForkTest : public testing::Test {
 protected:
  ForkTest() : x_(RMSNORM_F32, 2048, 512) {
    Random random(71);
    cases::Fill(random, Values::kNormal, 0, x_);
    context_.threads = 4;
  }

  Rows Forward() const {
    Rows y(RMSNORM_BF16, x_.count(), x_.d());
    ForwardOperands operands;
    operands.x = ConstView(ViewOf(x_));
    operands.y = View(ViewOf(y));
    forward(operands, Options(), context_);
    return y;
  }

  Rows x_;
  Context context_;
};

TEST_F(ForkTest, Child) {
  const Rows expected = Forward();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(InChild([&] { return SameBits(expected, Forward()) == true; }));
    EXPECT_TRUE(SameBits(expected, Forward()));
  }
}

TEST_F(ForkTest, ChildIsSerial) {
  const Rows expected = Forward();
  EXPECT_TRUE(InChild([&] {
    context_.threads = 0;
    return rmsnorm_max_threads() == 1 && SameBits(expected, Forward()) == true;
  }));
}

TEST_F(ForkTest, PreparedByTheParent) {
  const Rows expected = Forward();
  Rows y(RMSNORM_BF16, x_.count(), x_.d());
  ForwardOperands operands;
  operands.x = ConstView(ViewOf(x_));
  operands.y = View(ViewOf(y));
  Prepared norm(operands, Options(), context_);
  norm();
  // After a loss of time, calls stay on their thread for a while: not for 200 calls.
  EXPECT_TRUE(InChild([&] {
    bool same = true;
    for (int i = 0; i < 200; ++i) {
      std::memset(y.row(0), 0, y.count() * y.row_bytes());
      norm();
      same = same && SameBits(expected, y) == true;
    }
    return same;
  }));
  EXPECT_TRUE(SameBits(expected, y));
}

TEST_F(ForkTest, Grandchild) {
  const Rows expected = Forward();
  EXPECT_TRUE(InChild([&] {
    return SameBits(expected, Forward()) == true &&
           InChild([&] { return SameBits(expected, Forward()) == true; });
  }));
}

// One thread makes the parent's call, another forks, and a new thread calls in the child.
TEST_F(ForkTest, OtherThreads) {
  const Rows expected = Forward();
  std::thread([&] {
    EXPECT_TRUE(InChild([&] {
      bool same = false;
      std::thread([&] { same = SameBits(expected, Forward()) == true; }).join();
      return same;
    }));
  }).join();
}

TEST_F(ForkTest, Executor) {
  const Rows expected = Forward();
  CountingExecutor executor;
  executor.SetIn(context_);
  EXPECT_TRUE(
      InChild([&] { return SameBits(expected, Forward()) == true && executor.most_parts == 4; }));
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// Children of a process that has called the library with several threads: fork() does not copy
// OpenMP's threads. An alarm ends a child that hangs.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <thread>

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

TEST_F(ForkTest, AChildMakesTheCallOfItsParent) {
  const Rows expected = Forward();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(InChild([&] { return SameBits(expected, Forward()) == true; }));
    EXPECT_TRUE(SameBits(expected, Forward()));
  }
}

TEST_F(ForkTest, AChildIsSerial) {
  const Rows expected = Forward();
  EXPECT_TRUE(InChild([&] {
    context_.threads = 0;
    return rmsnorm_max_threads() == 1 && SameBits(expected, Forward()) == true;
  }));
}

TEST_F(ForkTest, AChildRunsWhatItsParentPrepared) {
  const Rows expected = Forward();
  Rows y(RMSNORM_BF16, x_.count(), x_.d());
  ForwardOperands operands;
  operands.x = ConstView(ViewOf(x_));
  operands.y = View(ViewOf(y));
  Prepared norm(operands, Options(), context_);
  norm();
  EXPECT_TRUE(InChild([&] {
    std::memset(y.row(0), 0, y.count() * y.row_bytes());
    norm();
    return SameBits(expected, y) == true;
  }));
  EXPECT_TRUE(SameBits(expected, y));
}

TEST_F(ForkTest, AGrandchildMakesTheCall) {
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

TEST_F(ForkTest, AnExecutorKeepsItsParts) {
  const Rows expected = Forward();
  CountingExecutor executor;
  executor.SetIn(context_);
  EXPECT_TRUE(
      InChild([&] { return SameBits(expected, Forward()) == true && executor.most_parts == 4; }));
}

}  // namespace
}  // namespace rmsnorm::test

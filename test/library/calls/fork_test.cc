// SPDX-License-Identifier: Apache-2.0
// Children of a process that has called the library with several threads: fork() does not copy
// OpenMP's threads. An alarm ends a child that hangs.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <thread>
#include <vector>

#include "cases/prepared_call.h"
#include "fixtures.h"

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

// Calls of four parts on every target.
class ForkTest : public testing::Test {
 protected:
  ForkTest() {
    runner_.Set(calls_);
    context_.threads = 4;
    EXPECT_TRUE(IsRight());
  }

  bool IsRight() {
    const cases::PreparedCall call(calls_, runner_.Fill(), context_.get());
    return call.Run() == RMSNORM_OK && runner_.FindFault().empty();
  }

  const cases::Calls calls_ = cases::ParseCalls("forward,x=f32,y=bf16,rows=2048,d=512");
  cases::Runner runner_;
  Context context_;
};

TEST_F(ForkTest, ChildIsSerial) {
  context_.threads = 0;
  EXPECT_TRUE(InChild([&] { return rmsnorm_max_threads() == 1 && IsRight(); }));
}

TEST_F(ForkTest, PreparedByTheParent) {
  const cases::PreparedCall prepared(calls_, runner_.Fill(), context_.get());
  EXPECT_EQ(RMSNORM_OK, prepared.Run());
  // After a loss of time, calls stay on their thread for a while: not for 200 calls.
  EXPECT_TRUE(InChild([&] {
    bool are_right = true;
    for (int i = 0; i < 200; ++i) {
      if (i % 20 == 0) runner_.Fill();
      are_right = are_right && prepared.Run() == RMSNORM_OK && runner_.FindFault().empty();
    }
    return are_right;
  }));
  EXPECT_EQ("", runner_.FindFault());
}

// One thread makes the parent's call, another forks, and a new thread calls in the child, which
// forks again.
TEST_F(ForkTest, OtherThreads) {
  for (int i = 0; i < 3; ++i) {
    std::thread([&] {
      EXPECT_TRUE(InChild([&] {
        bool is_right = false;
        std::thread([&] { is_right = IsRight(); }).join();
        return is_right && IsRight() && InChild([&] { return IsRight(); });
      }));
    }).join();
    EXPECT_TRUE(IsRight());
  }
}

TEST_F(ForkTest, Executor) {
  CountingExecutor executor;
  executor.SetIn(context_);
  EXPECT_TRUE(InChild([&] { return IsRight() && executor.most_parts == 4; }));
}

}  // namespace
}  // namespace rmsnorm::test

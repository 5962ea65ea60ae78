// SPDX-License-Identifier: Apache-2.0
// The threads that a call uses. `rmsnorm check` tests that they do not change any bit.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#endif

#include "executor.h"
#include "on_target.h"
#include "rows.h"

namespace {

// The number of threads since the program started.
std::atomic<int> threads_started{0};

}  // namespace

// The linker prefers a program's own function to the ones in shared libraries, so the C++ library
// and the OpenMP runtime call this one.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  ++threads_started;
  return create(thread, attributes, run, argument);
}

namespace rmsnorm::test {
namespace {

// Enough work for eight threads on any CPU; except 1, no number of threads divides the rows evenly.
constexpr size_t kManyRows = 1031;
constexpr size_t kFewRows = 2;  // too few for a second thread
constexpr size_t kD = 512;

class ThreadsTest : public testing::TestWithParam<std::string> {
 protected:
  ThreadsTest() {
    forward_ = NormOperands(x_, &weight_, y_);
    backward_.x = backward_.dy = ConstView(ViewOf(x_));
    backward_.weight = forward_.weight;
    backward_.dx = View(ViewOf(y_));
    backward_.dw = View(VectorOf(dw_));
  }

  // The number of parts that an executor gets for a call.
  size_t Parts(int threads, const std::function<void(const Context&)>& call) const {
    Context context = OnTarget(target_, threads);
    CountingExecutor executor;
    executor.SetIn(context);
    call(context);
    EXPECT_LE(executor.calls, 2);  // a second step adds up the blocks of dw
    return executor.most_parts;
  }

  const std::string target_ = GetParam();
  Random random_{41};
  // Finite, since in dw a NaN in a row would hide the other rows.
  const Rows x_ = Draw(random_, Values::kNormal, RMSNORM_BF16, kManyRows, kD);
  const Rows weight_ = Draw(random_, Values::kNormal, RMSNORM_BF16, 1, kD);
  const Rows y_{RMSNORM_BF16, kManyRows, kD};
  const Rows dw_{RMSNORM_F32, 1, kD};
  ForwardOperands forward_;
  BackwardOperands backward_;
};

// Large work uses all allowed threads, and small work uses none.
TEST_P(ThreadsTest, PartsOfAnExecutor) {
  RmsNorm module(kD, Options(), Dtype::bf16);
  ForwardOperands of_module = forward_;
  of_module.weight = {};
  for (const int threads : {1, 2, 3, 4, 5, 6, 7, 8}) {
    const size_t most = threads == 1 ? 0 : static_cast<size_t>(threads);
    EXPECT_EQ(most, Parts(threads, [&](const Context& c) { forward(forward_, {}, c); }));
    EXPECT_EQ(most, Parts(threads, [&](const Context& c) { backward(backward_, {}, c); }));
    EXPECT_EQ(most, Parts(threads, [&](const Context& c) { module.forward(of_module, c); }));
    EXPECT_EQ(most, Parts(threads, [&](const Context& c) {
                forward_all({{nullptr, forward_, {}}}, c);
              }));
  }
  const View few(rmsnorm_rows(y_.row(0), RMSNORM_BF16, kFewRows, kD, kD));
  ForwardOperands small = forward_;
  small.x = small.y = few;
  EXPECT_EQ(0u, Parts(8, [&](const Context& c) { forward(small, {}, c); }));
  BackwardOperands small_gradients = backward_;
  small_gradients.x = ConstView(rmsnorm_rows(x_.row(0), RMSNORM_BF16, kFewRows, kD, kD));
  small_gradients.dy = small_gradients.dx = few;
  small_gradients.dw = {};
  EXPECT_EQ(0u, Parts(8, [&](const Context& c) { backward(small_gradients, {}, c); }));
}

// Six threads call at once, with options and by a module that they share. Each has its own message.
TEST_P(ThreadsTest, ManyCallers) {
  RmsNorm shared(kD, Options(), Dtype::bf16, OnTarget(target_));
  shared.set_weight(ConstView(VectorOf(weight_)));
  Rows expected[] = {Rows(RMSNORM_BF16, kManyRows, kD), y_, dw_};
  forward(NormOperands(x_, &weight_, expected[0]), {}, OnTarget(target_, 1));
  const auto backward_to = [&](const Rows& dx, const Rows& dw) {
    BackwardOperands operands = backward_;
    operands.dx = View(ViewOf(dx));
    operands.dw = View(VectorOf(dw));
    return operands;
  };
  backward(backward_to(expected[1], expected[2]), {}, OnTarget(target_, 1));
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&, i] {
      for (int repeat = 0; repeat < 12; ++repeat) {
        Rows actual[] = {Rows(RMSNORM_BF16, kManyRows, kD), y_, dw_};
        ForwardOperands operands = NormOperands(x_, &weight_, actual[0]);
        BackwardOperands gradients = backward_to(actual[1], actual[2]);
        if (repeat % 2 == 0) {
          forward(operands, {}, OnTarget(target_, i % 3));
          backward(gradients, {}, OnTarget(target_, i % 3));
        } else {
          operands.weight = gradients.weight = {};
          shared.forward(operands);
          shared.backward(gradients);
        }
        for (size_t k = 0; k < 3; ++k) wrong += SameBits(expected[k], actual[k]) ? 0 : 1;
        const std::string name = "caller " + std::to_string(i);
        const char* exact;
        wrong += rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_ERROR_TARGET ? 0 : 1;
        std::this_thread::yield();
        wrong += std::string(rmsnorm_error_message()).find(name) != std::string::npos ? 0 : 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(0, wrong);
}

INSTANTIATE_TEST_SUITE_P(Targets, ThreadsTest, testing::ValuesIn(SupportedTargets()), Name);

// -------------------------------------------------------------------------------- started threads

// Runs forward over `rows` rows of kD elements of f32 and returns the number of started threads.
int ThreadsStartedBy(size_t rows, const Context& context) {
  const std::vector<float> x(rows * kD, 1.0f);
  std::vector<float> y(rows * kD);
  const int before = threads_started;
  ForwardOperands operands;
  operands.x = {x.data(), rows, kD};
  operands.y = {y.data(), rows, kD};
  forward(operands, {}, context);
  EXPECT_EQ(y.end(), std::find_if(y.begin(), y.end(), [&](float value) { return value != y[0]; }));
  return threads_started - before;
}

TEST(StartedThreads, Counter) {
  const int before = threads_started;
  std::thread([] {}).join();
  EXPECT_EQ(1, threads_started - before);
}

// Runs on a new thread, which has no OpenMP threads waiting for it.
void InNewThread(const std::function<void()>& run) { std::thread(run).join(); }

TEST(StartedThreads, None) {
  InNewThread([] {
    Context context;
    context.threads = 1;
    EXPECT_EQ(0, ThreadsStartedBy(kManyRows, context));
    context.threads = 8;
    EXPECT_EQ(0, ThreadsStartedBy(kFewRows, context));
    CountingExecutor executor;
    executor.SetIn(context);
    EXPECT_EQ(0, ThreadsStartedBy(kManyRows, context));
    EXPECT_EQ(1, executor.calls);
  });
}

// Or less, in a container with less CPU time than CPUs.
TEST(ThreadLimit, OpenMp) {
#ifdef _OPENMP
  EXPECT_EQ(1, rmsnorm_has_openmp());
  EXPECT_GE(omp_get_max_threads(), rmsnorm_max_threads());
  InNewThread([] {
    omp_set_num_threads(3 + omp_get_num_procs());
    EXPECT_EQ(3 + omp_get_num_procs(), rmsnorm_max_threads());
  });
#else
  EXPECT_EQ(0, rmsnorm_has_openmp());
  EXPECT_EQ(1, rmsnorm_max_threads());
#endif
}

#ifdef _OPENMP
TEST(StartedThreads, LargeWork) {
  InNewThread([] {
    Context context;
    context.threads = 4;
    const int before = threads_started;
    ThreadsStartedBy(kManyRows, context);
    // A runtime may share its threads among callers, so earlier threads may be enough.
    EXPECT_GE(threads_started - before + omp_get_max_threads(), 1);
    EXPECT_GT(threads_started, 1);
  });
}

// A call never uses more threads than OpenMP's default or the machine's CPUs.
TEST(StartedThreads, Limit) {
  for (const int of_openmp : {1, 5}) {
    InNewThread([&] {
      omp_set_num_threads(of_openmp);
      const int most = std::max(of_openmp, omp_get_num_procs());
      Context context;
      context.threads = std::numeric_limits<int>::max();
      // Enough work for twice as many.
      EXPECT_LE(ThreadsStartedBy(2 * kManyRows / 8 * static_cast<size_t>(most), context), most - 1);
    });
  }
}

// Inside another parallel region a call stays serial, even if OpenMP allows nested regions.
TEST(StartedThreads, ParallelRegion) {
  omp_set_max_active_levels(4);
  Random random(53);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, kManyRows, kD);
  const Rows expected(RMSNORM_F32, kManyRows, kD);
  forward(NormOperands(x, nullptr, expected));
  std::atomic<int> wrong{0};
  std::atomic<int> started{-1};
#pragma omp parallel num_threads(2)
  {
    Context context;
    context.threads = 8;
    const Rows y(RMSNORM_F32, kManyRows, kD);
#pragma omp barrier
#pragma omp master
    started = threads_started.load();
#pragma omp barrier
    forward(NormOperands(x, nullptr, y), {}, context);
    if (!SameBits(expected, y)) ++wrong;
#pragma omp barrier
#pragma omp master
    started = threads_started - started;
  }
  omp_set_max_active_levels(1);
  EXPECT_EQ(0, wrong);
  EXPECT_EQ(0, started);
}

// ------------------------------------------------------------------------------------ late threads

// A page of y that is locked. The thread that writes to it takes `delay` to open it.
struct LockedPage {
  char* begin;
  size_t size;
  std::chrono::milliseconds delay;
  std::thread::id writer;

  static LockedPage* the;

  static void Open(int) {
    the->writer = std::this_thread::get_id();
    std::this_thread::sleep_for(the->delay);
    mprotect(the->begin, the->size, PROT_READ | PROT_WRITE);
  }
};
LockedPage* LockedPage::the = nullptr;

// After another thread was late, calls stay on their thread for a while, and then share their work
// again.
TEST(LateThreads, CallsStayOnTheirThread) {
  const size_t bytes = kManyRows * kD * sizeof(float);
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(MAP_FAILED, memory);
  const auto page_size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  LockedPage page = {
      static_cast<char*>(memory) + (bytes - 1) / page_size * page_size, page_size, {}, {}};
  LockedPage::the = &page;
  struct sigaction open = {};
  struct sigaction before;
  open.sa_handler = LockedPage::Open;
  ASSERT_EQ(0, sigaction(SIGSEGV, &open, &before));

  const std::vector<float> x(kManyRows * kD, 1.0f);
  ForwardOperands operands;
  operands.x = {x.data(), kManyRows, kD};
  operands.y = {static_cast<float*>(memory), kManyRows, kD};
  Context context;
  context.threads = 2;
  const auto writes_all = [&](std::chrono::milliseconds delay) {
    page.delay = delay;
    mprotect(page.begin, page.size, PROT_NONE);
    forward(operands, {}, context);
    return page.writer == std::this_thread::get_id();
  };
  // Earlier tests may have lost time.
  int calls = 0;
  while (writes_all(std::chrono::milliseconds(200)) && calls < 100) ++calls;
  EXPECT_LT(calls, 100);
  EXPECT_TRUE(writes_all({}));
  calls = 0;
  while (writes_all({}) && calls < 100'000) ++calls;
  EXPECT_LT(calls, 100'000);

  sigaction(SIGSEGV, &before, nullptr);
  munmap(memory, bytes);
}
#endif  // _OPENMP

}  // namespace
}  // namespace rmsnorm::test

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
#include <utility>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#endif

#include "cases/prepared_call.h"
#include "fixtures.h"

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

// Large work uses all allowed threads, and small work none. Several norms run together, even where
// each alone is too short for a second thread.
TEST(Parts, LargeAndSmallWork) {
  std::string many_calls;
  for (int d = 100; d < 600; d += 10) {
    many_calls += (d > 100 ? ";" : "") + ("forward,rows=20,d=" + std::to_string(d));
  }
  const std::pair<std::string, bool> lines[] = {
      {"forward,x+weight+y=bf16,rows=1031,d=512", true},
      {"forward,x+weight+y=bf16,rows=1031,d=512,call=module", true},
      {"forward,x+weight+y=bf16,rows=1031,d=512,call=several", true},
      {"forward,x+weight+y=bf16,rows=1031,d=512,call=prepared", true},
      {"backward,x+dy+weight+dx=bf16,rows=1031,d=512", true},
      {"backward,x+dy+weight+dx=bf16,rows=1031,d=512,call=prepared", true},
      {"forward,x+weight+y=bf16,rows=2,d=512", false},
      {"backward,x+dy+weight+dx=bf16,dw=none,rows=2,d=512", false},
      {"forward,x+y=bf16,rows=8,d=128;forward,rows=2,d=128", false},
      {"forward,x+y=bf16,rows=2400,d=128;forward,x+y=bf16,rows=600,d=128", true},
      {"forward,rows=1,d=200000,call=prepared;forward,x+y=bf16,rows=2000,d=64,call=prepared;"
       "forward,x+y=f16,rows=2,d=100000,call=prepared",
       true},
      {many_calls, true}};
  for (const auto& [line, is_large] : lines) {
    const cases::Calls calls = cases::ParseCalls(line);
    cases::Runner runner;
    runner.Set(calls);
    const bool is_several = line.find(';') != std::string::npos;
    for (const std::string& target : SupportedTargets()) {
      // The reference is so slow that it splits even little work of several calls.
      if (!is_large && target == kReference && is_several) continue;
      for (int threads = 1; threads <= (is_several ? 4 : 8); ++threads) {
        SCOPED_TRACE(line + " on " + target + ", " + std::to_string(threads) + " threads");
        Context context = OnTarget(target, threads);
        CountingExecutor executor;
        executor.SetIn(context);
        const cases::PreparedCall prepared(calls, runner.Fill(), context.get());
        EXPECT_EQ(0, executor.calls);
        EXPECT_EQ(RMSNORM_OK, prepared.Run());
        EXPECT_EQ("", runner.FindFault());
        EXPECT_EQ(is_large && threads > 1 ? static_cast<size_t>(threads) : 0, executor.most_parts);
        // A second step adds up the blocks of dw.
        EXPECT_LE(executor.calls, line[0] == 'b' ? 2 : 1);
      }
    }
  }
}

// Six threads call at once, with options and by a module that they share. Each has its own message.
TEST(Callers, ResultsAndMessages) {
  Random random(41);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_BF16, kManyRows, kD);
  const Rows weight = Draw(random, Values::kNormal, RMSNORM_BF16, 1, kD);
  for (const std::string& target : SupportedTargets()) {
    RmsNorm shared(kD, Options(), Dtype::bf16, OnTarget(target));
    shared.set_weight(ConstView(VectorOf(weight)));
    // Results for y, dx and dw, by options or by the module.
    const auto results = [&](bool by_module, int threads) {
      std::vector<Rows> all(2, Rows(RMSNORM_BF16, kManyRows, kD));
      all.emplace_back(RMSNORM_F32, 1, kD);
      const ForwardOperands operands = NormOperands(x, by_module ? nullptr : &weight, all[0]);
      BackwardOperands gradients;
      gradients.x = gradients.dy = operands.x;
      gradients.weight = operands.weight;
      gradients.dx = View(ViewOf(all[1]));
      gradients.dw = View(VectorOf(all[2]));
      by_module ? shared.forward(operands) : forward(operands, {}, OnTarget(target, threads));
      by_module ? shared.backward(gradients) : backward(gradients, {}, OnTarget(target, threads));
      return all;
    };
    const std::vector<Rows> expected = results(false, 1);
    std::atomic<int> wrong{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 6; ++i) {
      callers.emplace_back([&, i] {
        for (int repeat = 0; repeat < 12; ++repeat) {
          const std::vector<Rows> actual = results(repeat % 2 != 0, i % 3);
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
    EXPECT_EQ(0, wrong) << target;
  }
}

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

// Inside another parallel region a call stays serial, prepared or not, even if OpenMP allows nested
// regions.
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
    const Rows y[] = {Rows(RMSNORM_F32, kManyRows, kD), Rows(RMSNORM_F32, kManyRows, kD)};
    Prepared prepared(NormOperands(x, nullptr, y[1]), {}, context);
#pragma omp barrier
#pragma omp master
    started = threads_started.load();
#pragma omp barrier
    forward(NormOperands(x, nullptr, y[0]), {}, context);
    prepared();
    for (const Rows& rows : y) wrong += SameBits(expected, rows) ? 0 : 1;
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

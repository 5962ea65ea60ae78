// SPDX-License-Identifier: Apache-2.0
// Neither the number of threads, nor who runs them, nor the batch around a row changes a bit.
#include <gtest/gtest.h>

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
#endif

#include "random_rows.h"
#include "targets.h"
#include "tensor.h"
#include "thread_counter.h"

namespace rmsnorm::test {
namespace {

// Large enough to be worth eight threads; no number of threads divides the rows evenly but 1.
constexpr size_t kManyRows = 1031;
constexpr size_t kD = 512;

// All that can be computed from some rows.
struct Results {
  Tensor y;
  std::vector<float> rstd;
  std::vector<double> sums;
  Tensor scaled_y;
  Tensor module_y;
};

Results Compute(const Tensor& x, const Tensor& weight, const Options& options) {
  Results results = {Tensor(x.dtype(), x.rows(), x.d()), std::vector<float>(x.rows()),
                     std::vector<double>(x.rows()), Tensor(x.dtype(), x.rows(), x.d()),
                     Tensor(x.dtype(), x.rows(), x.d())};
  const ConstView x_view(x.view());
  const ConstView weight_view(weight.vector());
  forward(x_view, weight_view, View(results.y.view()), options, results.rstd.data());
  sum_squares(x_view, results.sums.data(), options);
  scale(x_view, results.sums.data(), weight_view, View(results.scaled_y.view()), options);
  RmsNorm norm(x.d(), options, static_cast<Dtype>(weight.dtype()));
  norm.set_weight(weight_view);
  norm.forward(x_view, View(results.module_y.view()));
  return results;
}

void ExpectSameBits(const Results& expected, const Results& actual) {
  EXPECT_TRUE(SameBits(expected.y, actual.y));
  EXPECT_TRUE(
      SameBits(RMSNORM_F32, expected.rstd.data(), actual.rstd.data(), expected.rstd.size()));
  for (size_t row = 0; row < expected.sums.size(); ++row) {
    if (std::isnan(expected.sums[row]) && std::isnan(actual.sums[row])) continue;
    ASSERT_EQ(expected.sums[row], actual.sums[row]) << "sum of row " << row;
  }
  EXPECT_TRUE(SameBits(expected.scaled_y, actual.scaled_y));
  EXPECT_TRUE(SameBits(expected.module_y, actual.module_y));
}

// An executor of the caller, that keeps count of how often each part ran.
class Executor {
 public:
  using Run = std::function<void(size_t count, const std::function<void(size_t)>& part)>;

  explicit Executor(Run run) : run_(std::move(run)) {}

  void SetIn(Options& options) {
    options.parallel_for = &Executor::ParallelFor;
    options.parallel_context = this;
  }

  int calls() const { return calls_; }
  size_t most_parts() const { return most_parts_; }

 private:
  static void ParallelFor(void* context, size_t count, rmsnorm_task task, void* state) {
    Executor& executor = *static_cast<Executor*>(context);
    ++executor.calls_;
    executor.most_parts_ = std::max(executor.most_parts_, count);
    std::vector<std::atomic<int>> ran(count);
    executor.run_(count, [&](size_t part) {
      ++ran[part];
      task(state, part);
    });
    for (size_t part = 0; part < count; ++part) EXPECT_EQ(1, ran[part]) << "the executor is wrong";
  }

  Run run_;
  int calls_ = 0;
  size_t most_parts_ = 0;
};

void InReverse(size_t count, const std::function<void(size_t)>& part) {
  for (size_t i = count; i-- > 0;) part(i);
}

// A thread for each part, started last part first.
void OnThreads(size_t count, const std::function<void(size_t)>& part) {
  std::vector<std::thread> threads;
  for (size_t i = count; i-- > 0;) threads.emplace_back(part, i);
  for (std::thread& thread : threads) thread.join();
}

class ThreadsTest : public testing::TestWithParam<std::string> {
 protected:
  ThreadsTest() : x_(RMSNORM_BF16, kManyRows, kD), weight_(RMSNORM_BF16, 1, kD) {
    Random random(41);
    FillMixed(random, x_);
    FillWeight(random, weight_);
    options_.target = target_.c_str();
  }

  Results Serial() const {
    Options serial = options_;
    serial.threads = 1;
    return Compute(x_, weight_, serial);
  }

  const std::string target_ = GetParam();
  Options options_;
  Tensor x_;
  Tensor weight_;
};

TEST_P(ThreadsTest, EveryNumberOfThreads) {
#ifdef _OPENMP
  ASSERT_GE(omp_get_max_threads(), 8) << "set OMP_NUM_THREADS=8, as Meson does for this test";
#endif
  const Results serial = Serial();
  for (const int threads : {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
    SCOPED_TRACE(threads);
    options_.threads = threads;
    ExpectSameBits(serial, Compute(x_, weight_, options_));
  }
}

TEST_P(ThreadsTest, EveryNumberOfPartsInAnExecutor) {
  const Results serial = Serial();
  for (const auto run : {InReverse, OnThreads}) {
    for (const int threads : {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
      SCOPED_TRACE(threads);
      Executor executor(run);
      executor.SetIn(options_);
      options_.threads = threads;
      ExpectSameBits(serial, Compute(x_, weight_, options_));
      if (threads == 1) {
        EXPECT_EQ(0, executor.calls());
      } else if (threads > 1) {
        EXPECT_EQ(4, executor.calls());  // forward, sums, scale, module
        EXPECT_EQ(static_cast<size_t>(threads), executor.most_parts());
      }
    }
  }
}

TEST_P(ThreadsTest, InPlaceInAnExecutor) {
  const Results serial = Serial();
  Executor executor(OnThreads);
  executor.SetIn(options_);
  options_.threads = 7;
  Tensor y = x_;
  forward(ConstView(y.view()), ConstView(weight_.vector()), View(y.view()), options_);
  EXPECT_TRUE(SameBits(serial.y, y));
}

// Rows that are not one run in memory: parts begin and end inside every dimension.
TEST_P(ThreadsTest, PartsOfManyDimensions) {
  const size_t shape[] = {5, 3, 7, 9, 700};
  const ptrdiff_t x_stride[] = {-3 * 7 * 9 * 701, 7 * 9 * 701, 0, 701, 1};
  std::vector<uint16_t> x(5 * 3 * 7 * 9 * 701);
  Random random(43);
  for (uint16_t& bits : x)
    bits = static_cast<uint16_t>(Encode(FormatOf(RMSNORM_F16), random.Normal()));
  const rmsnorm_view x_view =
      rmsnorm_tensor(x.data() + 4 * 3 * 7 * 9 * 701, RMSNORM_F16, 5, shape, x_stride);
  const size_t elements = 5 * 3 * 7 * 9 * 700;
  std::vector<float> serial(elements);
  options_.threads = 1;
  forward(ConstView(x_view), nullptr,
          View(rmsnorm_tensor(serial.data(), RMSNORM_F32, 5, shape, nullptr)), options_);
  for (const int threads : {2, 3, 4, 5, 6, 7, 8}) {
    std::vector<float> y(elements);
    Executor executor(InReverse);
    executor.SetIn(options_);
    options_.threads = threads;
    forward(ConstView(x_view), nullptr,
            View(rmsnorm_tensor(y.data(), RMSNORM_F32, 5, shape, nullptr)), options_);
    EXPECT_EQ(1, executor.calls());
    EXPECT_TRUE(SameBits(RMSNORM_F32, serial.data(), y.data(), elements)) << threads;
  }
}

// A row alone goes to all threads, its blocks in parts.
TEST_P(ThreadsTest, OneLongRow) {
  Random random(59);
  const size_t d = 5 * 32768 + 77;
  for (const rmsnorm_dtype dtype : kDtypes) {
    Tensor weight(dtype, 1, d);
    FillWeight(random, weight);
    for (int kind = 0; kind < kRowKinds; ++kind) {
      SCOPED_TRACE(testing::Message() << rmsnorm_dtype_name(dtype) << ", kind " << kind);
      Tensor x(dtype, 1, d);
      FillRow(random, static_cast<RowKind>(kind), x, 0);
      options_.threads = 1;
      const Results serial = Compute(x, weight, options_);
      for (const int threads : {2, 3, 5}) {
        Executor executor(OnThreads);
        Options parallel = options_;
        executor.SetIn(parallel);
        parallel.threads = threads;
        ExpectSameBits(serial, Compute(x, weight, parallel));
        EXPECT_EQ(static_cast<size_t>(threads), executor.most_parts());
        Options with_openmp = options_;
        with_openmp.threads = threads;
        ExpectSameBits(serial, Compute(x, weight, with_openmp));
      }
    }
  }
}

// Longer than what is summed at once; in place; a few rows with a stride; another type of y.
TEST_P(ThreadsTest, FewVeryLongRows) {
  Random random(61);
  const size_t d = (size_t{32} << 20) + 3 * 4096 + 5;
  Tensor x(RMSNORM_BF16, 2, d, 3);
  // Drawing all the elements would take most of the time.
  Tensor drawn(RMSNORM_BF16, 1, 1'000'003);
  FillNormal(random, drawn);
  for (size_t row = 0; row < 2; ++row) {
    for (size_t j = row; j < d; j += drawn.d()) {
      std::memcpy(static_cast<char*>(x.Row(row)) + j * 2, drawn.data(),
                  std::min(drawn.d(), d - j) * 2);
    }
    x.set(row, 0, 1);
  }
  options_.eps_placement = RMSNORM_EPS_OUTSIDE;
  options_.threads = 1;
  const ConstView x_view(x.view());
  Tensor in_place = x;
  Tensor other(RMSNORM_F16, 2, d);
  std::vector<float> rstd(2);
  forward(x_view, nullptr, View(in_place.view()), options_, rstd.data());
  forward(x_view, nullptr, View(other.view()), options_);

  Executor executor(OnThreads);
  executor.SetIn(options_);
  options_.threads = 3;
  std::vector<float> rstd_in_parts(2);
  Tensor other_in_parts(RMSNORM_F16, 2, d);
  forward(x_view, nullptr, View(other_in_parts.view()), options_);
  EXPECT_TRUE(SameBits(other, other_in_parts));
  forward(x_view, nullptr, View(x.view()), options_, rstd_in_parts.data());
  EXPECT_TRUE(SameBits(in_place, x));
  EXPECT_TRUE(SameBits(RMSNORM_F32, rstd.data(), rstd_in_parts.data(), 2));
  // For each of two calls and two rows: two batches of sums, and the scaling.
  EXPECT_EQ(12, executor.calls());
}

// The bits of a row are the same alone, in any batch and at any place in it.
TEST_P(ThreadsTest, RowsDoNotDependOnTheirBatch) {
  Random random(47);
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : SizeList{1, 64, 100, 128, 300, 4097, 8200}) {
      const size_t rows = 23;
      Tensor x(dtype, rows, d);
      FillMixed(random, x);
      Tensor weight(RMSNORM_F32, 1, d);
      FillWeight(random, weight);
      const Results whole = Compute(x, weight, options_);
      for (size_t begin = 0; begin < rows; ++begin) {
        for (const size_t count : {size_t{1}, size_t{2}, size_t{5}, rows - begin}) {
          if (begin + count > rows) continue;
          Tensor part(dtype, count, d, begin % 5);
          for (size_t row = 0; row < count; ++row) {
            std::memcpy(part.Row(row), x.Row(begin + row), d * rmsnorm_dtype_size(dtype));
          }
          const Results results = Compute(part, weight, options_);
          for (size_t row = 0; row < count; ++row) {
            ASSERT_TRUE(SameBits(dtype, whole.y.Row(begin + row), results.y.Row(row), d));
            ASSERT_TRUE(SameBits(RMSNORM_F32, &whole.rstd[begin + row], &results.rstd[row], 1));
          }
        }
      }
    }
  }
}

TEST_P(ThreadsTest, CallsFromManyThreadsAtOnce) {
  const Results serial = Serial();
  RmsNorm shared(kD, options_, Dtype::bf16);
  shared.set_weight(ConstView(weight_.vector()));
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&, i] {
      Options own = options_;
      own.threads = i % 3;
      Tensor y(x_.dtype(), kManyRows, kD);
      for (int repeat = 0; repeat < 5; ++repeat) {
        y.Wipe();
        if (repeat % 2 == 0) {
          forward(ConstView(x_.view()), ConstView(weight_.vector()), View(y.view()), own);
        } else {
          shared.forward(ConstView(x_.view()), View(y.view()));
        }
        if (!SameBits(serial.y, y)) ++wrong;
        // Messages are the calling thread's own.
        const std::string name = "caller " + std::to_string(i);
        const char* exact;
        if (rmsnorm_find_target(name.c_str(), &exact) != RMSNORM_ERROR_TARGET) ++wrong;
        std::this_thread::yield();
        if (std::string(rmsnorm_error_message()).find(name) == std::string::npos) ++wrong;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(0, wrong);
}

INSTANTIATE_TEST_SUITE_P(Targets, ThreadsTest, testing::ValuesIn(SupportedTargets()), Name);

// ------------------------------------------------------------------------- which threads are
// started

// Runs forward over `rows` rows of kD elements of f32 and says how many threads that started.
int ThreadsStartedBy(size_t rows, const Options& options) {
  const std::vector<float> x(rows * kD, 1.0f);
  std::vector<float> y(rows * kD);
  const int before = ThreadsStarted();
  forward({x.data(), rows, kD}, nullptr, {y.data(), rows, kD}, options);
  EXPECT_EQ(y.end(), std::find_if(y.begin(), y.end(), [&](float value) { return value != y[0]; }));
  return ThreadsStarted() - before;
}

TEST(StartedThreads, AreCounted) {
  const int before = ThreadsStarted();
  std::thread([] {}).join();
  EXPECT_EQ(1, ThreadsStarted() - before);
}

// In a thread of its own, which has no OpenMP threads waiting for it yet.
void InNewThread(const std::function<void()>& run) { std::thread(run).join(); }

TEST(StartedThreads, NoneForSerialWork) {
  InNewThread([] {
    Options options;
    options.threads = 1;
    EXPECT_EQ(0, ThreadsStartedBy(kManyRows, options));
  });
}

TEST(StartedThreads, NoneForSmallWork) {
  InNewThread([] {
    Options options;
    options.threads = 8;
    EXPECT_EQ(0, ThreadsStartedBy(20, options));
  });
}

TEST(StartedThreads, NoneWithAnExecutor) {
  InNewThread([] {
    Options options;
    Executor executor(InReverse);
    executor.SetIn(options);
    options.threads = 8;
    EXPECT_EQ(0, ThreadsStartedBy(kManyRows, options));
    EXPECT_EQ(1, executor.calls());
  });
}

TEST(ThreadLimit, IsThatOfOpenMp) {
#ifdef _OPENMP
  EXPECT_EQ(1, rmsnorm_has_openmp());
  EXPECT_EQ(omp_get_max_threads(), rmsnorm_max_threads());
#else
  EXPECT_EQ(0, rmsnorm_has_openmp());
  EXPECT_EQ(1, rmsnorm_max_threads());
#endif
}

#ifdef _OPENMP
TEST(StartedThreads, SomeForLargeWork) {
  InNewThread([] {
    Options options;
    options.threads = 4;
    const int before = ThreadsStarted();
    ThreadsStartedBy(kManyRows, options);
    // A runtime may share its threads among callers, so earlier ones may do.
    EXPECT_GE(ThreadsStarted() - before + omp_get_max_threads(), 1);
    EXPECT_GT(ThreadsStarted(), 1);
  });
}

// Whatever is asked for, no more than OpenMP would use by itself or the machine has CPUs.
TEST(StartedThreads, NoMoreThanOpenMpOrTheMachineHas) {
  for (const int of_openmp : {1, 5}) {
    InNewThread([&] {
      omp_set_num_threads(of_openmp);
      const int most = std::max(of_openmp, omp_get_num_procs());
      Options options;
      options.threads = std::numeric_limits<int>::max();
      // Enough for twice as many: 64 rows are worth a thread.
      EXPECT_LE(ThreadsStartedBy(2 * 64 * static_cast<size_t>(most), options), most - 1);
    });
  }
}

// Inside another parallel region a call stays serial, even where OpenMP allows regions in regions.
TEST(StartedThreads, NoneInsideAParallelRegion) {
  omp_set_max_active_levels(4);
  Tensor x(RMSNORM_F32, kManyRows, kD);
  Random random(53);
  FillNormal(random, x);
  Tensor expected(RMSNORM_F32, kManyRows, kD);
  forward(ConstView(x.view()), nullptr, View(expected.view()), {});
  std::atomic<int> wrong{0};
  std::atomic<int> started{-1};
#pragma omp parallel num_threads(2)
  {
    Options options;
    options.threads = 8;
    Tensor y(RMSNORM_F32, kManyRows, kD);
#pragma omp barrier
#pragma omp master
    started = ThreadsStarted();
#pragma omp barrier
    forward(ConstView(x.view()), nullptr, View(y.view()), options);
    if (!SameBits(expected, y)) ++wrong;
#pragma omp barrier
#pragma omp master
    started = ThreadsStarted() - started;
  }
  omp_set_max_active_levels(1);
  EXPECT_EQ(0, wrong);
  EXPECT_EQ(0, started);
}
#endif  // _OPENMP

}  // namespace
}  // namespace rmsnorm::test

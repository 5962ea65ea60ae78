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

#include "norms.h"
#include "random_rows.h"
#include "targets.h"
#include "thread_counter.h"

namespace rmsnorm::test {
namespace {

// Large enough to be worth eight threads; no number of threads divides the rows evenly but 1.
constexpr size_t kManyRows = 1031;
constexpr size_t kD = 512;

// All that can be computed from some rows.
struct Results {
  NormResults whole;
  NormResults sums;
  NormResults scaled;
  Tensor module_y;
};

Results Compute(const Tensor& x, const Tensor& weight, const Options& options,
                const Context& context) {
  NormInputs inputs = {x};
  inputs.weight = weight;
  inputs.y.emplace(x.dtype(), x.rows(), x.d());
  NormInputs sums = {x};
  sums.rstd = false;
  sums.sums_out = true;
  Results results = {
      ComputeNorm(inputs, options, context), ComputeNorm(sums, options, context), {}, *inputs.y};
  inputs.sums = results.sums.sums;
  results.scaled = ComputeNorm(inputs, options, context);
  RmsNorm module(x.d(), options, static_cast<Dtype>(weight.dtype()), context);
  module.set_weight(ConstView(weight.vector()));
  ForwardOperands operands;
  operands.x = ConstView(x.view());
  operands.y = View(results.module_y.view());
  module.forward(operands);
  return results;
}

void ExpectSameBits(const Results& expected, const Results& actual) {
  EXPECT_TRUE(SameBits(expected.whole, actual.whole));
  EXPECT_TRUE(SameBits(expected.sums, actual.sums));
  EXPECT_TRUE(SameBits(expected.scaled, actual.scaled));
  EXPECT_TRUE(SameBits(expected.module_y, actual.module_y));
}

// An executor of the caller, that keeps count of how often each part ran.
class Executor {
 public:
  using Run = std::function<void(size_t count, const std::function<void(size_t)>& part)>;

  explicit Executor(Run run) : run_(std::move(run)) {}

  void SetIn(Context& context) {
    context.parallel_for = &Executor::ParallelFor;
    context.parallel_context = this;
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
  }

  Results Serial() const { return Compute(x_, weight_, {}, OnTarget(target_, 1)); }

  // Parts in an executor, of which there may be so many.
  Context InParts(Executor& executor, int threads) const {
    Context context = OnTarget(target_, threads);
    executor.SetIn(context);
    return context;
  }

  const std::string target_ = GetParam();
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
    ExpectSameBits(serial, Compute(x_, weight_, {}, OnTarget(target_, threads)));
  }
}

TEST_P(ThreadsTest, EveryNumberOfPartsInAnExecutor) {
  const Results serial = Serial();
  for (const auto run : {InReverse, OnThreads}) {
    for (const int threads : {0, 1, 2, 3, 4, 5, 6, 7, 8}) {
      SCOPED_TRACE(threads);
      Executor executor(run);
      ExpectSameBits(serial, Compute(x_, weight_, {}, InParts(executor, threads)));
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
  Tensor y = x_;
  ForwardOperands operands;
  operands.x = operands.y = View(y.view());
  operands.weight = ConstView(weight_.vector());
  forward(operands, {}, InParts(executor, 7));
  EXPECT_TRUE(SameBits(*serial.whole.y, y));
}

// Rows that are not one run in memory: parts begin and end inside every dimension. Some rows share
// a weight and others a bias.
TEST_P(ThreadsTest, PartsOfManyDimensions) {
  constexpr size_t kRow = 700;
  const size_t shape[] = {5, 1, 3, 1, 7, 3, 3, kRow};
  const ptrdiff_t x_stride[] = {-3 * 7 * 9 * 701, 11, 7 * 9 * 701, 13, 0, 3 * 701, 701, 1};
  std::vector<uint16_t> x(5 * 3 * 7 * 9 * 701);
  Random random(43);
  for (uint16_t& bits : x) {
    bits = static_cast<uint16_t>(Encode(FormatOf(RMSNORM_F16), random.Normal()));
  }
  Tensor weight(RMSNORM_F32, 3 * 3, kRow);
  Tensor bias(RMSNORM_BF16, 5 * 7, kRow);
  FillWeight(random, weight);
  FillWeight(random, bias);
  const size_t elements = 5 * 3 * 7 * 9 * kRow;
  std::vector<float> serial(elements);
  ForwardOperands operands;
  operands.x = {x.data() + 4 * 3 * 7 * 9 * 701, Dtype::f16, 8, shape, x_stride};
  operands.weight = ConstView(weight.view({3, 1, 1, 3, 1}));
  operands.bias = ConstView(bias.view({5, 1, 1, 1, 7, 1, 1}));
  operands.y = {serial.data(), Dtype::f32, 8, shape};
  forward(operands, {}, OnTarget(target_, 1));
  for (const int threads : {2, 3, 4, 5, 6, 7, 8}) {
    std::vector<float> y(elements);
    Executor executor(InReverse);
    operands.y = {y.data(), Dtype::f32, 8, shape};
    forward(operands, {}, InParts(executor, threads));
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
      const Results serial = Compute(x, weight, {}, OnTarget(target_, 1));
      for (const int threads : {2, 3, 5}) {
        Executor executor(OnThreads);
        ExpectSameBits(serial, Compute(x, weight, {}, InParts(executor, threads)));
        EXPECT_EQ(static_cast<size_t>(threads), executor.most_parts());
        ExpectSameBits(serial, Compute(x, weight, {}, OnTarget(target_, threads)));
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
  Options options;
  options.eps_placement = EpsPlacement::outside;
  NormInputs in_place = {x};
  in_place.y = x;
  in_place.y_in_place = true;
  NormInputs other = {x};
  other.y.emplace(RMSNORM_F16, 2, d);
  other.rstd = false;
  const Context serial = OnTarget(target_, 1);
  Executor executor(OnThreads);
  const Context parts = InParts(executor, 3);
  EXPECT_TRUE(
      SameBits(ComputeNorm(in_place, options, serial), ComputeNorm(in_place, options, parts)));
  EXPECT_TRUE(SameBits(ComputeNorm(other, options, serial), ComputeNorm(other, options, parts)));
  // For each of two calls and two rows: two batches of sums, and the scaling.
  EXPECT_EQ(12, executor.calls());
}

// The bits of a row are the same alone, in any batch and at any place in it.
TEST_P(ThreadsTest, RowsDoNotDependOnTheirBatch) {
  Random random(47);
  const Context context = OnTarget(target_);
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : SizeList{1, 64, 100, 128, 300, 4097, 8200}) {
      const size_t rows = 23;
      Tensor x(dtype, rows, d);
      FillMixed(random, x);
      Tensor weight(RMSNORM_F32, 1, d);
      FillWeight(random, weight);
      const Results whole = Compute(x, weight, {}, context);
      for (size_t begin = 0; begin < rows; ++begin) {
        for (const size_t count : {size_t{1}, size_t{2}, size_t{5}, rows - begin}) {
          if (begin + count > rows) continue;
          Tensor part(dtype, count, d, begin % 5);
          for (size_t row = 0; row < count; ++row) {
            std::memcpy(part.Row(row), x.Row(begin + row), d * rmsnorm_dtype_size(dtype));
          }
          const NormResults results = Compute(part, weight, {}, context).whole;
          for (size_t row = 0; row < count; ++row) {
            ASSERT_TRUE(SameBits(dtype, whole.whole.y->Row(begin + row), results.y->Row(row), d));
            ASSERT_TRUE(
                SameBits(RMSNORM_F32, &whole.whole.rstd[begin + row], &results.rstd[row], 1));
          }
        }
      }
    }
  }
}

// Two norms in one call, spread over all their rows together: q and k slices of one buffer, and
// rows of which the second norm alone has enough for any thread.
TEST_P(ThreadsTest, NormsAtOnce) {
  Random random(67);
  for (const size_t tokens : {size_t{1}, size_t{7}, size_t{300}}) {
    constexpr size_t kHeads = 12;  // 8 of q, then 4 of k
    constexpr size_t kHead = 128;
    const auto slice = [&](Tensor& fused, size_t first, size_t heads) {
      return View(rmsnorm_tensor(static_cast<uint16_t*>(fused.data()) + first * kHead, RMSNORM_BF16,
                                 3, SizeList{tokens, heads, kHead}.data(),
                                 std::vector<ptrdiff_t>{kHeads * kHead, kHead, 1}.data()));
    };
    Tensor fused(RMSNORM_BF16, tokens, kHeads * kHead);
    FillMixed(random, fused);
    Tensor weight(RMSNORM_F32, kHeads, kHead);
    FillWeight(random, weight);
    RmsNorm k_norm(kHead, 1e-6f);
    const ConstView k_weight(static_cast<const float*>(weight.Row(0)), kHead);
    k_norm.set_weight(k_weight);
    const auto calls = [&](Tensor& rows) {
      std::vector<Call> both(2);
      both[0].operands.x = both[0].operands.y = slice(rows, 0, 8);
      both[0].operands.weight = {static_cast<const float*>(weight.Row(4)), 8, kHead};
      both[0].options.weight_offset = 1;
      both[1].module = &k_norm;
      both[1].operands.x = both[1].operands.y = slice(rows, 8, 4);
      return both;
    };
    Tensor expected = fused;
    const std::vector<Call> one_by_one = calls(expected);
    forward(one_by_one[0].operands, one_by_one[0].options, OnTarget(target_, 1));
    k_norm.forward(one_by_one[1].operands, OnTarget(target_, 1));
    for (const int threads : {1, 2, 3, 8}) {
      for (const bool own : {false, true}) {
        Tensor rows = fused;
        const std::vector<Call> both = calls(rows);
        Executor executor(OnThreads);
        forward_all(both.data(), 2, own ? InParts(executor, threads) : OnTarget(target_, threads));
        EXPECT_TRUE(SameBits(expected, rows)) << tokens << " tokens, " << threads << " threads";
        EXPECT_LE(executor.calls(), 1);
      }
    }
  }
}

TEST_P(ThreadsTest, CallsFromManyThreadsAtOnce) {
  const Results serial = Serial();
  RmsNorm shared(kD, Options(), Dtype::bf16, OnTarget(target_));
  shared.set_weight(ConstView(weight_.vector()));
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int i = 0; i < 6; ++i) {
    callers.emplace_back([&, i] {
      Tensor y(x_.dtype(), kManyRows, kD);
      ForwardOperands operands;
      operands.x = ConstView(x_.view());
      operands.y = View(y.view());
      for (int repeat = 0; repeat < 5; ++repeat) {
        y.Wipe();
        if (repeat % 2 == 0) {
          operands.weight = ConstView(weight_.vector());
          forward(operands, {}, OnTarget(target_, i % 3));
        } else {
          operands.weight = {};
          shared.forward(operands);
        }
        if (!SameBits(*serial.whole.y, y)) ++wrong;
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
int ThreadsStartedBy(size_t rows, const Context& context) {
  const std::vector<float> x(rows * kD, 1.0f);
  std::vector<float> y(rows * kD);
  const int before = ThreadsStarted();
  ForwardOperands operands;
  operands.x = {x.data(), rows, kD};
  operands.y = {y.data(), rows, kD};
  forward(operands, {}, context);
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
    Context context;
    context.threads = 1;
    EXPECT_EQ(0, ThreadsStartedBy(kManyRows, context));
  });
}

TEST(StartedThreads, NoneForSmallWork) {
  InNewThread([] {
    Context context;
    context.threads = 8;
    EXPECT_EQ(0, ThreadsStartedBy(20, context));
  });
}

TEST(StartedThreads, NoneWithAnExecutor) {
  InNewThread([] {
    Context context;
    Executor executor(InReverse);
    executor.SetIn(context);
    context.threads = 8;
    EXPECT_EQ(0, ThreadsStartedBy(kManyRows, context));
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
    Context context;
    context.threads = 4;
    const int before = ThreadsStarted();
    ThreadsStartedBy(kManyRows, context);
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
      Context context;
      context.threads = std::numeric_limits<int>::max();
      // Enough for twice as many: 64 rows are worth a thread.
      EXPECT_LE(ThreadsStartedBy(2 * 64 * static_cast<size_t>(most), context), most - 1);
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
  norm(ConstView(x.view()), {}, View(expected.view()));
  std::atomic<int> wrong{0};
  std::atomic<int> started{-1};
#pragma omp parallel num_threads(2)
  {
    Context context;
    context.threads = 8;
    Tensor y(RMSNORM_F32, kManyRows, kD);
#pragma omp barrier
#pragma omp master
    started = ThreadsStarted();
#pragma omp barrier
    ForwardOperands operands;
    operands.x = ConstView(x.view());
    operands.y = View(y.view());
    forward(operands, {}, context);
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

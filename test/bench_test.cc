// SPDX-License-Identifier: Apache-2.0
// `rmsnorm bench`: what it runs and prints, and that it times nothing wrong. No test looks at how
// long something took. The linker puts a function below in place of the library's (--wrap), so that
// a test can spoil what it computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <sstream>
#include <thread>

#include "backward_job.h"
#include "bench_table.h"
#include "command.h"
#include "layer_norm.h"
#include "operations.h"
#include "parallel.h"
#include "rounds.h"
#include "run_command.h"
#include "targets.h"
#include "threads.h"

namespace rmsnorm::test {
namespace {

// Whether a call of the library spoils one bit of what it writes, and how many come before that.
bool spoil_next_call = false;
int calls_before_spoilt = 0;
// Whether it is the second of two results: the residual, or dw.
bool spoil_second_result = false;
// The same for the next call of LayerNorm.
bool spoil_next_layer_norm = false;

// Flips a bit in the second of some rows.
void Spoil(void* data, size_t row_bytes) {
  if (!spoil_next_call || calls_before_spoilt-- > 0) return;
  spoil_next_call = false;  // the next one is the reference
  calls_before_spoilt = 0;
  static_cast<uint8_t*>(data)[row_bytes + 2] ^= 1;
}

void SpoilY(const rmsnorm_view* y) { Spoil(y->data, y->shape[1] * rmsnorm_dtype_size(y->dtype)); }

}  // namespace
}  // namespace rmsnorm::test

extern "C" {
decltype(rmsnorm_module_forward) __real_rmsnorm_module_forward;
rmsnorm_status __wrap_rmsnorm_module_forward(const rmsnorm_module* module, const rmsnorm_view* x,
                                             const rmsnorm_view* y, float* rstd) noexcept {
  const rmsnorm_status status = __real_rmsnorm_module_forward(module, x, y, rstd);
  rmsnorm::test::SpoilY(y);
  return status;
}

decltype(rmsnorm_module_add_forward) __real_rmsnorm_module_add_forward;
rmsnorm_status __wrap_rmsnorm_module_add_forward(const rmsnorm_module* module,
                                                 const rmsnorm_view* x,
                                                 const rmsnorm_view* residual,
                                                 const rmsnorm_view* residual_out,
                                                 const rmsnorm_view* y, float* rstd) noexcept {
  const rmsnorm_status status =
      __real_rmsnorm_module_add_forward(module, x, residual, residual_out, y, rstd);
  rmsnorm::test::SpoilY(rmsnorm::test::spoil_second_result ? residual_out : y);
  return status;
}

decltype(rmsnorm_module_backward) __real_rmsnorm_module_backward;
rmsnorm_status __wrap_rmsnorm_module_backward(const rmsnorm_module* module, const rmsnorm_view* dy,
                                              const rmsnorm_view* x, const float* rstd,
                                              const rmsnorm_view* dx, const rmsnorm_view* dw,
                                              uint32_t flags) noexcept {
  const rmsnorm_status status = __real_rmsnorm_module_backward(module, dy, x, rstd, dx, dw, flags);
  if (!rmsnorm::test::spoil_second_result && dx != nullptr) rmsnorm::test::SpoilY(dx);
  if (rmsnorm::test::spoil_second_result && dw != nullptr) {
    rmsnorm::test::Spoil(dw->data, sizeof(float));
  }
  return status;
}

decltype(rmsnorm_forward) __real_rmsnorm_forward;
rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_view* x, const rmsnorm_view* weight,
                                      const rmsnorm_view* y, float* rstd,
                                      const rmsnorm_options* options) noexcept {
  const rmsnorm_status status = __real_rmsnorm_forward(x, weight, y, rstd, options);
  if (options->parallel_for == nullptr) rmsnorm::test::SpoilY(y);  // not one that counts parts
  return status;
}

decltype(rmsnorm_scale) __real_rmsnorm_scale;
rmsnorm_status __wrap_rmsnorm_scale(const rmsnorm_view* x, const double* sums,
                                    const rmsnorm_view* weight, const rmsnorm_view* y, float* rstd,
                                    const rmsnorm_options* options) noexcept {
  const rmsnorm_status status = __real_rmsnorm_scale(x, sums, weight, y, rstd, options);
  rmsnorm::test::SpoilY(y);
  return status;
}

decltype(rmsnorm_sum_squares) __real_rmsnorm_sum_squares;
rmsnorm_status __wrap_rmsnorm_sum_squares(const rmsnorm_view* x, double* sums,
                                          const rmsnorm_options* options) noexcept {
  const rmsnorm_status status = __real_rmsnorm_sum_squares(x, sums, options);
  rmsnorm::test::Spoil(sums, sizeof(double));
  return status;
}

// LayerNorm::Forward() by its name for the linker. There is no telling how long a row is: the sign
// of the first is changed, in f32 of element 0 and in bf16 of element 1.
void __real__ZNK7rmsnorm5bench9LayerNorm7ForwardEPKvPvmb(const rmsnorm::bench::LayerNorm* norm,
                                                         const void* x, void* y, size_t rows,
                                                         bool stream);
void __wrap__ZNK7rmsnorm5bench9LayerNorm7ForwardEPKvPvmb(const rmsnorm::bench::LayerNorm* norm,
                                                         const void* x, void* y, size_t rows,
                                                         bool stream) {
  __real__ZNK7rmsnorm5bench9LayerNorm7ForwardEPKvPvmb(norm, x, y, rows, stream);
  if (!rmsnorm::test::spoil_next_layer_norm) return;
  rmsnorm::test::spoil_next_layer_norm = false;
  static_cast<uint8_t*>(y)[3] ^= 0x80;
}
}  // extern "C"

namespace rmsnorm::test {
namespace {

using bench::Cell;
using bench::Job;
using nlohmann::json;

// -------------------------------------------------------------------------------------- timing

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

// ---------------------------------------------------------------------------------------- threads

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

// ---------------------------------------------------------------------------------------- cells

const Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

std::vector<Dtype> TypesOf(const bench::Operation& operation) {
  if (operation.takes_f16) return {Dtype::f32, Dtype::bf16, Dtype::f16};
  return {Dtype::f32, Dtype::bf16};
}

Cell ForwardCell(Dtype dtype, size_t rows, size_t d, int threads) {
  return {"forward", dtype, rows, d, threads, "reference"};
}

// Has one of a job's contenders do its work.
void RunContender(Job& job, const std::string& contender, size_t times = 1) {
  for (const bench::Contender& one : job.Contenders()) {
    if (one.name == contender) return one.repeat(times);
  }
  FAIL() << contender;
}

std::vector<uint8_t> Y(const Job& job, const Cell& cell) {
  return {job.tensors().y(), job.tensors().y() + cell.bytes()};
}

TEST(BenchJob, MemcpyCopiesAllOfX) {
  for (const bench::Operation& operation : bench::Operations()) {
    for (const Dtype dtype : TypesOf(operation)) {
      for (const int threads : {1, 2}) {
        const Cell cell = {operation.name, dtype, 1001, 128, threads, "reference"};
        SCOPED_TRACE(cell.name());
        const std::unique_ptr<Job> job = bench::MakeJob(cell);
        EXPECT_NE(std::memcmp(job->tensors().x(), job->tensors().y(), cell.bytes()), 0);
        RunContender(*job, "memcpy");
        EXPECT_EQ(std::memcmp(job->tensors().x(), job->tensors().y(), cell.bytes()), 0);
      }
    }
  }
}

TEST(BenchJob, TheLibraryAndMemcpyComeFirst) {
  for (const bench::Operation& operation : bench::Operations()) {
    const std::unique_ptr<Job> job =
        bench::MakeJob({operation.name, Dtype::f32, 2, 64, 1, "reference"});
    EXPECT_EQ(job->Contenders().at(0).name, "library");
    EXPECT_EQ(job->Contenders().at(1).name, "memcpy");
  }
}

float ToFloat(Dtype dtype, const uint8_t* data, size_t index) {
  float value;
  const rmsnorm_view from =
      rmsnorm_rows(data + index * rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype)),
                   static_cast<rmsnorm_dtype>(dtype), 1, 1, 1);
  RmsNorm module(1, Options(), dtype);
  const size_t one = 1;
  const rmsnorm_view weight = rmsnorm_tensor(from.data, from.dtype, 1, &one, nullptr);
  module.set_weight(ConstView(weight));
  module.get_weight(View(&value, 1));
  return value;
}

// Plain loops round in their own order: the last bit may differ, the number may not.
TEST(BenchJob, PlainLoopsComputeTheSame) {
  for (const Dtype dtype : kTypes) {
    for (const int threads : {1, 2}) {
      const Cell cell = ForwardCell(dtype, 600, 128, threads);
      const std::unique_ptr<Job> job = bench::MakeJob(cell);
      RunContender(*job, "reference");
      const std::vector<uint8_t> reference = Y(*job, cell);
      const std::unique_ptr<Job> plain_job = bench::MakeJob(cell);
      RunContender(*plain_job, "plain");
      const float tolerance = dtype == Dtype::f32   ? 1e-6f
                              : dtype == Dtype::f16 ? 0x1p-10f
                                                    : 0x1p-7f;
      for (size_t i = 0; i < cell.elements(); i += 97) {
        const float expected = ToFloat(dtype, reference.data(), i);
        EXPECT_NEAR(ToFloat(dtype, plain_job->tensors().y(), i), expected,
                    tolerance * std::fabs(expected) + 1e-7f)
            << cell.type_name() << " " << i;
      }
    }
  }
}

// Each operation that writes y gives forward's bits, and so do its reference and its call.
TEST(BenchJob, OperationsComputeForward) {
  const Cell cell = ForwardCell(Dtype::bf16, 5, 100, 1);
  const std::unique_ptr<Job> job = bench::MakeJob(cell);
  RunContender(*job, "library");
  const std::vector<uint8_t> expected = Y(*job, cell);
  for (const char* operation : {"forward", "forward_call", "scale"}) {
    for (const char* contender : {"library", "reference"}) {
      Cell other = cell;
      other.operation = operation;
      const std::unique_ptr<Job> other_job = bench::MakeJob(other);
      RunContender(*other_job, contender);
      EXPECT_EQ(Y(*other_job, other), expected) << operation << " " << contender;
    }
  }
}

TEST(BenchJob, RowsDiffer) {
  const Cell cell = ForwardCell(Dtype::f32, 64, 128, 1);
  const std::unique_ptr<Job> job = bench::MakeJob(cell);
  const uint8_t* const x = job->tensors().x();
  const size_t row_bytes = cell.bytes() / cell.rows;
  for (size_t row = 1; row < cell.rows; ++row) {
    EXPECT_NE(std::memcmp(x, x + row * row_bytes, row_bytes), 0) << row;
  }
}

TEST(BenchJob, FindsOneWrongBit) {
  for (const bench::Operation& operation : bench::Operations()) {
    for (const Dtype dtype : TypesOf(operation)) {
      const Cell cell = {operation.name, dtype, 3, 100, 1, "reference"};
      SCOPED_TRACE(cell.name());
      const std::unique_ptr<Job> job = bench::MakeJob(cell);
      EXPECT_EQ(job->FindFault(), "");
      spoil_next_call = true;
      const std::string element = dtype == Dtype::f32 ? "0" : "1";
      const std::string beside = operation.name == "layernorm" ? "RMSNorm: " : "";
      EXPECT_EQ(job->FindFault(),
                operation.name == "sum_squares"
                    ? "row 1: the sum differs from the reference"
                    : beside + "row 1, element " + element + " differs from the reference");
      EXPECT_FALSE(spoil_next_call);
    }
  }
}

TEST(BenchJob, FindsOneWrongBitOfTheSecondResult) {
  for (const auto& [operation, fault] :
       {std::pair<const char*, const char*>{
            "add_forward", "residual: row 1, element 0 differs from the reference"},
        {"backward", "dw: element 1 differs from the reference"}}) {
    const std::unique_ptr<Job> job =
        bench::MakeJob({operation, Dtype::f32, 3, 100, 1, "reference"});
    spoil_second_result = true;
    EXPECT_EQ(job->FindFault(), "");
    spoil_next_call = true;
    EXPECT_EQ(job->FindFault(), fault);
    EXPECT_FALSE(spoil_next_call);
    spoil_second_result = false;
  }
}

TEST(BenchJob, SmallWorkIsOneThreads) {
  for (const bench::Operation& operation : bench::Operations()) {
    const auto parts = [&](size_t rows, size_t d, int threads) {
      return bench::MakeJob({operation.name, Dtype::f32, rows, d, threads, "reference"})->parts();
    };
    EXPECT_EQ(parts(1, 64, 2), 1u);
    EXPECT_EQ(parts(512, 4096, 1), 1u);
    if (rmsnorm_has_openmp() != 0) {
      EXPECT_EQ(parts(512, 4096, 2), 2u);
    }
  }
}

// ------------------------------------------------------------------------------------- training

const char* const kOwnContenders[] = {"library", "reference", "plain"};

TEST(BenchAddForward, EachContenderAddsXToTheResidualAndTakesItsNorm) {
  for (const Dtype dtype : kTypes) {
    for (const int threads : {1, 2}) {
      for (const char* const contender : kOwnContenders) {
        const Cell cell = {"add_forward", dtype, 600, 128, threads, "reference"};
        SCOPED_TRACE(cell.name() + " " + contender);
        const std::unique_ptr<Job> job = bench::MakeJob(cell);
        const auto* const residual =
            static_cast<const uint8_t*>(job->tensors().third_view().get()->data);
        const std::vector<uint8_t> before(residual, residual + cell.bytes());
        RunContender(*job, contender);
        for (size_t i = 0; i < cell.elements(); i += 97) {
          const float sum =
              ToFloat(dtype, before.data(), i) + ToFloat(dtype, job->tensors().x(), i);
          const float tolerance = dtype == Dtype::f32   ? 0
                                  : dtype == Dtype::f16 ? 0x1p-11f
                                                        : 0x1p-8f;
          EXPECT_NEAR(ToFloat(dtype, residual, i), sum, tolerance * std::fabs(sum)) << i;
        }

        std::vector<uint8_t> norm(cell.bytes());
        forward(job->tensors().third_view(), job->tensors().weight_view(),
                View(norm.data(), dtype, {cell.rows, cell.d}));
        const float tolerance = dtype == Dtype::f32   ? 1e-6f
                                : dtype == Dtype::f16 ? 0x1p-10f
                                                      : 0x1p-7f;
        for (size_t i = 0; i < cell.elements(); i += 97) {
          const float expected = ToFloat(dtype, norm.data(), i);
          EXPECT_NEAR(ToFloat(dtype, job->tensors().y(), i), expected,
                      tolerance * std::fabs(expected) + 1e-7f)
              << i;
        }
      }
    }
  }
}

TEST(BenchBackward, EachContenderComputesTheGradients) {
  for (const Dtype dtype : kTypes) {
    for (const int threads : {1, 2}) {
      for (const char* const contender : kOwnContenders) {
        const Cell cell = {"backward", dtype, 600, 128, threads, "reference"};
        SCOPED_TRACE(cell.name() + " " + contender);
        bench::BackwardJob job(cell);
        const bench::Tensors& tensors = job.tensors();
        RunContender(job, contender);
        std::vector<uint8_t> dx(cell.bytes());
        std::vector<float> dw(cell.d);
        backward(tensors.third_view(), tensors.x_view(), tensors.weight_view(),
                 {View(dx.data(), dtype, {cell.rows, cell.d}), View(dw.data(), cell.d)});
        // The two terms of dx may cancel each other. Those of dw add up to hundreds.
        const float tolerance = dtype == Dtype::f32   ? 1e-6f
                                : dtype == Dtype::f16 ? 0x1p-10f
                                                      : 0x1p-7f;
        for (size_t i = 0; i < cell.elements(); i += 97) {
          const float expected = ToFloat(dtype, dx.data(), i);
          EXPECT_NEAR(ToFloat(dtype, tensors.y(), i), expected,
                      tolerance * (std::fabs(expected) + 1))
              << i;
        }
        for (size_t j = 0; j < cell.d; ++j) {
          EXPECT_NEAR(job.dw()[j], dw[j], 1e-5f * std::fabs(dw[j]) + 1e-3f) << j;
        }
      }
    }
  }
}

// ------------------------------------------------------------------------------------ LayerNorm

Cell LayerNormCell(Dtype dtype, size_t rows, size_t d, int threads, const std::string& target) {
  return {"layernorm", dtype, rows, d, threads, target};
}

constexpr Dtype kLayerNormTypes[] = {Dtype::f32, Dtype::bf16};

TEST(BenchLayerNorm, IsWithinItsToleranceOnEveryTarget) {
  for (const std::string& target : SupportedTargets()) {
    for (const Dtype dtype : kLayerNormTypes) {
      for (const auto& [rows, d] :
           {std::pair<size_t, size_t>{1, 1}, {3, 5}, {601, 128}, {9, 5000}}) {
        for (const int threads : {1, 2}) {
          const Cell cell = LayerNormCell(dtype, rows, d, threads, target);
          SCOPED_TRACE(cell.name());
          EXPECT_EQ(bench::MakeJob(cell)->FindFault(), "");
        }
      }
    }
  }
}

TEST(BenchLayerNorm, FindsAWrongNumber) {
  for (const Dtype dtype : kLayerNormTypes) {
    const std::unique_ptr<Job> job = bench::MakeJob(LayerNormCell(dtype, 3, 100, 1, "reference"));
    spoil_next_layer_norm = true;
    const std::string start =
        "row 0, element " + std::string(dtype == Dtype::f32 ? "0" : "1") + " is ";
    const std::string fault = job->FindFault();
    EXPECT_EQ(fault.rfind(start, 0), 0u) << fault;
    EXPECT_FALSE(spoil_next_layer_norm);
    EXPECT_EQ(job->FindFault(), "");
  }
}

TEST(BenchLayerNorm, EachContenderComputesItsNorm) {
  for (const Dtype dtype : kLayerNormTypes) {
    for (const int threads : {1, 2}) {
      const Cell cell = LayerNormCell(dtype, 600, 128, threads, "reference");
      SCOPED_TRACE(cell.name());
      const std::unique_ptr<Job> job = bench::MakeJob(cell);
      RunContender(*job, "library");
      const std::vector<uint8_t> layer_norm = Y(*job, cell);
      RunContender(*job, "rmsnorm");
      const std::vector<uint8_t> rms_norm = Y(*job, cell);
      RunContender(*job, "plain");
      const float tolerance = dtype == Dtype::f32 ? 1e-6f : 0x1p-7f;
      for (size_t i = 0; i < cell.elements(); i += 97) {
        const float expected = ToFloat(dtype, layer_norm.data(), i);
        // n weight and the bias may cancel each other.
        EXPECT_NEAR(ToFloat(dtype, job->tensors().y(), i), expected,
                    tolerance * (std::fabs(expected) + 1))
            << i;
      }

      const Cell forward = ForwardCell(dtype, 600, 128, threads);
      const std::unique_ptr<Job> forward_job = bench::MakeJob(forward);
      RunContender(*forward_job, "library");
      EXPECT_EQ(rms_norm, Y(*forward_job, forward));
    }
  }
}

TEST(BenchLayerNorm, ARowIsOneThreads) {
  for (const size_t rows : {size_t{1}, size_t{2}}) {
    const Cell cell = LayerNormCell(Dtype::f32, rows, 1 << 20, 4, "reference");
    EXPECT_LE(bench::MakeJob(cell)->parts(), rows);
  }
}

TEST(BenchLayerNorm, RefusesF16) {
  EXPECT_THROW(bench::MakeJob(LayerNormCell(Dtype::f16, 3, 100, 1, "reference")), Error);
}

// ---------------------------------------------------------------------------------------- cold

TEST(BenchCold, CopiesExceedTheCaches) {
  for (const Dtype dtype : kTypes) {
    for (const auto& [rows, d] : {std::pair<size_t, size_t>{1, 4096}, {100, 4097}, {3000, 3000}}) {
      Cell cell = ForwardCell(dtype, rows, d, 1);
      EXPECT_EQ(bench::Tensors(cell).copies(), 1u);
      cell.cold = true;
      const bench::Tensors tensors(cell);
      const size_t bytes = 2 * tensors.copies() * cell.bytes();
      EXPECT_GT(bytes, std::min(2 * bench::LastLevelCache(), (size_t{1} << 30) - 4 * cell.bytes()));
      EXPECT_LE(bytes, std::max(size_t{1} << 30, 2 * cell.bytes()));
    }
  }
}

TEST(BenchCold, VisitsEachCopyOnceInTurn) {
  for (const size_t rows : {size_t{1}, size_t{3}, size_t{64}, size_t{1000}}) {
    Cell cell = ForwardCell(Dtype::f16, rows, 4095, 1);
    cell.cold = true;
    bench::Tensors tensors(cell, /*has_third=*/true);
    const uint8_t* const first_x = tensors.x();
    const uint8_t* const first_third = tensors.third();
    std::map<const uint8_t*, const uint8_t*> places;
    for (size_t i = 0; i < tensors.copies(); ++i) {
      EXPECT_EQ(tensors.third_view().get()->data, tensors.third());
      EXPECT_EQ(tensors.third() - first_third, tensors.x() - first_x);
      EXPECT_EQ(tensors.x_view().get()->data, tensors.x());
      EXPECT_EQ(tensors.y_view().get()->data, tensors.y());
      EXPECT_TRUE(places.emplace(tensors.x(), tensors.y()).second);
      tensors.MoveOn();
    }
    EXPECT_EQ(tensors.copy(), 0u);
    const uint8_t* end = nullptr;
    for (const auto& [x, y] : places) {
      EXPECT_GE(x, end);
      end = x + cell.bytes();
    }
  }
}

TEST(BenchCold, EachCallOfEachContenderTakesTheNextCopy) {
  for (const bench::Operation& operation : bench::Operations()) {
    const std::unique_ptr<Job> job =
        bench::MakeJob({operation.name, Dtype::f32, 16, 4096, 1, "reference", true});
    bench::Tensors twin({operation.name, Dtype::f32, 16, 4096, 1, "reference", true});
    for (const bench::Contender& contender : job->Contenders()) {
      contender.repeat(3);
      for (int i = 0; i < 3; ++i) twin.MoveOn();
      EXPECT_EQ(job->tensors().copy(), twin.copy()) << operation.name << " " << contender.name;
    }
  }
}

// So many calls of the library and of the reference pass before the one that is spoilt.
TEST(BenchCold, EachCopyIsChecked) {
  const std::unique_ptr<Job> job =
      bench::MakeJob({"forward", Dtype::f32, 64, 4096, 1, "reference", true});
  EXPECT_EQ(job->FindFault(), "");
  spoil_next_call = true;
  calls_before_spoilt = 2 * (static_cast<int>(job->tensors().copies()) - 1);
  EXPECT_EQ(job->FindFault(), "row 1, element 0 differs from the reference");
}

// ---------------------------------------------------------------------------------- the command

// Runs `rmsnorm bench` in this process.
struct InProcess {
  int status = -1;
  std::string out;
};
InProcess Bench(const std::string& arguments) {
  InProcess result;
  CLI::App app;
  tools::AddBench(app, result.status);
  testing::internal::CaptureStdout();
  app.parse("bench " + arguments);
  result.out = testing::internal::GetCapturedStdout();
  return result;
}

TEST(Bench, ACellWithAWrongBitIsNotTimed) {
  spoil_next_call = true;
  const InProcess result = Bench("--shapes 2x64,3x64 --types f32 --threads 1 --targets reference");
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.out.find("\nf32      2 x 64            1  FAILED on reference: row 1, element 0 "
                            "differs from the reference\nf32      3 x 64            1   "),
            std::string::npos)
      << result.out;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Bench, PrintsATable) {
  const Outcome outcome = RunCommand({"bench", "--shapes", "1x64,3x100", "--types", "f32,bf16",
                                      "--threads", "1", "--targets", "reference"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_EQ(lines[0].rfind(std::string("rmsnorm ") + rmsnorm_version() + " · ", 0), 0u) << lines[0];
  const std::string openmp = rmsnorm_has_openmp() != 0 ? "OpenMP" : "no OpenMP";
  const std::string end =
      " · target reference · Highway " + std::string(rmsnorm_highway_version()) + " · " + openmp;
  EXPECT_NE(lines[0].find(end), std::string::npos) << lines[0];
  EXPECT_EQ(
      lines[1],
      "type  rows x d       threads       time      GB/s   x memcpy   vs loops   vs reference");
  const char* const starts[] = {"f32      1 x 64            1 ", "bf16     1 x 64            1 ",
                                "f32      3 x 100           1 ", "bf16     3 x 100           1 "};
  // Time with a unit, GB/s, a multiple, and two ratios, each in its column.
  const std::regex numbers(" +[0-9.]+ (ns|us|ms|s) +[0-9.]+ +[0-9.]+ +[0-9.]+x +[0-9.]+x");
  for (size_t i = 0; i < 4; ++i) {
    const std::string& line = lines[i + 2];
    EXPECT_EQ(line.rfind(starts[i], 0), 0u) << line;
    EXPECT_EQ(line.size(), lines[1].size()) << line;
    EXPECT_TRUE(std::regex_match(line.substr(28), numbers)) << line;
  }
}

TEST(Bench, NamesTheTargetsWhereThereAreMore) {
  const Outcome outcome = RunCommand(
      {"bench", "--shapes", "1x64", "--types", "f16", "--threads", "1", "--targets", "all"});
  ExpectSuccess(outcome);
  const std::vector<std::string> targets = SupportedTargets();
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2 + targets.size()) << outcome.out;
  if (targets.size() == 1) return;
  for (size_t i = 0; i < targets.size(); ++i) {
    const std::string& line = lines[i + 2];
    EXPECT_EQ(line.substr(line.size() - std::min(line.size(), targets[i].size() + 1)),
              " " + targets[i]);
  }
}

TEST(Bench, TheDefaultTableHasTheCellsItShould) {
  const Outcome outcome =
      RunCommand({"bench", "--benchmark_list_tests"}, {{"RMSNORM_TARGET", "reference"}});
  ExpectSuccess(outcome);
  std::vector<std::string> expected;
  const int all = rmsnorm_max_threads();
  for (const char* shape : {"1x4096", "4096x128", "32x4096", "512x4096", "8192x4096", "64x16384",
                            "1x64", "1x1", "256x1000", "4096x63", "512x2880"}) {
    for (const char* type : {"f32", "bf16", "f16"}) {
      for (int threads = 1; threads <= all; threads += std::max(1, all - 1)) {
        expected.push_back(std::string("forward/") + type + "/" + shape + "/threads:" +
                           std::to_string(threads) + "/target:reference/iterations:1/manual_time");
      }
    }
  }
  EXPECT_EQ(Lines(outcome.out), expected);
}

TEST(Bench, WritesJson) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome = RunCommand({"bench", "--shapes", "3x64", "--types", "bf16", "--threads",
                                      "1", "--targets", "reference", "--json", file});
  ExpectSuccess(outcome);
  const json result = json::parse(ReadFile(file));
  EXPECT_EQ(result.at("context").at("rmsnorm"), rmsnorm_version());
  ASSERT_EQ(result.at("benchmarks").size(), 1u);
  const json& cell = result.at("benchmarks").at(0);
  EXPECT_EQ(cell.at("name"),
            "forward/bf16/3x64/threads:1/target:reference/iterations:1/manual_time");
  const auto number = [&cell](const std::string& name) { return cell.at(name).get<double>(); };
  for (const std::string contender : {"library", "memcpy", "plain", "reference"}) {
    EXPECT_GT(number(contender + "_lower_ns"), 0) << contender;
    EXPECT_LE(number(contender + "_lower_ns"), number(contender + "_ns")) << contender;
    EXPECT_LE(number(contender + "_ns"), number(contender + "_upper_ns")) << contender;
  }
  const double time = number("library_ns");
  EXPECT_NEAR(number("real_time") / time, 1, 1e-6);
  EXPECT_NEAR(number("bytes_per_second") * time * 1e-9 / (2 * 3 * 64 * 2), 1, 1e-6);
  EXPECT_NEAR(number("x_memcpy") * number("memcpy_ns") / time, 1, 1e-6);
  EXPECT_NEAR(number("vs_plain") * time / number("plain_ns"), 1, 1e-6);
  EXPECT_NEAR(number("vs_reference") * time / number("reference_ns"), 1, 1e-6);
  EXPECT_GE(number("rounds"), 9);
  EXPECT_EQ(number("threads_used"), 1);
}

TEST(Bench, ColdCellsAreNamedSo) {
  const Outcome outcome = RunCommand({"bench", "--cold", "--shapes", "64x4096", "--types", "f32",
                                      "--threads", "1", "--targets", "reference"});
  ExpectSuccess(outcome);
  EXPECT_NE(Lines(outcome.out).at(0).find(" · cold caches"), std::string::npos) << outcome.out;
  const Outcome list =
      RunCommand({"bench", "--cold", "--shapes", "1x64", "--types", "f32", "--threads", "1",
                  "--targets", "reference", "--benchmark_list_tests"});
  EXPECT_EQ(list.out,
            "forward/f32/1x64/threads:1/target:reference/cold/iterations:1/manual_time\n");
}

TEST(Bench, NamesTheOperationsWhereThereAreOthersThanForward) {
  const Outcome outcome =
      RunCommand({"bench", "--operations", "forward,sum_squares,forward_call,scale", "--shapes",
                  "2x64", "--types", "f32", "--threads", "1", "--targets", "reference"});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 6u) << outcome.out;
  EXPECT_EQ(lines[1].rfind("operation     type  rows x d ", 0), 0u) << lines[1];
  EXPECT_EQ(lines[2].rfind("forward       f32      2 x 64 ", 0), 0u) << lines[2];
  EXPECT_EQ(lines[3].rfind("sum_squares   f32      2 x 64 ", 0), 0u) << lines[3];
  EXPECT_EQ(lines[4].rfind("forward_call  f32      2 x 64 ", 0), 0u) << lines[4];
  EXPECT_EQ(lines[5].rfind("scale         f32      2 x 64 ", 0), 0u) << lines[5];
  // The phases have no plain loops beside them.
  EXPECT_TRUE(std::regex_search(lines[3], std::regex(" -  +[0-9.]+x$"))) << lines[3];
  EXPECT_TRUE(std::regex_search(lines[4], std::regex(" [0-9.]+x +[0-9.]+x$"))) << lines[4];
}

// Each reads and writes as many bytes as it says.
TEST(Bench, BytesAreThoseOfTheOperation) {
  for (const auto& [operation, passes] : {std::pair<const char*, int>{"sum_squares", 1},
                                          {"scale", 2},
                                          {"forward_call", 2},
                                          {"add_forward", 4},
                                          {"backward", 3},
                                          {"layernorm", 2}}) {
    const Outcome outcome =
        RunCommand({"bench", "--operations", operation, "--shapes", "3x64", "--types", "f32",
                    "--threads", "1", "--targets", "reference", "--benchmark_format=json"});
    const json cell = json::parse(outcome.out).at("benchmarks").at(0);
    EXPECT_EQ(cell.at("name").get<std::string>().rfind(std::string(operation) + "/f32/3x64/", 0),
              0u);
    const double bytes =
        cell.at("bytes_per_second").get<double>() * cell.at("library_ns").get<double>() * 1e-9;
    EXPECT_NEAR(bytes / (passes * 3 * 64 * 4), 1, 1e-6) << operation;
  }
}

TEST(Bench, LayerNormHasRmsNormBesideIt) {
  const TemporaryDirectory directory;
  const std::string file = directory.File("bench.json");
  const Outcome outcome =
      RunCommand({"bench", "--operations", "layernorm,forward", "--shapes", "2x64", "--threads",
                  "1", "--targets", "reference", "--json", file});
  ExpectSuccess(outcome);
  const std::vector<std::string> lines = Lines(outcome.out);
  ASSERT_EQ(lines.size(), 2 + 2 + 3 + 1u) << outcome.out;
  EXPECT_EQ(lines[1],
            "operation  type  rows x d       threads       time      GB/s   x memcpy   x rmsnorm   "
            "vs loops   vs reference");
  const std::regex layer_norm("layernorm  (f32|bf16) .* [0-9.]+ +[0-9.]+ +[0-9.]+x +-");
  const std::regex forward("forward    (f32|bf16|f16) .* [0-9.]+ +- +[0-9.]+x +[0-9.]+x");
  for (size_t i = 2; i < 7; ++i) {
    EXPECT_TRUE(std::regex_match(lines[i], i < 4 ? layer_norm : forward)) << lines[i];
    EXPECT_EQ(lines[i].size(), lines[1].size()) << lines[i];
  }
  EXPECT_EQ(lines[7], "layernorm is timed in f32 and bf16 only");

  const json results = json::parse(ReadFile(file));
  for (const json& cell : results.at("benchmarks")) {
    const bool is_layer_norm = cell.at("name").get<std::string>().rfind("layernorm/", 0) == 0;
    EXPECT_EQ(cell.contains("rmsnorm_ns"), is_layer_norm);
    EXPECT_EQ(cell.contains("x_rmsnorm"), is_layer_norm);
    if (!is_layer_norm) continue;
    const auto number = [&cell](const std::string& name) { return cell.at(name).get<double>(); };
    EXPECT_LE(number("rmsnorm_lower_ns"), number("rmsnorm_ns"));
    EXPECT_LE(number("rmsnorm_ns"), number("rmsnorm_upper_ns"));
    EXPECT_NEAR(number("x_rmsnorm") * number("rmsnorm_ns") / number("library_ns"), 1, 1e-6);
  }
}

std::vector<std::string> SmallBench(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"bench",     "--shapes", "1x64,2x64", "--types",  "f32",
                                        "--threads", "1",        "--targets", "reference"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(Bench, TakesGoogleBenchmarksFlags) {
  const Outcome filtered = RunCommand(SmallBench({"--benchmark_filter=2x64"}));
  ExpectSuccess(filtered);
  EXPECT_EQ(Lines(filtered.out).size(), 3u) << filtered.out;

  const Outcome as_json = RunCommand(SmallBench({"--benchmark_format=json"}));
  EXPECT_EQ(as_json.status, 0);
  EXPECT_EQ(json::parse(as_json.out).at("benchmarks").size(), 2u);

  const Outcome repeated = RunCommand(
      SmallBench({"--benchmark_repetitions=3", "--benchmark_report_aggregates_only=true"}));
  ExpectSuccess(repeated);
  EXPECT_EQ(Lines(repeated.out).size(), 4u) << repeated.out;

  const TemporaryDirectory directory;
  const std::string file = directory.File("out.csv");
  ExpectSuccess(RunCommand(SmallBench({"--benchmark_out=" + file, "--benchmark_out_format=csv"})));
  EXPECT_NE(ReadFile(file).find("\"forward/f32/2x64/threads:1"), std::string::npos);
}

TEST(Bench, TimesHaveThreeDigits) {
  EXPECT_EQ(tools::TimeText(1.234e-9), "1.23 ns");
  EXPECT_EQ(tools::TimeText(9.9949e-9), "9.99 ns");
  EXPECT_EQ(tools::TimeText(9.996e-9), "10.0 ns");
  EXPECT_EQ(tools::TimeText(99.94e-9), "99.9 ns");
  EXPECT_EQ(tools::TimeText(99.96e-9), "100 ns");
  EXPECT_EQ(tools::TimeText(142e-9), "142 ns");
  EXPECT_EQ(tools::TimeText(999.4e-9), "999 ns");
  EXPECT_EQ(tools::TimeText(999.6e-9), "1.00 us");
  EXPECT_EQ(tools::TimeText(5.3e-6), "5.30 us");
  EXPECT_EQ(tools::TimeText(7.3e-3), "7.30 ms");
  EXPECT_EQ(tools::TimeText(2.0), "2.00 s");
  EXPECT_EQ(tools::TimeText(1234.0), "1234 s");
}

TEST(Bench, RefusesWrongUseInOneLine) {
  const TemporaryDirectory directory;
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--frobnicate"}, "'--frobnicate'"},
      {{"frobnicate"}, "'frobnicate'"},
      {{"--benchmark_frobnicate=1"}, "'--benchmark_frobnicate=1'"},
      {{"--benchmark_repetitions=many"}, "'--benchmark_repetitions=many'"},
      {{"--benchmark_format=xml"}, "--benchmark_format"},
      {{"--benchmark_filter=no such cell"}, "no such cell"},
      {{"--benchmark_filter=("}, "regular expression"},
      {{"--benchmark_out=" + directory.File("no/file")}, "--benchmark_out"},
      {{"--json", directory.File("no/file")}, "no/file"},
      {{"--json"}, "--json"},
      {{"--operations", "frobnicate"}, "'frobnicate'"},
      {{"--shapes", "1"}, "'1'"},
      {{"--shapes", "1x"}, "'1x'"},
      {{"--shapes", "x64"}, "'x64'"},
      {{"--shapes", "0x64"}, "'0x64'"},
      {{"--shapes", "1x64x2"}, "'1x64x2'"},
      {{"--shapes", "-1x64"}, "'-1x64'"},
      {{"--shapes", "1x64,2*64"}, "'2*64'"},
      {{"--shapes", "65536x65537"}, "2^32"},
      {{"--shapes", "99999999999999999999x1"}, "--shapes"},
      {{"--types", "f64"}, "'f64'"},
      {{"--operations", "layernorm", "--types", "f16"}, "f32 and bf16 only"},
      {{"--threads", "0"}, "'0'"},
      {{"--threads", "two"}, "'two'"},
      {{"--targets", "frobnicate"}, "'frobnicate'"},
  };
  for (const auto& [arguments, problem] : wrong) {
    std::vector<std::string> all = {"bench"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    SCOPED_TRACE(all.back());
    ExpectUserError(RunCommand(all), problem);
  }
  EXPECT_EQ(directory.Names(), std::vector<std::string>());
}

TEST(Bench, WithoutOpenMpThereIsOneThread) {
  const Outcome outcome = RunCommand({"bench", "--threads", "2", "--benchmark_list_tests"});
  if (rmsnorm_has_openmp() != 0) {
    ExpectSuccess(outcome);
  } else {
    ExpectUserError(outcome, "OpenMP");
  }
}

}  // namespace
}  // namespace rmsnorm::test

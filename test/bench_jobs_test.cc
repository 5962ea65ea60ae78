// SPDX-License-Identifier: Apache-2.0
// What `rmsnorm bench` runs: that every contender computes what it should, and that nothing wrong
// is timed. The linker puts a function below in place of the library's (--wrap), so that a test can
// spoil what it computed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../lib/cache.h"
#include "backward_job.h"
#include "command.h"
#include "layer_norm.h"
#include "operations.h"
#include "parallel.h"
#include "targets.h"

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

void SpoilY(const rmsnorm_view& y) { Spoil(y.data, y.shape[1] * rmsnorm_dtype_size(y.dtype)); }

void SpoilRows(const rmsnorm_module* module, rmsnorm_dtype dtype, void* y) {
  Spoil(y, rmsnorm_module_d(module) * rmsnorm_dtype_size(dtype));
}

}  // namespace
}  // namespace rmsnorm::test

extern "C" {
decltype(rmsnorm_module_forward_rows) __real_rmsnorm_module_forward_rows;
rmsnorm_status __wrap_rmsnorm_module_forward_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                                  size_t rows, const void* x, void* y) noexcept {
  const rmsnorm_status status = __real_rmsnorm_module_forward_rows(module, dtype, rows, x, y);
  rmsnorm::test::SpoilRows(module, dtype, y);
  return status;
}

decltype(rmsnorm_module_add_forward_rows) __real_rmsnorm_module_add_forward_rows;
rmsnorm_status __wrap_rmsnorm_module_add_forward_rows(const rmsnorm_module* module,
                                                      rmsnorm_dtype dtype, size_t rows,
                                                      const void* x, const void* residual,
                                                      void* residual_out, void* y) noexcept {
  const rmsnorm_status status =
      __real_rmsnorm_module_add_forward_rows(module, dtype, rows, x, residual, residual_out, y);
  rmsnorm::test::SpoilRows(module, dtype, rmsnorm::test::spoil_second_result ? residual_out : y);
  return status;
}

decltype(rmsnorm_module_backward_rows) __real_rmsnorm_module_backward_rows;
rmsnorm_status __wrap_rmsnorm_module_backward_rows(const rmsnorm_module* module,
                                                   rmsnorm_dtype dtype, size_t rows, const void* dy,
                                                   const void* x, const float* rstd, void* dx,
                                                   void* dw) noexcept {
  const rmsnorm_status status =
      __real_rmsnorm_module_backward_rows(module, dtype, rows, dy, x, rstd, dx, dw);
  if (!rmsnorm::test::spoil_second_result && dx != nullptr) {
    rmsnorm::test::SpoilRows(module, dtype, dx);
  }
  if (rmsnorm::test::spoil_second_result && dw != nullptr) rmsnorm::test::Spoil(dw, sizeof(float));
  return status;
}

decltype(rmsnorm_module_backward) __real_rmsnorm_module_backward;
rmsnorm_status __wrap_rmsnorm_module_backward(const rmsnorm_module* module,
                                              const rmsnorm_operands* operands,
                                              const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = __real_rmsnorm_module_backward(module, operands, context);
  if (operands->dx != nullptr) rmsnorm::test::SpoilY(*operands->dx);
  return status;
}

decltype(rmsnorm_forward) __real_rmsnorm_forward;
rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_operands* operands,
                                      const rmsnorm_options* options,
                                      const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = __real_rmsnorm_forward(operands, options, context);
  if (operands->y != nullptr) {
    rmsnorm::test::SpoilY(*operands->y);
  } else {
    rmsnorm::test::Spoil(operands->sums_out->data, sizeof(double));
  }
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
  RmsNorm module(1, Options(), dtype);
  const size_t size = rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  module.set_weight({data + index * size, dtype, {1}});
  module.get_weight({&value, 1});
  return value;
}

// Contenders may round in their own order: the last bit may differ, the number may not.
float ToleranceOf(Dtype dtype) {
  if (dtype == Dtype::f32) return 1e-6f;
  return dtype == Dtype::f16 ? 0x1p-10f : 0x1p-7f;
}

// Compares some of the elements.
void ExpectClose(Dtype dtype, const std::vector<uint8_t>& expected, const uint8_t* actual) {
  const size_t size = rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  for (size_t i = 0; i < expected.size() / size; i += 97) {
    const float value = ToFloat(dtype, expected.data(), i);
    EXPECT_NEAR(ToFloat(dtype, actual, i), value, ToleranceOf(dtype) * std::fabs(value) + 1e-7f)
        << i;
  }
}

TEST(BenchJob, PlainLoopsComputeTheSame) {
  for (const Dtype dtype : kTypes) {
    for (const int threads : {1, 2}) {
      const Cell cell = ForwardCell(dtype, 600, 128, threads);
      SCOPED_TRACE(cell.name());
      const std::unique_ptr<Job> job = bench::MakeJob(cell);
      RunContender(*job, "reference");
      const std::vector<uint8_t> reference = Y(*job, cell);
      const std::unique_ptr<Job> plain_job = bench::MakeJob(cell);
      RunContender(*plain_job, "plain");
      ExpectClose(dtype, reference, plain_job->tensors().y());
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
        const uint8_t* const residual = std::as_const(*job).tensors().third();
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

        std::vector<uint8_t> expected(cell.bytes());
        norm({residual, dtype, {cell.rows, cell.d}}, job->tensors().weight_view(),
             {expected.data(), dtype, {cell.rows, cell.d}});
        ExpectClose(dtype, expected, job->tensors().y());
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
        BackwardOperands operands;
        operands.dy = {tensors.third(), dtype, {cell.rows, cell.d}};
        operands.x = {tensors.x(), dtype, {cell.rows, cell.d}};
        operands.weight = tensors.weight_view();
        operands.dx = {dx.data(), dtype, {cell.rows, cell.d}};
        operands.dw = {dw.data(), cell.d};
        backward(operands);
        // The two terms of dx may cancel each other. Those of dw add up to hundreds.
        const float tolerance = ToleranceOf(dtype);
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
      const float tolerance = ToleranceOf(dtype);
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
      EXPECT_GT(bytes,
                std::min(2 * internal::LastLevelCache(), (size_t{1} << 30) - 4 * cell.bytes()));
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
      EXPECT_EQ(tensors.third() - first_third, tensors.x() - first_x);
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

// ---------------------------------------------------------------------------------- the table

TEST(BenchTable, ACellWithAWrongBitIsNotTimed) {
  int status = -1;
  CLI::App app;
  tools::AddBench(app, status);
  spoil_next_call = true;
  calls_before_spoilt = 1;  // that which counts the parts
  testing::internal::CaptureStdout();
  app.parse("bench --shapes 2x64,3x64 --types f32 --threads 1 --targets reference");
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(status, 1);
  EXPECT_NE(out.find("\nf32      2 x 64            1  FAILED on reference: row 1, element 0 "
                     "differs from the reference\nf32      3 x 64            1   "),
            std::string::npos)
      << out;
}

}  // namespace
}  // namespace rmsnorm::test

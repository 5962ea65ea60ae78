// SPDX-License-Identifier: Apache-2.0
// The cases of `rmsnorm bench`: no wrong result is timed, and the tolerance for other libraries.
// The linker puts a function below in place of the library's (--wrap), so a test can spoil its
// results.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "case.h"
#include "command.h"
#include "compare.h"

namespace rmsnorm::test {
namespace {

// The number of result-writing calls before the spoilt one; negative for none. Each case calls the
// reference first, then the library.
int calls_before_spoilt = -1;
// Spoils the second of two results: the residual, dw, or the scale.
bool spoils_second_result = false;

// A call by pointers may go by views. In a static library that is a call of a function below, too,
// which does not count.
bool is_by_pointers = false;
template <class F>
rmsnorm_status CallByPointers(const F& call) {
  is_by_pointers = true;
  const rmsnorm_status status = call();
  is_by_pointers = false;
  return status;
}

// Flips a bit in the second row.
void Spoil(void* data, size_t row_bytes) {
  if (!is_by_pointers && calls_before_spoilt >= 0 && calls_before_spoilt-- == 0) {
    static_cast<uint8_t*>(data)[row_bytes + 2] ^= 1;
  }
}

void SpoilView(const rmsnorm_view& view) {
  Spoil(const_cast<void*>(view.data),
        static_cast<size_t>(view.stride[0]) * rmsnorm_dtype_size(view.dtype));
}

// Spoils the first of the results that are given, or the second.
void SpoilResult(const rmsnorm_operands& operands) {
  const rmsnorm_view* const results[] = {operands.y, operands.residual_out, operands.q,
                                         operands.scale, operands.sums_out};
  bool second = spoils_second_result;
  for (const rmsnorm_view* const result : results) {
    if (result == nullptr || std::exchange(second, false)) continue;
    SpoilView(*result);
    break;
  }
}

void SpoilRows(const rmsnorm_module* module, rmsnorm_dtype dtype, void* y) {
  Spoil(y, rmsnorm_module_d(module) * rmsnorm_dtype_size(dtype));
}

}  // namespace
}  // namespace rmsnorm::test

extern "C" {
decltype(rmsnorm_module_norm_rows) __real_rmsnorm_module_norm_rows;
rmsnorm_status __wrap_rmsnorm_module_norm_rows(const rmsnorm_module* module, rmsnorm_dtype dtype,
                                               size_t rows, const void* x, void* y, float* rstd,
                                               const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = rmsnorm::test::CallByPointers(
      [&] { return __real_rmsnorm_module_norm_rows(module, dtype, rows, x, y, rstd, context); });
  rmsnorm::test::SpoilRows(module, dtype, y);
  return status;
}

decltype(rmsnorm_module_add_norm_rows) __real_rmsnorm_module_add_norm_rows;
rmsnorm_status __wrap_rmsnorm_module_add_norm_rows(const rmsnorm_module* module,
                                                   rmsnorm_dtype dtype,
                                                   rmsnorm_dtype residual_dtype, size_t rows,
                                                   const void* x, const void* residual,
                                                   void* residual_out, void* y, float* rstd,
                                                   const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = rmsnorm::test::CallByPointers([&] {
    return __real_rmsnorm_module_add_norm_rows(module, dtype, residual_dtype, rows, x, residual,
                                               residual_out, y, rstd, context);
  });
  rmsnorm::test::SpoilRows(module, dtype, rmsnorm::test::spoils_second_result ? residual_out : y);
  return status;
}

decltype(rmsnorm_module_forward) __real_rmsnorm_module_forward;
rmsnorm_status __wrap_rmsnorm_module_forward(const rmsnorm_module* module,
                                             const rmsnorm_operands* operands,
                                             const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = __real_rmsnorm_module_forward(module, operands, context);
  rmsnorm::test::SpoilResult(*operands);
  return status;
}

decltype(rmsnorm_module_backward_rows) __real_rmsnorm_module_backward_rows;
rmsnorm_status __wrap_rmsnorm_module_backward_rows(const rmsnorm_module* module,
                                                   rmsnorm_dtype dtype, size_t rows, const void* dy,
                                                   const void* x, const float* rstd, void* dx,
                                                   float* dw,
                                                   const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = rmsnorm::test::CallByPointers([&] {
    return __real_rmsnorm_module_backward_rows(module, dtype, rows, dy, x, rstd, dx, dw, context);
  });
  if (rmsnorm::test::spoils_second_result) {
    rmsnorm::test::Spoil(dw, sizeof(float));
  } else {
    rmsnorm::test::SpoilRows(module, dtype, dx);
  }
  return status;
}

decltype(rmsnorm_forward) __real_rmsnorm_forward;
rmsnorm_status __wrap_rmsnorm_forward(const rmsnorm_operands* operands,
                                      const rmsnorm_options* options,
                                      const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = __real_rmsnorm_forward(operands, options, context);
  // Sums alone are the inputs of `scale`.
  if (operands->sums_out == nullptr) rmsnorm::test::SpoilResult(*operands);
  return status;
}

decltype(rmsnorm_forward_all) __real_rmsnorm_forward_all;
rmsnorm_status __wrap_rmsnorm_forward_all(const rmsnorm_call* calls, size_t count,
                                          const rmsnorm_context* context) noexcept {
  const rmsnorm_status status = __real_rmsnorm_forward_all(calls, count, context);
  rmsnorm::test::SpoilView(*calls[count - 1].operands->y);
  return status;
}
}  // extern "C"

namespace rmsnorm::test {
namespace {

using bench::Cell;
using bench::Operation;

const Dtype kTypes[] = {Dtype::f32, Dtype::bf16, Dtype::f16};

const Operation& FindOperation(const std::string& name) {
  for (const Operation& operation : bench::kOperations) {
    if (name == operation.name) return operation;
  }
  throw std::logic_error(name);
}

Cell MakeCell(const Operation& operation, Dtype dtype, size_t rows, size_t d, int threads = 1) {
  if (operation.row > 1) d = operation.row;
  return {&operation, dtype, rows, d, threads, "reference"};
}

bench::Contenders TheLibrary() {
  bench::Contenders contenders;
  contenders.push_back(bench::Library());
  return contenders;
}

// Remembers its cases and the last one that ran; the library computes the results.
class Spy final : public bench::Contender {
 public:
  explicit Spy(bool starts_thread = false)
      : Contender("spy", false), starts_thread_(starts_thread) {}

  bench::Prepared Prepare(const rmsnorm_peer_case& what, const char* /*target*/) const override {
    if (starts_thread_) std::thread(pause).detach();
    struct State {
      const Spy* spy;
      rmsnorm_peer_case what;
      bench::Prepared library;
    };
    const auto run = [](void* state) {
      const State& self = *static_cast<State*>(state);
      self.library.Run();
      self.spy->last = self.what;
    };
    return {run, new State{this, what, bench::Library()->Prepare(what, "reference")},
            [](void* state) { delete static_cast<State*>(state); }};
  }

  mutable rmsnorm_peer_case last;

 private:
  const bool starts_thread_;
};

TEST(BenchCase, EachOperationIsRight) {
  for (const Operation& operation : bench::kOperations) {
    for (const Dtype dtype : kTypes) {
      const Cell cell = MakeCell(operation, dtype, 3, 100);
      const bench::Contenders contenders = TheLibrary();
      bench::Case one(cell, contenders);
      EXPECT_TRUE(one.problems().empty()) << cell.name();
      const std::vector<bench::Turn> turns = one.Turns();
      ASSERT_EQ(turns.size(), 2u);
      EXPECT_EQ(turns[0].name, "library");
      EXPECT_EQ(turns[1].name, "memcpy");
    }
  }
}

TEST(BenchCase, FindsOneWrongBit) {
  for (const Operation& operation : bench::kOperations) {
    for (const Dtype dtype : kTypes) {
      const Cell cell = MakeCell(operation, dtype, 3, 100);
      SCOPED_TRACE(cell.name());
      calls_before_spoilt = 1;
      const bench::Contenders contenders = TheLibrary();
      const bench::Case one(cell, contenders);
      ASSERT_EQ(one.problems().size(), 1u);
      EXPECT_EQ(one.problems()[0].name, "library");
      EXPECT_TRUE(one.problems()[0].wrong);
      size_t element = dtype == Dtype::f32 ? 0 : 1;
      if (operation.code == RMSNORM_PEER_LATENT) element += RMSNORM_PEER_LATENT_Q;
      if (operation.code == RMSNORM_PEER_Q_AND_K) element += RMSNORM_PEER_HEADS_OF_Q * 64;
      std::string name = "y";
      if (operation.Has(bench::kGradients)) name = "dx";
      if (operation.code == RMSNORM_PEER_POST_ADD) name = "residual";
      if (operation.code == RMSNORM_PEER_SUM_SQUARES) {
        name = "sums";
        element = 0;
      }
      if (operation.code == RMSNORM_PEER_INT8_ALONE) {
        name = "q";
        element = 2;
      }
      EXPECT_EQ(one.problems()[0].text, name + ": row 1, element " + std::to_string(element) +
                                            " differs from the reference");
      EXPECT_LT(calls_before_spoilt, 0);
    }
  }
}

TEST(BenchCase, FindsOneWrongBitOfTheSecondResult) {
  spoils_second_result = true;
  for (const auto& [operation, fault] :
       {std::pair<const char*, const char*>{"add_norm", "residual: row 1, element 0 differs "},
        {"post_norm", "residual: row 1, element 0 differs "},
        {"int8_alone", "scale: row 1, element 0 differs "},
        {"backward", "dw: row 0, element 1 differs "}}) {
    calls_before_spoilt = 1;
    const bench::Contenders contenders = TheLibrary();
    const bench::Case one(MakeCell(FindOperation(operation), Dtype::f32, 3, 100), contenders);
    ASSERT_EQ(one.problems().size(), 1u);
    EXPECT_EQ(one.problems()[0].text, fault + std::string("from the reference"));
  }
  spoils_second_result = false;
}

// Each step of the operations that have several, with the bits of the one call.
TEST(BenchCase, TheStepsApartAreRight) {
  size_t with_steps = 0;
  for (const Operation& operation : bench::kOperations) {
    const char* const why_not = bench::WhyNotApart(operation.code);
    for (const Dtype dtype : kTypes) {
      for (const size_t rows : {size_t{1}, size_t{3}}) {
        const Cell cell = MakeCell(operation, dtype, rows, 100);
        bench::Contenders contenders = TheLibrary();
        contenders.push_back(bench::Apart());
        bench::Case one(cell, contenders);
        if (why_not != nullptr) {
          ASSERT_EQ(one.problems().size(), 1u) << cell.name();
          EXPECT_FALSE(one.problems()[0].wrong);
          EXPECT_EQ(one.problems()[0].text, why_not);
          continue;
        }
        for (const bench::Problem& problem : one.problems()) {
          ADD_FAILURE() << cell.name() << ": " << problem.text;
        }
        EXPECT_EQ(one.Turns().back().name, "apart");
      }
    }
    if (why_not == nullptr) ++with_steps;
  }
  EXPECT_EQ(with_steps, 7u);
}

TEST(BenchCase, FindsOneWrongBitOfTheLastStepApart) {
  const struct {
    const char* operation;
    size_t rows;
    const char* fault;
  } faults[] = {{"latent", 3, "y: row 1, element 1536"},
                {"q_and_k", 3, "y: row 1, element 2048"},
                {"q_and_k", 1, "y: row 0, element 2112"},
                {"post_norm", 3, "y: row 1, element 0"},
                {"post_add", 3, "residual: row 1, element 0"},
                {"gate_before", 3, "y: row 1, element 0"},
                {"int8", 3, "q: row 1, element 2"},
                {"int8_alone", 3, "q: row 1, element 2"}};
  for (const auto& [operation, rows, fault] : faults) {
    SCOPED_TRACE(operation);
    calls_before_spoilt = 3;  // the reference's, the library's and the first step
    bench::Contenders contenders = TheLibrary();
    contenders.push_back(bench::Apart());
    const bench::Case one(MakeCell(FindOperation(operation), Dtype::f32, rows, 100), contenders);
    ASSERT_EQ(one.problems().size(), 1u);
    EXPECT_EQ(one.problems()[0].name, "apart");
    EXPECT_TRUE(one.problems()[0].wrong);
    EXPECT_EQ(one.problems()[0].text, fault + std::string(" differs from the reference"));
    EXPECT_LT(calls_before_spoilt, 0);
  }
}

// It takes turns where the others use several threads, and is not mentioned elsewhere.
TEST(BenchCase, OneThreadIsTimedBesideSeveral) {
  bench::Contenders contenders = TheLibrary();
  contenders.push_back(bench::OneThread());
  for (const int threads : {1, 2}) {
    bench::Case one(MakeCell(FindOperation("norm"), Dtype::f32, 3, 64, threads), contenders);
    EXPECT_TRUE(one.problems().empty());
    const std::vector<bench::Turn> turns = one.Turns();
    ASSERT_EQ(turns.size(), threads == 1 ? 2u : 3u);
    if (threads == 1) continue;
    EXPECT_EQ(turns[2].name, "one_thread");
    EXPECT_EQ(turns[2].pool, "one_thread");  // the others sleep
  }
}

// Checks places that differ from the first as well.
TEST(BenchCase, ChecksEachPlace) {
  calls_before_spoilt = 2 * 31 + 1;
  const bench::Contenders contenders = TheLibrary();
  const bench::Case one(MakeCell(FindOperation("norm"), Dtype::f32, 3, 64), contenders);
  EXPECT_EQ(one.problems().size(), 1u);
  EXPECT_LT(calls_before_spoilt, 0);
}

TEST(BenchCase, MemcpyCopiesAllOfXInEachPlace) {
  for (const size_t rows : {size_t{3}, size_t{1001}}) {
    for (const int threads : {1, 2}) {
      const Cell cell = MakeCell(FindOperation("norm"), Dtype::bf16, rows, 512, threads);
      bench::Contenders contenders = TheLibrary();
      contenders.push_back(std::make_unique<Spy>());
      const rmsnorm_peer_case& last = static_cast<const Spy&>(*contenders[1]).last;
      bench::Case one(cell, contenders);
      const std::vector<bench::Turn> turns = one.Turns();
      ASSERT_EQ(turns.size(), 3u);
      std::set<const void*> places;
      for (int i = 0; i < 64; ++i) {
        one.MoveOn();
        turns[2].repeat(1);
        EXPECT_NE(std::memcmp(last.x, last.y, cell.bytes()), 0);
        turns[1].repeat(2);
        EXPECT_EQ(std::memcmp(last.x, last.y, cell.bytes()), 0);
        places.insert(last.x);
      }
      EXPECT_EQ(places.size(), rows == 3 ? 32u : 1u);
    }
  }
}

TEST(BenchCase, RowsDiffer) {
  const Cell cell = MakeCell(FindOperation("norm"), Dtype::f32, 1024, 128);
  const bench::Inputs inputs(cell);
  const size_t row_bytes = cell.bytes() / cell.rows;
  for (size_t row = 1; row < cell.rows; ++row) {
    const uint8_t* const x = inputs.x.data() + row * row_bytes;
    EXPECT_NE(std::memcmp(x, x - row_bytes, row_bytes), 0) << row;
  }
}

TEST(BenchCase, SmallWorkIsOneThreads) {
  const bench::Contenders contenders = TheLibrary();
  for (const Operation& operation : bench::kOperations) {
    const auto parts = [&](size_t rows, size_t d, int threads) {
      return bench::Case(MakeCell(operation, Dtype::f32, rows, d, threads), contenders).parts();
    };
    if (operation.row == 1) {
      EXPECT_EQ(parts(1, 64, 2), 1u);
    }
    EXPECT_EQ(parts(2048, 512, 1), 1u);
    if (rmsnorm_has_openmp() != 0) {
      EXPECT_EQ(parts(2048, 512, 2), 2u);
    }
  }
}

// Its threads and the other threads do not wait for work at the same time.
TEST(BenchCase, OneThatStartsThreadsHasAPoolOfItsOwn) {
  for (const bool starts_thread : {false, true}) {
    bench::Contenders contenders = TheLibrary();
    contenders.push_back(std::make_unique<Spy>(starts_thread));
    bench::Case one(MakeCell(FindOperation("norm"), Dtype::f32, 3, 64), contenders);
    EXPECT_EQ(one.Turns().back().pool, starts_thread ? "spy" : "");
  }
}

TEST(BenchTable, ACellWithAWrongBitIsNotTimed) {
  int status = -1;
  CLI::App app;
  tools::AddBench(app, status);
  calls_before_spoilt = 1;
  testing::internal::CaptureStdout();
  app.parse("bench --shapes 2x64,3x64 --types f32 --threads 1 --targets reference");
  const std::string out = testing::internal::GetCapturedStdout();
  EXPECT_EQ(status, 1);
  EXPECT_TRUE(std::regex_search(
      out, std::regex(" 2 x 64 +1  FAILED on reference: y: row 1, element 0 differs from the "
                      "reference\n.* 3 x 64 +1 +[0-9.]+ [nu]s ")))
      << out;
}

// ------------------------------------------------------------------------------------- tolerance

// A case with the reference's results, and a copy of them for changes.
class Tolerance : public testing::Test {
 protected:
  void Make(const char* operation, Dtype dtype, size_t rows, size_t d) {
    cell = {&FindOperation(operation), dtype, rows, d, 1, "reference"};
    inputs = std::make_unique<bench::Inputs>(cell);
    results[0] = std::make_unique<bench::Results>(cell);
    results[0]->Reset(*inputs);
    expected = bench::Describe(cell, *inputs, *results[0]);
    if (expected.operation == RMSNORM_PEER_LAYERNORM) {
      bench::LayerNorm(expected);
    } else {
      bench::Library()->Prepare(expected, "reference").Run();
    }
    results[1] = std::make_unique<bench::Results>(*results[0]);
    actual = bench::Describe(cell, *inputs, *results[1]);
  }
  std::string Find() const { return bench::FindBeyondTolerance(actual, expected); }
  bool IsBeyond(const char* result) const {
    return Find().rfind(std::string(result) + ": ", 0) == 0;
  }

  Cell cell;
  std::unique_ptr<bench::Inputs> inputs;
  std::unique_ptr<bench::Results> results[2];
  rmsnorm_peer_case expected;
  rmsnorm_peer_case actual;
};

TEST_F(Tolerance, GrowsWithTheSumInF32) {
  for (const size_t d : {size_t{1}, size_t{64}, size_t{4096}, size_t{16384}}) {
    Make("norm", Dtype::f32, 2, d);
    EXPECT_EQ(Find(), "");
    float& y = static_cast<float*>(actual.y)[2 * d - 1];
    const double right = double{y};
    for (const double part : {-0.95, 0.95, 1.1}) {
      const double counted = (0.51 * static_cast<double>(d) + 18) * 0x1p-24;
      y = static_cast<float>(right * (1 + part * counted));
      EXPECT_EQ(Find().rfind("y: row 1, element " + std::to_string(d - 1) + " is ", 0) == 0,
                part > 1)
          << d << Find();
    }
  }
}

TEST_F(Tolerance, NothingButNumbers) {
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, 0.0f}) {
    Make("norm", Dtype::f32, 1, 64);
    static_cast<float*>(actual.y)[5] = wrong;
    EXPECT_TRUE(IsBeyond("y")) << Find();
  }
}

// Units of a number that is a power of two, or slightly larger; roundings are half a unit.
TEST_F(Tolerance, RoundingsOfTheType) {
  for (const Dtype dtype : {Dtype::f16, Dtype::bf16}) {
    const uint16_t one = dtype == Dtype::f16 ? 0x3C00 : 0x3F80;
    for (const int off : {0, 1, 2, 3}) {
      const auto put = [&](void* to, void* of) {
        static_cast<uint16_t*>(of)[7] = one;
        static_cast<uint16_t*>(to)[7] = static_cast<uint16_t>(one + off);
      };
      Make("norm", dtype, 1, 16);
      put(actual.y, expected.y);
      EXPECT_EQ(IsBeyond("y"), off > 1) << off;
      Make("add_norm", dtype, 1, 16);
      put(actual.y, expected.y);
      EXPECT_EQ(IsBeyond("y"), off > 2) << off;
      Make("add_norm", dtype, 1, 16);
      put(actual.residual, expected.residual);
      EXPECT_EQ(IsBeyond("residual"), off > 1) << off;
    }
  }
}

TEST_F(Tolerance, OfAResidualInF32IsOneUnit) {
  for (const int off : {0, 1, 2}) {
    Make("add_norm", Dtype::f32, 1, 64);
    static_cast<float*>(expected.residual)[7] = 1;
    static_cast<float*>(actual.residual)[7] = 1 + static_cast<float>(off) * 0x1p-23f;
    EXPECT_EQ(IsBeyond("residual"), off > 1) << off;
  }
}

// The first norm may be off by its own bound where the residual cancels it; y is the norm of the
// residual that is there.
TEST_F(Tolerance, OfPostNorm) {
  for (const Dtype dtype : kTypes) {
    for (const size_t d : {size_t{16}, size_t{4096}}) {
      const auto compute = [&](bool has_norm, bool has_weight, double eps, bool of_sum) {
        Make("post_norm", dtype, 2, d);
        const bench::Results before = [&] {
          bench::Results fresh(cell);
          fresh.Reset(*inputs);
          return fresh;
        }();
        const auto wide = [&](const void* data, size_t count) {
          std::vector<float> numbers(count);
          bench::Convert(dtype, data, Dtype::f32, numbers.data(), count);
          return numbers;
        };
        const std::vector<float> weight = wide(actual.weight, d);
        const std::vector<float> post_norm_weight = wide(actual.post_norm_weight, d);
        std::vector<float> x = wide(actual.x, 2 * d);
        std::vector<float> sum = wide(before.residual.data(), 2 * d);
        const auto inverse = [&](const float* row) {
          double mean = 0;
          for (size_t j = 0; j < d; ++j) mean += double{row[j]} * double{row[j]};
          return 1 / std::sqrt(mean / static_cast<double>(d) + eps);
        };
        for (size_t row = 0; row < 2 * d; row += d) {
          const double r = has_norm ? inverse(&x[row]) : 1;
          for (size_t j = 0; j < d; ++j) {
            const double w = has_weight ? double{post_norm_weight[j]} : 1;
            sum[row + j] += static_cast<float>(double{x[row + j]} * r * w);
          }
          const double second = inverse(of_sum ? &sum[row] : &x[row]);
          for (size_t j = 0; j < d; ++j) {
            x[row + j] = static_cast<float>(double{sum[row + j]} * second * double{weight[j]});
          }
        }
        bench::Convert(Dtype::f32, sum.data(), dtype, actual.residual, 2 * d);
        bench::Convert(Dtype::f32, x.data(), dtype, actual.y, 2 * d);
        return Find().substr(0, Find().find(':'));
      };
      SCOPED_TRACE(d);
      EXPECT_EQ(compute(true, true, 1e-5, true), "") << Find();
      if (d == 16) {  // the RMS of a long row is close to 1
        EXPECT_EQ(compute(false, true, 1e-5, true), "residual");
      }
      EXPECT_EQ(compute(true, false, 1e-5, true), "residual");
      EXPECT_EQ(compute(true, true, 1e-5, false), "y");
      if (dtype == Dtype::f32 && d == 16) {
        EXPECT_EQ(compute(true, true, 0, true), "y");
      }
    }
  }
}

// An exponential off by 4 units is right; another activation is not.
TEST_F(Tolerance, OfGates) {
  for (const char* const operation : {"gate_after", "gate_before"}) {
    for (const Dtype dtype : kTypes) {
      Make(operation, dtype, 2, 1024);
      std::vector<float> y(2 * 1024);
      std::vector<float> gate(y.size());
      bench::Convert(dtype, expected.y, Dtype::f32, y.data(), y.size());
      bench::Convert(dtype, expected.gate, Dtype::f32, gate.data(), y.size());
      const auto find = [&](const auto& factor_of) {
        std::vector<float> changed(y.size());
        for (size_t j = 0; j < y.size(); ++j) changed[j] = y[j] * factor_of(gate[j]);
        bench::Convert(Dtype::f32, changed.data(), dtype, actual.y, y.size());
        return Find();
      };
      EXPECT_EQ(find([](float) { return 1 + 8 * 0x1p-24f; }), "");
      EXPECT_NE(find([](float z) { return 1 / z; }), "");  // the sigmoid
      EXPECT_NE(find([](float z) { return 1 + std::exp(-z); }), "");
    }
  }
}

// An integer may be the next one only where the quotient lies between the two.
TEST_F(Tolerance, OfInt8) {
  for (const char* const operation : {"int8", "int8_alone"}) {
    Make("norm", Dtype::f32, 1, 4096);
    const std::vector<float> norm(static_cast<float*>(expected.y),
                                  static_cast<float*>(expected.y) + 4096);
    Make(operation, Dtype::f32, 1, 4096);
    EXPECT_EQ(Find(), "");
    size_t between = 0;
    size_t near = 0;
    const auto beyond_integer = [&](size_t j) {
      const float quotient = norm[j] / expected.scale[0];
      return quotient - std::rint(quotient);
    };
    for (size_t j = 1; j < 4096; ++j) {
      if (std::fabs(beyond_integer(j)) > std::fabs(beyond_integer(between))) between = j;
      if (std::fabs(beyond_integer(j)) < std::fabs(beyond_integer(near))) near = j;
    }
    const auto find_with = [&](size_t j, int step) {
      actual.q[j] = static_cast<int8_t>(expected.q[j] + step);
      const std::string fault = Find();
      actual.q[j] = expected.q[j];
      return fault.substr(0, 3);
    };
    const int step = beyond_integer(between) > 0 ? 1 : -1;
    EXPECT_EQ(find_with(between, step), "") << beyond_integer(between);
    EXPECT_EQ(find_with(between, -step), "q: ");
    EXPECT_EQ(find_with(near, 1), "q: ");
    EXPECT_EQ(find_with(near, -1), "q: ");
    actual.scale[0] = expected.scale[0] * 1.0001f;
    EXPECT_EQ(Find(), "");
    actual.scale[0] = expected.scale[0] * 1.0002f;
    EXPECT_TRUE(IsBeyond("scale")) << Find();
  }
}

// What has no norm stays as it was.
TEST_F(Tolerance, OfPartsOfRows) {
  for (const auto& [operation, d, normed] :
       {std::tuple<const char*, size_t, size_t>{"latent", 2112, 2048}, {"q_and_k", 3072, 2560}}) {
    Make(operation, Dtype::f32, 2, d);
    EXPECT_EQ(Find(), "");
    float* const y = static_cast<float*>(actual.y);
    for (const size_t j : {normed - 1, normed}) {
      const float before = y[d + j];
      y[d + j] = 7;
      EXPECT_EQ(Find().rfind("y: row 1, element " + std::to_string(j) + " is 7", 0), 0u) << Find();
      y[d + j] = before;
    }
    y[d + normed - 1] = NAN;
    EXPECT_TRUE(IsBeyond("y")) << Find();
  }
}

// dx and dw in binary64, rounded to their types, are within the tolerance. dx without its second
// term, or with LayerNorm's, is not, and neither is a dw without its last row: in each type, for
// rows of any length.
TEST_F(Tolerance, TellsALostTermOfAGradient) {
  for (const Dtype dtype : kTypes) {
    for (const size_t d : {size_t{16}, size_t{128}, size_t{4096}, size_t{16384}}) {
      Make("backward", dtype, 3, d);
      SCOPED_TRACE(cell.name());
      std::vector<float> x(3 * d);
      std::vector<float> dy(3 * d);
      std::vector<float> weight(d);
      bench::Convert(dtype, actual.x, Dtype::f32, x.data(), x.size());
      bench::Convert(dtype, actual.dy, Dtype::f32, dy.data(), dy.size());
      bench::Convert(dtype, actual.weight, Dtype::f32, weight.data(), d);
      const auto compute = [&](double second_term, double mean_term, size_t rows_of_dw) {
        std::vector<float> dx(3 * d);
        std::vector<double> dw(d);
        const auto length = static_cast<double>(d);
        for (size_t row = 0; row < 3; ++row) {
          const double r = double{inputs->rstd[row]};
          double products = 0;
          double gradients = 0;
          for (size_t j = 0; j < d; ++j) {
            const double g = double{dy[row * d + j]} * double{weight[j]};
            products += g * double{x[row * d + j]} / length;
            gradients += g / length;
          }
          for (size_t j = 0; j < d; ++j) {
            const double wide = double{x[row * d + j]};
            const double gradient = double{dy[row * d + j]};
            dx[row * d + j] = static_cast<float>(r * (gradient * double{weight[j]} -
                                                      second_term * wide * r * r * products -
                                                      mean_term * gradients));
            if (row < rows_of_dw) dw[j] += gradient * wide * r;
          }
        }
        bench::Convert(Dtype::f32, dx.data(), dtype, actual.dx, dx.size());
        for (size_t j = 0; j < d; ++j) actual.dw[j] = static_cast<float>(dw[j]);
        return Find().substr(0, 2);
      };
      EXPECT_EQ(compute(1, 0, 3), "") << Find();
      EXPECT_EQ(compute(0, 0, 3), "dx");
      EXPECT_EQ(compute(1, 1, 3), "dx");
      EXPECT_EQ(compute(1, 0, 2), "dw");
    }
  }
}

// Detects a LayerNorm without its bias, its mean or its eps; accepts LayerNorm in f32.
TEST_F(Tolerance, OfLayerNorm) {
  for (const size_t d : {size_t{64}, size_t{4096}}) {
    Make("layernorm", Dtype::f32, 2, d);
    const auto compute = [&](float take_mean, float take_bias, float factor) {
      for (size_t row = 0; row < 2; ++row) {
        const float* const x = static_cast<const float*>(actual.x) + row * d;
        float sum = 0;
        float squares = 0;
        for (size_t j = 0; j < d; ++j) sum += x[j];
        const float mean = take_mean * sum / static_cast<float>(d);
        for (size_t j = 0; j < d; ++j) squares += (x[j] - mean) * (x[j] - mean);
        const float r = factor / std::sqrt(squares / static_cast<float>(d) + actual.eps);
        for (size_t j = 0; j < d; ++j) {
          static_cast<float*>(actual.y)[row * d + j] =
              (x[j] - mean) * r * static_cast<const float*>(actual.weight)[j] +
              take_bias * static_cast<const float*>(actual.bias)[j];
        }
      }
      return Find();
    };
    EXPECT_EQ(compute(1, 1, 1), "");
    EXPECT_NE(compute(0, 1, 1), "");
    EXPECT_NE(compute(1, 0, 1), "");
    EXPECT_NE(compute(1, 1, 1.002f), "");
  }
}

}  // namespace
}  // namespace rmsnorm::test

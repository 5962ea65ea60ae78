// SPDX-License-Identifier: Apache-2.0
// The caller's floating-point environment changes no bit, is found as it was left, and traps
// nothing: flush-to-zero, rounding modes and unmasked exceptions, in the calling thread and in an
// executor's.
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "../tools/cases/float_control.h"
#include "gradients.h"
#include "random_rows.h"
#include "targets.h"
#include "tensor.h"

namespace rmsnorm::test {
namespace {

using cases::Control, cases::SetControl;

struct Environment {
  std::string name;
  uint32_t control;  // of the register that governs vector arithmetic
};

std::ostream& operator<<(std::ostream& out, const Environment& environment) {
  return out << environment.name;
}

#if defined(__x86_64__)
const std::vector<Environment> kEnvironments = {
    {"default", 0x1F80},         {"flush_to_zero", 0x9F80}, {"denormals_are_zero", 0x1FC0},
    {"fast_math", 0x9FC0},       {"downward", 0x3F80},      {"upward", 0x5F80},
    {"toward_zero", 0x7F80},     {"unmasked", 0x0000},      {"unmasked_upward_flushing", 0xC040},
    {"invalid_unmasked", 0x1F00}};
#elif defined(__aarch64__)
const std::vector<Environment> kEnvironments = {{"default", 0},
                                                {"flush_to_zero", 1u << 24},
                                                {"default_nan", 1u << 25},
                                                {"upward", 1u << 22},
                                                {"downward", 2u << 22},
                                                {"toward_zero", 3u << 22},
                                                {"upward_flushing", 1u << 24 | 1u << 22}};
#else
const std::vector<Environment> kEnvironments = {{"default", FE_TONEAREST},
                                                {"upward", FE_UPWARD},
                                                {"downward", FE_DOWNWARD},
                                                {"toward_zero", FE_TOWARDZERO}};
#endif

// Runs in an environment, which it must leave as it was, and comes back to the default.
void RunIn(const Environment& environment, const std::function<void()>& run) {
  const uint32_t usual = Control();
  SetControl(environment.control);
  const uint32_t before = Control();
  run();
  const uint32_t after = Control();
  SetControl(usual);
  EXPECT_EQ(environment.control, before) << environment.name << " cannot be set";
  EXPECT_EQ(before, after) << environment.name << " was not put back";
}

class FloatEnvironmentTest : public testing::TestWithParam<std::tuple<std::string, Environment>> {
 protected:
  // What `run` writes to a tensor must be the same in the environment as in the default one.
  void ExpectSameBits(const Tensor& y, const std::function<void(Tensor&)>& run) const {
    Tensor expected = y;
    run(expected);
    Tensor actual = y;
    RunIn(environment_, [&] { run(actual); });
    EXPECT_TRUE(SameBits(expected, actual));
  }

  const std::string target_ = std::get<0>(GetParam());
  const Environment environment_ = std::get<1>(GetParam());
  const Context context_ = OnTarget(target_);
  Options options_;
  Random random_{61};
};

// The environment itself: an arithmetic that it governs must differ, or nothing here is tested.
TEST(Environment, GovernsArithmetic) {
  for (const Environment& environment : kEnvironments) {
    volatile float one = 1;
    volatile float three = 3;
    volatile float subnormal = 0x1p-140f;
    float up = 0;
    float down = 0;
    float kept = 0;
    const bool unmasked = environment.name.find("unmasked") != std::string::npos;
    if (unmasked) continue;  // these would trap: see TrapsWithoutTheLibrary
    RunIn(environment, [&] {
      up = one / three;
      down = -one / three;
      kept = subnormal * one;
    });
    const bool is_default = environment.name == "default" || environment.name == "default_nan";
    const bool differs = up != 1.0f / 3.0f || down != -1.0f / 3.0f || kept != 0x1p-140f;
    EXPECT_EQ(!is_default, differs) << environment.name;
  }
}

#if defined(__x86_64__)
TEST(EnvironmentDeathTest, TrapsWithoutTheLibrary) {
  EXPECT_EXIT(
      {
        volatile float one = 1;
        volatile float zero = 0;
        SetControl(0);
        one = one / zero;
      },
      testing::KilledBySignal(SIGFPE), "");
}
#endif

TEST_P(FloatEnvironmentTest, Forward) {
  for (const rmsnorm_dtype x_dtype : kDtypes) {
    for (const rmsnorm_dtype weight_dtype : kDtypes) {
      for (const rmsnorm_dtype y_dtype : kDtypes) {
        for (const size_t d : SizeList{1, 7, 100, 260}) {
          for (const bool other : {false, true}) {
            SCOPED_TRACE(testing::Message() << rmsnorm_dtype_name(x_dtype) << " to "
                                            << rmsnorm_dtype_name(y_dtype) << " d " << d);
            Tensor x(x_dtype, 2 * kRowKinds, d);
            FillMixed(random_, x);
            Tensor weight(weight_dtype, 1, d);
            FillWeight(random_, weight);
            options_.eps = other ? 0 : 1e-5f;
            options_.weight_offset = other ? 0.1f : 0;
            options_.rounding = other ? Rounding::cast_then_scale : Rounding::scale_then_cast;
            ASSERT_NO_FATAL_FAILURE(ExpectSameBits(Tensor(y_dtype, x.rows(), d), [&](Tensor& y) {
              forward(NormOperands(x, &weight, y), options_, context_);
            }));
          }
        }
      }
    }
  }
}

TEST_P(FloatEnvironmentTest, TwoPhases) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    Tensor x(dtype, 2 * kRowKinds, 300);
    FillMixed(random_, x);
    options_.eps = 1e-38f;
    const auto sums_of = [&] {
      std::vector<double> sums(x.rows());
      ForwardOperands operands;
      operands.x = ConstView(x.view());
      operands.sums_out = {sums.data(), sums.size()};
      forward(operands, options_, context_);
      return sums;
    };
    const std::vector<double> expected = sums_of();
    std::vector<double> actual;
    RunIn(environment_, [&] { actual = sums_of(); });
    EXPECT_TRUE(SameBits(expected, actual));
    ExpectSameBits(Tensor(RMSNORM_F32, x.rows(), 300), [&](Tensor& y) {
      ForwardOperands operands = NormOperands(x, nullptr, y);
      operands.sums = {expected.data(), expected.size()};
      forward(operands, options_, context_);
    });
  }
}

// Options that are subnormal, and numbers that round when they are prepared.
TEST_P(FloatEnvironmentTest, SubnormalOptions) {
  Tensor x(RMSNORM_F32, 2, 100);
  FillRow(random_, RowKind::kTiny, x, 0);
  FillRow(random_, RowKind::kNormal, x, 1);
  Tensor weight(RMSNORM_F32, 1, 100);
  for (size_t j = 0; j < 100; ++j) weight.set(0, j, random_.Normal() * 0x1p-130);
  options_.eps = 1e-40f;
  options_.weight_offset = 1e-40f;
  options_.divisor = 1e-40f;
  ExpectSameBits(Tensor(RMSNORM_F32, 2, 100),
                 [&](Tensor& y) { forward(NormOperands(x, &weight, y), options_, context_); });
  RunIn(environment_, [&] {
    const rmsnorm_options options = options_.get();
    const rmsnorm_view x_view = x.view();
    EXPECT_EQ(RMSNORM_ERROR_WEIGHT_OFFSET, rmsnorm_norm(&x_view, nullptr, &x_view, &options));
  });
}

// A d above 2^24 is rounded to be the divisor, to nearest even. That is no matter of the target.
TEST(Environment, DoesNotRoundTheDivisor) {
  struct Long {
    size_t d;
    float to_even;
    float to_other;
  };
  for (const Long& row :
       {Long{(1 << 24) + 1, 0x1p24f, 0x1p24f + 2}, Long{(1 << 24) + 3, 0x1p24f + 4, 0x1p24f + 2}}) {
    const auto inverse_rms = [](float sum, float divisor) { return 1 / std::sqrt(sum / divisor); };
    float sum = 1;
    while (inverse_rms(sum, row.to_even) == inverse_rms(sum, row.to_other)) sum += 0.01f;
    const double sums = sum;
    Tensor x(RMSNORM_BF16, 1, row.d);
    Options options;
    options.eps = 0;
    for (const Environment& environment : kEnvironments) {
      float rstd;
      ForwardOperands operands;
      operands.x = ConstView(x.view());
      operands.sums = {&sums, 1};
      operands.rstd = {&rstd, 1};
      RunIn(environment, [&] { forward(operands, options); });
      EXPECT_EQ(inverse_rms(sum, row.to_even), rstd) << environment.name;
    }
  }
}

TEST_P(FloatEnvironmentTest, Module) {
  Tensor x(RMSNORM_F32, 2 * kRowKinds, 200);
  FillMixed(random_, x);
  Tensor weight(RMSNORM_F32, 1, 200);
  FillWeight(random_, weight);
  for (const rmsnorm_dtype dtype : kDtypes) {
    options_.weight_offset = 0.1f;
    const auto make = [&] { return RmsNorm(200, options_, static_cast<Dtype>(dtype), context_); };
    const std::string expected = make().description();
    std::string actual;
    ExpectSameBits(Tensor(RMSNORM_F32, x.rows(), 200), [&](Tensor& y) {
      RmsNorm norm = make();
      norm.set_weight(ConstView(weight.vector()));
      norm.forward(NormOperands(x, nullptr, y));
      actual = norm.description();
    });
    EXPECT_EQ(expected, actual);
    ExpectSameBits(Tensor(RMSNORM_F32, x.rows(), 200), [&](Tensor& y) {
      RmsNorm norm = make();
      norm.reset_weight();
      norm.forward(NormOperands(x, nullptr, y));
    });
    for (const rmsnorm_dtype read : kDtypes) {
      RmsNorm norm(200, 0.0f, static_cast<Dtype>(dtype));
      norm.set_weight(ConstView(weight.vector()));
      ExpectSameBits(Tensor(read, 1, 200), [&](Tensor& y) { norm.get_weight(View(y.vector())); });
    }
  }
}

// A refused argument is a status in every environment.
TEST_P(FloatEnvironmentTest, RefusedOptions) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Tensor x(RMSNORM_F32, 1, 10);
  FillNormal(random_, x);
  const rmsnorm_view view = x.view();
  const rmsnorm_view weight = x.vector();
  Tensor y = x;
  const rmsnorm_view y_view = y.view();
  const auto status_of = [&](float rmsnorm_options::*field) {
    rmsnorm_options options = options_.get();
    options.*field = nan;
    return rmsnorm_norm(&view, &weight, &y_view, &options);
  };
  RunIn(environment_, [&] {
    EXPECT_EQ(RMSNORM_ERROR_EPS, status_of(&rmsnorm_options::eps));
    EXPECT_EQ(RMSNORM_ERROR_DIVISOR, status_of(&rmsnorm_options::divisor));
    EXPECT_EQ(RMSNORM_ERROR_WEIGHT_OFFSET, status_of(&rmsnorm_options::weight_offset));
  });
}

// ------------------------------------------------------------------- every call on every thread

// What a call of an operation wrote.
struct Written {
  std::vector<Tensor> tensors;
  std::vector<float> rstd;
  std::vector<double> sums;
};

void ExpectSameWritten(const Written& expected, const Written& actual) {
  ASSERT_EQ(expected.tensors.size(), actual.tensors.size());
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    EXPECT_TRUE(SameBits(expected.tensors[i], actual.tensors[i])) << "tensor " << i;
  }
  EXPECT_TRUE(SameBits(expected.rstd, actual.rstd));
  EXPECT_TRUE(SameBits(expected.sums, actual.sums));
}

// What the operations below take.
struct Inputs {
  Tensor x;
  Tensor residual;
  Tensor weight;
};

struct Operation {
  const char* name;
  Written (*run)(const Inputs& in, const Options& options, const Context& context);
};

// An output of the shape of x.
Tensor Like(const Inputs& in, rmsnorm_dtype dtype) { return Tensor(dtype, in.x.rows(), in.x.d()); }

Written Forward(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, RMSNORM_BF16)}, std::vector<float>(in.x.rows()), {}};
  ForwardOperands operands = NormOperands(in.x, &in.weight, out.tensors[0], &out.rstd);
  operands.bias = operands.weight;
  forward(operands, options, context);
  return out;
}

Written Sums(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{}, {}, std::vector<double>(in.x.rows())};
  ForwardOperands operands;
  operands.x = ConstView(in.x.view());
  operands.sums_out = {out.sums.data(), out.sums.size()};
  forward(operands, options, context);
  return out;
}

Written FromSums(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, RMSNORM_F16)}, std::vector<float>(in.x.rows()), {}};
  Context one_thread = context;
  one_thread.threads = 1;
  const std::vector<double> sums = Sums(in, options, one_thread).sums;
  ForwardOperands operands = NormOperands(in.x, &in.weight, out.tensors[0], &out.rstd);
  operands.sums = {sums.data(), sums.size()};
  forward(operands, options, context);
  return out;
}

// The outputs of a call with a residual: residual_out and y.
Written Sum(const Inputs& in) {
  return {
      {Like(in, in.residual.dtype()), Like(in, in.x.dtype())}, std::vector<float>(in.x.rows()), {}};
}

ForwardOperands AddOperands(const Inputs& in, Written& out, const Tensor* weight) {
  ForwardOperands operands = NormOperands(in.x, weight, out.tensors[1], &out.rstd);
  operands.residual = ConstView(in.residual.view());
  operands.residual_out = View(out.tensors[0].view());
  return operands;
}

Written AddForward(const Inputs& in, const Options& options, const Context& context) {
  Written out = Sum(in);
  forward(AddOperands(in, out, &in.weight), options, context);
  return out;
}

Written AddForwardUnrounded(const Inputs& in, const Options& options, const Context& context) {
  Options unrounded = options;
  unrounded.residual_rounding = ResidualRounding::norm_then_cast;
  return AddForward(in, unrounded, context);
}

Written Several(const Inputs& in, const Options& options, const Context& context) {
  Written out = Sum(in);
  Written other = {{Like(in, RMSNORM_BF16)}, {}, {}};
  forward_all({{nullptr, AddOperands(in, out, &in.weight), options},
               {nullptr, NormOperands(in.residual, &in.weight, other.tensors[0]), options}},
              context);
  out.tensors.push_back(other.tensors[0]);
  return out;
}

Written Backward(const Inputs& in, const Options& options, const Context& context) {
  const GradientResults results = ComputeGradients({in.x,
                                                    in.residual,
                                                    in.weight,
                                                    {},
                                                    Like(in, in.residual.dtype()),
                                                    Tensor(RMSNORM_BF16, 1, in.x.d()),
                                                    Tensor(RMSNORM_F32, 1, in.x.d())},
                                                   options, context);
  return {{*results.dx, *results.dw, *results.db}, {}, {}};
}

// Making the module, and its calls.
RmsNorm Module(const Inputs& in, const Options& options, const Context& context) {
  RmsNorm module(in.x.d(), options, Dtype::bf16, context);
  module.set_weight(ConstView(in.weight.vector()));
  return module;
}

Written ModuleForward(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, in.x.dtype()), Tensor(RMSNORM_F16, 1, in.x.d())}, {}, {}};
  const RmsNorm module = Module(in, options, context);
  module.forward(NormOperands(in.x, nullptr, out.tensors[0]));
  module.get_weight(View(out.tensors[1].vector()));
  return out;
}

Written ModuleForwardRows(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, in.x.dtype())}, {}, {}};
  check(rmsnorm_module_forward_rows(Module(in, options, context).get(), in.x.dtype(), in.x.rows(),
                                    in.x.data(), out.tensors[0].data()));
  return out;
}

Written ModuleAddForward(const Inputs& in, const Options& options, const Context& context) {
  Written out = Sum(in);
  Module(in, options, context).forward(AddOperands(in, out, nullptr));
  return out;
}

Written ModuleAddForwardRows(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, in.x.dtype()), Like(in, in.x.dtype())}, {}, {}};
  check(rmsnorm_module_add_forward_rows(Module(in, options, context).get(), in.x.dtype(),
                                        in.x.rows(), in.x.data(), in.x.data(),
                                        out.tensors[0].data(), out.tensors[1].data()));
  return out;
}

Written ModuleBackward(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, in.residual.dtype()), Tensor(RMSNORM_F32, 1, in.x.d())}, {}, {}};
  BackwardOperands operands;
  operands.dy = ConstView(in.residual.view());
  operands.x = ConstView(in.x.view());
  operands.dx = View(out.tensors[0].view());
  operands.dw = View(out.tensors[1].vector());
  Module(in, options, context).backward(operands);
  return out;
}

Written ModuleBackwardRows(const Inputs& in, const Options& options, const Context& context) {
  Written out = {{Like(in, in.x.dtype()), Tensor(in.x.dtype(), 1, in.x.d())}, {}, {}};
  check(rmsnorm_module_backward_rows(Module(in, options, context).get(), in.x.dtype(), in.x.rows(),
                                     in.x.data(), in.x.data(), nullptr, out.tensors[0].data(),
                                     out.tensors[1].data()));
  return out;
}

const Operation kOperations[] = {{"forward", Forward},
                                 {"sums", Sums},
                                 {"from sums", FromSums},
                                 {"with a residual", AddForward},
                                 {"with a residual, norm then cast", AddForwardUnrounded},
                                 {"several", Several},
                                 {"backward", Backward},
                                 {"module's forward", ModuleForward},
                                 {"module's forward of dense rows", ModuleForwardRows},
                                 {"module's forward with a residual", ModuleAddForward},
                                 {"the same of dense rows", ModuleAddForwardRows},
                                 {"module's backward", ModuleBackward},
                                 {"module's backward of dense rows", ModuleBackwardRows}};

// An executor of the caller's that runs each part on a thread with an environment of its own.
struct StrangeThreads {
  const Environment& own;
  int calls = 0;
  std::vector<uint32_t> found = {};  // by each of its calls

  void SetIn(Context& context) {
    context.parallel_context = this;
    context.parallel_for = [](void* self, size_t count, rmsnorm_task task, void* state) {
      StrangeThreads& threads = *static_cast<StrangeThreads*>(self);
      ++threads.calls;
      threads.found.push_back(Control());
      for (size_t i = 0; i < count; ++i) {
        std::thread([&] { RunIn(threads.own, [&] { task(state, i); }); }).join();
      }
    };
  }
};

// The environment after this one in the list.
const Environment& Another(const Environment& environment) {
  size_t i = 0;
  while (kEnvironments[i].control != environment.control) ++i;
  return kEnvironments[(i + 1) % kEnvironments.size()];
}

class EveryCallTest : public FloatEnvironmentTest {
 protected:
  // Each operation on one thread, on OpenMP's and on an executor's, with the bits of the default
  // environment.
  void Compare(const Inputs& in) const {
    for (const Operation& operation : kOperations) {
      SCOPED_TRACE(testing::Message()
                   << operation.name << ", " << in.x.rows() << " x " << in.x.d() << ", "
                   << rmsnorm_dtype_name(in.x.dtype()) << " in " << environment_.name);
      Context context = OnTarget(target_, 1);
      const Written expected = operation.run(in, options_, context);
      const auto compare = [&](const char* threads) {
        SCOPED_TRACE(threads);
        Written actual;
        RunIn(environment_, [&] { actual = operation.run(in, options_, context); });
        ExpectSameWritten(expected, actual);
      };
      compare("one thread");
      context.threads = 3;
      compare("OpenMP");
      StrangeThreads threads = {Another(environment_)};
      threads.SetIn(context);
      compare("an executor");
      if (in.x.rows() * in.x.d() < 3 * 32768) {
        EXPECT_EQ(0, threads.calls);
      } else {
        EXPECT_GT(threads.calls, 0);
      }
      for (const uint32_t control : threads.found) {
        EXPECT_EQ(environment_.control, control) << "the executor was not called in the caller's";
      }
    }
  }

  Inputs Draw(rmsnorm_dtype x, rmsnorm_dtype residual, size_t rows, size_t d) {
    Inputs in = {Tensor(x, rows, d), Tensor(residual, rows, d), Tensor(RMSNORM_F32, 1, d)};
    FillMixed(random_, in.x);
    FillMixed(random_, in.residual);
    FillWeight(random_, in.weight);
    return in;
  }
};

TEST_P(EveryCallTest, OneRow) {
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : SizeList{1, 64, 128, 300}) Compare(Draw(dtype, dtype, 1, d));
  }
}

TEST_P(EveryCallTest, SubnormalOptions) {
  options_.eps = 1e-40f;
  options_.weight_offset = 1e-40f;
  options_.divisor = 1e-40f;
  for (const rmsnorm_dtype dtype : kDtypes) {
    for (const size_t d : SizeList{64, 128, 300}) Compare(Draw(dtype, RMSNORM_F32, 20, d));
  }
}

TEST_P(EveryCallTest, RowsInParts) {
  for (const rmsnorm_dtype dtype : kDtypes) Compare(Draw(dtype, dtype, 800, 128));
}

TEST_P(EveryCallTest, BlocksOfALongRowInParts) {
  options_.eps = 1e-40f;
  const size_t d = 3 * 32768 + 77;
  for (const RowKind kind : {RowKind::kNormal, RowKind::kTiny, RowKind::kNan}) {
    Inputs in = Draw(RMSNORM_F32, RMSNORM_F32, 1, d);
    FillRow(random_, kind, in.x, 0);
    FillRow(random_, RowKind::kZero, in.residual, 0);
    Compare(in);
  }
  Compare(Draw(RMSNORM_BF16, RMSNORM_BF16, 2, d));
}

// The sums of the blocks, their total and the divisor are subnormal.
TEST_P(EveryCallTest, SubnormalSumsOfALongRow) {
  Inputs in = {Tensor(RMSNORM_F32, 1, 1 << 18), Tensor(RMSNORM_F32, 1, 1 << 18),
               Tensor(RMSNORM_F32, 1, 1 << 18)};
  for (size_t j = 0; j < in.x.d(); ++j) {
    in.x.set(0, j, j % 4096 == 0 ? 3e-22 : 0);
    in.residual.set(0, j, 0);
    in.weight.set(0, j, 1);
  }
  options_.eps = 0;
  options_.divisor = 2e-38f;
  Compare(in);
}

#ifdef _OPENMP
// OpenMP's threads begin in the environment of the caller, not in the library's own.
TEST_P(FloatEnvironmentTest, StartsThreadsInTheCallersEnvironment) {
  Tensor x(RMSNORM_F32, 600, 512);
  FillNormal(random_, x);
  std::vector<uint32_t> controls(4);
  std::thread([&] {  // which has no OpenMP threads waiting for it yet
    RunIn(environment_, [&] {
      forward(NormOperands(x, nullptr, x), {}, OnTarget(target_, 4));
#pragma omp parallel num_threads(4)
      controls[static_cast<size_t>(omp_get_thread_num())] = Control();
    });
  })
      .join();
  for (const uint32_t control : controls) EXPECT_EQ(environment_.control, control);
}
#endif

// clang's OpenMP gives the caller's environment to its threads, whatever they had.
#if defined(_OPENMP) && !defined(__clang__)
// Threads of OpenMP's pool that a program has set to an environment of its own.
TEST_P(FloatEnvironmentTest, ThreadsOfOpenMp) {
  Tensor x(RMSNORM_F32, 600, 512);
  FillMixed(random_, x);
  Tensor expected(RMSNORM_BF16, x.rows(), x.d());
  forward(NormOperands(x, nullptr, expected), {}, OnTarget(target_, 1));

  std::vector<uint32_t> usual(4);
  std::vector<uint32_t> after(4);
#pragma omp parallel num_threads(4)
  {
    usual[static_cast<size_t>(omp_get_thread_num())] = Control();
    SetControl(environment_.control);
  }
  Tensor actual(RMSNORM_BF16, x.rows(), x.d());
  forward(NormOperands(x, nullptr, actual), {}, OnTarget(target_, 4));
#pragma omp parallel num_threads(4)
  {
    after[static_cast<size_t>(omp_get_thread_num())] = Control();
    SetControl(usual[static_cast<size_t>(omp_get_thread_num())]);
  }
  EXPECT_TRUE(SameBits(expected, actual));
  for (const uint32_t control : after) EXPECT_EQ(environment_.control, control);
}
#endif

const auto kEverywhere =
    testing::Combine(testing::ValuesIn(SupportedTargets()), testing::ValuesIn(kEnvironments));
std::string Name(const testing::TestParamInfo<std::tuple<std::string, Environment>>& test) {
  return std::get<0>(test.param) + "_" + std::get<1>(test.param).name;
}
INSTANTIATE_TEST_SUITE_P(Targets, FloatEnvironmentTest, kEverywhere, Name);
INSTANTIATE_TEST_SUITE_P(Targets, EveryCallTest, kEverywhere, Name);

}  // namespace
}  // namespace rmsnorm::test

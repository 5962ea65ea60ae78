// SPDX-License-Identifier: Apache-2.0
// The caller's floating-point environment. `rmsnorm check` runs each call in many environments;
// these are the rest: refused options, a module's weight and text, a rounded divisor, and threads
// of OpenMP.
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

#include "cases/float_control.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using cases::Control, cases::SetControl;

struct Environment {
  std::string name;
  uint32_t control;  // value of the register that controls vector arithmetic
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

// Runs in an environment, requires that it stays unchanged, and restores the default.
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
  // `run` must write the same bits to a tensor in this environment and in the default one.
  void ExpectSameBits(const Rows& y, const std::function<void(Rows&)>& run) const {
    Rows expected = y;
    run(expected);
    Rows actual = y;
    RunIn(environment_, [&] { run(actual); });
    EXPECT_TRUE(SameBits(expected, actual));
  }

  const std::string target_ = std::get<0>(GetParam());
  const Environment environment_ = std::get<1>(GetParam());
  const Context context_ = OnTarget(target_);
  Options options_;
  Random random_{61};
};

// Checks the environments themselves: each must change some arithmetic, or the tests prove nothing.
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
bool IsEndedByTrap(int status) {
#ifdef _WIN32  // without signals that end a process
  return status != 0;
#else
  return testing::KilledBySignal(SIGFPE)(status);
#endif
}

TEST(EnvironmentDeathTest, TrapsWithoutTheLibrary) {
  EXPECT_EXIT(
      {
        volatile float one = 1;
        volatile float zero = 0;
        SetControl(0);
        one = one / zero;
      },
      IsEndedByTrap, "");
}
#endif

// A d above 2^24 must be rounded to be the divisor, to nearest even. No target is involved.
TEST(Environment, DoesNotRoundTheDivisor) {
  struct Long {
    size_t d;
    float to_even;
    float to_other;
  };
  for (const Long& row :
       {Long{(1 << 24) + 1, 0x1p24f, 0x1p24f + 2}, Long{(1 << 24) + 3, 0x1p24f + 4, 0x1p24f + 2}}) {
    const auto inverse_rms = [](float sum, float divisor) {
      return 1 / std::sqrt(sum * (1 / divisor));
    };
    float sum = 1;
    while (inverse_rms(sum, row.to_even) == inverse_rms(sum, row.to_other)) sum += 0.01f;
    const double sums = sum;
    Rows x(RMSNORM_BF16, 1, row.d);
    Options options;
    options.eps = 0;
    for (const Environment& environment : kEnvironments) {
      float rstd;
      ForwardOperands operands;
      operands.x = ConstView(ViewOf(x));
      operands.sums = {&sums, 1};
      operands.rstd = {&rstd, 1};
      RunIn(environment, [&] { forward(operands, options); });
      EXPECT_EQ(inverse_rms(sum, row.to_even), rstd) << environment.name;
    }
  }
}

TEST_P(FloatEnvironmentTest, Module) {
  Rows x(RMSNORM_F32, 26, 200);
  cases::Fill(random_, Values::kMixed, 0, x);
  Rows weight(RMSNORM_F32, 1, 200);
  cases::Fill(random_, Values::kSpecial, 0, weight);
  for (const rmsnorm_dtype dtype : kDtypes) {
    options_.weight_offset = 0.1f;
    const auto make = [&] { return RmsNorm(200, options_, static_cast<Dtype>(dtype), context_); };
    const std::string expected = make().description();
    std::string actual;
    ExpectSameBits(Rows(RMSNORM_F32, x.count(), 200), [&](Rows& y) {
      RmsNorm norm = make();
      norm.set_weight(ConstView(VectorOf(weight)));
      norm.set_bias(ConstView(VectorOf(weight)));
      norm.set_post_norm_weight(ConstView(VectorOf(weight)));
      norm.forward(NormOperands(x, nullptr, y));
      actual = norm.description();
    });
    EXPECT_EQ(expected, actual);
    ExpectSameBits(Rows(RMSNORM_F32, x.count(), 200), [&](Rows& y) {
      RmsNorm norm = make();
      norm.reset_weight();
      norm.forward(NormOperands(x, nullptr, y));
    });
    for (const rmsnorm_dtype read : kDtypes) {
      RmsNorm norm(200, 0.0f, static_cast<Dtype>(dtype));
      norm.set_weight(ConstView(VectorOf(weight)));
      ExpectSameBits(Rows(read, 1, 200), [&](Rows& y) { norm.get_weight(View(VectorOf(y))); });
    }
  }
}

// A refused argument gives the same status in every environment.
TEST_P(FloatEnvironmentTest, RefusedOptions) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Rows x(RMSNORM_F32, 1, 10);
  cases::Fill(random_, Values::kNormal, 0, x);
  const rmsnorm_view view = ViewOf(x);
  const rmsnorm_view weight = VectorOf(x);
  Rows y = x;
  const rmsnorm_view y_view = ViewOf(y);
  const auto status_of = [&](float rmsnorm_options::*field) {
    rmsnorm_options options = options_.get();
    options.*field = nan;
    return rmsnorm_norm(&view, &weight, &y_view, &options);
  };
  RunIn(environment_, [&] {
    EXPECT_EQ(RMSNORM_ERROR_OPTION, status_of(&rmsnorm_options::eps));
    EXPECT_EQ(RMSNORM_ERROR_OPTION, status_of(&rmsnorm_options::divisor));
    EXPECT_EQ(RMSNORM_ERROR_OPTION, status_of(&rmsnorm_options::weight_offset));
    // Without a weight, an offset is refused even if the environment treats it as zero.
    rmsnorm_options subnormal = options_.get();
    subnormal.weight_offset = 1e-40f;
    EXPECT_EQ(RMSNORM_ERROR_OPTION, rmsnorm_norm(&view, nullptr, &y_view, &subnormal));
  });
}

// Windows starts every thread in the default environment.
#if defined(_OPENMP) && !defined(_WIN32)
// OpenMP's threads start in the caller's environment, not in the library's.
TEST_P(FloatEnvironmentTest, StartsThreadsInTheCallersEnvironment) {
  Rows x(RMSNORM_F32, 600, 512);
  cases::Fill(random_, Values::kNormal, 0, x);
  std::vector<uint32_t> controls(4);
  std::thread([&] {  // a new thread has no OpenMP threads waiting for it
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

// clang's OpenMP always gives the caller's environment to its threads.
#if defined(_OPENMP) && !defined(__clang__)
// The program has set the threads of OpenMP's pool to another environment.
TEST_P(FloatEnvironmentTest, ThreadsOfOpenMp) {
  Rows x(RMSNORM_F32, 600, 512);
  cases::Fill(random_, Values::kMixed, 0, x);
  Rows expected(RMSNORM_BF16, x.count(), x.d());
  forward(NormOperands(x, nullptr, expected), {}, OnTarget(target_, 1));

  std::vector<uint32_t> usual(4);
  std::vector<uint32_t> after(4);
#pragma omp parallel num_threads(4)
  {
    usual[static_cast<size_t>(omp_get_thread_num())] = Control();
    SetControl(environment_.control);
  }
  Rows actual(RMSNORM_BF16, x.count(), x.d());
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

}  // namespace
}  // namespace rmsnorm::test

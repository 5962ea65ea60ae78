// SPDX-License-Identifier: Apache-2.0
// The caller's floating-point environment. `rmsnorm check` runs each call in many environments,
// refusals_test.cc refused ones, and module_test.cc the making of modules; these are the rest: a
// rounded divisor, and threads of OpenMP.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <thread>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "cases/float_control.h"
#include "cases/list.h"
#include "cases/prepared_call.h"
#include "cases/run.h"
#include "fixtures.h"

namespace rmsnorm::test {
namespace {

using cases::Control, cases::SetControl;

// Values of the register that controls vector arithmetic, as this CPU keeps them.
const std::vector<uint32_t> kEnvironments = [] {
  std::vector<uint32_t> environments = {cases::kDefaultControl};
  Random random(3);
  for (int i = 0; i < 12; ++i) {
    SetControl(cases::RandomControl(random));
    environments.push_back(Control());
  }
  SetControl(cases::kDefaultControl);
  return environments;
}();

// Calls run(target, environment) for each pair of them.
[[maybe_unused]] void ForEachEnvironment(
    const std::function<void(const std::string&, uint32_t)>& run) {
  for (const std::string& target : SupportedTargets()) {
    for (const uint32_t environment : kEnvironments) {
      SCOPED_TRACE(target + " in " + std::to_string(environment));
      run(target, environment);
    }
  }
}

// Otherwise the other tests would prove nothing. An environment with traps cannot be asked.
TEST(FloatEnvironment, GovernsArithmetic) {
  size_t differ = 0;
  for (const uint32_t environment : kEnvironments) {
#if defined(__x86_64__)
    if ((environment & cases::kDefaultControl) != cases::kDefaultControl) continue;
#endif
    const std::vector<float> expected = {1.0f / 3.0f, -1.0f / 3.0f, 0x1p-140f};
    volatile float one = 1, three = 3, subnormal = 0x1p-140f;
    std::vector<float> results;
    RunInState(environment, [&] { results = {one / three, -one / three, subnormal * one}; });
    EXPECT_TRUE(environment != cases::kDefaultControl || results == expected);
    differ += results == expected ? 0 : 1;
  }
  EXPECT_GE(differ, 2u);
}

// A d above 2^24 must be rounded to be the divisor, to nearest even.
TEST(FloatEnvironment, Divisor) {
  cases::Runner runner;
  const cases::List list(
      "forward,x=bf16,y=none,sums=f64,rstd=f32,rows=2,eps=0,d=16777217|16777219,state=1..11");
  list.ForEach([&](const cases::Calls& calls) {
    EXPECT_EQ("", cases::FaultOf(runner, calls, kReference)) << cases::Text(calls);
  });
}

// Windows starts every thread in the default environment.
#if defined(_OPENMP) && !defined(_WIN32)
// OpenMP's threads start in the caller's environment, not in the library's.
TEST(FloatEnvironment, NewThreadsOfOpenMp) {
  Random random(62);
  const Rows x = Draw(random, Values::kNormal, RMSNORM_F32, 600, 512);
  ForEachEnvironment([&](const std::string& target, uint32_t environment) {
    std::vector<uint32_t> controls(4);
    std::thread([&] {  // a new thread has no OpenMP threads waiting for it
      RunInState(environment, [&] {
        forward(NormOperands(x, nullptr, x), {}, OnTarget(target, 4));
#pragma omp parallel num_threads(4)
        controls[static_cast<size_t>(omp_get_thread_num())] = Control();
      });
    })
        .join();
    for (const uint32_t control : controls) EXPECT_EQ(environment, control);
  });
}
#endif

// clang's OpenMP always gives the caller's environment to its threads.
#if defined(_OPENMP) && !defined(__clang__)
// The program has set the threads of OpenMP's pool to another environment.
TEST(FloatEnvironment, OtherThreadsOfOpenMp) {
  const cases::Calls calls =
      cases::ParseCalls("forward,x=f32,y=bf16,x_values=mixed,rows=600,d=512");
  cases::Runner runner;
  runner.Set(calls);
  ForEachEnvironment([&](const std::string& target, uint32_t environment) {
    const Context context = OnTarget(target, 4);
    const cases::PreparedCall call(calls, runner.Fill(), context.get());
    std::vector<uint32_t> usual(4);
    std::vector<uint32_t> after(4);
#pragma omp parallel num_threads(4)
    {
      usual[static_cast<size_t>(omp_get_thread_num())] = Control();
      SetControl(environment);
    }
    const rmsnorm_status status = call.Run();
#pragma omp parallel num_threads(4)
    {
      after[static_cast<size_t>(omp_get_thread_num())] = Control();
      SetControl(usual[static_cast<size_t>(omp_get_thread_num())]);
    }
    EXPECT_EQ(RMSNORM_OK, status);
    EXPECT_EQ("", runner.FindFault());
    for (const uint32_t control : after) EXPECT_EQ(environment, control);
  });
}
#endif

}  // namespace
}  // namespace rmsnorm::test

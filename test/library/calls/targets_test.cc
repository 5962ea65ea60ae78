// SPDX-License-Identifier: Apache-2.0
// Names of targets: listed, found in any case, refused with a reason, or from RMSNORM_TARGET. The
// first call of a process reads this variable: tests of it come first, and only their child
// processes call the library.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <rmsnorm/rmsnorm.hpp>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fixtures.h"

namespace rmsnorm::test {
namespace {

std::vector<std::string> CompiledTargets() {
  std::vector<std::string> targets;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    targets.emplace_back(rmsnorm_target_name(i));
  }
  return targets;
}

std::string Find(const char* name) {
  const char* exact = nullptr;
  return rmsnorm_find_target(name, &exact) == RMSNORM_OK ? exact : "";
}
std::string Find(const std::string& name) { return Find(name.c_str()); }

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// ---------------------------------------------------------------------------------- RMSNORM_TARGET

#ifndef _WIN32  // which has no fork()

// Runs in a child process, which fails where an expectation does.
void InChild(const std::function<void()>& run) {
  EXPECT_EXIT((run(), std::_Exit(testing::Test::HasFailure() ? 1 : 0)), testing::ExitedWithCode(0),
              "");
}

// The call fails, and its message blames the environment; a call that names its target works.
TEST(TargetEnvironment, UnknownName) {
  InChild([] {
    setenv("RMSNORM_TARGET", "AVX9", 1);
    float x[] = {1, 2};
    const rmsnorm_view view = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.x = operands.y = &view;
    rmsnorm_module* module = nullptr;
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(RMSNORM_ERROR_TARGET, rmsnorm_forward(&operands, nullptr, nullptr));
      const std::string message = rmsnorm_error_message();
      EXPECT_TRUE(StartsWith(message, "RMSNORM_TARGET: 'AVX9'")) << message;
      EXPECT_EQ(RMSNORM_ERROR_TARGET,
                rmsnorm_module_create(&module, 2, RMSNORM_F32, nullptr, nullptr));
    }
    EXPECT_TRUE(x[0] == 1 && x[1] == 2) << "something was written";
    const std::string reference = kReference;
    const rmsnorm_context context = OnTarget(reference).get();
    EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&operands, nullptr, &context));
  });
}

// The default target, or the error message.
std::string Active() {
  const std::string found = Find(nullptr);
  return found.empty() ? rmsnorm_error_message() : found;
}

// The first call reads the variable, and copies its text: after putenv() the program owns that.
TEST(TargetEnvironment, ReadOnceAndCopied) {
  for (const auto& [name, expected] :
       {std::pair<std::string, std::string>{kReference, kReference},
        {"AVX9", "RMSNORM_TARGET: 'AVX9' is none of this build's targets"}}) {
    InChild([&, value = "RMSNORM_TARGET=" + name, begin = expected] {
      static char text[64];
      std::strcpy(text, value.c_str());
      putenv(text);
      const std::string first = Active();
      EXPECT_TRUE(StartsWith(first, begin)) << first;
      std::strcpy(text, "RMSNORM_TARGET=AVX8");
      EXPECT_EQ(first, Active());
      setenv("RMSNORM_TARGET", "AVX7", 1);
      EXPECT_EQ(first, Active());
    });
  }
}

#endif  // _WIN32

// ------------------------------------------------------------------------------------------- names

// The best first, the reference last. They do not depend on Highway's version. A build without SIMD
// targets would pass all other tests.
TEST(Targets, Compiled) {
#if defined(__x86_64__)
  const std::vector<std::string> wanted = {"AVX3_DL", "AVX3", "AVX2", kReference};
#elif defined(__aarch64__)
  const std::vector<std::string> wanted = {"NEON", kReference};
#else
  const std::vector<std::string> wanted = {kReference};
#endif
  EXPECT_EQ(wanted, CompiledTargets());
  EXPECT_EQ(nullptr, rmsnorm_target_name(SIZE_MAX));
}

#if defined(__x86_64__) && defined(__linux__)
// What Linux says, not __builtin_cpu_supports(): in a static program that zig links it knows
// nothing.
TEST(Targets, SupportedByThisCpu) {
  std::set<std::string> flags;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; flags.empty() && std::getline(file, line);) {
    if (line.compare(0, 5, "flags") != 0) continue;
    std::istringstream words(line);
    flags.insert(std::istream_iterator<std::string>(words), {});
  }
  ASSERT_EQ(1u, flags.count("sse2"));
  const auto has = [&](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return flags.count(name) != 0; });
  };
  EXPECT_EQ(has({"avx2", "fma", "f16c", "bmi1", "bmi2"}), !Find("AVX2").empty());
  EXPECT_EQ(has({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}),
            !Find("AVX512").empty());
  // The target with native bf16. Cooper Lake has bf16, but not everything else that AVX3_DL needs.
  EXPECT_EQ(has({"avx512_bf16", "avx512_vbmi2"}), !Find("AVX3_DL").empty());
}
#elif defined(__aarch64__)
TEST(Targets, SupportedByThisCpu) { EXPECT_FALSE(Find("NEON").empty()); }
#endif

// A name in any case, a family for its best member, and no name for the best target.
TEST(Targets, Find) {
  const std::vector<std::string> supported = SupportedTargets();
  for (const std::string& name : supported) {
    std::string lower = name;
    std::string upper = name;
    for (char& c : lower) c = static_cast<char>(std::tolower(c));
    for (char& c : upper) c = static_cast<char>(std::toupper(c));
    for (const std::string& same : {name, lower, upper}) EXPECT_EQ(name, Find(same));
  }
  for (const auto& [family, prefix] : {std::pair<std::string, std::string>{"AVX2", "AVX2"},
                                       {"AVX512", "AVX3"},
                                       {"avx512", "AVX3"},
                                       {"NEON", "NEON"},
                                       {"neon", "NEON"}}) {
    std::string best;
    for (const std::string& name : supported) {
      if (best.empty() && StartsWith(name, prefix)) best = name;
    }
    EXPECT_EQ(best, Find(family)) << family;
  }
  ASSERT_EQ(nullptr, std::getenv("RMSNORM_TARGET"));
  EXPECT_EQ(supported.front(), Find(nullptr));
}

// Entry points refuse a target in the same way: Refusals.Table.
void ExpectRefused(const std::string& name, const std::string& reason) {
  SCOPED_TRACE(name);
  const char* exact = "untouched";
  ASSERT_EQ(RMSNORM_ERROR_TARGET, rmsnorm_find_target(name.c_str(), &exact));
  EXPECT_STREQ("untouched", exact);
  const std::string message = rmsnorm_error_message();
  // The message cuts a long name, to leave room for the reason.
  const std::string quoted = name.size() <= 40 ? name : name.substr(0, 40) + "...";
  EXPECT_TRUE(StartsWith(message, "target: ")) << message;
  EXPECT_NE(std::string::npos, message.find("'" + quoted + "'")) << message;
  EXPECT_NE(std::string::npos, message.find(reason)) << message;

  const float x[] = {1, 2};
  const View view(const_cast<float*>(x), 2);
  ForwardOperands operands;
  operands.x = operands.y = view;
  try {
    forward(operands, {}, OnTarget(name));
    ADD_FAILURE() << "was called";
  } catch (const Error& error) {
    EXPECT_EQ(message, error.what());
  }
  EXPECT_EQ(1, x[0]);
}

TEST(Targets, UnknownNames) {
  for (const char* name :
       {"", " ", "AVX", "AVX22", "AVX2 ", "SSE4", "referenc", "references", "%s%n"}) {
    ExpectRefused(name, kReference);  // the message lists the targets
  }
  for (const size_t size : {40u, 41u, 60u, 5000u, 100'000u}) {
    ExpectRefused(std::string(size, 'A'), kReference);
  }
}

TEST(Targets, OtherCpus) {
#if defined(__aarch64__)
  ExpectRefused("AVX2", kReference);
  ExpectRefused("AVX512", kReference);
#else
  ExpectRefused("NEON", kReference);
#endif
  for (const std::string& name : CompiledTargets()) {
    // The name of a family is also the name of its oldest member.
    if (Find(name).empty()) ExpectRefused(name, "this CPU cannot run");
  }
}

TEST(Versions, AreNumbers) {
  std::vector<std::string> versions = {rmsnorm_version(), rmsnorm_highway_version()};
  if (CompiledTargets().size() == 1) {
    EXPECT_EQ("none", versions[1]);
    versions.pop_back();
  }
  for (const std::string& version : versions) {
    EXPECT_EQ(2, std::count(version.begin(), version.end(), '.')) << version;
    EXPECT_EQ(std::string::npos, version.find_first_not_of("0123456789.")) << version;
  }
}

}  // namespace
}  // namespace rmsnorm::test

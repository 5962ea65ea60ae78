// SPDX-License-Identifier: Apache-2.0
// RMSNORM_TARGET. The first call of a process reads it, so only child processes call the library
// here.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>

#include "on_target.h"

namespace rmsnorm::test {
namespace {

// The result of `run` in a child process in which RMSNORM_TARGET is `value`, or unset if that is
// null.
std::string InChild(const char* value, const std::function<std::string()>& run) {
  int ends[2];
  EXPECT_EQ(0, pipe(ends));
  const pid_t child = fork();
  if (child == 0) {
    if (value != nullptr) {
      setenv("RMSNORM_TARGET", value, 1);
    } else {
      unsetenv("RMSNORM_TARGET");
    }
    const std::string result = run();
    const bool written =
        write(ends[1], result.data(), result.size()) == static_cast<ssize_t>(result.size());
    _exit(written ? 0 : 1);
  }
  close(ends[1]);
  std::string result;
  char buffer[512];
  for (ssize_t count; (count = read(ends[0], buffer, sizeof buffer)) > 0;) {
    result.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status) << "the child crashed";
  return result;
}

// The default target, or the error message.
std::string Active() {
  const char* exact;
  return rmsnorm_find_target(nullptr, &exact) == RMSNORM_OK ? exact : rmsnorm_error_message();
}

// The targets of this CPU, separated by commas; a child finds them.
std::string Supported() {
  return InChild(nullptr, [] {
    std::string list;
    for (const std::string& name : SupportedTargets()) list += name + ",";
    return list;
  });
}

TEST(TargetEnvironment, UnsetOrEmptyMeansTheBest) {
  const std::string list = Supported();
  const std::string best = list.substr(0, list.find(','));
  EXPECT_EQ(best, InChild(nullptr, Active));
  EXPECT_EQ(best, InChild("", Active));
}

TEST(TargetEnvironment, NamesATarget) {
  const std::string list = Supported();
  for (size_t begin = 0; begin < list.size();) {
    const size_t end = list.find(',', begin);
    const std::string name = list.substr(begin, end - begin);
    // A name may also mean a family, whose best flavour has another name.
    const std::string by_call = InChild(nullptr, [&] {
      const char* exact;
      return std::string(rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_OK ? exact : "");
    });
    EXPECT_EQ(by_call, InChild(name.c_str(), Active));
    begin = end + 1;
  }
  EXPECT_EQ("reference", InChild("Reference", Active));
}

TEST(TargetEnvironment, ATargetOfTheCallComesFirst) {
  const std::string list = Supported();
  const std::string best = list.substr(0, list.find(','));
  EXPECT_EQ(best, InChild("reference", [&] {
              const char* exact = "";
              rmsnorm_find_target(best.c_str(), &exact);
              return std::string(exact);
            }));
}

// The call fails, and its message blames the environment; a call that names its target works.
TEST(TargetEnvironment, UnknownNamesAreAnErrorOfTheCall) {
  const std::string result = InChild("AVX9", [] {
    float x[] = {1, 2};
    const rmsnorm_view view = rmsnorm_rows(x, RMSNORM_F32, 1, 2, 2);
    rmsnorm_operands operands = rmsnorm_no_operands();
    operands.x = operands.y = &view;
    const std::string reference = kReference;
    const rmsnorm_context context = OnTarget(reference).get();
    std::string log;
    for (int i = 0; i < 2; ++i) {
      log += std::to_string(rmsnorm_forward(&operands, nullptr, nullptr)) + " " +
             rmsnorm_error_message() + "\n";
    }
    rmsnorm_module* module = nullptr;
    log += std::to_string(rmsnorm_module_create(&module, 2, RMSNORM_F32, nullptr, nullptr)) + "\n";
    log += x[0] == 1 && x[1] == 2 ? "untouched\n" : "written\n";
    log += std::to_string(rmsnorm_forward(&operands, nullptr, &context)) + "\n";
    return log;
  });
  const std::string status = std::to_string(RMSNORM_ERROR_TARGET);
  const std::string line = result.substr(0, result.find('\n') + 1);
  EXPECT_EQ(status + " RMSNORM_TARGET: 'AVX9'", line.substr(0, line.find('\'') + 6)) << line;
  EXPECT_EQ(line + line + status + "\nuntouched\n0\n", result);
}

// Changing the variable after the first call changes nothing.
TEST(TargetEnvironment, IsReadOnce) {
  EXPECT_EQ("reference", InChild("reference", [] {
              Active();
              setenv("RMSNORM_TARGET", "AVX9", 1);
              return Active();
            }));
}

// After putenv(), the program owns the text of the variable: it may disappear after the first call.
TEST(TargetEnvironment, IsCopied) {
  const std::string best = InChild(nullptr, Active);
  for (const std::string name : {"reference", "AVX9"}) {
    const std::string before = InChild(name.c_str(), Active);
    EXPECT_EQ(before + before, InChild(nullptr, [&] {
                static char text[64];
                std::snprintf(text, sizeof text, "RMSNORM_TARGET=%s", name.c_str());
                putenv(text);
                const std::string first = Active();
                std::snprintf(text, sizeof text, "RMSNORM_TARGET=%s", best.c_str());
                return first + Active();
              }));
  }
}

// The message quotes the start of a long name, so the reason fits.
TEST(TargetEnvironment, LongNamesAreCut) {
  const std::string name(5000, 'A');
  const std::string message = InChild(name.c_str(), Active);
  EXPECT_EQ("RMSNORM_TARGET: '" + name.substr(0, 40) + "...' is none of this build's targets",
            message.substr(0, message.find(" (")));
}

}  // namespace
}  // namespace rmsnorm::test

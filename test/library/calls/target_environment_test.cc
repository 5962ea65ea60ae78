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
#include <vector>

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
    unsetenv("RMSNORM_TARGET");
    if (value != nullptr) setenv("RMSNORM_TARGET", value, 1);
    const std::string result = run();
    const auto size = static_cast<ssize_t>(result.size());
    _exit(write(ends[1], result.data(), result.size()) == size ? 0 : 1);
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

// The target of a name, or of none, or the error message.
std::string Find(const char* name) {
  const char* exact;
  return rmsnorm_find_target(name, &exact) == RMSNORM_OK ? exact : rmsnorm_error_message();
}
std::string Active() { return Find(nullptr); }

// The targets of this CPU, which a child finds.
std::vector<std::string> Supported() {
  const std::string all = InChild(nullptr, [] {
    std::string list;
    for (const std::string& name : SupportedTargets()) list += name + ",";
    return list;
  });
  std::vector<std::string> names;
  for (size_t begin = 0, end; (end = all.find(',', begin)) != std::string::npos; begin = end + 1) {
    names.push_back(all.substr(begin, end - begin));
  }
  return names;
}

TEST(TargetEnvironment, Names) {
  const std::vector<std::string> supported = Supported();
  EXPECT_EQ(supported[0], InChild(nullptr, Active));
  EXPECT_EQ(supported[0], InChild("", Active));
  EXPECT_EQ("reference", InChild("Reference", Active));
  for (const std::string& name : supported) {
    // A name may also mean a family, whose best flavour has another name.
    EXPECT_EQ(InChild(nullptr, [&] { return Find(name.c_str()); }), InChild(name.c_str(), Active));
  }
}

TEST(TargetEnvironment, TargetOfTheCallComesFirst) {
  const std::string best = Supported()[0];
  EXPECT_EQ(best, InChild("reference", [&] { return Find(best.c_str()); }));
}

// The call fails, and its message blames the environment; a call that names its target works.
TEST(TargetEnvironment, UnknownName) {
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

// The first call reads the variable, and copies its text: after putenv() the program owns that.
TEST(TargetEnvironment, ReadOnceAndCopied) {
  const std::string best = InChild(nullptr, Active);
  for (const std::string name : {"reference", "AVX9"}) {
    const std::string before = InChild(name.c_str(), Active);
    EXPECT_EQ(before + before + before, InChild(nullptr, [&] {
                static char text[64];
                std::snprintf(text, sizeof text, "RMSNORM_TARGET=%s", name.c_str());
                putenv(text);
                const std::string first = Active();
                std::snprintf(text, sizeof text, "RMSNORM_TARGET=%s", best.c_str());
                const std::string second = Active();
                setenv("RMSNORM_TARGET", "AVX8", 1);
                return first + second + Active();
              }));
  }
}

// The message quotes the start of a long name, so the reason fits.
TEST(TargetEnvironment, LongName) {
  const std::string name(5000, 'A');
  const std::string message = InChild(name.c_str(), Active);
  EXPECT_EQ("RMSNORM_TARGET: '" + name.substr(0, 40) + "...' is none of this build's targets",
            message.substr(0, message.find(" (")));
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// The command's interface: help, version, errors, and `rmsnorm info`.
#include <gtest/gtest.h>
#include <rmsnorm/rmsnorm.h>

#include <string>
#include <vector>

#include "run_command.h"

namespace rmsnorm::test {
namespace {

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

TEST(Command, ShowsItsVersion) {
  const Outcome outcome = RunCommand({"--version"});
  ExpectSuccess(outcome);
  EXPECT_EQ(outcome.out, std::string("rmsnorm ") + rmsnorm_version() + "\n");
}

TEST(Command, HelpNamesTheCommands) {
  for (const char* help : {"--help", "-h"}) {
    const Outcome outcome = RunCommand({help});
    ExpectSuccess(outcome);
    for (const char* command : {"info", "check", "apply", "backward"}) {
      EXPECT_NE(outcome.out.find(command), std::string::npos) << outcome.out;
    }
  }
}

TEST(Command, HelpOfInfo) {
  const Outcome outcome = RunCommand({"info", "--help"});
  ExpectSuccess(outcome);
  EXPECT_NE(outcome.out.find("info"), std::string::npos);
}

struct WrongUse {
  std::vector<std::string> arguments;
  std::string problem;
};

// file_commands_test.cc covers the commands on files.
TEST(Command, RefusesWrongUseInOneLine) {
  const WrongUse cases[] = {
      {{}, "subcommand"},
      {{"frobnicate"}, "'frobnicate'"},
      {{"--frobnicate"}, "'--frobnicate'"},
      {{"two\nlines"}, "'two\\nlines'"},
      {{"\xff\x1b[2J"}, "\\u001b[2J"},
      {{""}, "''"},
      {{"info", "more"}, "more"},
      {{"info", "--more"}, "--more"},
      {{"info", "info"}, "info"},
  };
  for (const WrongUse& wrong : cases) {
    SCOPED_TRACE(testing::PrintToString(wrong.arguments));
    ExpectUserError(RunCommand(wrong.arguments), wrong.problem);
  }
}

#ifndef _WIN32

TEST(Command, RefusesToLoseItsOutput) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* argument : {"--help", "--version", "info"}) {
    const Outcome outcome = RunCommand(
        {argument}, {}, [] { dup2(open("/dev/full", O_WRONLY | O_CLOEXEC), STDOUT_FILENO); });
    ExpectUserError(outcome, "standard output");
  }
}

#endif

// The rest of the line that begins with `key`.
std::string Line(const std::string& text, const std::string& key) {
  const std::string start = "\n" + key + ": ";
  const size_t found = ("\n" + text).find(start);
  if (found == std::string::npos) return "(no line " + key + ")";
  const size_t value = found + start.size() - 1;
  return text.substr(value, text.find('\n', value) - value);
}

TEST(Info, AgreesWithTheLibrary) {
  const char* active;
  ASSERT_EQ(rmsnorm_find_target(nullptr, &active), RMSNORM_OK);
  std::string compiled;
  std::string supported;
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const std::string name = rmsnorm_target_name(i);
    compiled += (compiled.empty() ? "" : " ") + name;
    const char* exact;
    if (rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_OK) {
      supported += (supported.empty() ? "" : " ") + name;
    }
  }

  const Outcome outcome = RunCommand({"info"});
  ExpectSuccess(outcome);
  EXPECT_EQ(outcome.out.rfind(std::string("rmsnorm ") + rmsnorm_version() + "\n", 0), 0u);
  EXPECT_EQ(Line(outcome.out, "active target"), active);
  EXPECT_EQ(Line(outcome.out, "compiled targets"), compiled);
  EXPECT_EQ(Line(outcome.out, "supported targets"), supported);
  EXPECT_EQ(Line(outcome.out, "Highway"), rmsnorm_highway_version());
  EXPECT_EQ(Line(outcome.out, "OpenMP"), rmsnorm_has_openmp() ? "yes" : "no");
  EXPECT_EQ(Line(outcome.out, "threads"), std::to_string(rmsnorm_max_threads()));
  for (const char* key : {"CPU", "caches"}) {
    EXPECT_NE(Line(outcome.out, key), "") << key;
    EXPECT_EQ(Line(outcome.out, key).find("(no line"), std::string::npos) << key;
  }
}

TEST(Info, ShowsTheTargetThatTheEnvironmentNames) {
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    const std::string name = rmsnorm_target_name(i);
    const Outcome outcome = RunCommand({"info"}, {{"RMSNORM_TARGET", Lower(name)}});
    const char* exact;
    if (rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_OK) {
      ExpectSuccess(outcome);
      EXPECT_EQ(Line(outcome.out, "active target"), name);
    } else {
      ExpectUserError(outcome, Lower(name));  // quotes the user's spelling
    }
  }
}

TEST(Info, RefusesAnUnknownTarget) {
  ExpectUserError(RunCommand({"info"}, {{"RMSNORM_TARGET", "PDP11"}}), "PDP11");
}

}  // namespace
}  // namespace rmsnorm::test

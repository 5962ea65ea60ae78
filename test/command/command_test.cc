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

TEST(Command, ShowsItsHelp) {
  const Outcome all = RunCommand({"--help"});
  ExpectSuccess(all);
  EXPECT_EQ(RunCommand({"-h"}).out, all.out);
  for (const std::string command : {"info", "check"}) {
    EXPECT_NE(all.out.find(command), std::string::npos) << all.out;
    const Outcome outcome = RunCommand({command, "--help"});
    ExpectSuccess(outcome);
    EXPECT_NE(outcome.out.find("rmsnorm " + command), std::string::npos);
  }
}

TEST(Command, RefusesWrongUseInOneLine) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{}, "a command is missing; see rmsnorm --help"},
      {{"frobnicate"}, "'frobnicate'"},
      {{"--frobnicate"}, "'--frobnicate'"},
      {{"two\nlines"}, "'two\\x0alines'"},
      {{"\xff\x1b[2J"}, "\\x1b[2J"},  // Windows replaces bytes that are not UTF-8
      {{""}, "''"},
      {{"info", "more"}, "more"},
      {{"info", "--more"}, "--more"},
      {{"info", "info"}, "info"},
      {{"identify", "--input", "x.npy"}, "python -m rmsnorm identify"},
      {{"chekc"}, "unknown word 'chekc'; see rmsnorm --help"},
      {{"check", "--tagret", "reference"}, "unknown word '--tagret'; see rmsnorm check --help"},
      {{"check", "--target", "refrence"}, "--target: 'refrence' is none of this build's targets"},
      {{std::string(100000, 'a')}, "unknown word 'aaa"},
  };
  for (const auto& [arguments, problem] : wrong) {
    SCOPED_TRACE(testing::PrintToString(arguments));
    ExpectUserError(RunCommand(arguments), problem);
  }
}

TEST(Command, RefusesToLoseItsOutput) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  for (const char* argument : {"--help", "--version", "info"}) {
    ExpectUserError(RunCommand({argument}, {}, "/dev/full"), "standard output");
  }
}

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

// Where a target cannot run, info says so and shows the rest.
TEST(Info, ShowsTheTargetThatTheEnvironmentNames) {
  std::vector<std::string> names = {"PDP11", "AVX2", "AVX512", "NEON", "two\nlines\x1b[2J"};
  for (size_t i = 0; rmsnorm_target_name(i) != nullptr; ++i) {
    names.push_back(Lower(rmsnorm_target_name(i)));
  }
  const std::string usual = RunCommand({"info"}).out;
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Outcome outcome = RunCommand({"info"}, {{"RMSNORM_TARGET", name}});
    ExpectSuccess(outcome);
    const char* exact;
    std::string expected;
    if (rmsnorm_find_target(name.c_str(), &exact) == RMSNORM_OK) {
      expected = exact;
    } else {
      expected = Line(outcome.out, "active target");
      EXPECT_EQ(expected.rfind("none; RMSNORM_TARGET: ", 0), 0u) << expected;
      EXPECT_NE(expected.find(name.substr(0, 3)), std::string::npos) << expected;
      EXPECT_EQ(expected.find('\x1b'), std::string::npos) << expected;
    }
    std::string all = usual;
    const std::string line = "active target: ";
    all.replace(all.find(line), line.size() + Line(usual, "active target").size(), line + expected);
    EXPECT_EQ(outcome.out, all);
  }
}

TEST(Command, ABadTargetInTheEnvironmentStopsOnlyCommandsThatComputeOnIt) {
  const std::vector<std::vector<std::string>> commands = {
      {"--help"},
      {"--version"},
      {"check", "--help"},
      {"check", "--target", "reference", "--case", "forward,x=f32,y=f32,rows=1,d=4"}};
  for (const std::vector<std::string>& command : commands) {
    SCOPED_TRACE(command.front());
    const Outcome outcome = RunCommand(command, {{"RMSNORM_TARGET", "PDP11"}});
    ExpectSuccess(outcome);
    EXPECT_EQ(outcome.out, RunCommand(command).out);
  }
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// The README's programs are those in examples/, which are compiled and run.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace {

std::string Read(const std::string& name) {
  std::ifstream file(std::string(RMSNORM_SOURCE_DIR) + "/" + name);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

class Readme : public testing::TestWithParam<const char*> {};

TEST_P(Readme, HoldsTheProgram) {
  const std::string program = Read(GetParam());
  const std::string body = program.substr(program.find('\n') + 1);  // without the licence line
  ASSERT_FALSE(body.empty());
  EXPECT_NE(Read("README.md").find("\n" + body + "```"), std::string::npos) << GetParam();
}

INSTANTIATE_TEST_SUITE_P(Examples, Readme,
                         testing::Values("examples/first.cc", "examples/first.c"));

}  // namespace

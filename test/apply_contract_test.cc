// SPDX-License-Identifier: Apache-2.0
// `rmsnorm apply` against contract.safetensors: the exact bits of the definition, for every target
// of this CPU and 1, 2 and 5 threads.
//
// The environment names the folder that holds the file: RMSNORM_DATA.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "run_command.h"
#include "slow_float.h"
#include "tensor_files.h"

namespace rmsnorm::test {
namespace {

// The targets that `rmsnorm info` calls supported.
std::vector<std::string> SupportedTargets() {
  const std::string key = "supported targets:";
  const std::string info = RunCommand({"info"}).out;
  std::istringstream line(info.substr(info.find(key) + key.size()));
  std::string names;
  std::getline(line, names);
  std::istringstream words(names);
  return {std::istream_iterator<std::string>(words), {}};
}

// The parts of "y.OPTION.D.X.W.Y".
std::vector<std::string> Parts(const std::string& name) {
  std::vector<std::string> parts;
  std::istringstream text(name);
  for (std::string part; std::getline(text, part, '.');) parts.push_back(part);
  return parts;
}

// What each OPTION means, as the file's metadata says, and the input it takes.
struct Option {
  std::string input;
  std::vector<std::string> words;
};

Option FindOption(const std::string& name) {
  if (name == "default") return {"x", {}};
  if (name == "llama") return {"x", {"--rounding", "cast-then-scale"}};
  if (name == "gemma") return {"x", {"--eps", "1e-6", "--weight-offset", "1"}};
  if (name == "outside") return {"x", {"--eps", "1e-6", "--eps-placement", "outside"}};
  if (name == "divisor") return {"x", {"--divisor", "100.5"}};
  if (name == "eps0") return {"x0", {"--eps", "0"}};
  if (name == "big") return {"big", {}};
  if (name == "tiny") return {"tiny", {"--eps", "0"}};
  throw std::runtime_error("the contract names an option that this test does not know: " + name);
}

// "f32" for "F32".
std::string Lower(std::string dtype) {
  for (char& c : dtype) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return dtype;
}

// Whether all bits are equal, but that a NaN equals any other.
bool SameBits(const StoredTensor& a, const StoredTensor& b) {
  if (a.dtype != b.dtype || a.shape != b.shape || a.data.size() != b.data.size()) return false;
  if (a.data == b.data) return true;
  const Format format = FormatOf(a.dtype == "F32"   ? RMSNORM_F32
                                 : a.dtype == "F16" ? RMSNORM_F16
                                                    : RMSNORM_BF16);
  const size_t size = static_cast<size_t>(format.bits / 8);
  for (size_t i = 0; i < a.data.size(); i += size) {
    uint32_t a_bits = 0;
    uint32_t b_bits = 0;
    std::memcpy(&a_bits, &a.data[i], size);
    std::memcpy(&b_bits, &b.data[i], size);
    const bool both_nan = std::isnan(Decode(format, a_bits)) && std::isnan(Decode(format, b_bits));
    if (a_bits != b_bits && !both_nan) return false;
  }
  return true;
}

class ApplyContractTest : public testing::TestWithParam<int> {};

TEST_P(ApplyContractTest, EveryTargetMeetsEveryBit) {
  const std::string threads = std::to_string(GetParam());
  const char* const data = std::getenv("RMSNORM_DATA");
  ASSERT_NE(data, nullptr);
  const std::string contract = std::string(data) + "/contract.safetensors";
  const auto tensors = ReadSafetensors(ReadFile(contract));
  const std::vector<std::string> targets = SupportedTargets();
  ASSERT_FALSE(targets.empty());
  EXPECT_EQ(targets.back(), "reference");

  const TemporaryDirectory directory;
  const std::string output = directory.File("y.safetensors");
  size_t compared = 0;
  for (const auto& [name, expected] : tensors) {
    const std::vector<std::string> parts = Parts(name);
    if (parts[0] != "y") continue;
    ASSERT_EQ(parts.size(), 6u) << name;
    const Option option = FindOption(parts[1]);
    const std::string& d = parts[2];
    const std::string& x = parts[3];
    const std::string& w = parts[4];
    const std::string& y = parts[5];
    std::vector<std::string> arguments = {
        "apply",
        "--input",
        contract + ":" + option.input + "." + d + "." + x,
        "--weight",
        contract + ":w." + d + "." + x + "." + w,
        "--output",
        output + ":" + name,
        "--dtype",
        Lower(y),
        "--threads",
        threads,
    };
    arguments.insert(arguments.end(), option.words.begin(), option.words.end());
    for (const std::string& target : targets) {
      SCOPED_TRACE(name + " " + target);
      const Outcome outcome = RunCommand(arguments, {{"RMSNORM_TARGET", target}});
      ASSERT_EQ(outcome.status, 0) << outcome.err;
      EXPECT_TRUE(SameBits(ReadSafetensors(ReadFile(output)).at(name), expected));
      ++compared;
    }
  }
  EXPECT_GE(compared, targets.size());
}

INSTANTIATE_TEST_SUITE_P(Threads, ApplyContractTest, testing::Values(1, 2, 5));

}  // namespace
}  // namespace rmsnorm::test

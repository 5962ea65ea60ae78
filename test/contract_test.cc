// SPDX-License-Identifier: Apache-2.0
// Exact results by a program that shares no code with this library: every target meets every bit.
//
// The environment variable RMSNORM_DATA names the folder of contract.safetensors.
// test/data/README.md describes the file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <rmsnorm/rmsnorm.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "targets.h"
#include "tensor.h"
#include "tensor_files.h"
#include "with_threads.h"

namespace rmsnorm::test {
namespace {

// The results of one option and one combination of types.
struct Case {
  std::string name;
  std::string option;
  const StoredTensor* x;
  const StoredTensor* weight;
  const StoredTensor* y;
};

// The options behind a name in the file's __metadata__.
Options OptionsOf(const std::string& name) {
  Options options;
  if (name == "default" || name == "big") return options;
  if (name == "llama") {
    options.rounding = Rounding::before_weight;
  } else if (name == "gemma") {
    options.eps = 1e-6f;
    options.weight_offset = 1;
  } else if (name == "outside") {
    options.eps = 1e-6f;
    options.eps_placement = EpsPlacement::outside;
  } else if (name == "divisor") {
    options.divisor = 100.5f;
  } else if (name == "eps0" || name == "tiny") {
    options.eps = 0;
  } else {
    throw std::runtime_error("unknown option " + name);
  }
  return options;
}

std::string InputOf(const std::string& option) {
  if (option == "eps0") return "x0";
  if (option == "big" || option == "tiny") return option;
  return "x";
}

class ContractTest : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    const char* const folder = std::getenv("RMSNORM_DATA");
    ASSERT_NE(folder, nullptr) << "RMSNORM_DATA must name the folder of contract.safetensors";
    std::ifstream file(std::string(folder) + "/contract.safetensors", std::ios::binary);
    ASSERT_TRUE(file) << folder;
    tensors_ = ReadSafetensors({std::istreambuf_iterator<char>(file), {}});
    for (const auto& [name, tensor] : tensors_) {
      std::istringstream text(name);
      std::vector<std::string> parts;
      for (std::string part; std::getline(text, part, '.');) parts.push_back(part);
      if (parts[0] != "y") continue;
      ASSERT_EQ(6u, parts.size()) << name;
      const std::string types = "." + parts[2] + "." + parts[3];
      cases_.push_back({name, parts[1], &tensors_.at(InputOf(parts[1]) + types),
                        &tensors_.at("w" + types + "." + parts[4]), &tensor});
    }
    // Each length has three types of x with six to eight options.
    ASSERT_GE(cases_.size(), 6u * 20u);
  }

  static std::map<std::string, StoredTensor> tensors_;
  static std::vector<Case> cases_;
};
std::map<std::string, StoredTensor> ContractTest::tensors_;
std::vector<Case> ContractTest::cases_;

TEST_P(ContractTest, EveryBitIsMet) {
  for (const Case& c : cases_) {
    SCOPED_TRACE(c.name);
    const size_t rows = c.x->shape[0];
    const size_t d = c.x->shape[1];
    const rmsnorm_dtype x_dtype = DtypeOfName(c.x->dtype);
    const rmsnorm_dtype y_dtype = DtypeOfName(c.y->dtype);
    ForwardOperands operands;
    operands.weight =
        ConstView(rmsnorm_vector(c.weight->data.data(), DtypeOfName(c.weight->dtype), d));
    RunWithThreads(GetParam(), rows, d, [&](const Context& context, size_t repeats) {
      const size_t shape[] = {repeats, rows, d};
      const ptrdiff_t x_stride[] = {0, static_cast<ptrdiff_t>(d), 1};
      operands.x = ConstView(rmsnorm_tensor(c.x->data.data(), x_dtype, 3, shape, x_stride));
      std::vector<char> result(repeats * c.y->data.size());
      operands.y = View(rmsnorm_tensor(result.data(), y_dtype, 3, shape, nullptr));
      forward(operands, OptionsOf(c.option), context);
      for (size_t i = 0; i < repeats; ++i) {
        ASSERT_TRUE(
            SameBits(y_dtype, c.y->data.data(), result.data() + i * c.y->data.size(), rows * d))
            << "repeat " << i;
      }
    });
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ContractTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

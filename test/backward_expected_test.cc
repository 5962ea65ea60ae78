// SPDX-License-Identifier: Apache-2.0
// Compares gradients of real tensors with PyTorch's and with binary64, on every target.
//
// The environment variable RMSNORM_DATA names the folder of inputs.safetensors and
// expected.safetensors.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "slow_float.h"
#include "targets.h"
#include "tensor.h"
#include "tensor_files.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kRows = 2 * 24;
constexpr size_t kD = 512;

std::map<std::string, StoredTensor> Read(const std::string& name) {
  const char* const folder = std::getenv("RMSNORM_DATA");
  EXPECT_NE(folder, nullptr) << "RMSNORM_DATA must name the folder of " << name;
  std::ifstream file(std::string(folder != nullptr ? folder : "") + "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return ReadSafetensors({std::istreambuf_iterator<char>(file), {}});
}

std::vector<double> Values(rmsnorm_dtype dtype, const std::string& data) {
  std::vector<double> values;
  for (size_t i = 0; i < data.size() / rmsnorm_dtype_size(dtype); ++i) {
    values.push_back(Decode(FormatOf(dtype), LoadBits(dtype, data.data(), i)));
  }
  return values;
}

std::vector<double> Doubles(const std::string& data) {
  std::vector<double> values(data.size() / sizeof(double));
  std::memcpy(values.data(), data.data(), data.size());
  return values;
}

double Largest(const std::vector<double>& values) {
  double largest = 0;
  for (const double value : values) largest = std::max(largest, std::fabs(value));
  return largest;
}

class BackwardExpectedTest : public testing::TestWithParam<std::string> {};

TEST_P(BackwardExpectedTest, GradientsOfRealTensors) {
  const auto inputs = Read("inputs.safetensors");
  const auto expected = Read("expected.safetensors");
  for (const rmsnorm_dtype dtype : kDtypes) {
    const std::string type = std::string(".") + rmsnorm_dtype_name(dtype);
    const StoredTensor& x = inputs.at("x" + type);
    ASSERT_EQ(kRows * kD * rmsnorm_dtype_size(dtype), x.data.size());
    std::vector<char> dx(x.data.size());
    std::vector<char> dw(kD * rmsnorm_dtype_size(dtype));
    const Dtype cpp_type = static_cast<Dtype>(dtype);
    BackwardOperands operands;
    operands.x = ConstView(x.data.data(), cpp_type, {2, 24, kD});
    operands.dy = ConstView(inputs.at("dy" + type).data.data(), cpp_type, {2, 24, kD});
    operands.weight = ConstView(inputs.at("weight" + type).data.data(), cpp_type, {kD});
    operands.dx = View(dx.data(), cpp_type, {2, 24, kD});
    operands.dw = View(dw.data(), cpp_type, {kD});
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(testing::Message() << type << ", " << threads << " threads");
      backward(operands, {}, OnTarget(GetParam(), threads));
      const std::vector<double> actual_dx = Values(dtype, {dx.data(), dx.size()});
      const std::vector<double> actual_dw = Values(dtype, {dw.data(), dw.size()});
      const std::vector<double> torch_dx = Values(dtype, expected.at("torch_dx" + type).data);
      const std::vector<double> torch_dw = Values(dtype, expected.at("torch_dw" + type).data);
      const std::vector<double> exact_dx = Doubles(expected.at("exact_dx_f64" + type).data);
      const std::vector<double> exact_dw = Doubles(expected.at("exact_dw_f64" + type).data);
      ASSERT_EQ(actual_dx.size(), exact_dx.size());
      ASSERT_EQ(actual_dw.size(), exact_dw.size());
      // Half an ulp of the type, plus 2^-20 of the largest gradient for the sums in f32: the
      // massive channels make terms that cancel.
      const double dx_slack = Largest(exact_dx) * 0x1p-20;
      const double dw_slack = Largest(exact_dw) * 0x1p-20;
      for (size_t i = 0; i < exact_dx.size(); ++i) {
        const double ulp = Ulp(dtype, exact_dx[i]);
        ASSERT_NEAR(exact_dx[i], actual_dx[i], ulp / 2 + dx_slack) << "dx " << i;
        ASSERT_NEAR(torch_dx[i], actual_dx[i], ulp + 2 * dx_slack) << "dx " << i;
      }
      for (size_t j = 0; j < kD; ++j) {
        ASSERT_NEAR(exact_dw[j], actual_dw[j], Ulp(dtype, exact_dw[j]) / 2 + dw_slack)
            << "dw " << j;
        ASSERT_NEAR(torch_dw[j], actual_dw[j], Ulp(dtype, exact_dw[j]) + 2 * dw_slack)
            << "dw " << j;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BackwardExpectedTest, testing::ValuesIn(SupportedTargets()),
                         Name);

}  // namespace
}  // namespace rmsnorm::test

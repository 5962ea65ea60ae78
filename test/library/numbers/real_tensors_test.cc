// SPDX-License-Identifier: Apache-2.0
// Real activations, weights and gradients: every target gives the results of PyTorch, transformers
// and exact arithmetic, but for roundings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "golden.h"
#include "on_target.h"

namespace rmsnorm::test {
namespace {

using Words = std::map<std::string, std::string>;

// Whether all elements are within some ulps of their type, a relative and an absolute difference.
testing::AssertionResult AreWithin(const Rows& actual, const Rows& expected, double ulps,
                                   double relative, double absolute) {
  for (size_t i = 0; i < actual.count(); ++i) {
    const double a = ValueOf(actual, i);
    const double e = ValueOf(expected, i);
    const double bound = ulps * Ulp(actual.dtype(), std::fabs(a) < std::fabs(e) ? a : e) +
                         relative * std::fabs(e) + absolute;
    if (!(std::fabs(a - e) <= bound)) {
      return testing::AssertionFailure() << "element " << i << " is " << a << ", not " << e;
    }
  }
  return testing::AssertionSuccess();
}

class RealTensors : public testing::TestWithParam<std::string> {
 protected:
  static void SetUpTestSuite() {
    inputs_ = ReadTensors(Read("RMSNORM_DATA", "/inputs.safetensors"));
    expected_ = ReadTensors(Read("RMSNORM_DATA", "/expected.safetensors"));
  }
  // A call on tensors of one type. Each result is an operand and the name of its tensor.
  static Golden Real(const std::string& type, const std::vector<std::string>& inputs,
                     const Words& results, const std::string& options = "") {
    Operands operands;
    for (const std::string& input : inputs) operands[input] = &inputs_.at(input + type);
    for (const auto& [operand, name] : results) operands[operand] = &expected_.at(name + type);
    return MakeGolden(type, operands.count("dy") != 0, operands, options);
  }
  static Tensors inputs_;
  static Tensors expected_;
};
Tensors RealTensors::inputs_;
Tensors RealTensors::expected_;

const char* const kTypes[] = {".f32", ".f16", ".bf16"};

// PyTorch and transformers sum in another order, so r may differ by an ulp or two, and each product
// rounds once more.
constexpr double kFewUlps = 4;

TEST_P(RealTensors, AreNormalisedAsByPyTorchAndTransformers) {
  struct Line {
    std::vector<std::string> inputs;
    Words results;
    const char* options;
    double narrow;  // the largest difference of f16 and bf16 in ulps
  };
  const std::vector<std::string> weighted = {"x", "weight"};
  const Line lines[] = {{weighted, {{"y", "torch_rms_norm"}}, "", 1},
                        {{"x"}, {{"y", "torch_rms_norm_no_weight"}}, "", 1},
                        {weighted, {{"y", "llama"}}, ",rounding=before_weight", 2},
                        {{"x", "weight", "residual"},
                         {{"y", "residual_llama"}, {"residual_out", "residual_out"}},
                         ",rounding=before_weight",
                         2},
                        {weighted, {{"y", "deepseek_v3"}}, ",rounding=before_weight,eps=1e-6", 2},
                        {weighted, {{"y", "t5"}}, ",rounding=before_weight,eps=1e-6", 2},
                        {weighted, {{"y", "gemma"}}, ",weight_offset=1,eps=1e-6", 1},
                        {weighted, {{"y", "eps_outside"}}, ",eps=1e-6,eps_placement=outside", 1}};
  for (const std::string type : kTypes) {
    for (const Line& line : lines) {
      SCOPED_TRACE(line.results.at("y") + type);
      const Golden golden = Real(type, line.inputs, line.results, line.options);
      const Results results = ResultsOf(golden, GetParam());
      const double ulps = type == ".f32" ? kFewUlps : line.narrow;
      EXPECT_TRUE(AreWithin(results.at(kY), golden.tensor[kY]->rows, ulps, 0, 0));
      if (golden.c.Has(kResidualOut)) {  // one addition, rounded once
        EXPECT_EQ(0u, ElementsApart(results.at(kResidualOut), golden.tensor[kResidualOut]->rows));
      }
    }
  }
}

// n was rounded to the type of x before the weight, so y may differ by an ulp of that type.
TEST_P(RealTensors, AreNormalisedAsByLlamaWithAWeightInF32) {
  for (const std::string type : kTypes) {
    SCOPED_TRACE(type);
    const Tensor& weight = inputs_.at("weight.f32");
    const Golden golden = MakeGolden(type, false,
                                     {{"x", &inputs_.at("x" + type)},
                                      {"weight", &weight},
                                      {"y", &expected_.at("llama_weight_f32" + type)}},
                                     ",rounding=before_weight");
    const Rows y = ResultsOf(golden, GetParam()).at(kY);
    for (size_t i = 0; i < y.count(); ++i) {
      const double w = ValueOf(weight.rows, i % golden.c.d);
      const double expected = ValueOf(golden.tensor[kY]->rows, i);
      const double ulp = Ulp(RMSNORM_F32, expected);
      const double of_n = Ulp(golden.TypeOf(kX), expected / w) * std::fabs(w);
      ASSERT_NEAR(expected, ValueOf(y, i), type == ".f32" ? kFewUlps * ulp : of_n + ulp) << i;
    }
  }
}

// The relative error of r is at most ((k + 7 + b) / 2 + 4) 2^-24, where k = 4 and b = 0 for d = 512
// (doc/definition.md, section 15). The products with x and with the weight round once each in f32.
// The last rounding is to the type of y; in f32 it is that of the product with the weight.
TEST_P(RealTensors, AreNormalisedWithinTheBoundOfTheDefinition) {
  constexpr double kBound = ((4 + 7) / 2.0 + 4 + 2) * 0x1p-24;
  for (const std::string type : kTypes) {
    SCOPED_TRACE(type);
    const Rows y =
        ResultsOf(Real(type, {"x", "weight"}, {{"y", "torch_rms_norm"}}), GetParam()).at(kY);
    EXPECT_TRUE(
        AreWithin(y, expected_.at("exact_f64" + type).rows, type == ".f32" ? 0 : 0.5, kBound, 0));
  }
}

// Half an ulp of the type, plus 2^-20 of the largest gradient for the sums in f32: the massive
// channels make terms that cancel.
TEST_P(RealTensors, HaveTheGradientsOfPyTorchAndOfTheFormula) {
  for (const std::string type : kTypes) {
    const Golden golden =
        Real(type, {"x", "dy", "weight"}, {{"dx", "torch_dx"}, {"dw", "torch_dw"}});
    for (const auto& [o, gradient] : ResultsOf(golden, GetParam())) {
      const std::string name = kOperandRules[o].name;
      SCOPED_TRACE(name + type);
      const Rows& exact = expected_.at("exact_" + name + "_f64" + type).rows;
      double largest = 0;
      for (size_t i = 0; i < exact.count(); ++i) {
        largest = std::max(largest, std::fabs(ValueOf(exact, i)));
      }
      EXPECT_TRUE(AreWithin(gradient, exact, 0.5, 0, largest * 0x1p-20));
      EXPECT_TRUE(AreWithin(gradient, golden.tensor[o]->rows, 1, 0, largest * 0x1p-19));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, RealTensors, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
// The activations of gates are within 2 ulp of binary64, on every target.
#include <gtest/gtest.h>

#include <cmath>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "exact.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

class ActivationTest : public testing::TestWithParam<std::string> {
 protected:
  // The norm of ones is ones, so y is the activation of the gate.
  void ExpectWithinTwoUlp(const Rows& gate) const {
    const std::vector<float> ones(gate.count() * gate.d(), 1);
    Rows y(RMSNORM_F32, gate.count(), gate.d());
    for (const Activation activation : {Activation::silu, Activation::sigmoid}) {
      SCOPED_TRACE(activation == Activation::silu ? "silu" : "sigmoid");
      Options options;
      options.eps = 0;
      options.activation = activation;
      ForwardOperands operands;
      operands.x = {ones.data(), gate.count(), gate.d()};
      operands.gate = ConstView(ViewOf(gate));
      operands.y = View(ViewOf(y));
      const std::string target = GetParam();
      forward(operands, options, OnTarget(target));
      for (size_t row = 0; row < gate.count(); ++row) {
        for (size_t j = 0; j < gate.d(); ++j) {
          const double z = Get(gate, row, j);
          const double exact = ExactActivation(static_cast<int>(activation), z);
          const double actual = Get(y, row, j);
          const bool is_right = std::isnan(z) ? std::isnan(actual)
                                : std::isinf(exact)
                                    ? actual == exact
                                    : std::fabs(actual - exact) <= 2 * Ulp(RMSNORM_F32, exact) &&
                                          std::signbit(actual) == std::signbit(exact);
          ASSERT_TRUE(is_right) << "of " << z << ": " << actual << ", not " << exact;
        }
      }
    }
  }

  Random random_{1};
};

// Zeros, subnormal numbers, infinities and NaNs are among these.
TEST_P(ActivationTest, OfEveryExponent) {
  const size_t mantissas = 64;
  Rows gate(RMSNORM_F32, 512, mantissas);
  for (uint32_t row = 0; row < 512; ++row) {
    for (uint32_t j = 0; j < mantissas; ++j) {
      const uint32_t mantissa = j == 0 ? 0 : j == 1 ? 1 : j == 2 ? 0x7FFFFF : random_.Bits() >> 9;
      gate.set_bits(row, j, row << 23 | mantissa);
    }
  }
  ExpectWithinTwoUlp(gate);
}

TEST_P(ActivationTest, OfAll16BitNumbers) {
  for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    Rows gate(dtype, 256, 256);
    for (uint32_t bits = 0; bits < 0x10000; ++bits) gate.set_bits(bits / 256, bits % 256, bits);
    ExpectWithinTwoUlp(gate);
  }
}

// Numbers whose results become subnormal, vanish or stop changing, and the ends of the range of z.
TEST_P(ActivationTest, OfNumbersAroundLimits) {
  const std::vector<float> limits = {-110,    -104,   -103.97f, -103.3f, -88.03f, -87,
                                     -86.64f, -17.3f, 0,        0.35f,   16.6f,   17.4f,
                                     87,      88.03f, 88.73f,   104,     110};
  const size_t neighbours = 100;
  Rows gate(RMSNORM_F32, limits.size(), 2 * neighbours + 1);
  for (size_t row = 0; row < limits.size(); ++row) {
    float below = limits[row];
    float above = limits[row];
    for (size_t j = 0; j <= neighbours; ++j) {
      Set(gate, row, neighbours - j, double{below});
      Set(gate, row, neighbours + j, double{above});
      below = std::nextafterf(below, -HUGE_VALF);
      above = std::nextafterf(above, HUGE_VALF);
    }
  }
  ExpectWithinTwoUlp(gate);
}

TEST_P(ActivationTest, OfNumbersThatMatter) {
  Rows gate(RMSNORM_F32, 100, 1000);
  for (size_t row = 0; row < gate.count(); ++row) {
    for (size_t j = 0; j < gate.d(); ++j) Set(gate, row, j, 220 * (random_.Bits() * 0x1p-32) - 115);
  }
  ExpectWithinTwoUlp(gate);
}

INSTANTIATE_TEST_SUITE_P(Targets, ActivationTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

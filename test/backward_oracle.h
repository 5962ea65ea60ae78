// SPDX-License-Identifier: Apache-2.0
// The gradients from their closed form in binary64, and the bounds for the library's. This shares
// no code with lib/, and sums in no particular order.
#ifndef RMSNORM_TEST_BACKWARD_ORACLE_H_
#define RMSNORM_TEST_BACKWARD_ORACLE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "gradients.h"
#include "oracle.h"

namespace rmsnorm::test {

// A gradient, and the bound for the library's value before it is rounded to its type.
struct Expected {
  double value = 0;
  double error = 0;
};

struct ExpectedGradients {
  std::vector<std::vector<Expected>> dx;
  std::vector<std::vector<Expected>> dw;  // per row of the weight
  std::vector<std::vector<Expected>> db;  // per row of the bias
};

// With u = 2^-24 (2^-53 where the row is computed in binary64), R the bound of the inverse RMS,
// which includes its roundings, and sums over a row of a_j = |g_j x_j|:
//
// - g = dy w' rounds once: u |g|. An element of c takes part in that rounding and in at most
//   m = k + 7 + b others (oracle.h counts them), so c is off by (m + 1) u sum(a).
// - q = c r / D rounds twice and contains r: it is off by (m + 1) u sum(a) r / D + |q| (R + 2 u).
//   With eps outside it also contains s, with the bound of r, and rounds once more: 2 R + 3 u.
// - (x r) q rounds twice and contains r once more, x q rounds once: with M = |x r q| or |x q|, the
//   error is M_a (m + 1) u + M (2 R + 4 u), where M_a is M with sum(a) for c.
// - e = g - M rounds once: u (|g| + M); r e contains r and rounds once: |dx| (R + u).
// - An element of dw contains dy x, which rounds once, and r: |dy x r| (u + R) each. The fma rounds
//   once for each row of a block from its own on, up to 16 with fewer than 1,024 rows and
//   rows / 64 + 1 above; then the blocks add up, in at most 63 roundings. db is the same without r.
//   rows / 64 + 1 above; then the blocks add up, 63 roundings at most. db is the same without r.
//
// Products of two errors are of the order of u times these: 1 % more covers them for the m and the
// rows of these tests. In binary64, dx and each term of dw round to f32 at the end. Products below
// 2^-126 are rounded to multiples of 2^-149. That matters for tiny rows or gradients, so each sum,
// product and result may be off by another 2^-149.
inline ExpectedGradients ExactGradients(const GradientInputs& inputs, const Options& options) {
  constexpr double kUnit = 0x1p-24;
  constexpr double kTiny = 0x1p-149;
  constexpr double kSlack = 1.01;
  const Tensor& x = inputs.x;
  const Tensor& dy = inputs.dy;
  const size_t d = x.d();
  const Tensor* const weight = inputs.weight ? &*inputs.weight : nullptr;
  const double divisor = options.divisor == 0 ? static_cast<double>(d) : options.divisor;
  const bool outside = options.eps_placement == EpsPlacement::outside;
  const double roundings_of_sums = static_cast<double>(x.rows()) / 64 + 17 + 63;

  ExpectedGradients expected;
  expected.dx.assign(x.rows(), std::vector<Expected>(d));
  expected.dw.assign(Product(inputs.weight_leading), std::vector<Expected>(d));
  expected.db.assign(Product(inputs.bias_leading), std::vector<Expected>(d));
  for (size_t row = 0; row < x.rows(); ++row) {
    const double sum = ExactSumSquares(x, row);
    const double r = inputs.rstd.empty() ? ExactInverseRms(sum, d, options)
                                         : static_cast<double>(inputs.rstd[row]);
    const bool cold = IsCold(ExactUnderRoot(sum, d, options));
    const double u = cold ? 0x1p-53 : kUnit;
    const double bound = cold ? kColdBound : InverseRmsBound(d);
    const size_t weight_row = BroadcastRow(row, inputs.Leading(), inputs.weight_leading);
    const size_t bias_row = BroadcastRow(row, inputs.Leading(), inputs.bias_leading);
    const double m_plus_1 = 2 * (InverseRmsBound(d) / kUnit - 4) + 1;
    double c = 0;
    double c_a = 0;
    for (size_t j = 0; j < d; ++j) {
      const double product =
          dy.get(row, j) * PreparedWeight(weight, weight_row, j, options) * x.get(row, j);
      c += product;
      c_a += std::fabs(product);
    }
    const double s = std::sqrt(sum / divisor);
    const double eps = options.eps;
    const bool floor = options.eps_placement == EpsPlacement::floor;
    const double factor = outside ? (s == 0 ? 0 : r / (divisor * s)) : r * r / divisor;
    // This close to the floor, the library may take the RMS to be on either side.
    const bool only_g = floor && s < eps;
    const bool open = floor && std::fabs(s - eps) <= bound * eps;
    const double tiny_c = cold ? 0 : static_cast<double>(d) * kTiny;
    for (size_t j = 0; j < d; ++j) {
      const double g = dy.get(row, j) * PreparedWeight(weight, weight_row, j, options);
      const double x_j = x.get(row, j);
      const double second = x_j * factor * c;
      const double size = std::fabs(g) + std::fabs(second);
      Expected& dx = expected.dx[row][j];
      dx.value = r * (only_g ? g : g - second);
      const double second_error = std::fabs(x_j) * factor * (c_a * m_plus_1 * u + tiny_c) +
                                  std::fabs(second) * (2 * bound + 4 * u);
      dx.error = kSlack * (r * (second_error + 2 * size * u + (cold ? 0 : 4 * kTiny)) +
                           std::fabs(dx.value) * (bound + u + (cold ? kUnit : 0))) +
                 kTiny;
      if (cold) dx.error += r * size * 0x1p-40;  // binary64, plus the oracle's own errors
      if (open) dx.error += r * std::fabs(second);

      const double term = dy.get(row, j) * x_j * r;
      Expected& dw = expected.dw[weight_row][j];
      dw.value += term;
      dw.error +=
          kSlack * std::fabs(term) * (u + bound + roundings_of_sums * kUnit) + (r + 1) * kTiny;
      Expected& db = expected.db[bias_row][j];
      db.value += dy.get(row, j);
      db.error += kSlack * std::fabs(dy.get(row, j)) * roundings_of_sums * kUnit;
    }
  }
  return expected;
}

// Half the distance between two numbers of the type around `value`.
inline double HalfUlp(rmsnorm_dtype dtype, double value) {
  const Format format = FormatOf(dtype);
  const int exponent =
      value == 0 ? format.min_exponent() : std::max(std::ilogb(value), format.min_exponent());
  return std::ldexp(1.0, exponent - format.precision);
}

// Checks a result against the expected one; `before` is the value that it was added to.
inline testing::AssertionResult IsWithin(const Expected& expected, double before, double actual,
                                         rmsnorm_dtype dtype) {
  const double value = expected.value + before;
  double error = expected.error;
  if (before != 0) error += (std::fabs(value) + error) * 0x1p-24;
  if (dtype != RMSNORM_F32) error += HalfUlp(dtype, std::fabs(value) + error);
  const double max = FormatOf(dtype).max();
  // Numbers beyond the type's largest become infinity.
  if (std::isinf(actual) ? std::fabs(value) + error >= max && std::signbit(value) == (actual < 0)
                         : std::fabs(value - actual) <= error) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << actual << " is not within " << error << " of " << value
                                     << " (" << (actual - value) / error << " times)";
}

inline testing::AssertionResult GradientsAreWithinBound(const GradientInputs& inputs,
                                                        const GradientResults& results,
                                                        const Options& options) {
  const ExpectedGradients expected = ExactGradients(inputs, options);
  const auto check = [&inputs](const char* name, const std::vector<std::vector<Expected>>& exact,
                               const std::optional<Tensor>& before,
                               const std::optional<Tensor>& actual, uint32_t added_to) {
    for (size_t row = 0; actual && row < exact.size(); ++row) {
      for (size_t j = 0; j < inputs.x.d(); ++j) {
        const double start = (inputs.add_to & added_to) != 0 ? before->get(row, j) : 0;
        const testing::AssertionResult within =
            IsWithin(exact[row][j], start, actual->get(row, j), actual->dtype());
        if (!within) {
          return testing::AssertionFailure()
                 << name << " of row " << row << ", element " << j << ": " << within.message();
        }
      }
    }
    return testing::AssertionSuccess();
  };
  testing::AssertionResult result =
      check("dx", expected.dx, inputs.dx, results.dx, RMSNORM_ADD_TO_DX);
  if (result) result = check("dw", expected.dw, inputs.dw, results.dw, RMSNORM_ADD_TO_DW);
  if (result) result = check("db", expected.db, inputs.db, results.db, RMSNORM_ADD_TO_DB);
  return result;
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_BACKWARD_ORACLE_H_

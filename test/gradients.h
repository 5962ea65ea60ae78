// SPDX-License-Identifier: Apache-2.0
// Calls of rmsnorm_backward(): what they are given and what they give.
#ifndef RMSNORM_TEST_GRADIENTS_H_
#define RMSNORM_TEST_GRADIENTS_H_

#include <gtest/gtest.h>

#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "random_rows.h"
#include "tensor.h"

namespace rmsnorm::test {

constexpr RowKind kFiniteKinds[] = {RowKind::kNormal,    RowKind::kMassive, RowKind::kWide,
                                    RowKind::kNormal,    RowKind::kTiny,    RowKind::kNormal,
                                    RowKind::kSubnormal, RowKind::kHuge,    RowKind::kZero};

// Rows of every finite kind in turn, from `first` on.
inline void FillFinite(Random& random, Tensor& tensor, size_t first) {
  for (size_t row = 0; row < tensor.rows(); ++row) {
    FillRow(random, kFiniteKinds[(first + row) % std::size(kFiniteKinds)], tensor, row);
  }
}

// A weight with which the gradients stay finite: around 0, some elements 0 or subnormal.
inline void FillTameWeight(Random& random, Tensor& weight) {
  FillNormal(random, weight);
  for (size_t j = 0; j < weight.d(); ++j) {
    if (random.Below(16) == 0) weight.set_bits(0, j, static_cast<uint32_t>(random.Below(2)));
  }
}

// What a call is given. dx and dw are what their memory holds before it.
struct GradientInputs {
  Tensor x;
  Tensor dy;
  std::optional<Tensor> weight;
  std::vector<float> rstd;  // empty for none
  std::optional<Tensor> dx;
  std::optional<Tensor> dw;
  bool in_place = false;  // dx is what dy is a copy of
  uint32_t flags = 0;
};

// What it leaves there.
struct GradientResults {
  std::optional<Tensor> dx;
  std::optional<Tensor> dw;
};

inline GradientResults ComputeGradients(const GradientInputs& inputs,
                                        const rmsnorm_options& options) {
  GradientResults results = {inputs.dx, inputs.dw};
  rmsnorm_view dy = inputs.dy.view();
  const rmsnorm_view x = inputs.x.view();
  rmsnorm_view weight;
  rmsnorm_view dx;
  rmsnorm_view dw;
  if (inputs.weight) weight = inputs.weight->vector();
  if (results.dx) dx = results.dx->view();
  if (results.dw) dw = results.dw->vector();
  if (inputs.in_place) dy = dx;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_backward(&dy, &x, inputs.weight ? &weight : nullptr,
                                         inputs.rstd.empty() ? nullptr : inputs.rstd.data(),
                                         results.dx ? &dx : nullptr, results.dw ? &dw : nullptr,
                                         inputs.flags, &options))
      << rmsnorm_error_message();
  return results;
}

// The inverse RMS of the rows of x, as forward gives it.
inline std::vector<float> InverseRmsOf(const Tensor& x, const Options& options) {
  std::vector<float> rstd(x.rows());
  Tensor y(x.dtype(), x.rows(), x.d());
  const rmsnorm_view x_view = x.view();
  const rmsnorm_view y_view = y.view();
  Options without_weight = options;
  without_weight.weight_offset = 0;
  EXPECT_EQ(RMSNORM_OK, rmsnorm_forward(&x_view, nullptr, &y_view, rstd.data(), &without_weight));
  return rstd;
}

// Compares all bytes of what was asked for.
inline testing::AssertionResult SameBits(const GradientResults& expected,
                                         const GradientResults& actual) {
  if (expected.dx) {
    const testing::AssertionResult same = SameBits(*expected.dx, *actual.dx);
    if (!same) return testing::AssertionFailure() << "dx: " << same.message();
  }
  if (expected.dw) {
    const testing::AssertionResult same = SameBits(*expected.dw, *actual.dw);
    if (!same) return testing::AssertionFailure() << "dw: " << same.message();
  }
  return testing::AssertionSuccess();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_GRADIENTS_H_

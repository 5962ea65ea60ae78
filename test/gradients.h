// SPDX-License-Identifier: Apache-2.0
// Calls of backward(): what they are given and what they give.
#ifndef RMSNORM_TEST_GRADIENTS_H_
#define RMSNORM_TEST_GRADIENTS_H_

#include <gtest/gtest.h>

#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <utility>
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

// What a call is given. dx, dw and db are what their memory holds before it.
struct GradientInputs {
  Tensor x;
  Tensor dy;
  std::optional<Tensor> weight;
  std::vector<float> rstd;  // empty for none
  std::optional<Tensor> dx;
  std::optional<Tensor> dw;
  std::optional<Tensor> db;
  bool in_place = false;    // dx is what dy is a copy of
  uint32_t add_to = 0;      // as in rmsnorm_operands
  SizeList leading;         // of x, dy and dx; empty for one dimension over their rows
  SizeList weight_leading;  // of the weight and dw; empty for none
  SizeList bias_leading;    // of db; empty for none

  rmsnorm_view ViewOfRows(const Tensor& rows) const {
    return leading.empty() ? rows.view() : rows.view(leading);
  }
};

// What it leaves there.
struct GradientResults {
  std::optional<Tensor> dx;
  std::optional<Tensor> dw;
  std::optional<Tensor> db;
};

inline GradientResults ComputeGradients(const GradientInputs& inputs, const Options& options,
                                        const Context& context = {}) {
  GradientResults results = {inputs.dx, inputs.dw, inputs.db};
  BackwardOperands operands;
  operands.x = ConstView(inputs.ViewOfRows(inputs.x));
  if (inputs.weight) operands.weight = ConstView(inputs.weight->view(inputs.weight_leading));
  const SizeList leading = inputs.leading.empty() ? SizeList{inputs.x.rows()} : inputs.leading;
  if (!inputs.rstd.empty()) {
    operands.rstd = ConstView(inputs.rstd.data(), Dtype::f32, leading.size(), leading.data());
  }
  if (results.dx) operands.dx = View(inputs.ViewOfRows(*results.dx));
  operands.dy = inputs.in_place ? operands.dx : ConstView(inputs.ViewOfRows(inputs.dy));
  if (results.dw) operands.dw = View(results.dw->view(inputs.weight_leading));
  if (results.db) operands.db = View(results.db->view(inputs.bias_leading));
  operands.add_to_dx = (inputs.add_to & RMSNORM_ADD_TO_DX) != 0;
  operands.add_to_dw = (inputs.add_to & RMSNORM_ADD_TO_DW) != 0;
  operands.add_to_db = (inputs.add_to & RMSNORM_ADD_TO_DB) != 0;
  backward(operands, options, context);
  return results;
}

// The inverse RMS of the rows of x, as forward gives it.
inline std::vector<float> InverseRmsOf(const Tensor& x, const Options& options,
                                       const Context& context = {}) {
  std::vector<float> rstd(x.rows());
  ForwardOperands operands;
  operands.x = ConstView(x.view());
  operands.rstd = {rstd.data(), rstd.size()};
  Options without_weight = options;
  without_weight.weight_offset = 0;
  forward(operands, without_weight, context);
  return rstd;
}

// Compares all bytes of what was asked for.
inline testing::AssertionResult SameBits(const GradientResults& expected,
                                         const GradientResults& actual) {
  for (const auto& [name, gradient] : {std::pair{"dx", &GradientResults::dx},
                                       {"dw", &GradientResults::dw},
                                       {"db", &GradientResults::db}}) {
    if (!(expected.*gradient)) continue;
    const testing::AssertionResult same = SameBits(*(expected.*gradient), *(actual.*gradient));
    if (!same) return testing::AssertionFailure() << name << ": " << same.message();
  }
  return testing::AssertionSuccess();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_GRADIENTS_H_

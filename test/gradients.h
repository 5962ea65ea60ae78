// SPDX-License-Identifier: Apache-2.0
// Calls of backward(): their inputs and results.
#ifndef RMSNORM_TEST_GRADIENTS_H_
#define RMSNORM_TEST_GRADIENTS_H_

#include <gtest/gtest.h>

#include <functional>
#include <numeric>
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

// A weight that keeps gradients finite: around 0, with some elements 0 or subnormal.
inline void FillTameWeight(Random& random, Tensor& weight) {
  FillNormal(random, weight);
  for (size_t j = 0; j < weight.d(); ++j) {
    if (random.Below(16) == 0) weight.set_bits(0, j, static_cast<uint32_t>(random.Below(2)));
  }
}

inline size_t Product(const SizeList& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), size_t{1}, std::multiplies<size_t>());
}

// A row of x has the leading dimensions `leading`; the tensor has `own`, aligned from the right.
// Returns the tensor's row that this row of x reads.
inline size_t BroadcastRow(size_t row, const SizeList& leading, const SizeList& own) {
  size_t result = 0;
  size_t step = 1;
  for (size_t i = 1; i <= own.size(); ++i) {
    const size_t size = leading[leading.size() - i];
    if (own[own.size() - i] != 1) result += row % size * step;
    step *= own[own.size() - i];
    row /= size;
  }
  return result;
}

// The inputs of a call. dx, dw and db have the contents of their memory before the call.
struct GradientInputs {
  Tensor x;
  Tensor dy;
  std::optional<Tensor> weight;
  std::vector<float> rstd;  // empty if absent
  std::optional<Tensor> dx;
  std::optional<Tensor> dw;
  std::optional<Tensor> db;
  bool in_place = false;         // dx replaces dy; dy is a copy of it
  uint32_t add_to = 0;           // as in rmsnorm_operands
  SizeList leading = {};         // of x, dy and dx; empty for one dimension over their rows
  SizeList weight_leading = {};  // of the weight and dw; may be empty
  SizeList bias_leading = {};    // of db; may be empty

  SizeList Leading() const { return leading.empty() ? SizeList{x.rows()} : leading; }
};

// The results of a call.
struct GradientResults {
  std::optional<Tensor> dx;
  std::optional<Tensor> dw;
  std::optional<Tensor> db;
};

inline GradientResults ComputeGradients(const GradientInputs& inputs, const Options& options,
                                        const Context& context = {}) {
  GradientResults results = {inputs.dx, inputs.dw, inputs.db};
  const SizeList leading = inputs.Leading();
  BackwardOperands operands;
  operands.x = ConstView(inputs.x.view(leading));
  if (inputs.weight) operands.weight = ConstView(inputs.weight->view(inputs.weight_leading));
  if (!inputs.rstd.empty()) {
    operands.rstd = ConstView(inputs.rstd.data(), Dtype::f32, leading.size(), leading.data());
  }
  if (results.dx) operands.dx = View(results.dx->view(leading));
  operands.dy = inputs.in_place ? operands.dx : ConstView(inputs.dy.view(leading));
  if (results.dw) operands.dw = View(results.dw->view(inputs.weight_leading));
  if (results.db) operands.db = View(results.db->view(inputs.bias_leading));
  operands.add_to_dx = (inputs.add_to & RMSNORM_ADD_TO_DX) != 0;
  operands.add_to_dw = (inputs.add_to & RMSNORM_ADD_TO_DW) != 0;
  operands.add_to_db = (inputs.add_to & RMSNORM_ADD_TO_DB) != 0;
  backward(operands, options, context);
  return results;
}

// The inverse RMS of the rows of x, computed by forward.
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

// Compares all bytes of the requested outputs.
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

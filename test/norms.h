// SPDX-License-Identifier: Apache-2.0
// Calls of forward(): their inputs and results.
#ifndef RMSNORM_TEST_NORMS_H_
#define RMSNORM_TEST_NORMS_H_

#include <gtest/gtest.h>

#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <type_traits>
#include <utility>
#include <vector>

#include "tensor.h"

namespace rmsnorm::test {

// The inputs of a call. y and residual_out have the contents of their memory before the call.
struct NormInputs {
  Tensor x;
  std::optional<Tensor> residual = {};
  std::optional<Tensor> weight = {};
  std::optional<Tensor> bias = {};
  std::vector<double> sums = {};  // may be empty; laid out as the results' sums
  std::optional<Tensor> y = {};
  std::optional<Tensor> residual_out = {};
  bool y_in_place = false;         // y replaces x; x is a copy of it
  bool residual_in_place = false;  // residual_out replaces residual, a copy of it
  bool rstd = true;                // requested
  bool sums_out = false;           // requested
  size_t step = 1;                 // elements from one number for a row to the next
  SizeList leading = {};           // of all rows; empty for one dimension over them
  SizeList weight_leading = {};    // may be empty
  SizeList bias_leading = {};      // may be empty

  SizeList Leading() const { return leading.empty() ? SizeList{x.rows()} : leading; }
};

// The results of a call. In rstd and sums, every step-th number belongs to a row.
struct NormResults {
  std::optional<Tensor> y;
  std::optional<Tensor> residual_out;
  std::vector<float> rstd;
  std::vector<double> sums;
};

// A view of numbers; every step-th number belongs to a row.
template <class AnyView, class T>
AnyView PerRow(T* numbers, const NormInputs& inputs) {
  const SizeList leading = inputs.Leading();
  std::vector<ptrdiff_t> stride(leading.size());
  auto next = static_cast<ptrdiff_t>(inputs.step);
  for (size_t i = leading.size(); i-- > 0; next *= static_cast<ptrdiff_t>(leading[i])) {
    stride[i] = next;
  }
  return AnyView(numbers, DtypeOf<std::remove_const_t<T>>::value, leading.size(), leading.data(),
                 stride.data());
}

template <class T>
void ExpectNothingBetween(const std::vector<T>& numbers, size_t step) {
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i % step != 0) {
      EXPECT_EQ(kWiped, numbers[i]) << i;
    }
  }
}

inline NormResults ComputeNorm(const NormInputs& inputs, const Options& options,
                               const Context& context = {}) {
  const SizeList leading = inputs.Leading();
  const size_t numbers = inputs.x.rows() * inputs.step;
  NormResults results = {inputs.y, inputs.residual_out, {}, {}};
  if (inputs.rstd) results.rstd.assign(numbers, kWiped);
  if (inputs.sums_out) results.sums.assign(numbers, kWiped);
  // In place, two views share memory and may have different types.
  const auto input = [&](const Tensor& rows, const std::optional<Tensor>& output, bool in_place) {
    rmsnorm_view view = (in_place ? *output : rows).view(leading);
    view.dtype = rows.dtype();
    return ConstView(view);
  };
  ForwardOperands operands;
  operands.x = input(inputs.x, results.y, inputs.y_in_place);
  if (inputs.residual) {
    operands.residual = input(*inputs.residual, results.residual_out, inputs.residual_in_place);
  }
  if (inputs.weight) operands.weight = ConstView(inputs.weight->view(inputs.weight_leading));
  if (inputs.bias) operands.bias = ConstView(inputs.bias->view(inputs.bias_leading));
  if (!inputs.sums.empty()) operands.sums = PerRow<ConstView>(inputs.sums.data(), inputs);
  if (results.y) operands.y = View(results.y->view(leading));
  if (results.residual_out) operands.residual_out = View(results.residual_out->view(leading));
  if (inputs.rstd) operands.rstd = PerRow<View>(results.rstd.data(), inputs);
  if (inputs.sums_out) operands.sums_out = PerRow<View>(results.sums.data(), inputs);
  forward(operands, options, context);
  ExpectNothingBetween(results.rstd, inputs.step);
  ExpectNothingBetween(results.sums, inputs.step);
  return results;
}

// Compares all bytes of the requested outputs.
inline testing::AssertionResult SameBits(const NormResults& expected, const NormResults& actual) {
  for (const auto& [name, output] :
       {std::pair{"y", &NormResults::y}, {"residual_out", &NormResults::residual_out}}) {
    if (!(expected.*output)) continue;
    const testing::AssertionResult same = SameBits(*(expected.*output), *(actual.*output));
    if (!same) return testing::AssertionFailure() << name << ": " << same.message();
  }
  const testing::AssertionResult same_rstd = SameBits(expected.rstd, actual.rstd);
  if (!same_rstd) return testing::AssertionFailure() << "rstd: " << same_rstd.message();
  const testing::AssertionResult same_sums = SameBits(expected.sums, actual.sums);
  if (!same_sums) return testing::AssertionFailure() << "sums: " << same_sums.message();
  return testing::AssertionSuccess();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_NORMS_H_

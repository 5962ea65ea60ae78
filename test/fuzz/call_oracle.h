// SPDX-License-Identifier: Apache-2.0
// The results of a call against those of the oracles in binary64.
#ifndef RMSNORM_TEST_FUZZ_CALL_ORACLE_H_
#define RMSNORM_TEST_FUZZ_CALL_ORACLE_H_

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "backward_oracle.h"
#include "oracle.h"
#include "random_call.h"

namespace rmsnorm::test {

// The memory of a call, and the same after it.
struct Ran {
  const Call& call;
  const unsigned char* before;
  const unsigned char* after;

  const Operand& operand(int id) const { return call.operands[id]; }
  Tensor Before(int id) const { return Gather(operand(id), before); }
  Tensor After(int id) const { return Gather(operand(id), after); }
  // One number for each row, or none.
  template <class T>
  std::vector<T> PerRow(int id, const unsigned char* memory) const {
    if (!operand(id).given) return {};
    std::vector<T> numbers(operand(id).view.shape[0]);
    if (!numbers.empty()) {
      std::memcpy(numbers.data(), memory + operand(id).offset, numbers.size() * sizeof(T));
    }
    return numbers;
  }
  // As it is used: rounded to the type of the module that keeps it.
  std::optional<Tensor> Weight() const {
    const bool given = operand(kWeight).given;
    if (!call.IsModule()) return given ? std::optional<Tensor>(Before(kWeight)) : std::nullopt;
    const size_t d = RowLength(operand(kX).view);
    Tensor kept(RMSNORM_F32, 1, d);
    std::optional<Tensor> weight;
    if (given) weight = Before(kWeight);
    for (size_t j = 0; j < d; ++j) {
      kept.set(0, j, weight ? RoundTo(call.module_dtype, weight->get(0, j)) : 1);
    }
    return kept;
  }
};

inline testing::AssertionResult SumsAreWithinBound(const Ran& ran) {
  const Tensor x = ran.Before(kX);
  const rmsnorm_options& options = ran.call.options;
  const std::vector<double> sums = ran.PerRow<double>(kSums, ran.after);
  for (size_t row = 0; row < sums.size(); ++row) {
    const double exact = ExactSumSquares(x, row);
    const double divisor = options.divisor == 0 ? static_cast<double>(x.d()) : options.divisor;
    // Twice that of the root, which the bound of the inverse RMS is for.
    const double bound = 2 * (IsCold(exact / divisor) ? kColdBound : InverseRmsBound(x.d()));
    if (!IsBetween(sums[row], exact * (1 - bound), exact * (1 + bound))) {
      return testing::AssertionFailure() << "sums: " << sums[row] << ", not " << exact;
    }
  }
  return testing::AssertionSuccess();
}

// Of rows x, of which the sums of squares may be given.
inline testing::AssertionResult NormIsWithinBound(const Ran& ran, const Tensor& x,
                                                  const std::vector<double>& sums) {
  const std::optional<Tensor> weight = ran.Weight();
  const Tensor y = ran.After(kY);
  const std::vector<float> rstd = ran.PerRow<float>(kRstd, ran.after);
  for (size_t row = 0; row < x.rows(); ++row) {
    const double sum = sums.empty() ? ExactSumSquares(x, row) : sums[row];
    if (sum < 0) continue;  // eps could cancel it
    const testing::AssertionResult within =
        RowIsWithinBound(sum, x, weight ? &*weight : nullptr, y,
                         rstd.empty() ? nullptr : rstd.data(), row, ran.call.options);
    if (!within) return within;
  }
  return testing::AssertionSuccess();
}

inline testing::AssertionResult AddIsWithinBound(const Ran& ran) {
  const Tensor x = ran.Before(kX);
  const Tensor residual = ran.Before(kResidual);
  const Tensor stored = ran.After(kResidualOut);
  Tensor h(RMSNORM_F32, x.rows(), x.d());
  Tensor rounded(residual.dtype(), x.rows(), x.d());
  for (size_t row = 0; row < x.rows(); ++row) {
    for (size_t j = 0; j < x.d(); ++j) {
      h.set(row, j, residual.get(row, j) + x.get(row, j));
      rounded.set(row, j, h.get(row, j));
    }
    const testing::AssertionResult same =
        SameBits(rounded.dtype(), rounded.Row(row), stored.Row(row), x.d());
    if (!same) return testing::AssertionFailure() << "residual_out: " << same.message();
  }
  const bool of_h = ran.call.options.residual_rounding == RMSNORM_NORM_THEN_CAST;
  return NormIsWithinBound(ran, of_h ? h : rounded, {});
}

inline testing::AssertionResult BackwardIsWithinBound(const Ran& ran) {
  const Call& call = ran.call;
  GradientInputs inputs = {
      ran.Before(kX), ran.Before(kDy), ran.Weight(), ran.PerRow<float>(kRstd, ran.before), {}, {}};
  inputs.flags = call.flags;
  GradientResults results;
  if (ran.operand(kDx).given) {
    inputs.dx = ran.Before(kDx);
    results.dx = ran.After(kDx);
  }
  if (ran.operand(kDw).given) {
    inputs.dw = ran.Before(kDw);
    results.dw = ran.After(kDw);
  }
  for (size_t row = 0; row < inputs.x.rows(); ++row) {
    // 1 / 0, which the closed form has no gradient for.
    if (call.options.eps == 0 && ExactSumSquares(inputs.x, row) == 0) {
      return testing::AssertionSuccess();
    }
  }
  return GradientsAreWithinBound(inputs, results, call.options);
}

// Whether the results of a call that was accepted are within their bounds, where those hold.
inline testing::AssertionResult IsWithinBounds(const Ran& ran) {
  const rmsnorm_options& options = ran.call.options;
  if ((options.divisor != 0 && options.divisor < 1) || options.eps > 0x1p100f) {
    return testing::AssertionSuccess();
  }
  switch (ran.call.operation) {
    case kSumSquares:
      return SumsAreWithinBound(ran);
    case kForward:
    case kModuleForward:
      return NormIsWithinBound(ran, ran.Before(kX), {});
    case kScale:
      return NormIsWithinBound(ran, ran.Before(kX), ran.PerRow<double>(kSums, ran.before));
    case kAddForward:
    case kModuleAddForward:
      return AddIsWithinBound(ran);
    default:
      return ran.call.tame ? BackwardIsWithinBound(ran) : testing::AssertionSuccess();
  }
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FUZZ_CALL_ORACLE_H_

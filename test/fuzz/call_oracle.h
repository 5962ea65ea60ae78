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

// The memory of one norm of a call, and the same after it.
struct Ran {
  const Call& call;
  int norm;
  const unsigned char* before;
  const unsigned char* after;

  const Operand& operand(int id) const { return call.operands[norm * kOperands + id]; }
  bool Has(int id) const { return operand(id).given; }
  Options options() const { return Options(call.norm[norm].options); }
  Tensor Before(int id) const { return Gather(operand(id), before); }
  Tensor After(int id) const { return Gather(operand(id), after); }
  // As it is used: rounded to the type of the module that keeps it.
  std::optional<Tensor> Weight() const {
    std::optional<Tensor> weight;
    if (Has(kWeight)) weight = Before(kWeight);
    if (!call.norm[norm].by_module) return weight;
    const size_t d = RowLength(operand(kX));
    Tensor kept(RMSNORM_F32, 1, d);
    for (size_t j = 0; j < d; ++j) {
      kept.set(0, j, weight ? RoundTo(call.norm[norm].module_dtype, weight->get(0, j)) : 1);
    }
    return kept;
  }
  // Those of a weight that a module has are none.
  SizeList LeadingOf(int id) const { return Has(id) ? Leading(operand(id)) : SizeList(); }
  // A row of a weight or a bias for each row of x.
  std::optional<Tensor> ForEachRow(const std::optional<Tensor>& columns, int id) const {
    if (!columns) return columns;
    Tensor rows(columns->dtype(), Rows(operand(kX)), columns->d());
    for (size_t row = 0; row < rows.rows(); ++row) {
      std::memcpy(rows.Row(row), columns->Row(BroadcastRow(row, LeadingOf(kX), LeadingOf(id))),
                  rows.d() * rmsnorm_dtype_size(rows.dtype()));
    }
    return rows;
  }
};

inline testing::AssertionResult SumsAreWithinBound(const Ran& ran, const Tensor& h) {
  const Options options = ran.options();
  const std::vector<double> sums = GatherNumbers<double>(ran.operand(kSumsOut), ran.after);
  for (size_t row = 0; row < sums.size(); ++row) {
    const double exact = ExactSumSquares(h, row);
    const double divisor = options.divisor == 0 ? static_cast<double>(h.d()) : options.divisor;
    // Twice that of the root, which the bound of the inverse RMS is for.
    const double bound = 2 * (IsCold(exact / divisor) ? kColdBound : InverseRmsBound(h.d()));
    if (!IsBetween(sums[row], exact * (1 - bound), exact * (1 + bound))) {
      return testing::AssertionFailure() << "sums: " << sums[row] << ", not " << exact;
    }
  }
  return testing::AssertionSuccess();
}

// Of rows h, of which the sums of squares may be given.
inline testing::AssertionResult NormIsWithinBound(const Ran& ran, const Tensor& h) {
  const std::vector<double> sums = GatherNumbers<double>(ran.operand(kSums), ran.before);
  const std::vector<float> rstd = GatherNumbers<float>(ran.operand(kRstd), ran.after);
  const std::optional<Tensor> weight = ran.ForEachRow(ran.Weight(), kWeight);
  std::optional<Tensor> bias;
  if (ran.Has(kBias)) bias = ran.ForEachRow(ran.Before(kBias), kBias);
  const Tensor y = ran.After(kY);
  for (size_t row = 0; row < h.rows(); ++row) {
    const double sum = sums.empty() ? ExactSumSquares(h, row) : sums[row];
    if (sum < 0) continue;  // eps could cancel it
    const testing::AssertionResult within = RowIsWithinBound(
        sum, h, weight ? &*weight : nullptr, y, rstd.empty() ? nullptr : rstd.data(), row,
        ran.options(), bias ? &*bias : nullptr);
    if (!within) return within;
  }
  return testing::AssertionSuccess();
}

// The sum of x and the residual in f32, or as residual_out holds it.
inline Tensor Sum(const Ran& ran, rmsnorm_dtype dtype) {
  const Tensor x = ran.Before(kX);
  const Tensor residual = ran.Before(kResidual);
  Tensor h(dtype, x.rows(), x.d());
  for (size_t row = 0; row < x.rows(); ++row) {
    for (size_t j = 0; j < x.d(); ++j) {
      h.set(row, j, RoundTo(RMSNORM_F32, residual.get(row, j) + x.get(row, j)));
    }
  }
  return h;
}

inline testing::AssertionResult ForwardIsWithinBound(const Ran& ran) {
  const Options options = ran.options();
  Tensor h = ran.Before(kX);
  bool has_oracle = true;
  if (ran.Has(kResidual)) {
    const Tensor rounded = Sum(ran, ran.operand(kResidual).view.dtype);
    if (ran.Has(kResidualOut)) {
      const Tensor stored = ran.After(kResidualOut);
      for (size_t row = 0; row < h.rows(); ++row) {
        const testing::AssertionResult same =
            SameBits(rounded.dtype(), rounded.Row(row), stored.Row(row), h.d());
        if (!same) return testing::AssertionFailure() << "residual_out: " << same.message();
      }
    }
    const bool unrounded = options.residual_rounding == ResidualRounding::norm_then_cast;
    // The oracle rounds n to the type of what is normalised, which is f32 here and x's type not.
    has_oracle =
        !unrounded || h.dtype() == RMSNORM_F32 || options.rounding == Rounding::scale_then_cast;
    h = unrounded ? Sum(ran, RMSNORM_F32) : rounded;
  }
  if (ran.Has(kSumsOut) && !ran.Has(kSums)) {
    const testing::AssertionResult within = SumsAreWithinBound(ran, h);
    if (!within) return within;
  }
  return has_oracle && ran.Has(kY) ? NormIsWithinBound(ran, h) : testing::AssertionSuccess();
}

inline testing::AssertionResult BackwardIsWithinBound(const Ran& ran) {
  const Options options = ran.options();
  GradientInputs inputs = {ran.Before(kX),
                           ran.Before(kDy),
                           ran.Weight(),
                           GatherNumbers<float>(ran.operand(kRstd), ran.before),
                           {},
                           {},
                           {},
                           false,
                           ran.call.norm[ran.norm].add_to,
                           ran.LeadingOf(kX),
                           ran.LeadingOf(ran.Has(kDw) ? kDw : kWeight),
                           ran.LeadingOf(kDb)};
  GradientResults results;
  for (const auto& [id, gradient] :
       {std::pair{kDx, std::pair{&GradientInputs::dx, &GradientResults::dx}},
        {kDw, {&GradientInputs::dw, &GradientResults::dw}},
        {kDb, {&GradientInputs::db, &GradientResults::db}}}) {
    if (!ran.Has(id)) continue;
    inputs.*gradient.first = ran.Before(id);
    results.*gradient.second = ran.After(id);
  }
  for (size_t row = 0; row < inputs.x.rows(); ++row) {
    // 1 / 0, which the closed form has no gradient for.
    if (options.eps == 0 && ExactSumSquares(inputs.x, row) == 0) return testing::AssertionSuccess();
  }
  return GradientsAreWithinBound(inputs, results, options);
}

// Whether the results of a call that was accepted are within their bounds, where those hold.
inline testing::AssertionResult IsWithinBounds(const Ran& ran) {
  const Options options = ran.options();
  if ((options.divisor != 0 && options.divisor < 1) || options.eps > 0x1p100f) {
    return testing::AssertionSuccess();
  }
  if (!ran.call.Is().backward) return ForwardIsWithinBound(ran);
  return ran.call.tame ? BackwardIsWithinBound(ran) : testing::AssertionSuccess();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FUZZ_CALL_ORACLE_H_

// SPDX-License-Identifier: Apache-2.0
// Compares the results of a case with the oracles in binary64.
#ifndef RMSNORM_TEST_FUZZ_CALL_ORACLE_H_
#define RMSNORM_TEST_FUZZ_CALL_ORACLE_H_

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "backward_oracle.h"
#include "cases/problem.h"
#include "gradients.h"
#include "oracle.h"

namespace rmsnorm::test {

using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kDy, internal::kGate,
    internal::kPostNormWeight, internal::kResidual, internal::kResidualOut, internal::kRstd,
    internal::kSums, internal::kSumsOut, internal::kWeight, internal::kX, internal::kY;

// A case after its run.
struct Ran {
  const cases::Case& c;
  const cases::Problem& problem;

  bool Has(cases::Operand o) const { return c.Has(o); }
  Options options() const { return Options::from(c.options); }
  static Tensor Copy(const cases::Rows& rows) {
    Tensor tensor(rows.dtype(), rows.count(), rows.d());
    for (size_t row = 0; row < rows.count(); ++row) {
      std::memcpy(tensor.Row(row), rows.row(row), rows.row_bytes());
    }
    return tensor;
  }
  Tensor Before(cases::Operand o) const { return Copy(problem.before(o)); }
  Tensor After(cases::Operand o) const { return Copy(problem.after(o)); }
  // The numbers of a per-row operand; empty if it is absent.
  template <class T>
  static std::vector<T> Numbers(const cases::Rows& rows) {
    std::vector<T> numbers(rows.count());
    for (size_t row = 0; row < rows.count(); ++row) {
      std::memcpy(&numbers[row], rows.row(row), sizeof(T));
    }
    return numbers;
  }
  std::optional<Tensor> Weight() const {
    return Has(kWeight) ? std::optional<Tensor>(Before(kWeight)) : std::nullopt;
  }
  SizeList LeadingOf(cases::Operand o) const { return cases::LeadingOf(c, o); }
  // A weight or a bias, expanded to one row for each row of x.
  std::optional<Tensor> ForEachRow(cases::Operand o) const {
    if (!Has(o)) return std::nullopt;
    const cases::Rows& columns = problem.before(o);
    Tensor rows(columns.dtype(), c.RowCount(), columns.d());
    for (size_t row = 0; row < rows.rows(); ++row) {
      std::memcpy(rows.Row(row), columns.row(cases::SharedRow(c, o, row)), columns.row_bytes());
    }
    return rows;
  }
};

inline testing::AssertionResult SumsAreWithinBound(const Ran& ran, const Tensor& h) {
  const Options options = ran.options();
  const std::vector<double> sums = ran.Numbers<double>(ran.problem.after(kSumsOut));
  for (size_t row = 0; row < sums.size(); ++row) {
    const double exact = ExactSumSquares(h, row);
    const double divisor = options.divisor == 0 ? static_cast<double>(h.d()) : options.divisor;
    // Twice the bound of the inverse RMS, since the root halves an error.
    const double bound = 2 * (IsCold(exact / divisor) ? kColdBound : InverseRmsBound(h.d()));
    if (!IsBetween(sums[row], exact * (1 - bound), exact * (1 + bound))) {
      return testing::AssertionFailure() << "sums: " << sums[row] << ", not " << exact;
    }
  }
  return testing::AssertionSuccess();
}

// Checks y and rstd for rows h; the sums of squares may be given.
inline testing::AssertionResult NormIsWithinBound(const Ran& ran, const Tensor& h) {
  const std::vector<double> sums = ran.Numbers<double>(ran.problem.before(kSums));
  const std::vector<float> rstd = ran.Numbers<float>(ran.problem.after(kRstd));
  const std::optional<Tensor> weight = ran.ForEachRow(kWeight);
  const std::optional<Tensor> bias = ran.ForEachRow(kBias);
  const Tensor y = ran.After(kY);
  for (size_t row = 0; row < h.rows(); ++row) {
    const double sum = sums.empty() ? ExactSumSquares(h, row) : sums[row];
    if (std::signbit(sum)) continue;  // eps could cancel it, and zeros of either sign are one
    const testing::AssertionResult within = RowIsWithinBound(
        sum, h, weight ? &*weight : nullptr, y, rstd.empty() ? nullptr : rstd.data(), row,
        ran.options(), bias ? &*bias : nullptr);
    if (!within) return within;
  }
  return testing::AssertionSuccess();
}

// The sum of x and the residual in f32, or in the type of residual_out.
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
    const Tensor rounded = Sum(ran, ran.c.operand[kResidual].dtype);
    if (ran.Has(kResidualOut)) {
      const Tensor stored = ran.After(kResidualOut);
      for (size_t row = 0; row < h.rows(); ++row) {
        const testing::AssertionResult same =
            SameBits(rounded.dtype(), rounded.Row(row), stored.Row(row), h.d());
        if (!same) return testing::AssertionFailure() << "residual_out: " << same.message();
      }
    }
    const bool unrounded = options.residual_rounding == ResidualRounding::unrounded;
    // The oracle rounds n to the type of h; here h is f32 and x is not.
    has_oracle =
        !unrounded || h.dtype() == RMSNORM_F32 || options.rounding == Rounding::after_weight;
    h = unrounded ? Sum(ran, RMSNORM_F32) : rounded;
  }
  if (ran.Has(kSumsOut) && !ran.Has(kSums)) {
    const testing::AssertionResult within = SumsAreWithinBound(ran, h);
    if (!within) return within;
  }
  return has_oracle && ran.Has(kY) ? NormIsWithinBound(ran, h) : testing::AssertionSuccess();
}

// The bits of rmsnorm_operands::add_to.
inline uint32_t AddTo(const cases::Case& c) {
  uint32_t add_to = 0;
  for (const auto o : {kDx, kDw, kDb}) add_to |= c.operand[o].add ? 1u << (o - kDx) : 0;
  return add_to;
}

inline testing::AssertionResult BackwardIsWithinBound(const Ran& ran) {
  const Options options = ran.options();
  GradientInputs inputs = {ran.Before(kX),
                           ran.Before(kDy),
                           ran.Weight(),
                           ran.Numbers<float>(ran.problem.before(kRstd)),
                           {},
                           {},
                           {},
                           false,
                           AddTo(ran.c),
                           ran.LeadingOf(kX),
                           ran.LeadingOf(ran.Has(kDw) ? kDw : kWeight),
                           ran.LeadingOf(kDb)};
  GradientResults results;
  for (const auto& [id, gradient] :
       {std::pair{kDx, std::pair{&GradientInputs::dx, &GradientResults::dx}},
        {kDw, {&GradientInputs::dw, &GradientResults::dw}},
        {kDb, {&GradientInputs::db, &GradientResults::db}}}) {
    if (!ran.Has(id)) continue;
    inputs.*gradient.first = ran.c.operand[id].add ? ran.Before(id) : ran.After(id);
    results.*gradient.second = ran.After(id);
  }
  for (size_t row = 0; row < inputs.x.rows(); ++row) {
    // The row has 1 / 0, for which the closed form has no gradient.
    if (options.eps == 0 && ExactSumSquares(inputs.x, row) == 0) return testing::AssertionSuccess();
  }
  return GradientsAreWithinBound(inputs, results, options);
}

// Whether numbers are around 1, and each row has its own rstd, as the bounds of gradients require.
inline bool IsTame(const cases::Case& c) {
  for (const auto& operand : c.operand) {
    if (operand.values != cases::Values::kNormal && operand.values != cases::Values::kMassive) {
      return false;
    }
  }
  const float offset = std::abs(c.options.weight_offset);
  return c.options.eps <= 1 && offset <= 1 &&
         (c.options.divisor == 0 || c.options.divisor < 1000) &&
         c.operand[kRstd].order < cases::Order::kRepeated;
}

// Whether the results of a case are within their bounds, if the bounds apply. family_oracle_test.cc
// covers the other operands.
inline testing::AssertionResult IsWithinBounds(const cases::Case& c,
                                               const cases::Problem& problem) {
  const bool has_others =
      c.Has(kGate) || c.Has(kPostNormWeight) || internal::FactorOf(c.options) != 1;
  if ((c.options.divisor != 0 && c.options.divisor < 1) || c.options.eps > 0x1p100f || has_others) {
    return testing::AssertionSuccess();
  }
  if (!c.backward) return ForwardIsWithinBound({c, problem});
  return IsTame(c) ? BackwardIsWithinBound({c, problem}) : testing::AssertionSuccess();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_FUZZ_CALL_ORACLE_H_

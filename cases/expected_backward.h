// SPDX-License-Identifier: Apache-2.0
// The results of backward: dx, dw and db.
#ifndef RMSNORM_CASES_EXPECTED_BACKWARD_H_
#define RMSNORM_CASES_EXPECTED_BACKWARD_H_

#include "computation.h"

namespace rmsnorm::cases {

// The closed form of the gradients, with a range for each step. A rounding widens the range: to
// f32, or to binary64 where the row is certainly computed in that. A row that may be either has the
// ranges of f32, which hold the results of both.
class Backward : public Computation {
 public:
  using Computation::Computation;
  void Make() {
    const Gradients zeros(c_.d, {0, 0, Range(0.0)});
    dw_.assign(c_.Has(kDw) ? RowsOf(c_, kDw) : 1, zeros);
    db_.assign(c_.Has(kDb) ? RowsOf(c_, kDb) : 1, zeros);
    for (size_t row = 0; goes_on() && row < c_.RowCount(); ++row) AddRow(row);
    for (const Operand o : {kDw, kDb}) {
      std::vector<Gradients>& columns = o == kDw ? dw_ : db_;
      const double roundings = roundings_.Rows(c_.RowCount() / columns.size(), o);
      Theta sum(roundings_, std::max(roundings - 1, 0.0) * kUnit);
      // The product of dy and x, and the inverse RMS; others may round both.
      if (o == kDw) sum.Add(kUnit + roundings_.Inverse() + 2 * roundings_.Between());
      if (roundings > 0) sum.Operate();
      for (size_t row = 0; row < columns.size(); ++row) {
        for (ExpectedElement& one : columns[row]) {
          one.range = Around(one.range, kSlack * one.size * roundings * kUnit);
        }
        Expect(o, row, columns[row], sum);
      }
    }
  }

 private:
  using Gradients = std::vector<ExpectedElement>;

  static void AddTerm(const Quantity& term, ExpectedElement& to) {
    to.exact += term.exact;
    to.size += std::fabs(term.exact);
    to.range = Map(to.range, term.range, std::plus<>());
  }

  // dy, or what definition 10 makes of it, in f32: each operation is rounded once.
  std::vector<double> RowOfDy(size_t row) const {
    const auto given = Input(kDy, row);
    std::vector<double> dy(c_.d);
    for (size_t j = 0; j < c_.d; ++j) {
      dy[j] = given(j);
      if (!c_.Has(kCos)) continue;
      const Partner partner = PartnerOf(c_, j);
      if (partner.sign == 0) continue;
      const double of_cosine = RoundToF32(dy[j] * Input(kCos, row)(partner.pair));
      const double of_sine = RoundToF32(given(partner.j) * Input(kSin, row)(partner.pair));
      dy[j] = RoundToF32(of_cosine - partner.sign * of_sine);
    }
    return dy;
  }

  void AddRow(size_t row) {
    const auto row_of_x = Input(kX, row);
    const std::vector<double> row_of_dy = RowOfDy(row);
    const auto weights = Weight(kWeight, row);
    Sum squares;
    for (size_t j = 0; j < c_.d; ++j) squares.Add(row_of_x(j) * row_of_x(j));
    const double sum = squares.Get();
    const Quantity r =
        c_.Has(kRstd) ? Input(kRstd, row)(0) : InverseOf(roundings_, norm_, Quantity(sum));
    const bool needs_sum = !c_.Has(kRstd) || norm_.placement != RMSNORM_EPS_INSIDE;
    const bool is_cold =
        needs_sum ? IsCold(norm_.UnderRoot(sum)) : !(r.exact >= 0x1p-64 && r.exact <= 0x1p50);
    constexpr double kTiny = 0x1p-149;  // f32 rounds numbers below 2^-126 to multiples of it
    const double unit = is_cold ? kColdBound : kUnit;
    const double tiny = is_cold ? 0 : kTiny;
    const auto rounded = [=](const Quantity& a) {
      return Quantity{a.exact, Around(Widen(a.range, unit), tiny)};
    };
    // In a row in f32 a step may overflow although the gradient does not.
    const auto fitting = [=](const Quantity& a) {
      const bool fits = is_cold || (a.range.low > -0x1.FFp127 && a.range.high < 0x1.FFp127);
      return fits ? a : Quantity{a.exact, Anything()};
    };

    std::vector<Quantity> g;
    Sum exact, sizes, low, high;
    for (size_t j = 0; j < c_.d; ++j) {
      const Quantity weight = {weights(j), Range(RoundToF32(weights(j)))};
      g.push_back(rounded(Quantity(row_of_dy[j]) * weight));
      const Quantity term = g[j] * row_of_x(j);
      exact.Add(term.exact);
      sizes.Add(std::fabs(term.exact));
      low.Add(term.range.low);
      high.Add(term.range.high);
    }
    const double error =
        kSlack * sizes.Get() * roundings_.Sum() * unit + static_cast<double>(c_.d) * tiny;
    const Quantity c = {exact.Get(), Around(Range(low.Get(), high.Get()), error)};

    // f32 multiplies by the inverse of the divisor. Where the mean overflows, dx is computed in
    // binary64.
    const Quantity over_divisor = {1 / norm_.divisor,
                                   Range(1 / norm_.divisor, RoundToF32(1 / norm_.divisor))};
    Quantity mean = rounded(rounded(c * r) * over_divisor);
    double mean_of_sizes = sizes.Get() * std::fabs(r.exact) / norm_.divisor;
    const bool is_floor = norm_.placement == RMSNORM_EPS_FLOOR;
    const bool is_outside = norm_.placement == RMSNORM_EPS_OUTSIDE;
    const double s = std::sqrt(sum / norm_.divisor);
    const double bound = InverseBound(roundings_, norm_, Range(sum));
    if (is_outside) {
      mean = rounded(mean * Quantity{1 / s, Widen(Range(1 / s), bound)});
      mean_of_sizes /= s;
    }
    // This close to the floor, the library may take the RMS to be on either side.
    const bool is_open = is_floor && std::fabs(s - norm_.eps) <= bound * norm_.eps;
    const bool only_g = is_floor ? s < norm_.eps : is_outside && s == 0;
    if (only_g) mean.exact = mean_of_sizes = 0;
    if (is_open) mean.range.Include(0);
    if (only_g && !is_open) mean = 0;

    Gradients dx(c_.d);
    Gradients& dw = dw_[c_.Has(kDw) ? SharedRow(c_, kDw, row) : 0];
    Gradients& db = db_[c_.Has(kDb) ? SharedRow(c_, kDb, row) : 0];
    for (size_t j = 0; j < c_.d; ++j) {
      const Quantity x = row_of_x(j);
      const Quantity dy = row_of_dy[j];
      const Quantity scaled = is_outside ? x : fitting(rounded(x * r));
      const Quantity second = fitting(rounded(scaled * mean));
      const Quantity value = rounded(r * fitting(rounded(fitting(g[j]) - second)));
      const double size = std::fabs(r.exact) *
                          (std::fabs(g[j].exact) + 5 * std::fabs(scaled.exact) * mean_of_sizes);
      // In a row in f32 the product may overflow although the term does not.
      const double dy_x = dy.exact * x.exact;
      const Quantity of_fma = rounded({dy_x, Range(is_cold ? dy_x : RoundToF32(dy_x))}) * r;
      dx[j] = {value.exact, size, value.range};
      AddTerm({of_fma.exact, Around(of_fma.range, kTiny)}, dw[j]);
      AddTerm(dy, db[j]);
    }
    // G of definition 16, and the subtraction. Others may round g; the size is five times the
    // second term, so it also covers two products with x that they round.
    const double weight = c_.Has(kWeight) ? 1 + (c_.options.weight_offset != 0) : 0;
    Theta theta(roundings_, roundings_.Inverse() + (weight + 1) * kUnit + roundings_.Between());
    theta.Operate();
    Expect(kDx, row, dx, theta);
  }

  // The gradient in f32 is added to the existing one, if requested, multiplied by the factor of the
  // residual, and then cast.
  void Expect(Operand o, size_t row, Gradients gradients, Theta theta) {
    if (!c_.Has(o)) return;
    const OperandCase& own = c_.operand[o];
    if (own.add) theta.Operate();
    const double factor = o == kDx ? internal::FactorOr1(c_.options.residual_factor) : 1;
    if (factor != 1) theta.Operate();
    theta.Cast(own.dtype);
    for (size_t j = 0; j < c_.d; ++j) {
      auto& [exact, size, range] = gradients[j];
      const double before = own.add ? Get(problem_.before(o), row, j) : -0.0;
      // Some sum of rows may overflow although the last one does not.
      if (!range.IsFinite() || (o != kDx && !(size < 0x1p128))) range = Anything();
      range = Cast(own.dtype, Map(range, [=](double to_add) {
                     return RoundToF32(RoundToF32(before + RoundToF32(to_add)) * factor);
                   }));
      exact = (exact + before) * factor;
      size *= std::fabs(factor);
    }
    Computation::Expect({o, row, std::move(gradients), own.dtype, roundings_.arithmetic,
                         HasBound() ? theta.Bound(own.dtype) : kInfinity});
  }

  // Whether the rows and the gradients are of an ordinary size, and so all products.
  bool HasBound() const {
    const auto is_ordinary = [](const OperandCase& own) {
      return own.values == Values::kNormal || own.values == Values::kMassive ||
             own.values == Values::kPositive || own.values == Values::kAdverse;
    };
    const float factor = std::fabs(internal::FactorOr1(c_.options.residual_factor));
    return std::all_of(std::begin(c_.operand), std::end(c_.operand), is_ordinary) &&
           c_.operand[kRstd].values == Values::kNormal && !IsShared(c_.operand[kRstd].order) &&
           c_.options.eps <= 1 && std::fabs(c_.options.weight_offset) <= 1 &&
           c_.options.divisor < 1000 && factor > 1e-3f && factor < 1000;
  }

  std::vector<Gradients> dw_;
  std::vector<Gradients> db_;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_EXPECTED_BACKWARD_H_

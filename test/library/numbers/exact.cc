// SPDX-License-Identifier: Apache-2.0
#include "exact.h"

#include <limits>

#include "rows.h"

namespace rmsnorm::test {

using cases::Case;
using cases::Operand;
using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kDy, internal::kGate,
    internal::kPostNormWeight, internal::kQ, internal::kResidual, internal::kResidualOut,
    internal::kRstd, internal::kScale, internal::kSumsOut, internal::kWeight, internal::kX,
    internal::kY, internal::kZero;

double ExactActivation(int activation, double z) {
  const double denominator = 1 + std::exp(-z);
  if (activation == RMSNORM_ACTIVATION_SIGMOID) return 1 / denominator;
  return z == -std::numeric_limits<double>::infinity() ? -0.0 : z / denominator;
}

namespace {

double SumOfSquares(const std::vector<double>& row) {
  Sum sum;
  for (const double element : row) sum.Add(element * element);
  return sum.Get();
}

}  // namespace

Exact::Exact(const Case& c, const cases::Problem& problem) : c_(c), problem_(problem), norm_(c) {
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (!c.IsOutput(o)) return;
    value_[o].assign(cases::RowsOf(c, o), Values(cases::RowLengthOf(c, o)));
    size_[o] = value_[o];
    if (!c.operand[o].add) return;
    for (size_t row = 0; row < value_[o].size(); ++row) {
      for (size_t j = 0; j < c.d; ++j) value_[o][row][j] = Get(problem.before(o), row, j);
    }
  });
  for (size_t row = 0; row < c.RowCount(); ++row) {
    if (c.backward) {
      MakeGradients(row);
    } else {
      MakeRow(row);
    }
  }
}

double Exact::Input(Operand o, size_t row, size_t j) const {
  return Get(problem_.before(o), cases::SharedRow(c_, o, row), j);
}

double Exact::Weight(Operand weight, size_t row, size_t j) const {
  return c_.Has(weight) ? double{c_.options.weight_offset} + Input(weight, row, j) : 1;
}

Exact::Values Exact::Term(size_t row) const {
  Values x(c_.d);
  for (size_t j = 0; j < c_.d; ++j) x[j] = Input(kX, row, j);
  if (c_.Has(kPostNormWeight)) {
    const double r = norm_.Inverse(SumOfSquares(x));
    for (size_t j = 0; j < c_.d; ++j) x[j] *= r * Weight(kPostNormWeight, row, j);
  }
  for (double& element : x) element *= double{internal::FactorOf(c_.options)};
  if (c_.Has(kGate) && c_.options.gate_placement == RMSNORM_GATE_BEFORE) {
    for (size_t j = 0; j < c_.d; ++j) {
      x[j] *= ExactActivation(c_.options.activation, Input(kGate, row, j));
    }
  }
  return x;
}

void Exact::MakeRow(size_t row) {
  const Values term = Term(row);
  Values h = term;
  for (size_t j = 0; c_.Has(kResidual) && j < c_.d; ++j) h[j] += Input(kResidual, row, j);
  const bool is_term_exact = !c_.Has(kPostNormWeight) && internal::FactorOf(c_.options) == 1;
  const bool may_cancel = c_.Has(kResidual) && !is_term_exact;
  const double sum = SumOfSquares(h);
  const double r = norm_.Inverse(sum);
  if (c_.Has(kSumsOut)) value_[kSumsOut][row][0] = sum;
  if (c_.Has(kRstd)) value_[kRstd][row][0] = r;
  for (size_t j = 0; c_.Has(kResidualOut) && j < c_.d; ++j) {
    value_[kResidualOut][row][j] = h[j];
    if (may_cancel) size_[kResidualOut][row][j] = term[j];
  }
  if (!c_.Has(kY) && !c_.Has(kQ)) return;
  const double rms_of_term = std::sqrt(SumOfSquares(term) / norm_.divisor);
  Values& y = c_.Has(kY) ? value_[kY][row] : value_[kQ][row];
  for (size_t j = 0; j < c_.d; ++j) {
    const double factor = r * Weight(kWeight, row, j);
    const bool is_gated = c_.Has(kGate) && c_.options.gate_placement == RMSNORM_GATE_AFTER;
    const double gate = is_gated ? ExactActivation(c_.options.activation, Input(kGate, row, j)) : 1;
    y[j] = (h[j] * factor + (c_.Has(kBias) ? Input(kBias, row, j) : 0)) * gate;
    if (!c_.Has(kY)) continue;
    double& size = size_[kY][row][j];
    if (c_.Has(kBias)) size = h[j] * factor * gate;
    if (may_cancel) {
      size = std::fabs(gate * factor) * (std::fabs(term[j]) + std::fabs(h[j]) * r * rms_of_term);
    }
  }
  if (c_.Has(kQ)) MakeQuantised(row);
}

void Exact::MakeQuantised(size_t row) {
  if (c_.Has(kY)) value_[kQ][row] = value_[kY][row];
  const auto [low, high] = std::minmax_element(value_[kQ][row].begin(), value_[kQ][row].end());
  const double lo = std::min(0.0, *low);
  const double hi = std::max(0.0, *high);
  value_[kScale][row][0] = c_.Has(kZero) ? (hi - lo) / 255 : std::max(hi, -lo) / 127;
}

void Exact::MakeGradients(size_t row) {
  Sum squares;
  Sum c;
  Sum size_of_c;
  for (size_t j = 0; j < c_.d; ++j) {
    const double x = Input(kX, row, j);
    const double product = Input(kDy, row, j) * Weight(kWeight, row, j) * x;
    squares.Add(x * x);
    c.Add(product);
    size_of_c.Add(std::fabs(product));
  }
  const double r = norm_.Inverse(squares.Get());
  const double s = std::sqrt(squares.Get() / norm_.divisor);
  double factor = r / norm_.divisor;
  factor *= norm_.placement == RMSNORM_EPS_OUTSIDE ? 1 / s : r;
  if (norm_.placement == RMSNORM_EPS_FLOOR && s < norm_.eps) factor = 0;
  const auto add = [&](Operand o, size_t to, size_t j, double term) {
    if (!c_.Has(o)) return;
    value_[o][to][j] += term;
    size_[o][to][j] += std::fabs(term);
  };
  const size_t dw_row = c_.Has(kDw) ? cases::SharedRow(c_, kDw, row) : 0;
  const size_t db_row = c_.Has(kDb) ? cases::SharedRow(c_, kDb, row) : 0;
  for (size_t j = 0; j < c_.d; ++j) {
    const double dy = Input(kDy, row, j);
    const double x = Input(kX, row, j);
    const double g = dy * Weight(kWeight, row, j);
    if (c_.Has(kDx)) {
      value_[kDx][row][j] += r * (g - x * factor * c.Get());
      size_[kDx][row][j] = r * (std::fabs(g) + 5 * std::fabs(x) * factor * size_of_c.Get());
    }
    add(kDw, dw_row, j, dy * x * r);
    add(kDb, db_row, j, dy);
  }
}

}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
#include "estimates.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace rmsnorm::identify {
namespace {

using internal::kBias;
using internal::kGate;
using internal::kPostNormWeight;
using internal::kResidual;
using internal::kWeight;
using internal::Operand;

using Column = std::vector<double>;

double Dot(const Column& a, const Column& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The factors of the columns whose sum is nearest to y. Nothing where the columns depend on each
// other.
std::optional<Column> LeastSquares(const std::vector<Column>& columns, const Column& y) {
  const size_t n = columns.size();
  std::vector<Column> matrix(n, Column(n + 1));
  Column size(n), factors(n);
  for (size_t i = 0; i < n; ++i) size[i] = std::sqrt(Dot(columns[i], columns[i]));
  for (size_t i = 0; i < n; ++i) {
    if (!(size[i] > 0)) return {};
    for (size_t j = 0; j < n; ++j) {
      matrix[i][j] = Dot(columns[i], columns[j]) / size[i] / size[j];
    }
    matrix[i][n] = Dot(columns[i], y) / size[i];
  }
  constexpr double kDependent = 1e-9;
  for (size_t k = 0; k < n; ++k) {
    if (!(matrix[k][k] > kDependent)) return {};
    for (size_t i = 0; i < n; ++i) {
      const double factor = matrix[i][k] / matrix[k][k];
      for (size_t j = k; i != k && j <= n; ++j) matrix[i][j] -= factor * matrix[k][j];
    }
  }
  for (size_t i = 0; i < n; ++i) factors[i] = matrix[i][n] / matrix[i][i] / size[i];
  return factors;
}

double Median(Column values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median of what rows say, if they agree to a share of it.
std::optional<Estimate> Agreed(Column of_rows, double share) {
  of_rows.erase(std::remove_if(of_rows.begin(), of_rows.end(), [](double v) { return v - v != 0; }),
                of_rows.end());
  if (of_rows.empty()) return {};
  std::sort(of_rows.begin(), of_rows.end());
  const size_t rows = of_rows.size();
  const double value = of_rows[rows / 2], spread = of_rows[rows * 3 / 4] - of_rows[rows / 4];
  if (spread > share * std::fabs(value)) return {};
  // Four standard errors of the median. Few rows do not show their spread.
  constexpr size_t kFew = 6;
  const double error = 3.7 * spread / std::sqrt(static_cast<double>(rows));
  return Estimate{value, std::max(error, std::fabs(value) * (rows < kFew ? 0x1p-8 : 0x1p-12))};
}

// The number with few decimal digits.
float Shortened(double value, int digits) {
  char text[32];
  std::snprintf(text, sizeof text, "%.*e", digits - 1, value);
  return std::strtof(text, nullptr);
}

// The elements of a row, or of the only one, as double; ones if there is no such operand.
Column RowOf(const NormCall& call, Operand o, size_t row) {
  const size_t d = call.x().d;
  if (!call.Has(o)) return Column(d, o == kBias ? 0.0 : 1.0);
  const std::vector<float> values = ValuesOf(TakeRows(*call.operand[o], {row}));
  return {values.begin(), values.end()};
}

double Activated(int32_t activation, double z) {
  return (activation == RMSNORM_ACTIVATION_SILU ? z : 1) / (1 + std::exp(-z));
}

// What a row shows of the scale 1 / RMS.
struct RowScale {
  double scale;
  double error;    // of the scale, relative
  double inverse;  // 1 / the mean of squares
};

// The scales of rows explained by scale = times / (1 + eps * v) or, with a floor, by
// times / max(1, eps * v), where v is 1 / RMS; or by the squares of all for eps inside the root.
std::optional<ScaleEstimate> Explain(std::vector<RowScale> rows, rmsnorm_eps_placement placement) {
  const bool is_inside = placement == RMSNORM_EPS_INSIDE;
  for (RowScale& row : rows) {
    if (is_inside) {
      row.scale *= row.scale;
      row.error *= 2;
    } else {
      row.inverse = std::sqrt(row.inverse);
    }
  }
  const auto misfit = [&](const RowScale& row, double a, double b) {
    const double v = b * row.inverse;
    const double inverse = placement == RMSNORM_EPS_FLOOR ? std::max(a, v) : a + v;
    return (1 - row.scale * inverse) / row.error;
  };
  double a = 1, b = 0, a_error = 0, b_error = 0, spread = 1;
  // Fits a and b, or b alone, to the rows.
  const auto fit = [&](bool is_a_free) {
    std::vector<Column> columns(2);
    Column target;
    Column inverses;
    for (const RowScale& row : rows) inverses.push_back(row.inverse);
    const double middle = Median(inverses);
    for (const RowScale& row : rows) {
      double of_a = row.scale / row.error, of_b = of_a * row.inverse;
      if (placement == RMSNORM_EPS_FLOOR) {
        // Rows with large elements show a, which tells the rows that show b.
        const bool shows_b = is_a_free ? false : row.scale * a < 0.98;
        if (is_a_free && row.inverse > middle) continue;
        (shows_b ? of_a : of_b) = 0;
      }
      columns[0].push_back(of_a);
      columns[1].push_back(of_b);
      target.push_back(1 / row.error);
    }
    const double aa = Dot(columns[0], columns[0]), bb = Dot(columns[1], columns[1]);
    const double ab = Dot(columns[0], columns[1]);
    if (is_a_free && placement != RMSNORM_EPS_FLOOR) {
      const std::optional<Column> found = LeastSquares(columns, target);
      if (!found) return false;
      a = (*found)[0], b = (*found)[1];
      a_error = std::sqrt(bb / (aa * bb - ab * ab)), b_error = std::sqrt(aa / (aa * bb - ab * ab));
    } else if (is_a_free) {
      if (!(aa > 0)) return false;
      a = Dot(columns[0], target) / aa, a_error = std::sqrt(1 / aa);
    } else {
      b = bb > 0 ? (Dot(columns[1], target) - a * ab) / bb : 0;
      b_error = bb > 0 ? std::sqrt(1 / bb) : 0;
    }
    return true;
  };
  for (int round = 0; round < 3; ++round) {
    const bool is_found = fit(true);
    if (!is_found) a = 1, a_error = 0;
    if (!is_found || placement == RMSNORM_EPS_FLOOR) fit(false);
    Column misfits;
    for (const RowScale& row : rows) misfits.push_back(std::fabs(misfit(row, a, b)));
    const double usual = std::max(Median(misfits), 1.0);
    spread = usual * 1.5;
    if (std::fabs(a - 1) <= 4 * spread * a_error) {
      a = 1, a_error = 0;
      fit(false);
    }
    // Without rows that are wrong for another reason.
    std::vector<RowScale> rest;
    for (const RowScale& row : rows) {
      if (std::fabs(misfit(row, a, b)) <= 6 * usual) rest.push_back(row);
    }
    if (rest.size() < 2 || 2 * rest.size() < rows.size()) break;
    rows = rest;
  }
  if (!(a > 0)) return {};
  if (!(b > 4 * spread * b_error)) b = 0;
  const double relative = 4 * spread * std::hypot(b > 0 ? b_error / b : 0, a_error / a);
  double times = 1 / a, times_error = 4 * spread * a_error / a * times;
  if (is_inside) times = std::sqrt(times), times_error = times * 2 * spread * a_error / a;
  return ScaleEstimate{
      placement, {b / a, b / a * std::max(relative, 0x1p-23)}, {times, times_error}, spread};
}

}  // namespace

Observation Observation::Of(const std::vector<size_t>& rows) const {
  Observation part = *this;
  for (std::optional<Matrix>& operand : part.call.operand) {
    if (operand) operand = TakeRows(*operand, rows);
  }
  part.y = TakeRows(y, rows);
  return part;
}

std::vector<float> NumbersLike(const Estimate& estimate) {
  std::vector<float> numbers;
  int digits = 1;
  while (digits < 9 && !estimate.MayBe(static_cast<double>(Shortened(estimate.value, digits)))) {
    ++digits;
  }
  numbers.push_back(Shortened(estimate.value, digits));
  const auto value = static_cast<float>(estimate.value);
  for (const rmsnorm_dtype narrow : {RMSNORM_BF16, RMSNORM_F16}) {
    const float held = RoundedTo(narrow, value);
    // Of two numbers that both fit, few digits are as likely as few bits.
    constexpr int kFew = 4;
    if (estimate.MayBe(static_cast<double>(held))) {
      numbers.insert(digits > kFew ? numbers.begin() : numbers.end(), held);
    }
  }
  numbers.push_back(value);
  std::vector<float> distinct;
  for (const float number : numbers) {
    const bool is_new = std::find(distinct.begin(), distinct.end(), number) == distinct.end();
    if (is_new) distinct.push_back(number);
  }
  return distinct;
}

Coefficients CoefficientsOf(const Observation& seen) {
  const NormCall& call = seen.call;
  Coefficients found;
  if (call.Has(kPostNormWeight)) return found;
  double least = HUGE_VAL;
  for (int32_t activation = 0; activation < (call.Has(kGate) ? 2 : 1); ++activation) {
    Column factors, offsets, pluses, misfits;
    for (size_t row = 0; row < seen.y.rows; ++row) {
      const Column w = RowOf(call, kWeight, row), bias = RowOf(call, kBias, row);
      Column gate = RowOf(call, kGate, row);
      for (double& z : gate) z = call.Has(kGate) ? Activated(activation, z) : 1;
      const std::vector<float> values = ValuesOf(TakeRows(seen.y, {row}));
      Column y(values.begin(), values.end());
      for (size_t i = 0; i < y.size(); ++i) y[i] -= bias[i];
      // The terms of the sum, times the weight and without it, and 1.
      std::vector<Column> weighted, columns;
      for (const Operand o : {internal::kX, kResidual}) {
        if (!call.Has(o)) continue;
        Column plain = RowOf(call, o, row);
        for (size_t i = 0; i < y.size(); ++i) plain[i] *= gate[i];
        columns.push_back(plain);
        for (size_t i = 0; i < y.size(); ++i) plain[i] *= w[i];
        weighted.push_back(plain);
      }
      const size_t terms = weighted.size();
      columns.insert(columns.begin(), weighted.begin(), weighted.end());
      columns.emplace_back(y.size(), 1.0);
      std::optional<Column> c = LeastSquares(columns, y);
      const bool has_offset = c.has_value();
      if (!c) {
        columns.erase(columns.begin() + static_cast<ptrdiff_t>(terms), columns.end() - 1);
        c = LeastSquares(columns, y);
        if (!c) continue;
      }
      const auto at = [&](size_t i) { return i < c->size() - 1 ? (*c)[i] : 0; };
      if (terms == 2) {
        factors.push_back((at(0) * at(1) + at(2) * at(3)) / (at(1) * at(1) + at(3) * at(3)));
      }
      if (has_offset) {
        double product = 0, square = 0;
        for (size_t i = 0; i < terms; ++i) {
          product += at(i) * at(i + terms);
          square += at(i) * at(i);
        }
        offsets.push_back(product / square);
      }
      pluses.push_back(c->back());
      Column rest = y;
      for (size_t i = 0; i < columns.size(); ++i) {
        for (size_t j = 0; j < y.size(); ++j) rest[j] -= (*c)[i] * columns[i][j];
      }
      misfits.push_back(Dot(rest, rest) / Dot(y, y));
    }
    if (misfits.empty() || !(Median(misfits) < least)) continue;
    least = Median(misfits);
    found = {Agreed(factors, 0.02), Agreed(offsets, 0.05), Agreed(pluses, 0.1), activation};
  }
  return found;
}

std::vector<ScaleEstimate> ScaleEstimatesOf(const Observation& seen, const Step& step,
                                            rmsnorm_options options, float plus) {
  std::vector<ScaleEstimate> estimates;
  if (seen.call.Has(kPostNormWeight)) return estimates;
  constexpr float kSomeEps = 1e-3f;
  std::vector<float> with_eps[2];  // y in f32 without eps, and with some eps
  for (const bool has_eps : {false, true}) {
    NormCall call = seen.call;
    call.operand[kBias].reset();
    call.y_dtype = RMSNORM_F32;
    call.options = options;
    call.options.eps = has_eps ? kSomeEps : 0;
    call.options.eps_placement = RMSNORM_EPS_INSIDE;
    const std::optional<Matrix> y = step.compute(call);
    if (!y) return estimates;
    with_eps[has_eps] = ValuesOf(*y);
  }
  const size_t d = seen.y.d;
  const double rounding = seen.y.dtype == RMSNORM_BF16  ? 0x1p-10
                          : seen.y.dtype == RMSNORM_F16 ? 0x1p-13
                                                        : 0x1p-26;
  std::vector<RowScale> rows;
  const std::vector<float> values = ValuesOf(seen.y);
  Column scales;
  for (size_t row = 0; row < seen.y.rows; ++row) {
    const Column bias = RowOf(seen.call, kBias, row);
    Column y(d), n(d), other(d);
    for (size_t i = 0; i < d; ++i) {
      y[i] = static_cast<double>(values[row * d + i]) - bias[i] - static_cast<double>(plus);
      n[i] = static_cast<double>(with_eps[false][row * d + i]);
      other[i] = static_cast<double>(with_eps[true][row * d + i]);
    }
    const double square = Dot(n, n), scale = Dot(n, y) / square;
    const double ratio = square / Dot(other, other);
    const double rest = Dot(y, y) - scale * scale * square;
    if (!(std::fabs(scale) > 0) || !std::isfinite(scale) || !std::isfinite(ratio)) continue;
    // An element's rounding counts as much as the element. Roundings
    // share a quarter of it at most, and the scale itself rounds to f32.
    double fourth = 0;
    for (const double value : n) fourth += value * value * value * value;
    const double of_rest = std::sqrt(std::max(rest, 0.0) / static_cast<double>(d) / square);
    const double of_roundings = rounding * std::sqrt(fourth) / square;
    const double error = std::hypot(std::max(of_rest / std::fabs(scale), of_roundings),
                                    std::max(rounding / 4, 0x1p-24));
    rows.push_back({scale, error, std::max(ratio - 1, 0.0) / static_cast<double>(kSomeEps)});
    scales.push_back(scale);
  }
  if (rows.empty()) return estimates;
  const double sign = Median(scales) < 0 ? -1 : 1;
  for (RowScale& row : rows) row.scale *= sign;
  double least = HUGE_VAL;
  for (const auto placement : {RMSNORM_EPS_INSIDE, RMSNORM_EPS_OUTSIDE, RMSNORM_EPS_FLOOR}) {
    std::optional<ScaleEstimate> estimate = Explain(rows, placement);
    if (!estimate) continue;
    estimate->times.value *= sign;
    least = std::min(least, estimate->misfit);
    estimates.push_back(*estimate);
  }
  constexpr double kFarther = 4;
  estimates.erase(std::remove_if(estimates.begin(), estimates.end(),
                                 [&](const auto& e) { return e.misfit > kFarther * least; }),
                  estimates.end());
  return estimates;
}

std::optional<std::pair<float, float>> SharesOf(const NormCall& call, const Matrix& residual_out) {
  Column x, residual, sum;
  for (const auto& [column, matrix] :
       {std::pair(&x, &call.x()), {&residual, &*call.operand[kResidual]}, {&sum, &residual_out}}) {
    const std::vector<float> values = ValuesOf(*matrix);
    column->assign(values.begin(), values.end());
  }
  for (size_t i = 0; i < sum.size(); ++i) {
    if (!std::isfinite(sum[i])) x[i] = residual[i] = sum[i] = 0;
  }
  const std::optional<Column> shares = LeastSquares({residual, x}, sum);
  if (!shares) return {};
  constexpr int kDigits = 3;
  const auto shortened = [&](size_t i) {
    return std::fabs((*shares)[i]) < 1e-3 ? 0 : Shortened((*shares)[i], kDigits);
  };
  return std::pair(shortened(0), shortened(1));
}

}  // namespace rmsnorm::identify

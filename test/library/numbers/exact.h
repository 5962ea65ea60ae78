// SPDX-License-Identifier: Apache-2.0
// The exact results of a case: the formulas in binary64, without the roundings of the definition.
#ifndef RMSNORM_TEST_EXACT_H_
#define RMSNORM_TEST_EXACT_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "cases/problem.h"

namespace rmsnorm::test {

// Adds up to a few units of 2^-53, by Neumaier's compensated summation.
class Sum {
 public:
  void Add(double term) {
    const double total = sum_ + term;
    if (std::isfinite(total)) lost_ += std::max(sum_, term) - total + std::min(sum_, term);
    sum_ = total;
  }
  double Get() const { return sum_ + lost_; }

 private:
  double sum_ = 0;
  double lost_ = 0;
};

// What the norms of a case have in common.
struct Norm {
  explicit Norm(const cases::Case& c)
      : d(c.d),
        divisor(c.options.divisor == 0 ? static_cast<double>(c.d) : double{c.options.divisor}),
        eps(double{c.options.eps}),
        placement(c.options.eps_placement) {}

  double UnderRoot(double sum) const {
    return sum / divisor + (placement == RMSNORM_EPS_INSIDE ? eps : 0);
  }
  double Inverse(double sum) const {
    const double root = std::sqrt(UnderRoot(sum));
    if (placement == RMSNORM_EPS_OUTSIDE) return 1 / (root + eps);
    return 1 / (placement == RMSNORM_EPS_FLOOR && root < eps ? eps : root);
  }

  size_t d;
  double divisor;
  double eps;
  int placement;
};

// The activation of an element of a gate (definition 8).
double ExactActivation(int activation, double z);

// For finite rows.
class Exact {
 public:
  Exact(const cases::Case& c, const cases::Problem& problem);

  // A result. For q it is the value that q stands for.
  double value(cases::Operand o, size_t row, size_t j) const { return value_[o][row][j]; }

  // The size of terms that may cancel each other, to which the bound of an error is relative. 0
  // where the bound is relative to the result. doc/definition.md has these sizes.
  double size(cases::Operand o, size_t row, size_t j) const { return size_[o][row][j]; }

 private:
  using Values = std::vector<double>;

  // An element of the row that belongs to a row of x.
  double Input(cases::Operand o, size_t row, size_t j) const;
  // offset + w, or 1 without a weight.
  double Weight(cases::Operand weight, size_t row, size_t j) const;
  void MakeRow(size_t row);
  void MakeQuantised(size_t row);
  void MakeGradients(size_t row);
  // x after the steps before the addition of the residual (definition 7).
  Values Term(size_t row) const;

  const cases::Case& c_;
  const cases::Problem& problem_;
  const Norm norm_;
  std::vector<Values> value_[internal::kOperands];
  std::vector<Values> size_[internal::kOperands];
};

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_EXACT_H_

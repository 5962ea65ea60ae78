// SPDX-License-Identifier: Apache-2.0
// What the expected values of forward and backward share: inverse RMS, rotated pairs, rows.
#ifndef RMSNORM_CASES_COMPUTATION_H_
#define RMSNORM_CASES_COMPUTATION_H_

#include <algorithm>

#include "expected.h"
#include "theta.h"

namespace rmsnorm::cases {

using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kDy, internal::kGate,
    internal::kPostNormWeight, internal::kCos, internal::kQ, internal::kResidual,
    internal::kResidualOut, internal::kRstd, internal::kScale, internal::kSin, internal::kSums,
    internal::kSumsOut, internal::kWeight, internal::kX, internal::kY, internal::kZero;

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
  explicit Norm(const Case& c)
      : divisor(c.options.divisor == 0 ? static_cast<double>(c.d) : double{c.options.divisor}),
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

  double divisor;
  double eps;
  int placement;
};

// Rows in binary64 have the same number of roundings, of 2^-53 each. This bound is larger for every
// row here, and covers errors of this file.
constexpr double kColdBound = 0x1p-46;
constexpr double kSlack = 1.01;  // for products of two errors

// Whether a row is certainly computed in binary64: the value under the root is outside of [2^-100,
// the largest f32] by more than the error of the f32 sum.
inline bool IsCold(double under_root) {
  return !(under_root >= 0x1.FEp-101 && under_root <= 0x1.01p128);
}

// Whether a row is certainly computed in f32: by as much inside, and the sum fits, too.
inline bool IsHot(const Norm& norm, double sum) {
  const double under_root = norm.UnderRoot(sum);
  return sum <= 0x1.FEp127 && under_root >= 0x1.02p-100 && under_root <= 0x1.FEp127;
}

// The relative error of the inverse RMS of a row whose sum is in a range.
inline double InverseBound(const Roundings& roundings, const Norm& norm, const Range& sum) {
  const bool is_cold = IsCold(norm.UnderRoot(sum.low)) && IsCold(norm.UnderRoot(sum.high));
  return is_cold ? kColdBound : std::expm1(roundings.Inverse());
}

// An exact value and its range.
struct Quantity {
  Quantity(double value, const Range& its_range) : exact(value), range(its_range) {}
  // NOLINTNEXTLINE(google-explicit-constructor): formulas mix numbers with quantities
  Quantity(double value) : Quantity(value, Range(value)) {}

  double exact;
  Range range;
};
inline Quantity operator*(const Quantity& a, const Quantity& b) {
  return {a.exact * b.exact, Map(a.range, b.range, std::multiplies<>())};
}
inline Quantity operator-(const Quantity& a, const Quantity& b) {
  return {a.exact - b.exact, Map(a.range, b.range, std::minus<>())};
}

inline Quantity InverseOf(const Roundings& roundings, const Norm& norm, const Quantity& sum) {
  Quantity r(norm.Inverse(sum.exact), {});
  r.range.may_be_nan = sum.range.may_be_nan;
  if (!sum.range.HasNumbers()) return r;
  const double bound = InverseBound(roundings, norm, sum.range);
  r.range.Include(norm.Inverse(sum.range.high));
  r.range.Include(norm.Inverse(sum.range.low));
  r.range = Widen(r.range, bound);
  // An RMS that is certainly below the floor has the inverse of the floor, which may be exact.
  const double of_floor = 1 / norm.eps;
  if (norm.placement == RMSNORM_EPS_FLOOR && of_floor == RoundToF32(of_floor) &&
      std::sqrt(norm.UnderRoot(sum.range.high)) * (1 + bound) < norm.eps) {
    r.range.low = r.range.high = of_floor;
  }
  return r;
}

// The element that is rotated together with element j (definition 10), with the sign of the sine
// that multiplies it; j itself where it is not rotated.
struct Partner {
  size_t j;
  size_t pair;
  double sign;
};

inline Partner PartnerOf(const Case& c, size_t j) {
  const size_t pairs = RowLengthOf(c, kCos);
  const size_t begin = c.options.rotary_part == RMSNORM_ROTARY_END ? c.d - 2 * pairs : 0;
  if (j < begin || j >= begin + 2 * pairs) return {j, 0, 0};
  const size_t at = j - begin;
  if (c.options.rotary_pairs == RMSNORM_ROTARY_NEIGHBOURS) {
    return at % 2 == 0 ? Partner{j + 1, at / 2, -1.0} : Partner{j - 1, at / 2, 1.0};
  }
  return at < pairs ? Partner{j + pairs, at, -1.0} : Partner{j - pairs, at - pairs, 1.0};
}

// What the computations of forward and of backward share.
class Computation {
 public:
  Computation(const Case& c, const Problem& problem, Arithmetic arithmetic, const Results& results,
              const std::function<bool(const ExpectedRow&)>& visit)
      : c_(c),
        problem_(problem),
        results_(results),
        visit_(visit),
        roundings_(c, arithmetic),
        norm_(c) {}

  bool goes_on() const { return goes_on_; }

 protected:
  // The elements of the row of an input that belongs to a row of x.
  auto Input(Operand o, size_t row) const {
    return [&rows = problem_.before(o), own = SharedRow(c_, o, row)](size_t j) {
      return Get(rows, own, j);
    };
  }

  // w' = offset + w, or 1 without a weight.
  auto Weight(Operand weight, size_t row) const {
    return [has = c_.Has(weight), offset = double{c_.options.weight_offset},
            w = Input(weight, row)](size_t j) { return has ? offset + w(j) : 1; };
  }

  void Expect(const ExpectedRow& row) { goes_on_ = goes_on_ && visit_(row); }

  const Case& c_;
  const Problem& problem_;
  const Results& results_;
  const std::function<bool(const ExpectedRow&)>& visit_;
  const Roundings roundings_;
  const Norm norm_;
  bool goes_on_ = true;
};

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_COMPUTATION_H_

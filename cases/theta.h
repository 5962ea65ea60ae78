// SPDX-License-Identifier: Apache-2.0
// Error bounds, as definition 16 derives them.
#ifndef RMSNORM_CASES_THETA_H_
#define RMSNORM_CASES_THETA_H_

#include <algorithm>
#include <cmath>

#include "case.h"
#include "expected.h"
#include "rounding.h"

namespace rmsnorm::cases {

inline double CeilDiv(size_t a, size_t b) { return static_cast<double>((a + b - 1) / b); }

inline int BitsOf(rmsnorm_dtype dtype) { return FormatOf(dtype).mantissa_bits + 1; }

// 2^-p: the largest relative error of a rounding to a type of p bits.
inline double UnitOf(rmsnorm_dtype dtype) { return PowerOfTwo(-BitsOf(dtype)); }

// The roundings that definition 16 counts, and those of others.
//
// Of others, each sum is in any order, so a term takes part in as many roundings as there are
// terms. A reciprocal root by an estimate is off by 4 units, the mean and eps round once each, and
// 3 units are left: so their E is d / 2 + 8. At d = 64, for y of about 1, a forgotten eps of 1e-5
// is still twice this bound. Vector libraries give an exponential to 4 units in the last place, 8
// units; the sum adds 1 and a division by an estimate 4.
struct Roundings {
  Roundings(const Case& c, Arithmetic of)
      : d(c.d), placement(c.options.eps_placement), arithmetic(of), any(of == Arithmetic::kAny) {
    internal::ForEachOperand(any ? c.Given() : 0, [&](Operand o) {
      const rmsnorm_dtype dtype = c.operand[o].dtype;
      if (!kOperandRules[o].HasShapeOfX() || dtype == RMSNORM_I8) return;
      if (BitsOf(dtype) < BitsOf(between)) between = dtype;
    });
  }

  // m, the roundings between an element and the sum of its row.
  double Sum() const {
    if (any) return static_cast<double>(d);
    return CeilDiv(std::min<size_t>(d, 4096), 128) + 7 + CeilDiv(d, 4096) - 1;
  }
  double Inverse() const {
    const double of_eps = placement == RMSNORM_EPS_OUTSIDE ? 1 : 0;
    return (Sum() / 2 + (any ? 8 : 3) + of_eps) * kUnit;
  }
  double Activation() const { return any ? 13 * kUnit + Between() : 4 * kUnit; }
  // Of a value that others may round to the type of rows.
  double Between() const { return between == RMSNORM_F32 ? 0 : UnitOf(between); }
  // Between a term of dw or db and its sum. A first term that is added to 0 rounds in an fma only.
  double Rows(size_t rows, Operand columns) const {
    const size_t blocks = any ? 1 : std::min<size_t>(64, (rows + 15) / 16);
    return CeilDiv(rows, blocks) + static_cast<double>(blocks) - 1 -
           (columns == internal::kDb ? 1 : 0);
  }

  size_t d;
  int placement;
  Arithmetic arithmetic;
  bool any;
  rmsnorm_dtype between = RMSNORM_F32;
};

// A computed value is the exact one times e^theta; definition 16 writes t. The last rounding is
// apart, since in ulp of its result it is half a unit at most.
class Theta {
 public:
  explicit Theta(const Roundings& roundings, double theta = 0)
      : between_(roundings.between), is_relative_(roundings.any), before_(theta) {}

  // Of a value of a row, after an operation that nobody rounds to a coarser type.
  Theta OperateInF32() const {
    Theta theta = *this;
    theta.between_ = RMSNORM_F32;
    theta.Operate();
    return theta;
  }

  // A factor that is not exact.
  void Add(double theta) { before_ += theta; }

  // An operation in f32.
  void Operate() {
    bits_ = BitsOf(RMSNORM_F32) + 1;
    Cast(RMSNORM_F32);
    Cast(between_);
  }

  // A cast to a type that holds the digits already is exact in the range of the type.
  void Cast(rmsnorm_dtype dtype) {
    if (dtype == RMSNORM_F16) rounded_to_ = dtype;
    if (BitsOf(dtype) >= bits_) return;
    bits_ = BitsOf(dtype);
    before_ += last_;
    last_ = UnitOf(dtype);
    rounded_to_ = dtype;
  }

  double Get() const { return before_ + last_; }
  rmsnorm_dtype rounded_to() const { return rounded_to_; }  // 0 for an exact value

  // The bound in the unit of ExpectedRow::Error().
  double Bound(rmsnorm_dtype dtype) const {
    if (is_relative_) return std::expm1(Get()) / kUnit;
    const double unit = UnitOf(dtype);
    if (last_ == unit) return 0.5 + std::expm1(before_) / unit;
    return std::expm1(Get()) / unit;
  }

 private:
  rmsnorm_dtype between_;
  bool is_relative_;
  double before_;
  double last_ = 0;
  int bits_ = BitsOf(RMSNORM_F32);
  rmsnorm_dtype rounded_to_ = 0;
};

// Theta of a value is at most `theta`, which includes a last rounding to f32.
inline Theta RoundedToF32(const Roundings& roundings, double theta) {
  return Theta(roundings, theta - kUnit).OperateInF32();
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_THETA_H_

// SPDX-License-Identifier: Apache-2.0
#include "error_bounds.h"

#include <algorithm>
#include <cmath>

#include "rows.h"

namespace rmsnorm::test {
namespace {

using cases::Case;
using cases::Operand;
using internal::kBias, internal::kDb, internal::kDw, internal::kDx, internal::kGate,
    internal::kPostNormWeight, internal::kQ, internal::kResidual, internal::kResidualOut,
    internal::kRstd, internal::kScale, internal::kSumsOut, internal::kWeight, internal::kX,
    internal::kY, internal::kZero;

// An activation is within 2 ulp of f32, each at most 2 units of its value.
constexpr double kActivationTheta = 4 * kUnit;

double CeilDiv(size_t a, size_t b) { return static_cast<double>((a + b - 1) / b); }

int BitsOf(rmsnorm_dtype dtype) { return FormatOf(dtype).mantissa_bits + 1; }

// 2^-p: the largest relative error of a rounding to a type of p bits.
double UnitOf(rmsnorm_dtype dtype) { return PowerOfTwo(-BitsOf(dtype)); }

// Theta of a value after each step of its computation. The last rounding is apart, since in ulp of
// its result it is half a unit at most.
class Theta {
 public:
  explicit Theta(double theta = 0) : before_(theta) {}

  // A factor that is not exact.
  void Add(double theta) { before_ += theta; }

  // An operation in f32.
  void Operate() {
    bits_ = BitsOf(RMSNORM_F32) + 1;
    Cast(RMSNORM_F32);
  }

  // A cast to a type that holds the value already is exact.
  void Cast(rmsnorm_dtype dtype) {
    if (BitsOf(dtype) >= bits_) return;
    bits_ = BitsOf(dtype);
    before_ += last_;
    last_ = UnitOf(dtype);
  }

  double Get() const { return before_ + last_; }

  double Ulps(rmsnorm_dtype dtype) const {
    const double unit = UnitOf(dtype);
    if (last_ == unit) return 0.5 + std::expm1(before_) / unit;
    return std::expm1(Get()) / unit;
  }

 private:
  double before_;
  double last_ = 0;
  int bits_ = BitsOf(RMSNORM_F32);
};

// The input of a norm. The theta of its elements counts for them and for the inverse RMS. The theta
// of a term that was added is relative to that term, and the size of exact.h holds both effects.
struct Input {
  double theta;
  double theta_of_term;
  rmsnorm_dtype dtype;  // x's type in the rounding orders
};

// Definition 5.
Theta OfNorm(const Case& c, const Input& input, Operand weight, bool has_bias) {
  Theta n(InverseRmsTheta(c.d, c.options.eps_placement) + 2 * input.theta + input.theta_of_term);
  if (c.options.rounding == RMSNORM_ROUND_INVERSE && input.dtype != RMSNORM_F32) {
    n.Add(UnitOf(input.dtype));
  }
  n.Operate();
  if (c.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) n.Cast(input.dtype);
  if (!c.Has(weight) && !has_bias) return n;
  if (c.options.weight_offset != 0) n.Add(kUnit);
  n.Operate();
  return n;
}

// x after the post-norm, the factor and a gate before the norm (definition 7).
Theta OfTerm(const Case& c) {
  const rmsnorm_dtype dtype = c.operand[kX].dtype;
  Theta x;
  if (c.Has(kPostNormWeight)) {
    x = OfNorm(c, {0, 0, dtype}, kPostNormWeight, false);
    x.Cast(dtype);
  }
  if (internal::FactorOf(c.options) != 1) {
    x.Operate();
    x.Cast(dtype);
  }
  if (c.Has(kGate) && c.options.gate_placement == RMSNORM_GATE_BEFORE) {
    x.Add(kActivationTheta);
    x.Operate();
  }
  return x;
}

Input InputOf(const Case& c) {
  const rmsnorm_dtype dtype = c.operand[kX].dtype;
  const double term = OfTerm(c).Get();
  if (!c.Has(kResidual)) return {term, 0, dtype};
  Theta sum;
  sum.Operate();
  if (c.options.residual_rounding == RMSNORM_RESIDUAL_UNROUNDED) return {sum.Get(), term, dtype};
  const rmsnorm_dtype stream = c.operand[kResidual].dtype;
  sum.Cast(stream);
  return {sum.Get(), term, stream};
}

Theta OfResidualOut(const Case& c) {
  Theta sum(OfTerm(c).Get());
  sum.Operate();
  sum.Cast(c.operand[kResidualOut].dtype);
  return sum;
}

// y, or without it the values that q stands for.
Theta OfY(const Case& c) {
  const Input input = InputOf(c);
  Theta m = OfNorm(c, input, kWeight, c.Has(kBias));
  if (c.Has(kGate) && c.options.gate_placement == RMSNORM_GATE_AFTER) {
    if (c.options.gate_rounding == RMSNORM_GATE_ROUNDED) m.Cast(input.dtype);
    m.Add(kActivationTheta);
    m.Operate();
  }
  m.Cast(c.Has(kY) ? c.operand[kY].dtype : input.dtype);
  return m;
}

Theta OfScale(const Case& c) {
  Theta scale(OfY(c).Get());
  if (c.Has(kZero)) scale.Operate();  // hi - lo
  scale.Operate();
  return scale;
}

double StepsOfQ(const Case& c) {
  const double roundings = c.Has(kZero) ? 7 : 4;
  return 0.5 + (c.Has(kZero) ? 255 : 127) * std::expm1(OfY(c).Get() + roundings * kUnit);
}

// A gradient after its last operation: added to memory, if requested, and cast.
Theta Finished(Theta gradient, const cases::OperandCase& own) {
  if (own.add) gradient.Operate();
  gradient.Cast(own.dtype);
  return gradient;
}

Theta OfDx(const Case& c) {
  const double inverse = InverseRmsTheta(c.d, c.options.eps_placement);
  const double weight = c.Has(kWeight) ? 1 + (c.options.weight_offset != 0) : 0;
  Theta dx(inverse + (weight + 1) * kUnit);
  dx.Operate();
  return Finished(dx, c.operand[kDx]);
}

// The roundings of sums over rows: of the terms of a block, and of the sums of the blocks. A first
// term that is added to 0 rounds in an fma only.
double RoundingsOfRows(const Case& c, Operand columns) {
  const size_t rows = c.RowCount() / cases::RowsOf(c, columns);
  const size_t blocks = std::min<size_t>(64, (rows + 15) / 16);
  return CeilDiv(rows, blocks) + static_cast<double>(blocks) - 1 - (columns == kDb ? 1 : 0);
}

Theta OfColumns(const Case& c, Operand columns) {
  const double roundings = RoundingsOfRows(c, columns);
  Theta sum(std::max(roundings - 1, 0.0) * kUnit);
  // The product of dy and x, and the inverse RMS.
  if (columns == kDw) sum.Add(kUnit + InverseRmsTheta(c.d, c.options.eps_placement));
  if (roundings > 0) sum.Operate();
  return Finished(sum, c.operand[columns]);
}

}  // namespace

double RoundingsOfSum(size_t d) {
  constexpr double kTree = 7;
  const double lane = CeilDiv(std::min<size_t>(d, 4096), 128);
  const double later_blocks = CeilDiv(d, 4096) - 1;
  return lane + kTree + later_blocks;
}

double InverseRmsTheta(size_t d, int eps_placement) {
  const double of_eps = eps_placement == RMSNORM_EPS_OUTSIDE ? 1 : 0;
  return (RoundingsOfSum(d) / 2 + 3 + of_eps) * kUnit;
}

double InverseRmsBound(size_t d, int eps_placement) {
  return std::expm1(InverseRmsTheta(d, eps_placement));
}

double ErrorBound(const Case& c, Operand output) {
  const auto ulps = [&](const Theta& theta) { return theta.Ulps(c.operand[output].dtype); };
  switch (output) {
    case kQ:
      return StepsOfQ(c);
    case kScale:
      return ulps(OfScale(c));
    case kResidualOut:
      return ulps(OfResidualOut(c));
    case kSumsOut: {
      Theta sum((RoundingsOfSum(c.d) - 1) * kUnit + 2 * InputOf(c).theta);
      sum.Operate();
      return sum.Ulps(RMSNORM_F32);
    }
    case kRstd: {
      Theta r(InverseRmsTheta(c.d, c.options.eps_placement) - kUnit + InputOf(c).theta);
      r.Operate();
      return ulps(r);
    }
    case kDx:
      return ulps(OfDx(c));
    case kDw:
    case kDb:
      return ulps(OfColumns(c, output));
    default:
      return ulps(OfY(c));
  }
}

}  // namespace rmsnorm::test

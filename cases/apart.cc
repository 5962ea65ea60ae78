// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <rmsnorm/rmsnorm.hpp>

#include "problem.h"
#include "run.h"

namespace rmsnorm::cases {
namespace {

using namespace internal;

// One call of the reference.
class Step {
 public:
  Step(const Case& like, const Rows& x) : case_(like.backward) {
    for (OperandCase& own : case_.operand) own = {};
    case_.rows = like.rows;
    case_.d = x.d();
    Give(kX, x);
  }

  rmsnorm_options& options() { return case_.options; }
  void Give(Operand o, const Rows& rows, Per per = Per::kTensor) {
    Want(o, rows.dtype(), per);
    before_[o] = rows;
  }
  void Want(Operand o, rmsnorm_dtype dtype, Per per = Per::kTensor) {
    case_.operand[o].dtype = dtype;
    case_.operand[o].per = per;
  }
  // Rotates as a case does, by these tables.
  void Rotate(const Case& c, const Rows& cos, const Rows& sin) {
    Give(kCos, cos, c.operand[kCos].per);
    Give(kSin, sin, c.operand[kSin].per);
    case_.rotated = c.rotated;
  }
  // An input or an output as in a case, if it has one.
  void Take(Operand o, const Case& c, const Problem& whole) {
    case_.operand[o] = c.operand[o];
    before_[o] = whole.before(o);
  }
  // Makes the inverse RMS 1.
  void SkipNorm() {
    Rows ones(RMSNORM_F64, case_.RowCount(), 1);
    const double one = 1;
    for (size_t row = 0; row < ones.count(); ++row) std::memcpy(ones.row(row), &one, sizeof one);
    Give(kSums, ones);
    case_.operand[kSums].values = Values::kSpecial;  // they are not the sums of the rows
    case_.options.eps = 0;
    case_.options.divisor = 1;
  }
  Problem Run() const { return Problem(case_, before_); }

 private:
  Case case_;
  AllRows before_;
};

// A sum with these changes no number.
Rows MinusZeros(rmsnorm_dtype dtype, const Rows& like) {
  Rows zeros(dtype, like.count(), like.d());
  for (size_t row = 0; row < zeros.count(); ++row) {
    for (size_t j = 0; j < zeros.d(); ++j) zeros.set_bits(row, j, FormatOf(dtype).sign());
  }
  return zeros;
}

// factor * x rounded to x's type, added to the residual and rounded to the residual's type.
Rows Added(const Rows& x, const Rows& residual, float factor = 0) {
  Case rows;
  rows.rows = {x.count()};
  Step step(rows, x);
  step.options().factor = factor;
  step.Give(kResidual, residual);
  step.Want(kResidualOut, residual.dtype());
  return step.Run().after(kResidualOut);
}

// factor * x rounded to x's type.
Rows Multiplied(const Rows& x, float factor) {
  return factor == 0 ? x : Added(x, MinusZeros(x.dtype(), x), factor);
}

Rows Converted(const Rows& x, rmsnorm_dtype dtype) { return Added(x, MinusZeros(dtype, x)); }

Rows Gated(const Case& c, const Problem& whole, const Rows& x, rmsnorm_dtype y_dtype) {
  Step step(c, x);
  step.SkipNorm();
  step.Take(kGate, c, whole);
  step.options().activation = c.options.activation;
  step.Want(kY, y_dtype);
  return step.Run().after(kY);
}

// Rows rotated by the tables of a case, with products and sums rounded to the type of rows, or not.
Rows Rotated(const Case& c, const Rows& x, const Rows& cos, const Rows& sin,
             rmsnorm_rotary_rounding rounding, rmsnorm_dtype y_dtype) {
  Step step(c, x);
  step.SkipNorm();
  step.Rotate(c, cos, sin);
  step.options().rotary_pairs = c.options.rotary_pairs;
  step.options().rotary_part = c.options.rotary_part;
  step.options().rotary_rounding = rounding;
  step.Want(kY, y_dtype);
  return step.Run().after(kY);
}

rmsnorm_options NormOptions(const Case& c) {
  rmsnorm_options options = c.options;
  for (const Option o : {kResidualRounding, kFactor, kActivation, kGatePlacement, kGateRounding,
                         kGroup, kResidualFactor, kRotaryPairs, kRotaryPart, kRotaryRounding}) {
    SetValueIn(options, o, int32_t{0});
  }
  return options;
}

// Compares the results of a case with those of separate calls.
class Apart {
 public:
  explicit Apart(const Case& c) : c_(c), whole_(c) {}

  std::string Fault() {
    if (c_.backward) {
      Backward();
    } else {
      Forward();
    }
    return fault_;
  }

 private:
  void Expect(Operand o, const Rows& wanted) {
    if (!c_.Has(o) || !fault_.empty()) return;
    fault_ = FirstDifference(wanted, whole_.after(o));
    if (!fault_.empty()) fault_ = kOperandRules[o].name + fault_ + ", as by separate calls";
  }

  void Forward() {
    const rmsnorm_options& given = c_.options;
    Rows h = whole_.before(kX);
    if (c_.Has(kPostNormWeight)) {
      Step norm(c_, h);
      norm.Give(kWeight, whole_.before(kPostNormWeight), c_.operand[kPostNormWeight].per);
      norm.Want(kY, h.dtype());
      norm.options() = NormOptions(c_);
      h = norm.Run().after(kY);
    }
    h = Multiplied(h, given.factor);
    const bool is_gated_before = given.gate_placement == RMSNORM_GATE_BEFORE;
    const rmsnorm_dtype product_dtype =
        given.gate_rounding == RMSNORM_GATE_UNROUNDED ? RMSNORM_F32 : h.dtype();
    if (is_gated_before) h = Gated(c_, whole_, h, product_dtype);
    if (c_.Has(kResidual)) {
      const Rows& residual = whole_.before(kResidual);
      const bool is_rounded = given.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
      h = Added(h, is_rounded ? residual : Converted(residual, RMSNORM_F32));
      h = Multiplied(h, given.residual_factor);
      Expect(kResidualOut, Converted(h, residual.dtype()));
    }
    const bool is_scaled = c_.Has(kY) || c_.Has(kQ);
    if (!is_scaled && !c_.Has(kRstd) && !c_.Has(kSumsOut)) return;

    Step norm(c_, h);
    for (const Operand o : {kWeight, kBias, kSums, kRstd, kSumsOut}) norm.Take(o, c_, whole_);
    norm.options() = NormOptions(c_);
    if (!c_.Has(kWeight)) norm.options().weight_offset = 0;  // it is the post-norm's
    const bool is_gated = is_scaled && c_.Has(kGate) && !is_gated_before;
    const rmsnorm_dtype y_dtype = c_.Has(kY) ? c_.operand[kY].dtype : h.dtype();
    const rmsnorm_dtype m_dtype =
        given.gate_rounding == RMSNORM_GATE_UNROUNDED ? RMSNORM_F32 : h.dtype();
    const bool is_rotated_in_f32 =
        c_.Has(kCos) && given.rotary_rounding == RMSNORM_ROTARY_ROUND_NONE;
    norm.Want(kY, is_gated ? m_dtype : is_rotated_in_f32 ? RMSNORM_F32 : y_dtype);
    const Problem normed = norm.Run();
    Expect(kRstd, normed.after(kRstd));
    Expect(kSumsOut, normed.after(kSumsOut));
    Rows y = normed.after(kY);
    if (is_gated) y = Gated(c_, whole_, y, y_dtype);
    if (c_.Has(kCos)) {
      y = Rotated(c_, y, whole_.before(kCos), whole_.before(kSin), given.rotary_rounding, y_dtype);
    }
    Expect(kY, y);
    if (!c_.Has(kQ)) return;
    // A group is quantised as a row of its own length.
    const Rows groups = given.group == 0 ? y : y.InRowsOf(static_cast<size_t>(given.group));
    Case rows;
    rows.rows = {groups.count()};
    Step quantise(rows, groups);
    quantise.SkipNorm();
    for (const Operand o : {kQ, kScale, kZero}) quantise.Want(o, c_.operand[o].dtype);
    const Problem quantised = quantise.Run();
    for (const Operand o : {kQ, kScale, kZero}) {
      if (c_.Has(o)) Expect(o, quantised.after(o).InRowsOf(whole_.after(o).d()));
    }
  }

  // The gradient by m in f32.
  Rows RowsOfDy() const {
    Rows dy = whole_.before(kDy);
    if (!c_.Has(kCos)) return dy;
    Rows back = whole_.before(kSin);
    for (size_t row = 0; row < back.count(); ++row) {
      for (size_t i = 0; i < back.d(); ++i) {
        back.set_bits(row, i, back.bits(row, i) ^ FormatOf(back.dtype()).sign());
      }
    }
    Case like = c_;
    like.backward = false;
    return Rotated(like, dy, whole_.before(kCos), back, RMSNORM_ROTARY_ROUND_NONE, RMSNORM_F32);
  }

  // Each gradient alone, in f32 and in the default rounding order. Calls of forward add it to the
  // existing one, multiply the sum and round it.
  void Backward() {
    for (const Operand gradient : {kDx, kDw, kDb}) {
      if (!c_.Has(gradient)) continue;
      Step step(c_, whole_.before(kX));
      for (const Operand o : {kWeight, kRstd}) step.Take(o, c_, whole_);
      step.Give(kDy, RowsOfDy());
      step.Want(gradient, RMSNORM_F32, c_.operand[gradient].per);
      step.options() = NormOptions(c_);
      step.options().rounding = RMSNORM_ROUND_AFTER_WEIGHT;
      Rows total = step.Run().after(gradient);
      const OperandCase& own = c_.operand[gradient];
      if (own.add) total = Added(total, Converted(whole_.before(gradient), RMSNORM_F32));
      if (gradient == kDx) total = Multiplied(total, c_.options.residual_factor);
      Expect(gradient, Converted(total, own.dtype));
    }
  }

  const Case& c_;
  const Problem whole_;
  std::string fault_;
};

// A separate call rounds to the type of its input. If that is f32 and x is not, it differs from the
// one call, which rounds to x's type: after the norm, before the gate, or in an output q without y.
bool HasSteps(const Case& c) {
  if (c.strewn) return false;
  if (c.backward) return c.RowCount() > 0;  // without rows, not even a -0 is added to
  const rmsnorm_options& given = c.options;
  const OperandSet steps =
      SetOf(kPostNormWeight) | SetOf(kGate) | SetOf(kResidual) | SetOf(kQ) | kRotation;
  if ((c.Given() & steps) == 0 && given.factor == 0) return false;
  const bool is_gated_before = given.gate_placement == RMSNORM_GATE_BEFORE;
  const bool is_gate_rounded = given.gate_rounding == RMSNORM_GATE_ROUNDED;
  const bool is_f32 = c.Has(kResidual) ? given.residual_rounding == RMSNORM_RESIDUAL_UNROUNDED
                                       : is_gated_before && !is_gate_rounded;
  return !is_f32 || c.operand[kX].dtype == RMSNORM_F32 ||
         (given.rounding == RMSNORM_ROUND_AFTER_WEIGHT && (is_gated_before || !is_gate_rounded) &&
          c.Has(kY));
}

}  // namespace

bool HasSeparateCalls(const Calls& calls) {
  return std::any_of(calls.begin(), calls.end(), HasSteps);
}

std::string FaultApart(Runner& /*runner*/, const Calls& calls, const std::string& /*target*/) try {
  for (const Case& c : calls) {
    if (!HasSteps(c)) continue;
    const std::string fault = Apart(c).Fault();
    if (!fault.empty()) return fault;
  }
  return {};
} catch (const Error& error) {
  return std::string("refused: ") + error.what();
}

}  // namespace rmsnorm::cases

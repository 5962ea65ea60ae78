// SPDX-License-Identifier: Apache-2.0
// A call with several steps has the bits of calls with one step each, on the reference. The other
// targets have its bits: `rmsnorm check`.
#include <gtest/gtest.h>

#include <rmsnorm/rmsnorm.hpp>

#include "cases/list.h"
#include "cases/problem.h"
#include "on_target.h"
#include "rows.h"

namespace rmsnorm::test {
namespace {

using cases::Case;
using cases::Operand;
using cases::Problem;
using internal::kBias, internal::kGate, internal::kPostNormWeight, internal::kQ,
    internal::kResidual, internal::kResidualOut, internal::kRstd, internal::kScale, internal::kSums,
    internal::kSumsOut, internal::kWeight, internal::kX, internal::kY, internal::kZero;

// The operands of one call, and their memory.
class OneCall {
 public:
  explicit OneCall(const Rows& x) : rows_(x.count()), d_(x.d()) { Set(kX, x); }

  // An input, or room for an output.
  void Set(Operand o, const Rows& rows) {
    memory_[o] = rows;
    const bool is_vector = internal::kOperandRules[o].shape != internal::Shape::kRows;
    operands_.Set(o, is_vector ? VectorOf(memory_[o]) : ViewOf(memory_[o]));
  }
  void Want(Operand o, rmsnorm_dtype dtype) {
    const bool is_per_row = internal::kOperandRules[o].shape == internal::Shape::kPerRow;
    Set(o, Rows(dtype, rows_, is_per_row ? 1 : d_));
  }
  // Makes 1 / RMS 1 without eps.
  void SetUnitSums() {
    Rows sums(RMSNORM_F64, rows_, 1);
    for (size_t row = 0; row < rows_; ++row) {
      sums.set_bits(row, 0, Reinterpret<uint64_t>(static_cast<double>(d_)));
    }
    Set(kSums, sums);
  }
  void Run(const rmsnorm_options& options) {
    rmsnorm_context context = rmsnorm_default_context();
    context.target = kReference;
    const rmsnorm_operands all = operands_.Get();
    check(rmsnorm_forward(&all, &options, &context));
  }
  const Rows& Get(Operand o) const { return memory_[o]; }

 private:
  size_t rows_;
  size_t d_;
  Rows memory_[internal::kOperands];
  cases::CallOperands operands_;
};

rmsnorm_options WithoutEps() {
  rmsnorm_options options = rmsnorm_default_options();
  options.eps = 0;
  return options;
}

Rows Gated(const Case& c, const Problem& problem, const Rows& x, rmsnorm_dtype y_dtype) {
  OneCall call(x);
  call.SetUnitSums();
  call.Set(kGate, problem.before(kGate));
  call.Want(kY, y_dtype);
  rmsnorm_options options = WithoutEps();
  options.activation = c.options.activation;
  call.Run(options);
  return call.Get(kY);
}

Rows Added(const Rows& x, const Rows& residual) {
  OneCall call(x);
  call.Set(kResidual, residual);
  call.Want(kResidualOut, residual.dtype());
  call.Run(WithoutEps());
  return call.Get(kResidualOut);
}

Rows Converted(const Rows& from, rmsnorm_dtype dtype, float factor = 1) {
  Rows to(dtype, from.count(), from.d());
  for (size_t row = 0; row < from.count(); ++row) {
    for (size_t j = 0; j < from.d(); ++j) {
      Set(to, row, j, RoundToF32(double{factor} * Get(from, row, j)));
    }
  }
  return to;
}

// A separate call rounds to the type of its input. If that is f32 and x is not, it differs from the
// one call, which rounds to x's type: after the norm, before the gate, or in an output q without y.
bool HasSeparateCalls(const Case& c) {
  const rmsnorm_options& given = c.options;
  const bool is_f32 = given.gate_placement == RMSNORM_GATE_BEFORE ||
                      given.residual_rounding == RMSNORM_RESIDUAL_UNROUNDED;
  return !is_f32 || c.operand[kX].dtype == RMSNORM_F32 ||
         (given.rounding == RMSNORM_ROUND_AFTER_WEIGHT &&
          given.gate_rounding == RMSNORM_GATE_UNROUNDED && c.Has(kY));
}

void ExpectTheBitsOfSeparateCalls(const Case& c) {
  const Problem problem(c);
  const rmsnorm_options& given = c.options;
  const rmsnorm_dtype x_dtype = c.operand[kX].dtype;
  rmsnorm_options options = WithoutEps();
  options.eps = given.eps;
  options.eps_placement = given.eps_placement;
  options.divisor = given.divisor;
  options.rounding = given.rounding;
  options.weight_offset = given.weight_offset;
  const auto expect = [&](Operand o, const Rows& expected) {
    if (!c.Has(o)) return;
    ASSERT_TRUE(SameBits(expected, problem.after(o))) << internal::kOperandRules[o].name;
  };

  Rows h = problem.before(kX);
  if (c.Has(kPostNormWeight)) {
    OneCall norm(h);
    norm.Set(kWeight, problem.before(kPostNormWeight));
    norm.Want(kY, x_dtype);
    norm.Run(options);
    h = norm.Get(kY);
  }
  if (given.factor != 0) h = Converted(h, x_dtype, given.factor);
  const bool is_gated_before = c.Has(kGate) && given.gate_placement == RMSNORM_GATE_BEFORE;
  if (is_gated_before) h = Gated(c, problem, h, RMSNORM_F32);
  if (c.Has(kResidual)) {
    const Rows& residual = problem.before(kResidual);
    const Rows sum = Added(h, residual);
    expect(kResidualOut, sum);
    const bool is_rounded = given.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
    h = is_rounded ? sum : Added(h, Converted(residual, RMSNORM_F32));
  }

  OneCall norm(h);
  if (c.Has(kWeight)) norm.Set(kWeight, problem.before(kWeight));
  if (c.Has(kBias)) norm.Set(kBias, problem.before(kBias));
  if (!c.Has(kWeight)) options.weight_offset = 0;
  const bool is_gated = c.Has(kGate) && !is_gated_before;
  const rmsnorm_dtype y_dtype = c.Has(kY) ? c.operand[kY].dtype : h.dtype();
  const bool is_gate_unrounded = given.gate_rounding == RMSNORM_GATE_UNROUNDED;
  norm.Want(kY, !is_gated ? y_dtype : is_gate_unrounded ? RMSNORM_F32 : h.dtype());
  norm.Want(kRstd, RMSNORM_F32);
  norm.Want(kSumsOut, RMSNORM_F64);
  norm.Run(options);
  expect(kRstd, norm.Get(kRstd));
  expect(kSumsOut, norm.Get(kSumsOut));
  const Rows y = is_gated ? Gated(c, problem, norm.Get(kY), y_dtype) : norm.Get(kY);
  expect(kY, y);
  if (!c.Has(kQ)) return;
  OneCall quantise(y);
  quantise.SetUnitSums();
  quantise.Want(kQ, RMSNORM_I8);
  quantise.Want(kScale, RMSNORM_F32);
  if (c.Has(kZero)) quantise.Want(kZero, RMSNORM_I8);
  quantise.Run(WithoutEps());
  for (const Operand o : {kQ, kScale, kZero}) expect(o, quantise.Get(o));
}

constexpr char kSteps[] = R"(
$T=f32|f16|bf16
$NORM=d=2|7|130|4097,rows=13,rounding=after_weight/before_weight/inverse,
  eps_placement=inside/outside/floor,weight=none/f32/bf16/f16,bias=none/none/f16,rstd=f32,sums_out=f64,
  post_norm_weight=none|f32,factor=0|0.22,x_values=mixed/massive,divisor=0/100.5
$GATE=gate=$T,activation=silu/sigmoid,gate_values=normal/mixed
forward,x=$T,y=f32|f16|bf16,$NORM
forward,x=$T,y=$T,$NORM,$GATE,gate_placement=before
forward,x=$T,y=f32/f16/bf16,$NORM,$GATE,gate_rounding=unrounded|rounded
forward,x=$T,residual+residual_out=$T,y=f32/f16/bf16,$NORM,residual_rounding=rounded|unrounded,
  residual_values=normal/mixed/huge
forward,x=$T,residual+residual_out=f32/f16/bf16,y=$T,$NORM,$GATE,gate_rounding=unrounded/rounded,
  residual_rounding=rounded/unrounded
)";

// Quantised without y, a call rounds to the type of x, which is y's here.
constexpr char kQuantised[] = R"(
$T=f32|f16|bf16
$Q=q=i8,scale=f32,zero=i8|none,d=2|7|130|4097,rows=13,rounding=after_weight/before_weight/inverse,
  weight=none/f32/bf16,x_values=mixed/massive,rstd=f32/none
forward,x=$T,y=$T|none,$Q
forward,x=$T,y=none|f32,$Q,residual=f32/f16/bf16,residual_rounding=rounded/unrounded
forward,x=$T,y=none|bf16,$Q,gate=f32/f16/bf16,gate_rounding=unrounded/rounded
)";

TEST(SeparateCalls, HaveTheBitsOfOne) {
  size_t compared = 0;
  for (const char* const text : {kSteps, kQuantised}) {
    cases::List(text).ForEach([&](const cases::Calls& calls) {
      if (!HasSeparateCalls(calls[0])) return;
      SCOPED_TRACE(cases::Text(calls));
      ExpectTheBitsOfSeparateCalls(calls[0]);
      ++compared;
    });
  }
  EXPECT_GT(compared, 1000u);
}

}  // namespace
}  // namespace rmsnorm::test

// SPDX-License-Identifier: Apache-2.0
#include "step.h"

#include <stdexcept>

#include "options_text.h"
#include "step_list.h"

namespace rmsnorm::identify {
namespace {

using internal::kGate;
using internal::kOperandRules;
using internal::kOperands;
using internal::kPostNormWeight;
using internal::kResidual;
using internal::kResidualOut;
using internal::kSums;
using internal::kWeight;
using internal::kX;
using internal::kY;
using internal::Operand;
using internal::Option;
using internal::Shape;

void CallLibrary(const NormCall& call, Operand output, Matrix& result) {
  rmsnorm_view views[kOperands];
  rmsnorm_operands operands = rmsnorm_no_operands();
  const auto set = [&](Operand o, const Matrix& matrix) {
    const bool is_shared = matrix.rows == 1 && kOperandRules[o].shape == Shape::kColumns;
    views[o] = is_shared ? rmsnorm_vector(matrix.bytes.data(), matrix.dtype, matrix.d)
                         : rmsnorm_rows(matrix.bytes.data(), matrix.dtype, matrix.rows, matrix.d,
                                        static_cast<ptrdiff_t>(matrix.d));
    internal::SetViewIn(operands, o, &views[o]);
  };
  for (int i = 0; i < kOperands; ++i) {
    if (call.operand[i] && i != kResidualOut) set(static_cast<Operand>(i), *call.operand[i]);
  }
  if (!call.sums.empty()) {
    views[kSums] = rmsnorm_vector(call.sums.data(), RMSNORM_F64, call.sums.size());
    operands.sums = &views[kSums];
  }
  set(output, result);
  rmsnorm_context context = {};
  context.size = sizeof context;
  context.threads = 1;  // the calls are short
  if (rmsnorm_forward(&operands, &call.options, &context) != RMSNORM_OK) {
    throw std::runtime_error(rmsnorm_error_message());
  }
}

// A row as several rows, each with its part of the weight.
Result InGroups(NormCall& call, size_t groups) {
  const size_t rows = call.x().rows;
  for (std::optional<Matrix>& operand : call.operand) {
    if (!operand) continue;
    if (operand->rows < rows) *operand = Repeated(*operand, rows);
    operand->rows *= groups;
    operand->d /= groups;
  }
  Matrix y = ComputeY(call);
  y.rows /= groups;
  y.d *= groups;
  return y;
}

void AddGroups(const NormCall& call, StepList& list) {
  for (const size_t groups : UsualGroups(call.x().d)) {
    list.Variant("each row is normalised in " + std::to_string(groups) + " groups of " +
                     std::to_string(call.x().d / groups) + " elements",
                 [groups](NormCall& c) { return InGroups(c, groups); });
  }
}

}  // namespace

std::optional<NormCall> WithoutResidual(const NormCall& call) {
  if (call.Has(kPostNormWeight)) return {};
  if (call.Has(kGate) && call.options.gate_placement == RMSNORM_GATE_BEFORE) return {};
  NormCall plain = call;
  if (!call.Has(kResidual)) return plain;
  const bool is_rounded = call.options.residual_rounding == RMSNORM_RESIDUAL_ROUNDED;
  if (!is_rounded && call.options.rounding != RMSNORM_ROUND_AFTER_WEIGHT) return {};
  plain.operand[kX] =
      SumWithResidual(call, is_rounded ? call.operand[kResidual]->dtype : RMSNORM_F32);
  plain.operand[kResidual].reset();
  plain.options.residual_rounding = RMSNORM_RESIDUAL_ROUNDED;
  plain.options.factor = 1;
  return plain;
}

std::vector<float> Weighted(std::vector<float> n, const NormCall& call) {
  if (!call.Has(kWeight)) return n;
  const std::vector<float> w = ValuesOf(*call.operand[kWeight]);
  for (size_t i = 0; i < n.size(); ++i) n[i] *= call.options.weight_offset + w[i % w.size()];
  return n;
}

std::vector<size_t> UsualGroups(size_t d) {
  constexpr size_t kShortest = 16;
  std::vector<size_t> usual;
  for (size_t groups = 2; d / groups >= kShortest; ++groups) {
    const size_t length = d / groups;
    if (d % groups != 0) continue;
    if (groups <= 8 || length % 32 == 0 || length % 80 == 0) usual.push_back(groups);
  }
  return usual;
}

std::string NameOf(Operand o) { return std::string(o == kX ? "" : "the ") + kOperandRules[o].name; }

Matrix ComputeY(const NormCall& call) {
  Matrix y = EmptyMatrix(call.y_dtype, call.x().rows, call.x().d);
  CallLibrary(call, kY, y);
  return y;
}

Matrix ComputeResidualOut(const NormCall& call) {
  NormCall add = call;
  for (const Operand o : {kWeight, internal::kBias, kGate}) add.operand[o].reset();
  if (!call.Has(kPostNormWeight)) add.options.weight_offset = 0;
  for (const Option option :
       {internal::kActivation, internal::kGatePlacement, internal::kGateRounding}) {
    internal::SetValueIn(add.options, option, 0);
  }
  Matrix sum = EmptyMatrix(call.operand[kResidual]->dtype, call.x().rows, call.x().d);
  CallLibrary(add, kResidualOut, sum);
  return sum;
}

Matrix SumWithResidual(const NormCall& call, rmsnorm_dtype dtype) {
  NormCall add;
  add.operand[kX] = call.x();
  add.options.factor = call.options.factor;
  const Matrix& residual = *call.operand[kResidual];
  add.operand[kResidual] = Rounded(ValuesOf(residual), RMSNORM_F32, residual.rows, residual.d);
  Matrix sum = EmptyMatrix(RMSNORM_F32, call.x().rows, call.x().d);
  CallLibrary(add, kResidualOut, sum);
  return Rounded(ValuesOf(sum), dtype, sum.rows, sum.d);
}

std::vector<double> SumsOfSquares(const Matrix& x) {
  const std::vector<float> values = ValuesOf(x);
  std::vector<double> sums(x.rows);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<double>(values[i]);
    sums[i / x.d] += value * value;
  }
  return sums;
}

std::vector<Step> StepsFor(const NormCall& call, const StepNumbers& numbers) {
  StepList list;
  list.Option([](NormCall& c) -> Result { return ComputeY(c); });
  AddDivisors(call, numbers.divisor, list);
  AddRoundings(call, numbers, list);
  AddRowRoundings(call, list);
  AddOperands(call, list);
  AddSums(call, list);
  AddGroups(call, list);
  return list.Take();
}

}  // namespace rmsnorm::identify

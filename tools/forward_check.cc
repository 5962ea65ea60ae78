// SPDX-License-Identifier: Apache-2.0
#include "forward_check.h"

#include "case_options.h"
#include "case_values.h"

namespace rmsnorm::tools {
namespace {

Layout LayoutOfX(const ForwardCase& c) {
  return {c.rows, c.d, c.x_shift, c.x_gap, c.falling, c.repeated};
}

Layout LayoutOfResidual(const ForwardCase& c) {
  return {c.rows, c.d, c.residual_shift, c.residual_gap, c.falling, false};
}

Layout LayoutOfY(const ForwardCase& c) {
  return c.in_place ? LayoutOfX(c) : Layout{c.rows, c.d, c.y_shift, c.y_gap, c.falling, false};
}

Layout LayoutOfResidualOut(const ForwardCase& c) {
  return c.residual_in_place ? LayoutOfResidual(c)
                             : Layout{c.rows, c.d, c.y_shift, c.y_gap, c.falling, false};
}

// A weight or a bias.
std::optional<GuardedRows> Columns(const ForwardCase& c, std::optional<Dtype> dtype, Per per,
                                   size_t shift) {
  if (!dtype) return std::nullopt;
  return Input(*dtype, {SharedRows(per, c.rows, c.heads), c.d, shift});
}

}  // namespace

ForwardCheck::Tensors ForwardCheck::MakeTensors(const ForwardCase& c) {
  const Layout dense = {c.rows, c.d};
  Tensors tensors = {Input(c.x, LayoutOfX(c)),
                     Columns(c, c.weight, c.weight_per, c.weight_shift),
                     Columns(c, c.bias, c.bias_per, c.bias_shift),
                     std::nullopt,
                     std::nullopt,
                     Output(c.y, dense),
                     OnePerRow(Dtype::f32, c.rows),
                     OnePerRow(Dtype::f64, c.rows)};
  Random random(c.seed);
  FillRows(random, c.values, tensors.x);
  if (tensors.weight) FillWeight(random, c.special_weight, *tensors.weight);
  if (c.residual) {
    tensors.residual.emplace(Input(*c.residual, LayoutOfResidual(c)));
    FillRows(random, c.values, *tensors.residual);
    tensors.residual_out.emplace(Output(*c.residual, dense));
  }
  if (tensors.bias) FillWeight(random, c.special_weight, *tensors.bias);
  return tensors;
}

ForwardCheck::ForwardCheck(const ForwardCase& forward_case)
    : case_(forward_case), expected_(MakeTensors(forward_case)) {
  const ForwardCase& c = case_;
  const Layout dense = {c.rows, c.d};
  Tensors& tensors = expected_;
  GuardedRows x = Input(c.x, dense);
  CopyRows(tensors.x, x);
  std::optional<GuardedRows> residual;
  if (c.residual) {
    residual.emplace(Input(*c.residual, dense));
    CopyRows(*tensors.residual, *residual);
  }
  const bool all_share = c.weight_per == Per::kTensor && c.bias_per == Per::kTensor;
  const size_t count = all_share ? c.rows : 1;
  for (size_t row = 0; row < c.rows; row += count) {
    ForwardOperands operands;
    operands.x = x.rows(row, count);
    if (c.weight) {
      operands.weight = tensors.weight->elements(SharedRow(c.weight_per, row, c.heads), 0, {c.d});
    }
    if (c.bias) {
      operands.bias = tensors.bias->elements(SharedRow(c.bias_per, row, c.heads), 0, {c.d});
    }
    if (c.residual) {
      operands.residual = residual->rows(row, count);
      operands.residual_out = tensors.residual_out->rows(row, count);
    }
    operands.y = tensors.y.rows(row, count);
    operands.rstd = tensors.rstd.elements(0, row, {count});
    operands.sums_out = tensors.sums.elements(0, row, {count});
    forward(operands, c.options, ReferenceContext());
  }
}

ForwardCheck::Tensors ForwardCheck::Run(const char* target) const {
  const ForwardCase& c = case_;
  Tensors results = expected_;
  results.y = Output(c.y, LayoutOfY(c));
  results.rstd = OnePerRow(Dtype::f32, c.rows);
  results.sums = OnePerRow(Dtype::f64, c.rows);

  const std::vector<size_t> leading = LeadingOfRows(c.rows, c.heads);
  ForwardOperands operands;
  operands.y = results.y.view(leading);
  if (c.in_place) {
    CopyRows(results.x, results.y);
    operands.x = results.y.view_as(c.x, leading);
  } else {
    operands.x = results.x.view(leading);
  }
  if (c.weight) operands.weight = results.weight->view(LeadingOf(c.weight_per, c.rows, c.heads));
  if (c.bias) operands.bias = results.bias->view(LeadingOf(c.bias_per, c.rows, c.heads));
  if (c.residual) {
    results.residual_out = Output(*c.residual, LayoutOfResidualOut(c));
    operands.residual_out = results.residual_out->view(leading);
    if (c.residual_in_place) {
      CopyRows(*results.residual, *results.residual_out);
      operands.residual = operands.residual_out;
    } else {
      operands.residual = results.residual->view(leading);
    }
  }
  if (c.rstd) operands.rstd = results.rstd.elements(0, 0, leading);

  const Context context = ContextOf(c, target);
  switch (c.call) {
    case CallKind::kForward:
      forward(operands, c.options, context);
      break;
    case CallKind::kModule: {
      RmsNorm module(c.d, c.options, c.weight.value_or(c.x), context);
      if (c.weight) module.set_weight(operands.weight);
      operands.weight = {};
      module.forward(operands);
      break;
    }
    case CallKind::kTwoPhases: {
      ForwardOperands sum;
      sum.x = operands.x;
      sum.sums_out = results.sums.elements(0, 0, leading);
      // An offset needs a weight.
      sum.weight = operands.weight;
      forward(sum, c.options, context);
      operands.sums = sum.sums_out;
      forward(operands, c.options, context);
      break;
    }
  }
  return results;
}

std::string ForwardCheck::FindFault(const Tensors& results) const {
  std::string fault = FindFaultOfOutputs({
      {"y", expected_.y, results.y, true},
      {"rstd", expected_.rstd, results.rstd, case_.rstd},
      {"sums", expected_.sums, results.sums, case_.call == CallKind::kTwoPhases},
  });
  if (fault.empty() && case_.residual) {
    fault = FindFaultOfOutputs(
        {{"residual_out", *expected_.residual_out, *results.residual_out, true}});
  }
  if (!fault.empty()) return fault;
  if (!(results.x == expected_.x)) return "x was written";
  if (!(results.weight == expected_.weight)) return "the weight was written";
  if (!(results.bias == expected_.bias)) return "the bias was written";
  if (!(results.residual == expected_.residual)) return "the residual was written";
  return {};
}

}  // namespace rmsnorm::tools

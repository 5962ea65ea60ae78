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

Layout LayoutOfResidualOut(const ForwardCase& c) {
  return c.residual_in_place ? LayoutOfResidual(c)
                             : Layout{c.rows, c.d, c.y_shift, c.y_gap, c.falling, false};
}

Layout LayoutOfY(const ForwardCase& c) {
  return c.in_place ? LayoutOfX(c) : Layout{c.rows, c.d, c.y_shift, c.y_gap, c.falling, false};
}

// The options, with the one that a residual brings.
rmsnorm_options WithResidual(rmsnorm_options options, const ForwardCase& c) {
  options.residual_rounding = c.norm_then_cast ? RMSNORM_NORM_THEN_CAST : RMSNORM_CAST_THEN_NORM;
  return options;
}

}  // namespace

ForwardCheck::ForwardCheck(const ForwardCase& forward_case)
    : case_(forward_case),
      x_(FormatOf(case_.x), LayoutOfX(case_), GuardedRows::kAroundInput),
      expected_y_(Output(FormatOf(case_.y), {case_.rows, case_.d})),
      expected_rstd_(OnePerRow(kF32, case_.rows)),
      expected_sums_(OnePerRow(kF64, case_.rows)) {
  Random random(case_.seed);
  FillRows(random, case_.values, x_);
  if (case_.weight) {
    weight_.emplace(FormatOf(*case_.weight), Layout{1, case_.d, case_.weight_shift},
                    GuardedRows::kAroundInput);
    FillWeight(random, case_.special_weight, *weight_);
  }

  GuardedRows dense_x(x_.format(), {case_.rows, case_.d}, GuardedRows::kAroundInput);
  CopyRows(x_, dense_x);
  const rmsnorm_options options = WithResidual(ReferenceOptions(case_), case_);
  const rmsnorm_view x = dense_x.view(case_.x);
  const rmsnorm_view y = expected_y_.view(case_.y);
  const rmsnorm_view weight = weight_ ? weight_->vector(*case_.weight) : rmsnorm_view{};
  const rmsnorm_view* const weight_or_null = weight_ ? &weight : nullptr;
  if (case_.residual) {
    const Format format = FormatOf(*case_.residual);
    residual_.emplace(format, LayoutOfResidual(case_), GuardedRows::kAroundInput);
    FillRows(random, case_.values, *residual_);
    expected_residual_out_.emplace(Output(format, {case_.rows, case_.d}));
    GuardedRows dense_residual(format, {case_.rows, case_.d}, GuardedRows::kAroundInput);
    CopyRows(*residual_, dense_residual);
    const rmsnorm_view residual = dense_residual.view(*case_.residual);
    const rmsnorm_view residual_out = expected_residual_out_->view(*case_.residual);
    check(rmsnorm_add_forward(&x, &residual, weight_or_null, &residual_out, &y,
                              Floats(expected_rstd_), &options));
    return;
  }
  check(rmsnorm_forward(&x, weight_or_null, &y, Floats(expected_rstd_), &options));
  if (case_.call == Call::kTwoPhases) {
    check(rmsnorm_sum_squares(&x, Doubles(expected_sums_), &options));
  }
}

ForwardCheck::Results ForwardCheck::Run(const char* target) const {
  Results results = {x_,
                     weight_,
                     residual_,
                     std::nullopt,
                     Output(FormatOf(case_.y), LayoutOfY(case_)),
                     OnePerRow(kF32, case_.rows),
                     OnePerRow(kF64, case_.rows)};
  if (case_.in_place) CopyRows(x_, results.y);
  rmsnorm_view residual = {};
  rmsnorm_view residual_out = {};
  if (case_.residual) {
    results.residual_out.emplace(Output(FormatOf(*case_.residual), LayoutOfResidualOut(case_)));
    residual_out = results.residual_out->view(*case_.residual);
    residual = results.residual->view(*case_.residual);
    if (case_.residual_in_place) {
      CopyRows(*residual_, *results.residual_out);
      residual = residual_out;
    }
  }

  const rmsnorm_options options = WithResidual(LibraryOptions(case_, target), case_);
  const rmsnorm_view x = case_.in_place ? results.y.view(case_.x) : results.x.view(case_.x);
  const rmsnorm_view y = results.y.view(case_.y);
  float* const rstd = case_.rstd ? Floats(results.rstd) : nullptr;
  rmsnorm_view weight_view = {};
  const rmsnorm_view* weight = nullptr;
  if (case_.weight) {
    weight_view = results.weight->vector(*case_.weight);
    weight = &weight_view;
  }

  switch (case_.call) {
    case Call::kForward:
      if (case_.residual) {
        check(rmsnorm_add_forward(&x, &residual, weight, &residual_out, &y, rstd, &options));
      } else {
        check(rmsnorm_forward(&x, weight, &y, rstd, &options));
      }
      break;
    case Call::kModule: {
      Options module_options;
      static_cast<rmsnorm_options&>(module_options) = options;
      RmsNorm module(case_.d, module_options, case_.weight.value_or(case_.x));
      if (weight != nullptr) module.set_weight(ConstView(*weight));
      if (case_.residual) {
        module.add_forward(ConstView(x), ConstView(residual), View(residual_out), View(y), rstd);
      } else {
        module.forward(ConstView(x), View(y), rstd);
      }
      break;
    }
    case Call::kTwoPhases: {
      double* const sums = Doubles(results.sums);
      check(rmsnorm_sum_squares(&x, sums, &options));
      check(rmsnorm_scale(&x, sums, weight, &y, rstd, &options));
      break;
    }
  }
  return results;
}

std::string ForwardCheck::FindFault(const Results& results) const {
  std::string fault = FindFaultOfOutputs({
      {"y", expected_y_, results.y, true},
      {"rstd", expected_rstd_, results.rstd, case_.rstd},
      {"sums", expected_sums_, results.sums, case_.call == Call::kTwoPhases},
  });
  if (!fault.empty()) return fault;
  if (results.residual_out) {
    fault = FindFaultOfOutputs(
        {{"residual_out", *expected_residual_out_, *results.residual_out, true}});
    if (!fault.empty()) return fault;
    if (!(*results.residual == *residual_)) return "the residual was written";
  }
  if (!(results.x == x_)) return "x was written";
  if (weight_ && !(*results.weight == *weight_)) return "the weight was written";
  return {};
}

}  // namespace rmsnorm::tools

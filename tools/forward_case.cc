// SPDX-License-Identifier: Apache-2.0
#include "forward_case.h"

#include "case_text.h"
#include "tensor.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

const Names<CallKind> kCalls = {{"forward", CallKind::kForward},
                                {"module", CallKind::kModule},
                                {"two_phases", CallKind::kTwoPhases}};

// Visits each field with its name in the text.
constexpr auto kVisitFields = [](auto& c, const auto& visit) {
  visit("x", c.x);
  visit("weight", c.weight);
  visit("bias", c.bias);
  visit("y", c.y);
  visit("rows", c.rows);
  visit("d", c.d);
  visit("heads", c.heads);
  visit("weight_per", c.weight_per);
  visit("bias_per", c.bias_per);
  visit("call", c.call);
  visit("x_shift", c.x_shift);
  visit("weight_shift", c.weight_shift);
  visit("bias_shift", c.bias_shift);
  visit("y_shift", c.y_shift);
  visit("x_gap", c.x_gap);
  visit("y_gap", c.y_gap);
  visit("falling", c.falling);
  visit("repeated", c.repeated);
  visit("in_place", c.in_place);
  visit("rstd", c.rstd);
  visit("residual", c.residual);
  visit("residual_shift", c.residual_shift);
  visit("residual_gap", c.residual_gap);
  visit("residual_in_place", c.residual_in_place);
  visit("residual_rounding", c.options.residual_rounding);
  VisitOptions(c, visit);
};

// What the library would refuse is left to it. This is what makes no sense before that.
void RequireMeaning(const ForwardCase& c) {
  RequireSizes(c.rows, c.d, {c.x_gap, c.y_gap, c.residual_gap},
               {c.x_shift, c.y_shift, c.weight_shift, c.bias_shift, c.residual_shift});
  RequireHeads(c.rows, c.heads);
  if (c.in_place) {
    if (!CanBeInPlace(c)) throw UserError("case: in_place needs elements of the same size");
    if (c.repeated) throw UserError("case: rows that are repeated cannot be normalised in_place");
    if (c.y_shift != 0 || c.y_gap != 0) {
      throw UserError("case: in_place leaves no choice of y_shift and y_gap");
    }
  }
  if (c.residual) {
    if (c.call == CallKind::kTwoPhases) throw UserError("case: two_phases take no residual");
  } else if (c.residual_shift != 0 || c.residual_gap != 0 || c.residual_in_place ||
             c.options.residual_rounding != ResidualRounding::cast_then_norm) {
    throw UserError("case: it says how, but there is no residual");
  }
  if (!c.bias && (c.bias_shift != 0 || c.bias_per != Per::kTensor)) {
    throw UserError("case: it says how, but there is no bias");
  }
  if (c.weight_per != Per::kTensor) {
    if (!c.weight) throw UserError("case: weight_per, but there is no weight");
    if (c.call == CallKind::kModule) throw UserError("case: a module's weight_per is tensor");
  }
  if (c.repeated && c.x_gap != 0) throw UserError("case: repeated leaves no choice of x_gap");
}

}  // namespace

static std::string WriteField(CallKind value) { return WriteName(value, kCalls); }
static bool ReadField(const std::string& text, CallKind& value) {
  return ReadName(text, value, kCalls);
}

bool CanBeInPlace(const ForwardCase& forward_case) {
  return ElementSize(forward_case.x) == ElementSize(forward_case.y);
}

std::string Text(const ForwardCase& forward_case) {
  return WriteCase(kForwardKind, forward_case, {"x", "weight", "y", "rows", "d"}, kVisitFields);
}

ForwardCase ParseForwardCase(const std::string& text) {
  const ForwardCase c = ReadCase<ForwardCase>(text, kVisitFields);
  RequireMeaning(c);
  return c;
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
#include "forward_case.h"

#include "case_text.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

const Names<Call> kCalls = {
    {"forward", Call::kForward}, {"module", Call::kModule}, {"two_phases", Call::kTwoPhases}};

// Visits each field with its name in the text.
template <class Case, class Visitor>
void VisitFields(Case& c, const Visitor& visit) {
  visit("x", c.x);
  visit("weight", c.weight);
  visit("y", c.y);
  visit("rows", c.rows);
  visit("d", c.d);
  visit("call", c.call);
  visit("x_shift", c.x_shift);
  visit("weight_shift", c.weight_shift);
  visit("y_shift", c.y_shift);
  visit("x_gap", c.x_gap);
  visit("y_gap", c.y_gap);
  visit("falling", c.falling);
  visit("repeated", c.repeated);
  visit("in_place", c.in_place);
  visit("eps", c.eps);
  visit("eps_outside", c.eps_outside);
  visit("cast_then_scale", c.cast_then_scale);
  visit("weight_offset", c.weight_offset);
  visit("divisor", c.divisor);
  visit("rstd", c.rstd);
  visit("threads", c.threads);
  visit("executor", c.executor);
  visit("values", c.values);
  visit("special_weight", c.special_weight);
  visit("residual", c.residual);
  visit("residual_shift", c.residual_shift);
  visit("residual_gap", c.residual_gap);
  visit("residual_in_place", c.residual_in_place);
  visit("norm_then_cast", c.norm_then_cast);
  visit("seed", c.seed);
}

constexpr auto kVisitFields = [](auto& c, const auto& visit) { VisitFields(c, visit); };

// What the library would refuse is left to it. This is what makes no sense before that.
void RequireMeaning(const ForwardCase& c) {
  RequireSizes(c.rows, c.d, {c.x_gap, c.y_gap, c.residual_gap},
               {c.x_shift, c.y_shift, c.weight_shift, c.residual_shift});
  if (c.in_place) {
    if (!CanBeInPlace(c)) throw UserError("case: in_place needs elements of the same size");
    if (c.repeated) throw UserError("case: rows that are repeated cannot be normalised in_place");
    if (c.y_shift != 0 || c.y_gap != 0) {
      throw UserError("case: in_place leaves no choice of y_shift and y_gap");
    }
  }
  if (c.residual) {
    if (c.call == Call::kTwoPhases) throw UserError("case: two_phases take no residual");
  } else if (c.residual_shift != 0 || c.residual_gap != 0 || c.residual_in_place ||
             c.norm_then_cast) {
    throw UserError("case: it says how, but there is no residual");
  }
  if (c.repeated && c.x_gap != 0) throw UserError("case: repeated leaves no choice of x_gap");
}

}  // namespace

static std::string WriteField(Call value) { return WriteName(value, kCalls); }
static bool ReadField(const std::string& text, Call& value) {
  return ReadName(text, value, kCalls);
}

bool CanBeInPlace(const ForwardCase& forward_case) {
  const auto size = [](Dtype dtype) {
    return rmsnorm_dtype_size(static_cast<rmsnorm_dtype>(dtype));
  };
  return size(forward_case.x) == size(forward_case.y);
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

// SPDX-License-Identifier: Apache-2.0
#include "backward_case.h"

#include "case_text.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

const Names<BackwardCall> kCalls = {{"backward", BackwardCall::kBackward},
                                    {"module", BackwardCall::kModule}};
const Names<Outputs> kOutputs = {
    {"both", Outputs::kBoth}, {"dx", Outputs::kDx}, {"dw", Outputs::kDw}};
const Names<GivenRstd> kRstds = {
    {"none", GivenRstd::kNone}, {"saved", GivenRstd::kSaved}, {"special", GivenRstd::kSpecial}};

// Visits each field with its name in the text.
constexpr auto kVisitFields = [](auto& c, const auto& visit) {
  visit("x", c.x);
  visit("weight", c.weight);
  visit("dy", c.dy);
  visit("dw", c.dw);
  visit("rows", c.rows);
  visit("d", c.d);
  visit("call", c.call);
  visit("outputs", c.outputs);
  visit("dx_f32", c.dx_f32);
  visit("x_shift", c.x_shift);
  visit("weight_shift", c.weight_shift);
  visit("dy_shift", c.dy_shift);
  visit("dx_shift", c.dx_shift);
  visit("dw_shift", c.dw_shift);
  visit("x_gap", c.x_gap);
  visit("dy_gap", c.dy_gap);
  visit("dx_gap", c.dx_gap);
  visit("falling", c.falling);
  visit("x_repeated", c.x_repeated);
  visit("dy_repeated", c.dy_repeated);
  visit("in_place", c.in_place);
  visit("add_dx", c.add_dx);
  visit("add_dw", c.add_dw);
  visit("eps", c.eps);
  visit("eps_outside", c.eps_outside);
  visit("cast_then_scale", c.cast_then_scale);
  visit("weight_offset", c.weight_offset);
  visit("divisor", c.divisor);
  visit("rstd", c.rstd);
  visit("threads", c.threads);
  visit("executor", c.executor);
  visit("values", c.values);
  visit("dy_values", c.dy_values);
  visit("special_weight", c.special_weight);
  visit("seed", c.seed);
};

// What the library would refuse is left to it. This is what makes no sense before that.
void RequireMeaning(const BackwardCase& c) {
  RequireSizes(c.rows, c.d, {c.x_gap, c.dy_gap, c.dx_gap},
               {c.x_shift, c.weight_shift, c.dy_shift, c.dx_shift, c.dw_shift});
  if (c.in_place) {
    if (c.outputs == Outputs::kDw) throw UserError("case: in_place needs dx");
    if (c.dx_f32 && c.dy != Dtype::f32) throw UserError("case: in_place needs a dx as dy");
    if (c.dy_repeated) throw UserError("case: rows that are repeated cannot be written in_place");
    if (c.dx_shift != 0 || c.dx_gap != 0) {
      throw UserError("case: in_place leaves no choice of dx_shift and dx_gap");
    }
  }
  if (c.x_repeated && c.x_gap != 0) throw UserError("case: x_repeated leaves no choice of x_gap");
  if (c.dy_repeated && c.dy_gap != 0) {
    throw UserError("case: dy_repeated leaves no choice of dy_gap");
  }
}

}  // namespace

static std::string WriteField(BackwardCall value) { return WriteName(value, kCalls); }
static std::string WriteField(Outputs value) { return WriteName(value, kOutputs); }
static std::string WriteField(GivenRstd value) { return WriteName(value, kRstds); }
static bool ReadField(const std::string& text, BackwardCall& value) {
  return ReadName(text, value, kCalls);
}
static bool ReadField(const std::string& text, Outputs& value) {
  return ReadName(text, value, kOutputs);
}
static bool ReadField(const std::string& text, GivenRstd& value) {
  return ReadName(text, value, kRstds);
}

std::string Text(const BackwardCase& backward_case) {
  return WriteCase(kBackwardKind, backward_case, {"x", "weight", "dy", "dw", "rows", "d"},
                   kVisitFields);
}

BackwardCase ParseBackwardCase(const std::string& text) {
  const BackwardCase c = ReadCase<BackwardCase>(text, kVisitFields);
  RequireMeaning(c);
  return c;
}

}  // namespace rmsnorm::tools

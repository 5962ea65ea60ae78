// SPDX-License-Identifier: Apache-2.0
#include "backward_case.h"

#include "case_text.h"
#include "tensor.h"
#include "user_error.h"

namespace rmsnorm::tools {
namespace {

const Names<BackwardCall> kCalls = {{"backward", BackwardCall::kBackward},
                                    {"module", BackwardCall::kModule}};
const Names<GivenRstd> kRstds = {
    {"none", GivenRstd::kNone}, {"saved", GivenRstd::kSaved}, {"special", GivenRstd::kSpecial}};

// Visits each field with its name in the text.
constexpr auto kVisitFields = [](auto& c, const auto& visit) {
  visit("x", c.x);
  visit("weight", c.weight);
  visit("dy", c.dy);
  visit("dx", c.dx);
  visit("dw", c.dw);
  visit("db", c.db);
  visit("rows", c.rows);
  visit("d", c.d);
  visit("heads", c.heads);
  visit("weight_per", c.weight_per);
  visit("bias_per", c.bias_per);
  visit("call", c.call);
  visit("x_shift", c.x_shift);
  visit("weight_shift", c.weight_shift);
  visit("dy_shift", c.dy_shift);
  visit("dx_shift", c.dx_shift);
  visit("dw_shift", c.dw_shift);
  visit("db_shift", c.db_shift);
  visit("x_gap", c.x_gap);
  visit("dy_gap", c.dy_gap);
  visit("dx_gap", c.dx_gap);
  visit("falling", c.falling);
  visit("x_repeated", c.x_repeated);
  visit("dy_repeated", c.dy_repeated);
  visit("in_place", c.in_place);
  visit("add_dx", c.add_dx);
  visit("add_dw", c.add_dw);
  visit("add_db", c.add_db);
  visit("rstd", c.rstd);
  visit("dy_values", c.dy_values);
  VisitOptions(c, visit);
};

// What the library would refuse is left to it. This is what makes no sense before that.
void RequireMeaning(const BackwardCase& c) {
  RequireSizes(c.rows, c.d, {c.x_gap, c.dy_gap, c.dx_gap},
               {c.x_shift, c.weight_shift, c.dy_shift, c.dx_shift, c.dw_shift, c.db_shift});
  RequireHeads(c.rows, c.heads);
  if (!c.dx && (c.in_place || c.add_dx || c.dx_shift != 0 || c.dx_gap != 0)) {
    throw UserError("case: it says how, but there is no dx");
  }
  if (!c.dw && (c.add_dw || c.dw_shift != 0)) {
    throw UserError("case: it says how, but there is no dw");
  }
  if (!c.db && (c.add_db || c.db_shift != 0 || c.bias_per != Per::kTensor)) {
    throw UserError("case: it says how, but there is no db");
  }
  if (c.weight_per != Per::kTensor) {
    if (!c.weight && !c.dw) throw UserError("case: weight_per, but there is no weight or dw");
    if (c.call == BackwardCall::kModule) throw UserError("case: a module's weight_per is tensor");
  }
  if (c.in_place) {
    if (!CanBeInPlace(c)) throw UserError("case: in_place needs elements of the same size");
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
static std::string WriteField(GivenRstd value) { return WriteName(value, kRstds); }
static bool ReadField(const std::string& text, BackwardCall& value) {
  return ReadName(text, value, kCalls);
}
static bool ReadField(const std::string& text, GivenRstd& value) {
  return ReadName(text, value, kRstds);
}

bool CanBeInPlace(const BackwardCase& backward_case) {
  return backward_case.dx && ElementSize(*backward_case.dx) == ElementSize(backward_case.dy);
}

std::string Text(const BackwardCase& backward_case) {
  return WriteCase(kBackwardKind, backward_case, {"x", "weight", "dy", "dx", "dw", "rows", "d"},
                   kVisitFields);
}

BackwardCase ParseBackwardCase(const std::string& text) {
  const BackwardCase c = ReadCase<BackwardCase>(text, kVisitFields);
  RequireMeaning(c);
  return c;
}

}  // namespace rmsnorm::tools

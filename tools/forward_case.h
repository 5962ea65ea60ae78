// SPDX-License-Identifier: Apache-2.0
// A case of `rmsnorm check`: one forward computation, described in full by a short text such as
// "forward,x=bf16,weight=f32,y=f16,rows=5,d=300,x_shift=3,values=tiny".
#ifndef RMSNORM_TOOLS_FORWARD_CASE_H_
#define RMSNORM_TOOLS_FORWARD_CASE_H_

#include <cstddef>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "case_options.h"
#include "case_shape.h"

namespace rmsnorm::tools {

// The functions that do the work; all must give the bits of forward().
enum class CallKind { kForward, kModule, kTwoPhases };

struct ForwardCase : CaseOptions {
  CallKind call = CallKind::kForward;
  Dtype x = Dtype::f32;
  std::optional<Dtype> weight = Dtype::f32;
  std::optional<Dtype> bias;
  Dtype y = Dtype::f32;
  std::optional<Dtype> residual;  // to which x is added first; not in two phases
  size_t rows = 1;
  size_t d = 1;
  size_t heads = 1;  // rows of a group
  Per weight_per = Per::kTensor;
  Per bias_per = Per::kTensor;

  // Where the data lies, in elements: the first element past a cache line's start, and the gap
  // between rows. In place, y lies as x does.
  size_t x_shift = 0;
  size_t weight_shift = 0;
  size_t bias_shift = 0;
  size_t y_shift = 0;
  size_t residual_shift = 0;
  size_t x_gap = 0;
  size_t y_gap = 0;
  size_t residual_gap = 0;
  bool falling = false;   // later rows at lower addresses: negative strides
  bool repeated = false;  // all rows of x are the same one: stride 0
  bool in_place = false;
  bool residual_in_place = false;  // else residual_out lies as y does

  bool rstd = false;
};

// Whether the types allow y to take the place of x.
bool CanBeInPlace(const ForwardCase& forward_case);

// The first word of the text of a case.
constexpr char kForwardKind[] = "forward";

// The text of a case. Fields that have their default value are left out, but for types and sizes.
std::string Text(const ForwardCase& forward_case);

// The case that a text of this kind describes. Throws UserError if there is none.
ForwardCase ParseForwardCase(const std::string& text);

// The cases that `rmsnorm check` goes through.
std::vector<ForwardCase> ForwardCases();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_FORWARD_CASE_H_

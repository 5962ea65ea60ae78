// SPDX-License-Identifier: Apache-2.0
// A case of `rmsnorm check`: one backward computation, described in full by a short text such as
// "backward,x=bf16,weight=f32,dy=f16,dx=f16,dw=f32,rows=5,d=300,in_place=1,values=finite".
#ifndef RMSNORM_TOOLS_BACKWARD_CASE_H_
#define RMSNORM_TOOLS_BACKWARD_CASE_H_

#include <cstddef>
#include <optional>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "case_options.h"
#include "case_shape.h"

namespace rmsnorm::tools {

// The functions that do the work; both must give the same bits.
enum class BackwardCall { kBackward, kModule };

// The inverse RMS that is given.
enum class GivenRstd {
  kNone,    // it is computed again
  kSaved,   // what forward gives
  kSpecial  // the same with NaN, infinity, zero, negative and extreme numbers among them
};

struct BackwardCase : CaseOptions {
  BackwardCall call = BackwardCall::kBackward;
  Dtype x = Dtype::f32;
  std::optional<Dtype> weight = Dtype::f32;
  Dtype dy = Dtype::f32;
  // The gradients that are asked for.
  std::optional<Dtype> dx = Dtype::f32;
  std::optional<Dtype> dw = Dtype::f32;
  std::optional<Dtype> db;
  size_t rows = 1;
  size_t d = 1;
  size_t heads = 1;               // rows of a group
  Per weight_per = Per::kTensor;  // also of dw
  Per bias_per = Per::kTensor;    // of db

  // Where the data lies, as in ForwardCase. In place, dx is where dy is.
  size_t x_shift = 0;
  size_t weight_shift = 0;
  size_t dy_shift = 0;
  size_t dx_shift = 0;
  size_t dw_shift = 0;
  size_t db_shift = 0;
  size_t x_gap = 0;
  size_t dy_gap = 0;
  size_t dx_gap = 0;
  bool falling = false;      // later rows at lower addresses: negative strides
  bool x_repeated = false;   // all rows of x are the same one: stride 0
  bool dy_repeated = false;  // the same of dy, which is then not in place
  bool in_place = false;
  bool add_dx = false;  // to what is there
  bool add_dw = false;
  bool add_db = false;

  GivenRstd rstd = GivenRstd::kNone;
  Values dy_values = Values::kNormal;
};

// Whether the types allow dx to take the place of dy.
bool CanBeInPlace(const BackwardCase& backward_case);

// The first word of the text of a case.
constexpr char kBackwardKind[] = "backward";

// The text of a case. Fields that have their default value are left out, but for types and sizes.
std::string Text(const BackwardCase& backward_case);

// The case that a text of this kind describes. Throws UserError if there is none.
BackwardCase ParseBackwardCase(const std::string& text);

// The cases that `rmsnorm check` goes through.
std::vector<BackwardCase> BackwardCases();

}  // namespace rmsnorm::tools

#endif  // RMSNORM_TOOLS_BACKWARD_CASE_H_

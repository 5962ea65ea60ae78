// SPDX-License-Identifier: Apache-2.0
#include "backward_check.h"

#include <limits>

#include "case_options.h"
#include "case_values.h"

namespace rmsnorm::tools {
namespace {

Layout LayoutOfX(const BackwardCase& c) {
  return {c.rows, c.d, c.x_shift, c.x_gap, c.falling, c.x_repeated};
}

Layout LayoutOfDy(const BackwardCase& c) {
  return {c.rows, c.d, c.dy_shift, c.dy_gap, c.falling, c.dy_repeated};
}

Layout LayoutOfDx(const BackwardCase& c) {
  return c.in_place ? LayoutOfDy(c) : Layout{c.rows, c.d, c.dx_shift, c.dx_gap, c.falling, false};
}

GuardedRows Input(Dtype dtype, const Layout& layout) {
  return GuardedRows(FormatOf(dtype), layout, GuardedRows::kAroundInput);
}

// Without gaps, as an input.
GuardedRows Dense(Dtype dtype, const GuardedRows& rows) {
  GuardedRows dense = Input(dtype, {rows.layout().rows, rows.layout().d});
  CopyRows(rows, dense);
  return dense;
}

}  // namespace

BackwardCheck::BackwardCheck(const BackwardCase& backward_case)
    : case_(backward_case),
      x_(Input(case_.x, LayoutOfX(case_))),
      dy_(Input(case_.dy, LayoutOfDy(case_))),
      rstd_(kF32, {1, case_.rows}, GuardedRows::kAroundInput),
      old_dx_(Output(FormatOf(DxType(case_)), {case_.rows, case_.d})),
      old_dw_(Output(FormatOf(case_.dw), {1, case_.d})),
      expected_dx_(old_dx_),
      expected_dw_(old_dw_) {
  Random random(case_.seed);
  FillRows(random, case_.values, x_);
  FillRows(random, case_.dy_values, dy_, 1);  // kinds of rows other than those of x
  if (case_.weight) {
    weight_.emplace(Input(*case_.weight, {1, case_.d, case_.weight_shift}));
    FillWeight(random, case_.special_weight, *weight_);
  }
  if (case_.in_place) {
    CopyRows(dy_, old_dx_);
  } else if (case_.add_dx) {
    FillRows(random, Values::kNormal, old_dx_);
  }
  if (case_.add_dw) FillRows(random, Values::kNormal, old_dw_);

  GuardedRows dense_x = Dense(case_.x, x_);
  GuardedRows dense_dy = Dense(case_.dy, dy_);
  const rmsnorm_view x = dense_x.view(case_.x);
  FillRstd(x);
  CopyRows(old_dx_, expected_dx_);
  CopyRows(old_dw_, expected_dw_);
  const rmsnorm_options options = ReferenceOptions(case_);
  const rmsnorm_view dy = dense_dy.view(case_.dy);
  const rmsnorm_view dx = expected_dx_.view(DxType(case_));
  const rmsnorm_view dw = expected_dw_.vector(case_.dw);
  const rmsnorm_view weight = weight_ ? weight_->vector(*case_.weight) : rmsnorm_view{};
  check(rmsnorm_backward(&dy, &x, weight_ ? &weight : nullptr,
                         case_.rstd != GivenRstd::kNone ? Floats(rstd_) : nullptr,
                         HasDx() ? &dx : nullptr, HasDw() ? &dw : nullptr, Flags(), &options));
}

uint32_t BackwardCheck::Flags() const {
  return (case_.add_dx ? uint32_t{RMSNORM_ADD_TO_DX} : 0u) |
         (case_.add_dw ? uint32_t{RMSNORM_ADD_TO_DW} : 0u);
}

void BackwardCheck::FillRstd(const rmsnorm_view& dense_x) {
  if (case_.rstd == GivenRstd::kNone) return;
  GuardedRows unused_y = Output(FormatOf(case_.x), {case_.rows, case_.d});
  const rmsnorm_view y = unused_y.view(case_.x);
  rmsnorm_options options = ReferenceOptions(case_);
  options.weight_offset = 0;  // it needs a weight
  float* const rstd = Floats(rstd_);
  check(rmsnorm_forward(&dense_x, nullptr, &y, rstd, &options));
  if (case_.rstd == GivenRstd::kSaved) return;
  using Limits = std::numeric_limits<float>;
  // 2^-64 and 2^50 are the ends of the range in which f32 is taken to do.
  const float specials[] = {
      0,     -1, Limits::infinity(), Limits::quiet_NaN(), 0x1p-64f, 0x1p-65f, 0x1p50f, 0x1p51f,
      -0.0f, 1,  Limits::max(),      Limits::denorm_min()};
  for (size_t row = 0; row < case_.rows; row += 2) {
    rstd[row] = specials[(row / 2 + case_.seed) % std::size(specials)];
  }
}

BackwardCheck::Results BackwardCheck::Run(const char* target) const {
  Results results = {x_,
                     dy_,
                     weight_,
                     rstd_,
                     Output(FormatOf(DxType(case_)), LayoutOfDx(case_)),
                     Output(FormatOf(case_.dw), {1, case_.d, case_.dw_shift})};
  CopyRows(old_dx_, results.dx);
  CopyRows(old_dw_, results.dw);

  const rmsnorm_options options = LibraryOptions(case_, target);
  const rmsnorm_view x = results.x.view(case_.x);
  const rmsnorm_view dx = results.dx.view(DxType(case_));
  const rmsnorm_view dy = case_.in_place ? dx : results.dy.view(case_.dy);
  const rmsnorm_view dw = results.dw.vector(case_.dw);
  const float* const rstd = case_.rstd != GivenRstd::kNone ? Floats(results.rstd) : nullptr;
  rmsnorm_view weight_view = {};
  const rmsnorm_view* weight = nullptr;
  if (case_.weight) {
    weight_view = results.weight->vector(*case_.weight);
    weight = &weight_view;
  }

  switch (case_.call) {
    case BackwardCall::kBackward:
      check(rmsnorm_backward(&dy, &x, weight, rstd, HasDx() ? &dx : nullptr,
                             HasDw() ? &dw : nullptr, Flags(), &options));
      break;
    case BackwardCall::kModule: {
      Options module_options;
      static_cast<rmsnorm_options&>(module_options) = options;
      RmsNorm module(case_.d, module_options, case_.weight.value_or(case_.x));
      if (weight != nullptr) module.set_weight(ConstView(*weight));
      Gradients gradients;
      if (HasDx()) gradients.dx = View(dx);
      if (HasDw()) gradients.dw = View(dw);
      gradients.add_dx = case_.add_dx;
      gradients.add_dw = case_.add_dw;
      module.backward(ConstView(dy), ConstView(x), gradients, rstd);
      break;
    }
  }
  return results;
}

std::string BackwardCheck::FindFault(const Results& results) const {
  const std::string fault = FindFaultOfOutputs({
      {"dx", expected_dx_, results.dx, HasDx()},
      {"dw", expected_dw_, results.dw, HasDw()},
  });
  if (!fault.empty()) return fault;
  if (!(results.x == x_)) return "x was written";
  if (!(results.dy == dy_)) return "dy was written";
  if (weight_ && !(*results.weight == *weight_)) return "the weight was written";
  if (!(results.rstd == rstd_)) return "rstd was written";
  return {};
}

}  // namespace rmsnorm::tools

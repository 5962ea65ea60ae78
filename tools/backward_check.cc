// SPDX-License-Identifier: Apache-2.0
#include "backward_check.h"

#include <iterator>
#include <limits>
#include <tuple>

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

Layout LayoutOfColumns(const BackwardCase& c, Per per, size_t shift) {
  return {SharedRows(per, c.rows, c.heads), c.d, shift};
}

// Inverse RMS as the case has them.
void FillRstd(const BackwardCase& c, const GuardedRows& x, GuardedRows& rstd) {
  if (c.rstd == GivenRstd::kNone) return;
  GuardedRows dense_x = Input(c.x, {c.rows, c.d});
  CopyRows(x, dense_x);
  ForwardOperands operands;
  operands.x = dense_x.rows(0, c.rows);
  operands.rstd = rstd.elements(0, 0, {c.rows});
  Options options = c.options;
  options.weight_offset = 0;  // it needs a weight
  forward(operands, options, ReferenceContext());
  if (c.rstd == GivenRstd::kSaved) return;
  using Limits = std::numeric_limits<float>;
  // 2^-64 and 2^50 are the ends of the range in which f32 is taken to do.
  const float specials[] = {
      0,     -1, Limits::infinity(), Limits::quiet_NaN(), 0x1p-64f, 0x1p-65f, 0x1p50f, 0x1p51f,
      -0.0f, 1,  Limits::max(),      Limits::denorm_min()};
  for (size_t row = 0; row < c.rows; row += 2) {
    reinterpret_cast<float*>(rstd.row(0))[row] = specials[(row / 2 + c.seed) % std::size(specials)];
  }
}

// The rows that share one of the weight or of the bias.
std::vector<size_t> RowsThatShare(const BackwardCase& c, Per per, size_t shared_row) {
  std::vector<size_t> rows;
  for (size_t row = 0; row < c.rows; ++row) {
    if (SharedRow(per, row, c.heads) == shared_row) rows.push_back(row);
  }
  return rows;
}

// Some rows without gaps.
GuardedRows Gather(Dtype dtype, const GuardedRows& from, const std::vector<size_t>& rows) {
  GuardedRows dense = Input(dtype, {rows.size(), from.layout().d});
  for (size_t i = 0; i < rows.size(); ++i) CopyRow(from, rows[i], dense, i);
  return dense;
}

}  // namespace

BackwardCheck::Tensors BackwardCheck::MakeTensors(const BackwardCase& c) {
  Tensors tensors = {Input(c.x, LayoutOfX(c)),
                     Input(c.dy, LayoutOfDy(c)),
                     std::nullopt,
                     Input(Dtype::f32, {1, c.rows}),
                     std::nullopt,
                     std::nullopt,
                     std::nullopt};
  Random random(c.seed);
  FillRows(random, c.values, tensors.x);
  FillRows(random, c.dy_values, tensors.dy, 1);  // kinds of rows other than those of x
  if (c.weight) {
    tensors.weight.emplace(Input(*c.weight, LayoutOfColumns(c, c.weight_per, c.weight_shift)));
    FillWeight(random, c.special_weight, *tensors.weight);
  }
  if (c.dx) {
    tensors.dx.emplace(Output(*c.dx, {c.rows, c.d}));
    if (c.in_place) {
      CopyRows(tensors.dy, *tensors.dx);
    } else if (c.add_dx) {
      FillRows(random, Values::kNormal, *tensors.dx);
    }
  }
  if (c.dw) {
    tensors.dw.emplace(Output(*c.dw, LayoutOfColumns(c, c.weight_per, 0)));
    if (c.add_dw) FillRows(random, Values::kNormal, *tensors.dw);
  }
  if (c.db) {
    tensors.db.emplace(Output(*c.db, LayoutOfColumns(c, c.bias_per, 0)));
    if (c.add_db) FillRows(random, Values::kNormal, *tensors.db);
  }
  FillRstd(c, tensors.x, tensors.rstd);
  return tensors;
}

BackwardCheck::BackwardCheck(const BackwardCase& backward_case)
    : case_(backward_case), before_(MakeTensors(backward_case)), expected_(before_) {
  const BackwardCase& c = case_;
  if (c.dx || c.dw || !c.db) {
    for (size_t i = 0; i < SharedRows(c.weight_per, c.rows, c.heads); ++i) ComputeDxAndDw(i);
  }
  if (c.db) {
    for (size_t i = 0; i < SharedRows(c.bias_per, c.rows, c.heads); ++i) ComputeDb(i);
  }
}

void BackwardCheck::ComputeDxAndDw(size_t shared_row) {
  const BackwardCase& c = case_;
  const std::vector<size_t> rows = RowsThatShare(c, c.weight_per, shared_row);
  GuardedRows x = Gather(c.x, expected_.x, rows);
  GuardedRows dy = Gather(c.dy, expected_.dy, rows);
  std::vector<float> rstd;
  for (const size_t row : rows) {
    rstd.push_back(reinterpret_cast<const float*>(expected_.rstd.row(0))[row]);
  }
  std::optional<GuardedRows> dx;
  BackwardOperands operands;
  operands.x = x.rows(0, rows.size());
  operands.dy = dy.rows(0, rows.size());
  if (c.weight) operands.weight = expected_.weight->elements(shared_row, 0, {c.d});
  if (c.rstd != GivenRstd::kNone) operands.rstd = ConstView(rstd.data(), rstd.size());
  if (c.dx) {
    dx.emplace(Gather(*c.dx, *expected_.dx, rows));
    operands.dx = dx->rows(0, rows.size());
  }
  if (c.dw) operands.dw = expected_.dw->elements(shared_row, 0, {c.d});
  operands.add_to_dx = c.add_dx;
  operands.add_to_dw = c.add_dw;
  backward(operands, c.options, ReferenceContext());
  if (!c.dx) return;
  for (size_t i = 0; i < rows.size(); ++i) CopyRow(*dx, i, *expected_.dx, rows[i]);
}

void BackwardCheck::ComputeDb(size_t shared_row) {
  const BackwardCase& c = case_;
  const std::vector<size_t> rows = RowsThatShare(c, c.bias_per, shared_row);
  GuardedRows x = Gather(c.x, expected_.x, rows);
  GuardedRows dy = Gather(c.dy, expected_.dy, rows);
  BackwardOperands operands;
  operands.x = x.rows(0, rows.size());
  operands.dy = dy.rows(0, rows.size());
  operands.db = expected_.db->elements(shared_row, 0, {c.d});
  operands.add_to_db = c.add_db;
  backward(operands, Options(), ReferenceContext());
}

BackwardCheck::Tensors BackwardCheck::Run(const char* target) const {
  const BackwardCase& c = case_;
  Tensors results = before_;
  const std::vector<size_t> leading = LeadingOfRows(c.rows, c.heads);
  const std::vector<size_t> leading_of_weight = LeadingOf(c.weight_per, c.rows, c.heads);
  BackwardOperands operands;
  operands.x = results.x.view(leading);
  operands.dy = results.dy.view(leading);
  if (c.weight) operands.weight = results.weight->view(leading_of_weight);
  if (c.rstd != GivenRstd::kNone) operands.rstd = results.rstd.elements(0, 0, leading);
  if (c.dx) {
    results.dx = Output(*c.dx, LayoutOfDx(c));
    CopyRows(*before_.dx, *results.dx);
    operands.dx = results.dx->view(leading);
    if (c.in_place) operands.dy = results.dx->view_as(c.dy, leading);
  }
  if (c.dw) {
    results.dw = Output(*c.dw, LayoutOfColumns(c, c.weight_per, c.dw_shift));
    CopyRows(*before_.dw, *results.dw);
    operands.dw = results.dw->view(leading_of_weight);
  }
  if (c.db) {
    results.db = Output(*c.db, LayoutOfColumns(c, c.bias_per, c.db_shift));
    CopyRows(*before_.db, *results.db);
    operands.db = results.db->view(LeadingOf(c.bias_per, c.rows, c.heads));
  }
  operands.add_to_dx = c.add_dx;
  operands.add_to_dw = c.add_dw;
  operands.add_to_db = c.add_db;

  const Context context = ContextOf(c, target);
  switch (c.call) {
    case BackwardCall::kBackward:
      backward(operands, c.options, context);
      break;
    case BackwardCall::kModule: {
      RmsNorm module(c.d, c.options, c.weight.value_or(c.x), context);
      if (c.weight) module.set_weight(operands.weight);
      operands.weight = {};
      module.backward(operands);
      break;
    }
  }
  return results;
}

std::string BackwardCheck::FindFault(const Tensors& results) const {
  const std::tuple<const char*, const std::optional<GuardedRows>&,
                   const std::optional<GuardedRows>&>
      outputs[] = {{"dx", expected_.dx, results.dx},
                   {"dw", expected_.dw, results.dw},
                   {"db", expected_.db, results.db}};
  for (const auto& [name, expected, actual] : outputs) {
    if (!expected) continue;
    const std::string fault = FindFaultOfOutputs({{name, *expected, *actual, true}});
    if (!fault.empty()) return fault;
  }
  if (!(results.x == expected_.x)) return "x was written";
  if (!(results.dy == expected_.dy)) return "dy was written";
  if (!(results.weight == expected_.weight)) return "the weight was written";
  if (!(results.rstd == expected_.rstd)) return "rstd was written";
  return {};
}

}  // namespace rmsnorm::tools

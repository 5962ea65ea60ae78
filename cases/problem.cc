// SPDX-License-Identifier: Apache-2.0
#include "problem.h"

#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <rmsnorm/rmsnorm.hpp>

#include "layout.h"

namespace rmsnorm::cases {
namespace {

// Rows that overlap in memory hold the same bytes where they overlap: this writes each row in turn,
// and then reads all of them back.
void Overwrite(const Case& c, Operand o, Rows& rows) {
  const OperandCase& own = c.operand[o];
  const size_t element = internal::ElementSize(own.dtype);
  const std::vector<size_t> leading = LeadingOf(c, o);
  const Spans spans = SpansOf(own, leading, rows.d(), element);
  std::vector<uint8_t> memory(spans.bytes);
  const std::vector<ptrdiff_t> offsets = RowOffsets(leading, spans.stride, element);
  uint8_t* const first = memory.data() + spans.first;
  for (size_t row = 0; row < offsets.size(); ++row) {
    std::memcpy(first + offsets[row], rows.row(row), rows.row_bytes());
  }
  for (size_t row = 0; row < offsets.size(); ++row) {
    std::memcpy(rows.row(row), first + offsets[row], rows.row_bytes());
  }
}

// Whether rows of x share a row of the operand in a call of the reference. Of the tables of rotary
// positions each row has its own there.
bool HasColumns(Operand o) {
  return kOperandRules[o].leading == Leading::kShared && kOperandRules[o].length == Length::kD;
}

// Some rows as an operand of a case. An operand with one element per row is a vector.
rmsnorm_view ViewOf(const Case& c, Operand o, Rows& rows) {
  if (!internal::HasRowDimension(o, c.options.group)) {
    return rmsnorm_vector(rows.row(0), rows.dtype(), rows.count());
  }
  if (HasColumns(o)) {
    return rmsnorm_vector(rows.row(0), rows.dtype(), rows.d());
  }
  return rmsnorm_rows(rows.row(0), rows.dtype(), rows.count(), rows.d(),
                      static_cast<ptrdiff_t>(rows.d()));
}

// Whether the sums are the rows' own. Then two phases give the same bits as one call. With a
// divisor below 1 or an eps near the largest number they may not: finite sums can make the term
// under the root infinite (doc/bits.md).
bool IsOfTheRows(const Case& c) {
  const OperandCase& sums = c.operand[internal::kSums];
  return !c.strewn && sums.values == Values::kNormal && !IsShared(sums.order) &&
         (c.options.divisor == 0 || c.options.divisor >= 1) && c.options.eps < 0x1p100f;
}

// A plain call that gives the expected results.
void CallReference(const Case& c, const CallOperands& operands, const rmsnorm_options& options) {
  rmsnorm_context context = rmsnorm_default_context();
  context.threads = 1;
  context.target = "reference";
  const rmsnorm_operands all = operands.Get();
  const bool backward = c.backward && all.dy != nullptr;
  check(backward ? rmsnorm_backward(&all, &options, &context)
                 : rmsnorm_forward(&all, &options, &context));
}

// The upper half of the patterns of f32.
void AddToPatterns(uint64_t half, Rows& rows) {
  if (rows.dtype() != RMSNORM_F32) return;
  for (size_t i = 0; i < rows.count() * rows.d(); ++i) {
    rows.set_bits(i / rows.d(), i % rows.d(), half << 16 | rows.bits(i / rows.d(), i % rows.d()));
  }
}

const float kSpecialRstds[] = {0,
                               -1,
                               std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::quiet_NaN(),
                               0x1p-64f,  // the ends of the range that f32 is used for
                               0x1p-65f,
                               0x1p50f,
                               0x1p51f,
                               -0.0f,
                               1,
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min()};
const double kSpecialSums[] = {0,     -1,     std::numeric_limits<double>::infinity(),
                               1e300, 5e-324, std::numeric_limits<double>::quiet_NaN(),
                               1e-31, 3e38,   1e40,
                               1,     -0.0,   1e-45};

}  // namespace

rmsnorm_operands CallOperands::Get() const {
  rmsnorm_operands all = rmsnorm_no_operands();
  all.size = size;
  all.add_to = add_to;
  internal::ForEachOperand(given, [&](Operand o) { internal::SetViewIn(all, o, &view[o]); });
  return all;
}

Problem::Problem(const Case& c) {
  c.strewn ? ReadStrewnInputs(c) : MakeInputs(c);
  Compute(c);
}

void Problem::Compute(const Case& c) {
  using namespace internal;
  ForEachOperand(c.Given(), [&](Operand o) {
    const OperandCase& own = c.operand[o];
    if (c.IsOutput(o)) {
      after_[o] = own.add ? before_[o] : Rows(own.dtype, RowsOf(c, o), RowLengthOf(c, o));
    }
  });
  if (c.backward) {
    Compute(c, SetOf(kDx) | SetOf(kDw), SetOf(kWeight) | SetOf(kDw));
    Compute(c, SetOf(kDb), SetOf(kDb));
  } else {
    Compute(c, ~OperandSet{0}, kColumnsInF32);
  }
}

void Problem::MakeInputs(const Case& c) {
  OperandSet later = 0;
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    const OperandCase& own = c.operand[o];
    const size_t rows = RowsOf(c, o);
    const size_t length = RowLengthOf(c, o);
    if (kOperandRules[o].length == Length::kOne) {
      if (!c.IsOutput(o)) later |= SetOf(o);
      return;
    }
    if (own.in_place && own.add) {
      // The other type may differ, but it has the same size.
      const Rows& other = before_[kOperandRules[o].in_place_of];
      before_[o] = Rows(own.dtype, rows, length);
      std::memcpy(before_[o].row(0), other.row(0), rows * before_[o].row_bytes());
    } else if (!c.IsOutput(o) || own.add) {
      Random random(uint64_t{c.seed} * kOperands + static_cast<uint64_t>(o));
      before_[o] = Rows(own.dtype, rows, length);
      // Rows of dy are of other kinds than rows of x.
      Fill(random, own.values, o == internal::kDy ? 1 : 0, before_[o]);
      if (own.values == Values::kEvery) AddToPatterns(c.seed, before_[o]);
      if (IsShared(own.order)) Overwrite(c, o, before_[o]);
    }
  });
  internal::ForEachOperand(later, [&](Operand o) { MakePerRow(c, o); });
}

// Strewn operands lie in random bytes.
void Problem::ReadStrewnInputs(const Case& c) {
  const Layout layout(c);
  Random random(~uint64_t{c.seed});
  std::vector<uint8_t> memory(layout.block[internal::kX].bytes);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.Bits());
  uint8_t* const block = memory.data();  // x's, the first
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (c.IsOutput(o) && !c.operand[o].add) return;
    before_[o] = Rows(c.operand[o].dtype, RowsOf(c, o), RowLengthOf(c, o));
    layout.Read(&block, o, before_[o]);
  });
}

// Fills rstd or sums by a call of forward; special values replace every other row on request.
void Problem::MakePerRow(const Case& c, Operand o) {
  using namespace internal;
  Rows& values = before_[o] = Rows(c.operand[o].dtype, RowsOf(c, o), 1);
  CallOperands operands;
  for (const Operand input : {internal::kX, internal::kGate}) {
    if (c.Has(input)) operands.Set(input, ViewOf(c, input, before_[input]));
  }
  operands.Set(o == internal::kSums ? internal::kSumsOut : o, ViewOf(c, o, values));
  rmsnorm_options options = c.options;
  for (OptionSet changed = ChangedOptions(options); changed != 0; changed &= changed - 1) {
    const Option option = FirstOption(changed);  // some need an operand that this call lacks
    const OperandSet needs = kOptionRules[option].needs;
    if (needs != 0 && (needs & operands.given) == 0) SetValueIn(options, option, int32_t{0});
  }
  CallReference(c, operands, options);
  for (size_t row = 0; c.operand[o].values != Values::kNormal && row < values.count(); row += 2) {
    const size_t special = (row / 2 + c.seed) % std::size(kSpecialRstds);
    if (o == internal::kSums) {
      std::memcpy(values.row(row), &kSpecialSums[special], sizeof(double));
    } else {
      std::memcpy(values.row(row), &kSpecialRstds[special], sizeof(float));
    }
  }
  if (IsShared(c.operand[o].order)) Overwrite(c, o, values);
}

// Computes some outputs: one call per group of rows that share their rows of `columns`.
void Problem::Compute(const Case& c, OperandSet outputs, OperandSet columns) {
  if ((c.Given() & outputs) == 0) return;
  std::map<std::vector<size_t>, std::vector<size_t>> groups;
  for (size_t row = 0; row < c.RowCount(); ++row) {
    std::vector<size_t> shared;
    internal::ForEachOperand(columns, [&](Operand o) { shared.push_back(SharedRow(c, o, row)); });
    groups[shared].push_back(row);
  }
  for (const auto& [shared, rows] : groups) ComputeShared(c, outputs, rows);
}

void Problem::ComputeShared(const Case& c, OperandSet outputs, const std::vector<size_t>& rows) {
  CallOperands operands;
  Rows dense[kOperands];
  const auto rows_of = [&](Operand o) {
    if (HasColumns(o)) return std::vector<size_t>{SharedRow(c, o, rows[0])};
    std::vector<size_t> own = rows;
    if (kOperandRules[o].leading == Leading::kShared) {
      for (size_t& row : own) row = SharedRow(c, o, row);
    }
    return own;
  };
  internal::ForEachOperand(c.Given(), [&](Operand o) {
    if (c.IsOutput(o) && (SetOf(o) & outputs) == 0) return;
    if (o == internal::kSums && IsOfTheRows(c)) return;
    const Rows& from = c.IsOutput(o) ? after_[o] : before_[o];
    const Rows& start = c.operand[o].add ? before_[o] : from;
    const std::vector<size_t> own = rows_of(o);
    dense[o] = Rows(from.dtype(), own.size(), from.d());
    for (size_t i = 0; i < own.size(); ++i) dense[o].Copy(i, start, own[i]);
    operands.Set(o, ViewOf(c, o, dense[o]));
    if (c.operand[o].add) operands.add_to |= 1u << (o - internal::kDx);
  });
  CallReference(c, operands, c.options);
  internal::ForEachOperand(operands.given, [&](Operand o) {
    if (!c.IsOutput(o)) return;
    const std::vector<size_t> own = rows_of(o);
    for (size_t i = 0; i < own.size(); ++i) after_[o].Copy(own[i], dense[o], i);
  });
}

bool IsSameProblem(const Case& a, const Case& b) {
  if (a.strewn || b.strewn || a.backward != b.backward || a.rows != b.rows || a.d != b.d ||
      a.rotated != b.rotated || a.seed != b.seed) {
    return false;
  }
  if (std::memcmp(&a.options, &b.options, sizeof a.options) != 0) return false;
  for (int i = 0; i < kOperands; ++i) {
    const OperandCase& own = a.operand[i];
    const OperandCase& other = b.operand[i];
    if (own.dtype != other.dtype || own.values != other.values || own.per != other.per ||
        own.add != other.add || (own.add && own.in_place != other.in_place)) {
      return false;
    }
    if ((IsShared(own.order) || IsShared(other.order)) &&
        (own.order != other.order || own.gap != other.gap || own.skip != other.skip)) {
      return false;
    }
  }
  return true;
}

}  // namespace rmsnorm::cases

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <utility>

#include "case.h"
#include "prepared_call.h"
#include "text.h"
#include "values.h"

namespace rmsnorm::cases {
namespace {

using namespace internal;

bool IsAccepted(const Case& c) try {
  RequireMeaning(c);
  RequireAccepted({c});
  return true;
} catch (const UserError&) {
  return false;
}

// Draws a case field by field, and leaves out each choice that does not go with the earlier ones.
class Drawer {
 public:
  explicit Drawer(unsigned seed) : random_(uint64_t{seed} << 32), c_(OneIn(2)) { c_.seed = seed; }

  Case Draw() {
    do {
      c_.function = static_cast<Function>(Below(5));
    } while (!HasMeaning({c_}));
    DrawShape();
    // What the library accepts depends on these. The fields after them only need a meaning.
    DrawOperands();
    for (int i = 0; i < kOptions; ++i) {
      if (OneIn(4)) DrawOption(static_cast<Option>(i));
    }
    if (c_.Has(kCos) && OneIn(2)) c_.rotated = 2 * (1 + Below(c_.d / 2));
    // Backwards: the last fields leave little choice of where operands lie.
    for (auto field = Fields().rbegin(); field != Fields().rend(); ++field) {
      if (field->drawn.empty() || !OneIn(3)) continue;
      Case changed = c_;
      field->read(changed, field->drawn[Below(field->drawn.size())]);
      // The library wants one shape of a weight and of its gradient.
      if (changed.Has(kWeight) && changed.Has(kDw)) {
        changed.operand[kDw].per = changed.operand[kWeight].per;
      }
      if (HasMeaning({changed})) c_ = std::move(changed);
    }
    if (OneIn(4)) Strew();
    return c_;
  }

 private:
  size_t Below(size_t count) { return random_.Below(count); }
  bool OneIn(size_t count) { return random_.OneIn(count); }
  rmsnorm_dtype DrawType() { return static_cast<rmsnorm_dtype>(RMSNORM_F32 + Below(3)); }

  // Whether operands are present, and their types: often one type for all.
  void DrawOperands() {
    const rmsnorm_dtype usual = DrawType();
    const bool all_alike = c_.function == Function::kRows || OneIn(2);
    const OperandSet in_most_calls = c_.Given();
    ForEachOperand(in_most_calls, [&](Operand o) {
      if (kOperandRules[o].HasShapeOfX()) c_.operand[o].dtype = usual;
    });
    const auto set = [](Case& c, Operand o, rmsnorm_dtype dtype) {
      c.operand[o].dtype = kOperandRules[o].dtype != 0 ? kOperandRules[o].dtype : dtype;
    };
    for (int i = 0; i < kOperands; ++i) {
      const auto o = static_cast<Operand>(i);
      const OperandSet needed = kOperandRules[o].needs;
      const bool is_usual = (in_most_calls & SetOf(o)) != 0;
      const rmsnorm_dtype dtype = all_alike && !OneIn(8) ? usual : DrawType();
      Case changed = c_;
      if (is_usual && OneIn(3)) {
        changed.operand[o].dtype = 0;
      } else if (is_usual || OneIn(3)) {
        set(changed, o, dtype);
        if (needed != 0 && (needed & c_.Given()) == 0) set(changed, FirstOf(needed), dtype);
      }
      if (IsAccepted(changed)) c_ = std::move(changed);
    }
  }

  void DrawOption(Option option) {
    constexpr float kNumbers[] = {0,      1,      -1,       0.1f,      0.22f,    0.5f,
                                  -0.25f, 1e-5f,  1e-6f,    3e3f,      100.5f,   1e-12f,
                                  1e30f,  1e-40f, 1.5e-20f, 0x1p-126f, 0x1p126f, 0x1.fffffep127f};
    Case changed = c_;
    if (IsNumber(option)) {
      SetValueIn(changed.options, option, kNumbers[Below(std::size(kNumbers))]);
    } else if (IsInteger(option)) {
      SetValueIn(changed.options, option, int32_t{8} << Below(OneIn(2) ? 3 : 10));
    } else {
      int32_t words = 0;
      while (kOptionRules[option].words[words] != nullptr) ++words;
      SetValueIn(changed.options, option, static_cast<int32_t>(Below(static_cast<size_t>(words))));
    }
    if (IsAccepted(changed)) c_ = std::move(changed);
  }

  // Few elements make overlaps likely.
  void Strew() {
    c_.strewn = true;
    c_.interleaved = false;
    for (OperandCase& own : c_.operand) {
      OperandCase kept;
      kept.dtype = own.dtype;
      kept.per = own.per;
      kept.add = own.add;
      own = kept;
    }
    c_.rows.resize(std::min<size_t>(c_.rows.size(), 3));
    for (size_t& size : c_.rows) size = std::min<size_t>(size, 1 + Below(4));
    c_.d = 1 + Below(12);
    if (c_.options.group != 0) {
      c_.options.group = 8;
      c_.d = 8 + 8 * Below(2);
    }
    if (c_.Has(kCos)) {
      c_.d = std::max<size_t>(c_.d, 2);
      c_.rotated = std::min(c_.rotated, c_.d / 2 * 2);
    }
  }

  size_t DrawLength() {
    const size_t near_a_multiple = (size_t{8} << Below(5)) * (1 + Below(6)) + Below(5) - 2;
    const size_t near_blocks = 4096 * (1 + Below(4)) + Below(5) - 2;
    const size_t constant_in_kernels = OneIn(2) ? 64 : 128;
    const size_t lengths[] = {1 + Below(40), 1 + Below(1500), near_a_multiple, near_a_multiple,
                              OneIn(2) ? near_blocks : constant_in_kernels};
    return lengths[Below(std::size(lengths))];
  }

  // Few elements, in up to 2,000 rows of up to seven dimensions.
  void DrawShape() {
    c_.d = DrawLength();
    size_t rows = std::max<size_t>((OneIn(8) ? 40000 : 6000) / c_.d, 1);
    rows = std::min<size_t>(rows, OneIn(8) ? 2000 : 32);
    c_.rows.resize(Below(RMSNORM_MAX_DIMS));
    if (c_.function == Function::kSeveral && c_.rows.empty()) c_.rows.resize(1);
    for (size_t& size : c_.rows) {
      size = 1 + Below(OneIn(2) ? rows : std::min<size_t>(rows, 4));
      rows /= size;
    }
    if (!c_.rows.empty()) std::swap(c_.rows[0], c_.rows[Below(c_.rows.size())]);
  }

  Random random_;
  Case c_;
};

}  // namespace

Case RandomCase(unsigned seed) { return Drawer(seed).Draw(); }

}  // namespace rmsnorm::cases

// SPDX-License-Identifier: Apache-2.0
#include "random_case.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "values.h"

namespace rmsnorm::cases {
namespace {

// Draws a case step by step.
class Drawer {
 public:
  explicit Drawer(unsigned seed) : random_(uint64_t{seed} << 32), c_(random_.OneIn(2)) {
    c_.seed = seed;
  }

  Case Draw() {
    using namespace internal;
    DrawFunction();
    DrawShape();
    for (OperandCase& operand : c_.operand) operand = {};
    const rmsnorm_dtype usual = DrawType();
    all_alike_ = IsRows() || OneIn(2);
    for (int i = 0; i < kOperands; ++i) DrawOperand(static_cast<Operand>(i), usual);
    DrawLayouts();
    DrawOptions();
    c_.threads = static_cast<int>(Below(6));
    if (OneIn(2)) c_.executor = static_cast<Executor>(Below(4));
    if (OneIn(3)) c_.stores = RMSNORM_STORES_STREAMED;
    if (OneIn(2)) c_.state = 1 + static_cast<unsigned>(Below(1000000));
    return c_;
  }

 private:
  size_t Below(size_t count) { return random_.Below(count); }
  bool OneIn(size_t count) { return random_.OneIn(count); }
  bool IsRows() const { return c_.function == Function::kRows; }
  OperandCase& Of(Operand o) { return c_.operand[o]; }
  rmsnorm_dtype DrawType() { return static_cast<rmsnorm_dtype>(RMSNORM_F32 + Below(3)); }
  static Operand At(int i) { return static_cast<Operand>(i); }
  // Whether a module may hold the operand.
  static bool IsHeld(Operand o) { return (internal::kColumnsInF32 & SetOf(o)) != 0; }

  void DrawFunction() {
    do {
      c_.function = static_cast<Function>(Below(5));
    } while (c_.backward && c_.function == Function::kSeveral);
  }

  size_t DrawLength() {
    constexpr size_t kMultiples[] = {8, 16, 32, 64, 128};
    switch (Below(16)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return 1 + Below(40);
      case 4:
      case 5:
        return 1 + Below(1500);
      case 6:
        return 4096 * (1 + Below(4)) + Below(5) - 2;
      case 7:  // constants in some kernels
        return OneIn(2) ? 64 : 128;
      default:
        return kMultiples[Below(std::size(kMultiples))] * (1 + Below(6)) + Below(5) - 2;
    }
  }

  // Few elements, in up to 2,000 rows of up to seven dimensions.
  void DrawShape() {
    c_.d = DrawLength();
    size_t rows = std::max<size_t>((OneIn(8) ? 40000 : 6000) / c_.d, 1);
    rows = std::min<size_t>(rows, OneIn(8) ? 2000 : 32);
    c_.rows.resize(IsRows() ? 1 : Below(RMSNORM_MAX_DIMS));
    if (c_.function == Function::kSeveral && c_.rows.empty()) c_.rows.resize(1);
    for (size_t& size : c_.rows) {
      size = 1 + Below(OneIn(2) ? rows : std::min<size_t>(rows, 4));
      rows /= size;
    }
    if (!c_.rows.empty()) std::swap(c_.rows[0], c_.rows[Below(c_.rows.size())]);
  }

  // Draws whether an operand is present, its type and its values.
  void DrawOperand(Operand o, rmsnorm_dtype usual) {
    using namespace internal;
    const OperandRule& rule = kOperandRules[o];
    const Role role = c_.RoleOf(o);
    bool given = role == Role::kRequired || (role != Role::kAbsent && OneIn(2));
    if (IsRows() && !c_.backward) {
      given = given || o == kY || (o == kResidualOut && c_.Has(kResidual));
      const bool is_dense = rule.shape == Shape::kRows && o != kGate && o != kQ;
      given = given && (is_dense || IsHeld(o) || o == kRstd);
    }
    if (IsRows() && o == kDb) given = false;
    if (o == kSums) given = given && !c_.Has(kResidual) && !c_.Has(kPostNormWeight);
    if (o == kScale) given = c_.Has(kQ);
    if (o == kZero) given = given && c_.Has(kQ);
    // These features take much time, and matter less often in combination with others.
    if (o == kGate || o == kPostNormWeight || o == kQ) given = given && OneIn(2);
    if (o == kResidualOut) given = given && c_.Has(kResidual);
    const Operand last = c_.backward ? kDb : kZero;
    const Operand usual_output = c_.backward ? kDx : kY;
    if (!given && o == last && !HasOutput()) {
      o = usual_output;
      given = true;
    }
    if (!given) return;
    OperandCase& own = Of(o);
    own.dtype = kOperandRules[o].dtype != 0              ? kOperandRules[o].dtype
                : IsRows() && o == kDw                   ? RMSNORM_F32
                : o == kResidualOut                      ? Of(kResidual).dtype
                : IsRows() && o == kResidual && OneIn(3) ? DrawType()
                : all_alike_ && !(IsRows() && IsHeld(o)) ? usual
                                                         : DrawType();
    if (kOperandRules[o].shape == Shape::kColumns && !c_.rows.empty() && OneIn(2)) {
      own.per = static_cast<Per>(Below(6));
    }
    if (o == kDw && c_.Has(kWeight)) own.per = Of(kWeight).per;
    if (IsByModule(c_) && (o == kWeight || o == kDw)) own.per = Per::kTensor;
    if (IsRows() && IsHeld(o)) own.per = Per::kTensor;
    own.add = c_.IsOutput(o) && o >= kDx && !IsRows() && OneIn(2);
    if (!c_.IsOutput(o) || own.add) own.values = DrawValues(o);
  }

  bool HasOutput() const {
    for (int i = 0; i < internal::kOperands; ++i) {
      if (c_.IsOutput(At(i))) return true;
    }
    return false;
  }

  Values DrawValues(Operand o) {
    const bool by_rows = internal::kOperandRules[o].shape == Shape::kRows;
    if (OneIn(2)) return by_rows && OneIn(2) ? Values::kFinite : Values::kNormal;
    return by_rows ? static_cast<Values>(Below(16)) : Values::kSpecial;
  }

  // Draws where operands lie. Several calls need outputs whose pieces lie apart.
  void DrawLayouts() {
    using namespace internal;
    const bool pieces = c_.function == Function::kSeveral;
    if (OneIn(4)) c_.guard = OneIn(2) ? Guard::kBefore : Guard::kAfter;
    c_.interleaved = !IsRows() && !pieces && OneIn(6);
    if (c_.interleaved && OneIn(2)) Of(kX).order = static_cast<Order>(Below(4));
    ForEachOperand(c_.Given(), [&](Operand o) {
      const OperandRule& rule = kOperandRules[o];
      OperandCase& own = Of(o);
      const OperandCase& other = Of(rule.in_place_of);
      own.in_place = rule.in_place_of != o && other.dtype != 0 && other.order < Order::kRepeated &&
                     ElementSize(other.dtype) == ElementSize(own.dtype) && OneIn(3);
      if (own.in_place) {
        own.values = Values::kNormal;
        return;
      }
      if (c_.interleaved && rule.shape == Shape::kRows && o != kX) return;
      if (c_.guard == Guard::kNone) own.shift = OneIn(2) ? 0 : Below(64);
      if (IsRows() && !IsHeld(o)) return;
      if (OneIn(2)) own.gap = Below(OneIn(2) ? 8 : 100);
      const size_t orders = c_.interleaved && o == kX ? 0 : c_.IsOutput(o) ? (pieces ? 1 : 4) : 7;
      if (orders != 0 && OneIn(2)) own.order = static_cast<Order>(Below(orders));
      const bool has_runs = LeadingOf(c_, o).size() > 1 && own.order != Order::kRepeated &&
                            own.order != Order::kWindows;
      if (has_runs && OneIn(4)) own.skip = Below(4);
    });
  }

  void DrawOptions() {
    using namespace internal;
    constexpr float kEps[] = {1e-5f, 1e-6f, 0, 1, 1e-12f, 0.5f, 1e-40f, 0x1.fffffep127f};
    constexpr float kDivisors[] = {0, 0, 0, 100.5f, 1, 1e-3f, 1e30f, 0x1p-126f, 0x1p126f};
    constexpr float kOffsets[] = {0, 1, 1, 0.1f, 1e-40f, -0.25f, 0x1.fffffep127f};
    rmsnorm_options& options = c_.options;
    options.eps = kEps[Below(std::size(kEps))];
    options.divisor = kDivisors[Below(std::size(kDivisors))];
    if (OneIn(8)) options.divisor = std::ldexp(1.5f, static_cast<int>(Below(250)) - 125);
    options.eps_placement = OneIn(2) ? 0 : static_cast<int32_t>(1 + Below(2));
    options.rounding = OneIn(2) ? 0 : static_cast<int32_t>(1 + Below(2));
    options.residual_rounding = static_cast<int32_t>(Below(2));
    if (c_.Has(kWeight)) options.weight_offset = kOffsets[Below(std::size(kOffsets))];
    if (OneIn(8)) options = rmsnorm_default_options();
    if (!c_.backward && OneIn(4)) options.factor = OneIn(2) ? 0.22f : 1e30f;
    if (!c_.Has(kGate)) return;
    options.activation = static_cast<int32_t>(Below(2));
    if (!c_.Has(kResidual)) options.gate_placement = static_cast<int32_t>(Below(2));
    if (options.gate_placement == 0) options.gate_rounding = static_cast<int32_t>(Below(2));
  }

  Random random_;
  Case c_;
  bool all_alike_ = false;
};

}  // namespace

Case RandomCase(unsigned seed) { return Drawer(seed).Draw(); }

}  // namespace rmsnorm::cases

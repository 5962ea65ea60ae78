// SPDX-License-Identifier: Apache-2.0
// The table of operands: everything that depends on which tensors a call has stands here. The
// checks, the walk over rows and the kernels go by it.
#ifndef RMSNORM_LIB_OPERANDS_H_
#define RMSNORM_LIB_OPERANDS_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace rmsnorm::internal {

// In the order in which they are checked: inputs before outputs, so that of an output's overlaps
// the one with what it may be in the place of is named first.
enum Operand : int {
  kX,
  kResidual,
  kDy,
  kGate,
  kWeight,
  kBias,
  kPostNormWeight,
  kSums,
  kResidualOut,
  kY,
  kQ,
  kRstd,
  kSumsOut,
  kScale,
  kZero,
  kDx,
  kDw,
  kDb,
  kOperands
};

// How the shape of an operand follows from that of x, [..., d].
enum class Shape {
  kRows,     // that of x
  kColumns,  // [d], or with leading dimensions aligned from the right that are those of x or 1
  kPerRow    // the leading dimensions of x
};

enum class Role : char {
  kAbsent,    // not taken
  kInput,     // may be null
  kRequired,  // an input that is never null
  kOutput     // may be null
};

struct OperandRule {
  const char* name;
  size_t offset;  // of its pointer in rmsnorm_operands
  Shape shape;
  rmsnorm_dtype dtype;  // the only type it may have, or 0 for f32, f16 and bf16
  Operand in_place_of;  // what it may be in the place of, or itself
  Role forward;
  Role backward;
};

#define RMSNORM_OPERAND(name) #name, offsetof(rmsnorm_operands, name)
constexpr OperandRule kOperandRules[kOperands] = {
    {RMSNORM_OPERAND(x), Shape::kRows, 0, kX, Role::kRequired, Role::kRequired},
    {RMSNORM_OPERAND(residual), Shape::kRows, 0, kResidual, Role::kInput, Role::kAbsent},
    {RMSNORM_OPERAND(dy), Shape::kRows, 0, kDy, Role::kAbsent, Role::kRequired},
    {RMSNORM_OPERAND(gate), Shape::kRows, 0, kGate, Role::kInput, Role::kAbsent},
    {RMSNORM_OPERAND(weight), Shape::kColumns, 0, kWeight, Role::kInput, Role::kInput},
    {RMSNORM_OPERAND(bias), Shape::kColumns, 0, kBias, Role::kInput, Role::kAbsent},
    {RMSNORM_OPERAND(post_norm_weight), Shape::kColumns, 0, kPostNormWeight, Role::kInput,
     Role::kAbsent},
    {RMSNORM_OPERAND(sums), Shape::kPerRow, RMSNORM_F64, kSums, Role::kInput, Role::kAbsent},
    {RMSNORM_OPERAND(residual_out), Shape::kRows, 0, kResidual, Role::kOutput, Role::kAbsent},
    {RMSNORM_OPERAND(y), Shape::kRows, 0, kX, Role::kOutput, Role::kAbsent},
    {RMSNORM_OPERAND(q), Shape::kRows, RMSNORM_I8, kQ, Role::kOutput, Role::kAbsent},
    {RMSNORM_OPERAND(rstd), Shape::kPerRow, RMSNORM_F32, kRstd, Role::kOutput, Role::kInput},
    {RMSNORM_OPERAND(sums_out), Shape::kPerRow, RMSNORM_F64, kSumsOut, Role::kOutput,
     Role::kAbsent},
    {RMSNORM_OPERAND(scale), Shape::kPerRow, RMSNORM_F32, kScale, Role::kOutput, Role::kAbsent},
    {RMSNORM_OPERAND(zero), Shape::kPerRow, RMSNORM_I8, kZero, Role::kOutput, Role::kAbsent},
    {RMSNORM_OPERAND(dx), Shape::kRows, 0, kDy, Role::kAbsent, Role::kOutput},
    {RMSNORM_OPERAND(dw), Shape::kColumns, 0, kDw, Role::kAbsent, Role::kOutput},
    {RMSNORM_OPERAND(db), Shape::kColumns, 0, kDb, Role::kAbsent, Role::kOutput},
};
#undef RMSNORM_OPERAND

// A set of operands: bit i stands for operand i. A call has few of them, so that going over these
// alone is what keeps short calls short.
using OperandSet = uint32_t;

constexpr OperandSet SetOf(Operand operand) { return OperandSet{1} << operand; }

// Calls f(operand) for each operand of a set, in their order.
template <class F>
void ForEachOperand(OperandSet set, const F& f) {
  for (; set != 0; set &= set - 1) f(static_cast<Operand>(__builtin_ctz(set)));
}

enum class Operation { kForward, kBackward };

// The operands that have a role in an operation.
struct Roles {
  OperandSet absent;
  OperandSet required;
  OperandSet outputs;
};

constexpr OperandSet OperandsWith(Operation operation, Role role) {
  OperandSet set = 0;
  for (int i = 0; i < kOperands; ++i) {
    const OperandRule& rule = kOperandRules[i];
    const Role its_role = operation == Operation::kForward ? rule.forward : rule.backward;
    if (its_role == role) set |= SetOf(static_cast<Operand>(i));
  }
  return set;
}

constexpr Roles RolesOf(Operation operation) {
  return {OperandsWith(operation, Role::kAbsent), OperandsWith(operation, Role::kRequired),
          OperandsWith(operation, Role::kOutput)};
}
constexpr Roles kForwardRoles = RolesOf(Operation::kForward);
constexpr Roles kBackwardRoles = RolesOf(Operation::kBackward);
constexpr const Roles& RolesIn(Operation operation) {
  return operation == Operation::kForward ? kForwardRoles : kBackwardRoles;
}

// The view of an operand in a caller's struct; null where it is absent.
inline const rmsnorm_view* ViewIn(const rmsnorm_operands& operands, Operand operand) {
  const rmsnorm_view* view;
  std::memcpy(&view, reinterpret_cast<const char*>(&operands) + kOperandRules[operand].offset,
              sizeof view);
  return view;
}

inline void SetViewIn(rmsnorm_operands& operands, Operand operand, const rmsnorm_view* view) {
  std::memcpy(reinterpret_cast<char*>(&operands) + kOperandRules[operand].offset, &view,
              sizeof view);
}

// The views of a call.
struct Views {
  OperandSet given = 0;
  const rmsnorm_view* view[kOperands];  // of those that are given

  bool Has(Operand operand) const { return (given & SetOf(operand)) != 0; }
  const rmsnorm_view& operator[](Operand operand) const { return *view[operand]; }
  void Set(Operand operand, const rmsnorm_view* its_view) {
    given |= SetOf(operand);
    view[operand] = its_view;
  }
  void Remove(Operand operand) { given &= ~SetOf(operand); }
};

// Bytes of an element, or 0 for an unknown dtype.
constexpr size_t ElementSize(rmsnorm_dtype dtype) {
  return dtype == RMSNORM_F32                            ? 4
         : dtype == RMSNORM_F16 || dtype == RMSNORM_BF16 ? 2
         : dtype == RMSNORM_F64                          ? 8
         : dtype == RMSNORM_I8                           ? 1
                                                         : 0;
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_OPERANDS_H_

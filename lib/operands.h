// SPDX-License-Identifier: Apache-2.0
// The table of operands: name, shape, types, roles, and which go together. The checks, the walk
// over rows and the kernels use it.
#ifndef RMSNORM_LIB_OPERANDS_H_
#define RMSNORM_LIB_OPERANDS_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "portable.h"

namespace rmsnorm::internal {

// In the order of rmsnorm_operands, in which they are checked too. Inputs come first, so an overlap
// error names the input that the output may replace.
enum Operand : int {
  kX,
  kResidual,
  kDy,
  kGate,
  kWeight,
  kBias,
  kPostNormWeight,
  kCos,
  kSin,
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

// How the shape of an operand follows from the shape of x, [..., d]: its leading dimensions, and
// the length of its row.
enum class Leading {
  kOfX,    // those of x
  kShared  // aligned from the right, each that of x or 1; or absent
};
enum class Length {
  kD,
  kOne,     // a number for each row; the shape has no dimension for it
  kGroups,  // a number for each group of the option `group`; without it as kOne
  kPairs    // a number for each pair that is rotated; any up to d / 2, the same in cos and sin
};

enum class Role : char {
  kAbsent,    // not taken
  kInput,     // may be null
  kRequired,  // an input that is never null
  kOutput     // may be null
};

// A set of operands: bit i stands for operand i. A call has few of them, and a loop over these
// alone keeps short calls short.
using OperandSet = uint32_t;

constexpr OperandSet SetOf(Operand operand) { return OperandSet{1} << operand; }

constexpr Operand FirstOf(OperandSet set) { return static_cast<Operand>(LowestBit(set)); }

// Calls f(operand) for each operand of a set, in their order.
template <class F>
void ForEachOperand(OperandSet set, const F& f) {
  for (; set != 0; set &= set - 1) f(FirstOf(set));
}

struct OperandRule {
  const char* name;
  size_t offset;  // of its pointer in rmsnorm_operands
  Leading leading;
  Length length;
  rmsnorm_dtype dtype;  // the only type it may have, or 0 for f32, f16 and bf16
  Operand in_place_of;  // the operand whose place it may take, or itself
  Role forward;
  Role backward;
  OperandSet needs = 0;     // a call with it needs one of these; empty: none
  OperandSet excludes = 0;  // a call with it has none of these

  constexpr bool HasShapeOfX() const { return leading == Leading::kOfX && length == Length::kD; }
};

#define FIELD(name) #name, offsetof(rmsnorm_operands, name)
constexpr OperandRule kOperandRules[kOperands] = {
    {FIELD(x), Leading::kOfX, Length::kD, 0, kX, Role::kRequired, Role::kRequired},
    {FIELD(residual), Leading::kOfX, Length::kD, 0, kResidual, Role::kInput, Role::kAbsent},
    {FIELD(dy), Leading::kOfX, Length::kD, 0, kDy, Role::kAbsent, Role::kRequired},
    {FIELD(gate), Leading::kOfX, Length::kD, 0, kGate, Role::kInput, Role::kAbsent},
    {FIELD(weight), Leading::kShared, Length::kD, 0, kWeight, Role::kInput, Role::kInput},
    {FIELD(bias), Leading::kShared, Length::kD, 0, kBias, Role::kInput, Role::kAbsent},
    {FIELD(post_norm_weight), Leading::kShared, Length::kD, 0, kPostNormWeight, Role::kInput,
     Role::kAbsent},
    {FIELD(cos), Leading::kShared, Length::kPairs, 0, kCos, Role::kInput, Role::kInput, SetOf(kSin),
     SetOf(kResidual) | SetOf(kGate) | SetOf(kQ)},
    {FIELD(sin), Leading::kShared, Length::kPairs, 0, kSin, Role::kInput, Role::kInput,
     SetOf(kCos)},
    {FIELD(sums), Leading::kOfX, Length::kOne, RMSNORM_F64, kSums, Role::kInput, Role::kAbsent, 0,
     SetOf(kResidual) | SetOf(kPostNormWeight)},
    {FIELD(residual_out), Leading::kOfX, Length::kD, 0, kResidual, Role::kOutput, Role::kAbsent,
     SetOf(kResidual)},
    {FIELD(y), Leading::kOfX, Length::kD, 0, kX, Role::kOutput, Role::kAbsent},
    {FIELD(q), Leading::kOfX, Length::kD, RMSNORM_I8, kQ, Role::kOutput, Role::kAbsent,
     SetOf(kScale)},
    {FIELD(rstd), Leading::kOfX, Length::kOne, RMSNORM_F32, kRstd, Role::kOutput, Role::kInput},
    {FIELD(sums_out), Leading::kOfX, Length::kOne, RMSNORM_F64, kSumsOut, Role::kOutput,
     Role::kAbsent},
    {FIELD(scale), Leading::kOfX, Length::kGroups, RMSNORM_F32, kScale, Role::kOutput,
     Role::kAbsent, SetOf(kQ)},
    {FIELD(zero), Leading::kOfX, Length::kGroups, RMSNORM_I8, kZero, Role::kOutput, Role::kAbsent,
     SetOf(kQ)},
    {FIELD(dx), Leading::kOfX, Length::kD, 0, kDy, Role::kAbsent, Role::kOutput},
    {FIELD(dw), Leading::kShared, Length::kD, 0, kDw, Role::kAbsent, Role::kOutput},
    {FIELD(db), Leading::kShared, Length::kD, 0, kDb, Role::kAbsent, Role::kOutput},
};
#undef FIELD

static_assert(sizeof(rmsnorm_operands) == offsetof(rmsnorm_operands, x) + kOperands * sizeof(void*),
              "a field of rmsnorm_operands is not in enum Operand");

// Whether line i of a table belongs to field i of a struct. A missing line leaves zeros at the end.
template <class Rule, size_t kRules>
constexpr bool AreInOrder(const Rule (&rules)[kRules], size_t first, size_t size) {
  for (size_t i = 0; i < kRules; ++i) {
    if (rules[i].offset != first + i * size) return false;
  }
  return true;
}
static_assert(AreInOrder(kOperandRules, offsetof(rmsnorm_operands, x), sizeof(void*)),
              "an operand has no line in kOperandRules, or not in its place");

// The operands whose lines a predicate accepts.
template <class F>
constexpr OperandSet OperandsWhere(const F& is_wanted) {
  OperandSet set = 0;
  for (int i = 0; i < kOperands; ++i) {
    if (is_wanted(kOperandRules[i])) set |= SetOf(static_cast<Operand>(i));
  }
  return set;
}

// Whether the views of an operand have a dimension for its row; `group` is the option.
constexpr bool HasRowDimension(Operand operand, int32_t group) {
  const Length length = kOperandRules[operand].length;
  return length == Length::kD || length == Length::kPairs ||
         (length == Length::kGroups && group != 0);
}

// The length of an operand's row in a call with rows of d elements; the views of cos and sin bring
// their own.
constexpr size_t RowLengthOf(Operand operand, size_t d, int32_t group) {
  return !HasRowDimension(operand, group)                   ? 1
         : kOperandRules[operand].length == Length::kGroups ? d / static_cast<size_t>(group)
                                                            : d;
}

// The operands that a call takes in f32, and that a module may hold.
constexpr OperandSet kColumnsInF32 = SetOf(kWeight) | SetOf(kBias) | SetOf(kPostNormWeight);

// The tables of rotary positions.
constexpr OperandSet kRotation = SetOf(kCos) | SetOf(kSin);

// The operands with rows like those of x, in f32, f16 or bf16.
constexpr OperandSet kRowsOfAnyType =
    OperandsWhere([](const OperandRule& rule) { return rule.HasShapeOfX() && rule.dtype == 0; });

enum class Operation { kForward, kBackward };

// The operands that have a role in an operation.
struct Roles {
  OperandSet absent;
  OperandSet required;
  OperandSet outputs;
};

constexpr Roles RolesOf(Role OperandRule::*role) {
  const auto with = [=](Role wanted) {
    return OperandsWhere([=](const OperandRule& rule) { return rule.*role == wanted; });
  };
  return {with(Role::kAbsent), with(Role::kRequired), with(Role::kOutput)};
}
constexpr Roles kRoles[] = {RolesOf(&OperandRule::forward), RolesOf(&OperandRule::backward)};
constexpr const Roles& RolesIn(Operation operation) { return kRoles[static_cast<int>(operation)]; }

// The view of an operand in a caller's struct; null where it is absent.
inline const rmsnorm_view* ViewIn(const rmsnorm_operands& operands, Operand operand) {
  const char* const bytes = reinterpret_cast<const char*>(&operands);
  const rmsnorm_view* view;
  std::memcpy(&view, bytes + kOperandRules[operand].offset, sizeof view);
  return view;
}

inline void SetViewIn(rmsnorm_operands& operands, Operand operand, const rmsnorm_view* view) {
  char* const bytes = reinterpret_cast<char*>(&operands);
  std::memcpy(bytes + kOperandRules[operand].offset, &view, sizeof view);
}

// The data of a view, which the library writes only where the view is an output. This is the one
// place where it is no longer const.
inline void* DataOf(const rmsnorm_view& view) { return const_cast<void*>(view.data); }

// The views of a call.
struct Views {
  OperandSet given = 0;
  const rmsnorm_view* view[kOperands];  // of the given operands

  bool Has(Operand operand) const { return (given & SetOf(operand)) != 0; }
  const rmsnorm_view& operator[](Operand operand) const { return *view[operand]; }
  void Set(Operand operand, const rmsnorm_view* of_operand) {
    given |= SetOf(operand);
    view[operand] = of_operand;
  }
};

// Bytes of an element, or 0 for an unknown dtype. No table: a load would delay each short call.
constexpr size_t ElementSize(rmsnorm_dtype dtype) {
  return dtype == RMSNORM_F32                            ? 4
         : dtype == RMSNORM_F16 || dtype == RMSNORM_BF16 ? 2
         : dtype == RMSNORM_F64                          ? 8
         : dtype == RMSNORM_I8                           ? 1
                                                         : 0;
}

inline size_t ElementsOf(const rmsnorm_view& view) {
  size_t elements = 1;
  for (int i = 0; i < view.ndim; ++i) elements *= view.shape[i];
  return elements;
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_OPERANDS_H_

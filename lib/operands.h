// SPDX-License-Identifier: Apache-2.0
// The table of operands: name, shape, types, roles, and which go together. The checks, the walk
// over rows and the kernels go by it.
#ifndef RMSNORM_LIB_OPERANDS_H_
#define RMSNORM_LIB_OPERANDS_H_

#include <rmsnorm/rmsnorm.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

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

// How the shape of an operand follows from the shape of x, [..., d].
enum class Shape {
  kRows,     // the same
  kColumns,  // [d], or with leading dimensions aligned from the right, each equal to x's or 1
  kPerRow    // the leading dimensions of x
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

// Calls f(operand) for each operand of a set, in their order.
template <class F>
void ForEachOperand(OperandSet set, const F& f) {
  for (; set != 0; set &= set - 1) f(static_cast<Operand>(__builtin_ctz(set)));
}

struct OperandRule {
  const char* name;
  Shape shape;
  rmsnorm_dtype dtype;  // the only type it may have, or 0 for f32, f16 and bf16
  Operand in_place_of;  // the operand whose place it may take, or itself
  Role forward;
  Role backward;
  OperandSet needs;     // a call with it needs one of these; empty: none
  OperandSet excludes;  // a call with it has none of these
};

constexpr OperandSet kNoOperands = 0;
constexpr OperandRule kOperandRules[kOperands] = {
    {"x", Shape::kRows, 0, kX, Role::kRequired, Role::kRequired, kNoOperands, kNoOperands},
    {"residual", Shape::kRows, 0, kResidual, Role::kInput, Role::kAbsent, kNoOperands, kNoOperands},
    {"dy", Shape::kRows, 0, kDy, Role::kAbsent, Role::kRequired, kNoOperands, kNoOperands},
    {"gate", Shape::kRows, 0, kGate, Role::kInput, Role::kAbsent, kNoOperands, kNoOperands},
    {"weight", Shape::kColumns, 0, kWeight, Role::kInput, Role::kInput, kNoOperands, kNoOperands},
    {"bias", Shape::kColumns, 0, kBias, Role::kInput, Role::kAbsent, kNoOperands, kNoOperands},
    {"post_norm_weight", Shape::kColumns, 0, kPostNormWeight, Role::kInput, Role::kAbsent,
     kNoOperands, kNoOperands},
    {"sums", Shape::kPerRow, RMSNORM_F64, kSums, Role::kInput, Role::kAbsent, kNoOperands,
     SetOf(kResidual) | SetOf(kPostNormWeight)},
    {"residual_out", Shape::kRows, 0, kResidual, Role::kOutput, Role::kAbsent, SetOf(kResidual),
     kNoOperands},
    {"y", Shape::kRows, 0, kX, Role::kOutput, Role::kAbsent, kNoOperands, kNoOperands},
    {"q", Shape::kRows, RMSNORM_I8, kQ, Role::kOutput, Role::kAbsent, SetOf(kScale), kNoOperands},
    {"rstd", Shape::kPerRow, RMSNORM_F32, kRstd, Role::kOutput, Role::kInput, kNoOperands,
     kNoOperands},
    {"sums_out", Shape::kPerRow, RMSNORM_F64, kSumsOut, Role::kOutput, Role::kAbsent, kNoOperands,
     kNoOperands},
    {"scale", Shape::kPerRow, RMSNORM_F32, kScale, Role::kOutput, Role::kAbsent, SetOf(kQ),
     kNoOperands},
    {"zero", Shape::kPerRow, RMSNORM_I8, kZero, Role::kOutput, Role::kAbsent, SetOf(kQ),
     kNoOperands},
    {"dx", Shape::kRows, 0, kDy, Role::kAbsent, Role::kOutput, kNoOperands, kNoOperands},
    {"dw", Shape::kColumns, 0, kDw, Role::kAbsent, Role::kOutput, kNoOperands, kNoOperands},
    {"db", Shape::kColumns, 0, kDb, Role::kAbsent, Role::kOutput, kNoOperands, kNoOperands},
};

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
    const Role in_operation = operation == Operation::kForward ? rule.forward : rule.backward;
    if (in_operation == role) set |= SetOf(static_cast<Operand>(i));
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

// The pointers of rmsnorm_operands follow add_to in the order of the operands.
constexpr size_t OffsetOf(Operand operand) {
  return offsetof(rmsnorm_operands, x) + sizeof(void*) * static_cast<size_t>(operand);
}
static_assert(OffsetOf(kX) == offsetof(rmsnorm_operands, x));
static_assert(OffsetOf(kResidual) == offsetof(rmsnorm_operands, residual));
static_assert(OffsetOf(kDy) == offsetof(rmsnorm_operands, dy));
static_assert(OffsetOf(kGate) == offsetof(rmsnorm_operands, gate));
static_assert(OffsetOf(kWeight) == offsetof(rmsnorm_operands, weight));
static_assert(OffsetOf(kBias) == offsetof(rmsnorm_operands, bias));
static_assert(OffsetOf(kPostNormWeight) == offsetof(rmsnorm_operands, post_norm_weight));
static_assert(OffsetOf(kSums) == offsetof(rmsnorm_operands, sums));
static_assert(OffsetOf(kResidualOut) == offsetof(rmsnorm_operands, residual_out));
static_assert(OffsetOf(kY) == offsetof(rmsnorm_operands, y));
static_assert(OffsetOf(kQ) == offsetof(rmsnorm_operands, q));
static_assert(OffsetOf(kRstd) == offsetof(rmsnorm_operands, rstd));
static_assert(OffsetOf(kSumsOut) == offsetof(rmsnorm_operands, sums_out));
static_assert(OffsetOf(kScale) == offsetof(rmsnorm_operands, scale));
static_assert(OffsetOf(kZero) == offsetof(rmsnorm_operands, zero));
static_assert(OffsetOf(kDx) == offsetof(rmsnorm_operands, dx));
static_assert(OffsetOf(kDw) == offsetof(rmsnorm_operands, dw));
static_assert(OffsetOf(kDb) == offsetof(rmsnorm_operands, db));
static_assert(OffsetOf(kOperands) == sizeof(rmsnorm_operands), "an operand has no line");

// The view of an operand in a caller's struct; null where it is absent.
inline const rmsnorm_view* ViewIn(const rmsnorm_operands& operands, Operand operand) {
  const rmsnorm_view* view;
  std::memcpy(&view, reinterpret_cast<const char*>(&operands) + OffsetOf(operand), sizeof view);
  return view;
}

inline void SetViewIn(rmsnorm_operands& operands, Operand operand, const rmsnorm_view* view) {
  std::memcpy(reinterpret_cast<char*>(&operands) + OffsetOf(operand), &view, sizeof view);
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

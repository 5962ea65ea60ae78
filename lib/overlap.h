// SPDX-License-Identifier: Apache-2.0
// Where the operands of calls lie in memory, and whether they share any.
#ifndef RMSNORM_LIB_OVERLAP_H_
#define RMSNORM_LIB_OVERLAP_H_

#include <cstdint>

#include "operands.h"

namespace rmsnorm::internal {

// The bytes from `begin` up to `end` that a view spans, with gaps between its rows; none where it
// has no rows.
struct Extent {
  uintptr_t begin;
  uintptr_t end;
};

inline bool Disjoint(const Extent& a, const Extent& b) {
  return a.end <= b.begin || b.end <= a.begin || a.begin == a.end || b.begin == b.end;
}

// The operands of a call, checked.
struct Operands : Views {
  Extent extent[kOperands];  // of those that are given
  uint32_t add_to;
  size_t rows;
  size_t d;
};

// How many of the dimensions of an operand's view are over rows.
inline int RowDimensions(Operand operand, const rmsnorm_view& view) {
  return kOperandRules[operand].shape == Shape::kPerRow ? view.ndim : view.ndim - 1;
}

// Whether two operands of a call, or of two calls, share no byte. May say no where they do not.
bool Apart(Operand a, const Operands& a_operands, Operand b, const Operands& b_operands);

// Whether two views of one shape are in the same place.
bool IsInPlace(const rmsnorm_view& a, const rmsnorm_view& b);

// Checks that the rows of an output are told apart by their strides: each step is at least as wide
// as what the narrower ones span. Other rows may share no byte, too, but are refused.
rmsnorm_status CheckRowsToldApart(Operand operand, const rmsnorm_view& view, const Extent& extent);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_OVERLAP_H_

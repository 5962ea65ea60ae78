// SPDX-License-Identifier: Apache-2.0
// Where the operands of calls lie in memory, and whether they share any.
#ifndef RMSNORM_LIB_OVERLAP_H_
#define RMSNORM_LIB_OVERLAP_H_

#include <cstdint>
#include <vector>

#include "operands.h"

namespace rmsnorm::internal {

// The bytes from `begin` up to `end` that a view spans, gaps between rows included; from 0 to 0
// where it has no rows.
struct Extent {
  uintptr_t begin;
  uintptr_t end;
  bool in_order;  // each step over rows is as wide as all that the dimensions after it span
  bool has_row;   // the last dimension of the view is its row
};

// Nothing lies below 0, so a view without rows is disjoint from all.
inline bool Disjoint(const Extent& a, const Extent& b) {
  return a.end <= b.begin || b.end <= a.begin;
}

// A view, and the bytes that it spans.
struct Placed {
  const rmsnorm_view& view;
  const Extent& extent;

  // The number of dimensions over rows, and the length of a row in elements.
  int RowDimensions() const { return view.ndim - (extent.has_row ? 1 : 0); }
  ptrdiff_t RowLength() const {
    return extent.has_row ? static_cast<ptrdiff_t>(view.shape[view.ndim - 1]) : 1;
  }
};

// Whether the operands of a call, or of two calls, whose extents meet share no byte. May return
// false for operands that share none.
bool Apart(const Placed& a, const Placed& b);

// An operand of one of several calls.
struct PlacedOfCall {
  Placed placed;
  size_t call;
  bool is_output;
};

// Whether each output of a call is apart from the operands of all other calls. Compares pairs only
// where operands with different strides lie together. Throws std::bad_alloc.
bool CallsApart(const std::vector<PlacedOfCall>& operands);

// Whether the strides of a view look like bytes, a likely mistake: in bytes the steps over rows
// would be as wide as a row.
bool LooksLikeBytes(const Placed& placed);

// Whether two views of one shape are in the same place.
bool IsInPlace(const rmsnorm_view& a, const rmsnorm_view& b);

// Checks that strides tell the rows of an output apart, where these are not in order: each step is
// at least as wide as all that the narrower steps span. Other layouts are refused, also where their
// rows share no byte.
rmsnorm_status CheckRowsToldApart(Operand operand, const Placed& placed);

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_OVERLAP_H_

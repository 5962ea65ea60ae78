// SPDX-License-Identifier: Apache-2.0
#include "overlap.h"

#include <algorithm>
#include <cstdlib>

#include "status.h"

namespace rmsnorm::internal {
namespace {

// A view as one row (or one element, for an operand with an element for each row) repeated by
// steps. The steps are the dimensions with more than one index, the widest first.
struct Layout {
  ptrdiff_t row_bytes;
  int steps = 0;
  struct Step {
    size_t count;
    ptrdiff_t bytes;  // from one index to the next
  } step[RMSNORM_MAX_DIMS];
};

bool IsSame(const Layout::Step& a, const Layout::Step& b) {
  return a.count == b.count && a.bytes == b.bytes;
}

Layout LayoutOf(const Placed& placed) {
  const rmsnorm_view& view = placed.view;
  const auto size = static_cast<ptrdiff_t>(ElementSize(view.dtype));
  Layout layout;
  layout.row_bytes = placed.RowLength() * size;
  for (int i = 0; i < placed.RowDimensions(); ++i) {
    if (view.shape[i] == 1) continue;
    // Rows at falling addresses are the same bytes as at rising ones.
    const Layout::Step step = {view.shape[i], std::abs(view.stride[i] * size)};
    int at = layout.steps++;
    for (; at > 0 && layout.step[at - 1].bytes < step.bytes; --at) {
      layout.step[at] = layout.step[at - 1];
    }
    layout.step[at] = step;
  }
  return layout;
}

// The bytes that the steps from `first` on span.
ptrdiff_t SpanFrom(const Layout& layout, int first) {
  ptrdiff_t span = layout.row_bytes;
  for (int i = first; i < layout.steps; ++i) {
    span += layout.step[i].bytes * static_cast<ptrdiff_t>(layout.step[i].count - 1);
  }
  return span;
}

// A group is all that the steps from `first` on span. Whether the groups of a at 0 and the groups
// of b at `offset` share no byte, where the first `common` steps of both are the same. May return
// false for groups that share none.
bool GroupsApart(const Layout& a, const Layout& b, int common, int first, ptrdiff_t offset) {
  const ptrdiff_t a_span = SpanFrom(a, first);
  const ptrdiff_t b_span = SpanFrom(b, first);
  if (offset >= a_span || -offset >= b_span) return true;
  if (first == common) return false;
  // Relative to one group of a, the groups of b lie at offset + m * width. If no group is wider
  // than the step, only the two nearest can touch it.
  const ptrdiff_t width = a.step[first].bytes;
  if (std::max(SpanFrom(a, first + 1), SpanFrom(b, first + 1)) > width) return false;
  const ptrdiff_t above = ((offset % width) + width) % width;
  return GroupsApart(a, b, common, first + 1, above) &&
         GroupsApart(a, b, common, first + 1, above - width);
}

// A group of an operand of one of several calls.
struct Group {
  uintptr_t begin;
  uintptr_t end;
  const PlacedOfCall* operand;

  Layout layout() const { return LayoutOf(operand->placed); }
};

// Whether the operands of different calls are apart, each compared with each other.
bool PairsApart(const Group* begin, const Group* end) {
  for (const Group* group = begin; group < end; ++group) {
    const PlacedOfCall& a = *group->operand;
    for (const Group* other = begin; other < group; ++other) {
      const PlacedOfCall& b = *other->operand;
      if (a.call != b.call && (a.is_output || b.is_output) &&
          !Disjoint(a.placed.extent, b.placed.extent) && !Apart(a.placed, b.placed)) {
        return false;
      }
    }
  }
  return true;
}

bool ClusterApart(const Group* begin, const Group* end, int first);

// The same for all that the steps from `first` on span. Only groups of one cluster can touch: each
// but the first begins before an earlier one ends.
bool GroupsOfCallsApart(std::vector<Group>& groups, int first) {
  std::sort(groups.begin(), groups.end(),
            [](const Group& a, const Group& b) { return a.begin < b.begin; });
  const Group* const end = groups.data() + groups.size();
  for (const Group* next = groups.data(); next < end;) {
    const Group* const begin = next;
    for (uintptr_t reach = begin->end; next < end && next->begin < reach; ++next) {
      reach = std::max(reach, next->end);
    }
    if (!ClusterApart(begin, next, first)) return false;
  }
  return true;
}

bool ClusterApart(const Group* begin, const Group* end, int first) {
  const auto is_of_other_call = [=](const Group& group) {
    return group.operand->call != begin->operand->call;
  };
  const auto is_output = [](const Group& group) { return group.operand->is_output; };
  if (std::none_of(begin, end, is_of_other_call) || std::none_of(begin, end, is_output))
    return true;

  // With the same step for all, the groups inside are compared by their places modulo the step, as
  // in GroupsApart(). A group that crosses a multiple of the step has two places.
  const Layout layout = begin->layout();
  std::vector<Group> inside;
  for (const Group* group = begin; group < end; ++group) {
    const Layout other = group->layout();
    if (first >= std::min(layout.steps, other.steps)) return PairsApart(begin, end);
    const Layout::Step& step = other.step[first];
    const ptrdiff_t span = SpanFrom(other, first + 1);
    if (!IsSame(step, layout.step[first]) || span > step.bytes) return PairsApart(begin, end);
    const auto width = static_cast<uintptr_t>(step.bytes);
    const uintptr_t at = (group->begin - begin->begin) % width;
    const uintptr_t reach = at + static_cast<uintptr_t>(span);
    inside.push_back({at + width, reach + width, group->operand});
    if (reach > width) inside.push_back({at, reach, group->operand});
  }
  return GroupsOfCallsApart(inside, first + 1);
}

}  // namespace

bool Apart(const Placed& a, const Placed& b) {
  const Layout a_layout = LayoutOf(a);
  const Layout b_layout = LayoutOf(b);
  const uintptr_t distance = b.extent.begin - a.extent.begin;
  int common = 0;
  while (common < std::min(a_layout.steps, b_layout.steps) &&
         IsSame(a_layout.step[common], b_layout.step[common])) {
    ++common;
  }
  return GroupsApart(a_layout, b_layout, common, 0, static_cast<ptrdiff_t>(distance));
}

bool CallsApart(const std::vector<PlacedOfCall>& operands) {
  std::vector<Group> groups;
  groups.reserve(operands.size());
  for (const PlacedOfCall& operand : operands) {
    const Extent& extent = operand.placed.extent;
    if (extent.begin < extent.end) groups.push_back({extent.begin, extent.end, &operand});
  }
  return GroupsOfCallsApart(groups, 0);
}

bool LooksLikeBytes(const Placed& placed) {
  const rmsnorm_view& view = placed.view;
  const int last = placed.RowDimensions() - 1;
  const auto size = static_cast<ptrdiff_t>(ElementSize(view.dtype));
  return size > 1 && last >= 0 && view.shape[last] > 1 &&
         std::abs(view.stride[last]) >= placed.RowLength() * size;
}

bool IsInPlace(const rmsnorm_view& a, const rmsnorm_view& b) {
  if (a.data != b.data || ElementSize(a.dtype) != ElementSize(b.dtype)) return false;
  for (int i = 0; i + 1 < a.ndim; ++i) {
    if (a.shape[i] > 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

rmsnorm_status CheckRowsToldApart(Operand operand, const Placed& placed) {
  const Layout layout = LayoutOf(placed);
  for (int i = 0; i < layout.steps; ++i) {
    const ptrdiff_t inner = SpanFrom(layout, i + 1);
    if (layout.step[i].bytes < inner) {
      return Fail(
          RMSNORM_ERROR_LAYOUT,
          "%s: its strides do not tell rows apart (%td bytes from one index to the next, but "
          "each spans %td)",
          kOperandRules[operand].name, layout.step[i].bytes, inner);
    }
  }
  return RMSNORM_OK;
}

}  // namespace rmsnorm::internal

// SPDX-License-Identifier: Apache-2.0
#include "walk.h"

#include <algorithm>

namespace rmsnorm::internal {
namespace {

// The position in `view` of dimension i of the `ndim` that x has; negative where the view lacks it.
int DimensionOf(Operand operand, const rmsnorm_view& view, int ndim, int i) {
  return kOperandRules[operand].shape == Shape::kColumns ? i - (ndim - view.ndim) : i;
}

// Whether a view has a row of its own for each index of dimension i.
bool Varies(Operand operand, const rmsnorm_view& view, int ndim, int i) {
  const int own = DimensionOf(operand, view, ndim, i);
  return own >= 0 && view.shape[own] != 1;
}

// Whether the rows along dimension i do not share a row of the weight and the like.
bool IsOverGroups(const rmsnorm_view& shape, const rmsnorm_view* const (&views)[kOperands], int i) {
  for (int j = 0; j < kOperands; ++j) {
    const Operand operand = static_cast<Operand>(j);
    if (views[j] != nullptr && kOperandRules[j].shape == Shape::kColumns &&
        Varies(operand, *views[j], shape.ndim, i)) {
      return true;
    }
  }
  return false;
}

Walk::Loop MakeLoop(const rmsnorm_view& shape, const rmsnorm_view* const (&views)[kOperands],
                    int i) {
  Walk::Loop loop;
  loop.count = shape.shape[i];
  for (int j = 0; j < kOperands; ++j) {
    const Operand operand = static_cast<Operand>(j);
    const rmsnorm_view* const view = views[j];
    const bool moves = view != nullptr && Varies(operand, *view, shape.ndim, i);
    loop.stride[j] = moves ? view->stride[DimensionOf(operand, *view, shape.ndim, i)] *
                                 static_cast<ptrdiff_t>(ElementSize(view->dtype))
                           : 0;
  }
  return loop;
}

// Adds a loop around those that there are from `first` on.
void AddLoop(Walk& walk, int first, const Walk::Loop& outer) {
  if (walk.loops > first) {
    Walk::Loop& inner = walk.loop[walk.loops - 1];
    const auto continues = [&](int i) {
      return outer.stride[i] == inner.stride[i] * static_cast<ptrdiff_t>(inner.count);
    };
    int i = 0;
    while (i < kOperands && continues(i)) ++i;
    if (i == kOperands) {
      inner.count *= outer.count;
      return;
    }
  }
  walk.loop[walk.loops++] = outer;
}

}  // namespace

Walk MakeWalk(const rmsnorm_view& shape, const rmsnorm_view* const (&views)[kOperands]) {
  Walk walk;
  walk.loops = 0;
  walk.d = shape.shape[shape.ndim - 1];
  for (int i = 0; i < kOperands; ++i) {
    walk.data[i] = views[i] != nullptr ? static_cast<char*>(views[i]->data) : nullptr;
  }
  walk.rows_of_group = 1;
  walk.rows = 1;
  for (const bool over_groups : {false, true}) {
    const int first = walk.loops;
    for (int i = shape.ndim - 2; i >= 0; --i) {
      if (shape.shape[i] == 1 || IsOverGroups(shape, views, i) != over_groups) continue;
      AddLoop(walk, first, MakeLoop(shape, views, i));
      walk.rows *= shape.shape[i];
    }
    if (!over_groups) walk.rows_of_group = walk.rows;
  }
  if (walk.loops == 0) walk.loop[walk.loops++] = {1, {}};
  return walk;
}

Run NextRun(const Walk& walk, size_t begin, size_t end) {
  // The outermost loop takes what is left.
  size_t index[RMSNORM_MAX_DIMS - 1];
  size_t rest = begin;
  for (int i = 0; i + 1 < walk.loops; ++i) {
    index[i] = rest % walk.loop[i].count;
    rest /= walk.loop[i].count;
  }
  index[walk.loops - 1] = rest;

  const Walk::Loop& inner = walk.loop[0];
  Run run;
  // Rows that share nothing are runs of one.
  run.count = walk.rows_of_group == 1 ? 1 : std::min(inner.count - index[0], end - begin);
  run.d = walk.d;
  run.safe_sum = nullptr;
  run.start_sums = false;
  for (int j = 0; j < kOperands; ++j) {
    run.stride[j] = inner.stride[j];
    run.data[j] = walk.data[j];
    if (walk.data[j] == nullptr) continue;
    for (int i = 0; i < walk.loops; ++i) {
      run.data[j] += static_cast<ptrdiff_t>(index[i]) * walk.loop[i].stride[j];
    }
  }
  return run;
}

Run Columns(const Norm& norm, const Run& run, size_t begin, size_t end) {
  Run columns = run;
  columns.d = end - begin;
  for (int j = 0; j < kOperands; ++j) {
    if (run.data[j] == nullptr || kOperandRules[j].shape == Shape::kPerRow) continue;
    columns.data[j] += begin * ElementSize(norm.dtype[j]);
  }
  return columns;
}

}  // namespace rmsnorm::internal

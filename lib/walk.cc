// SPDX-License-Identifier: Apache-2.0
#include "walk.h"

#include <algorithm>

#include "thresholds.h"

namespace rmsnorm::internal {
namespace {

// The dimension of an operand's view that moves along dimension i of the `ndim` that x has;
// negative where none does.
int MovingDimension(Operand operand, const rmsnorm_view& view, int ndim, int i) {
  const int own = kOperandRules[operand].leading == Leading::kShared ? i - (ndim - view.ndim) : i;
  return own >= 0 && view.shape[own] != 1 ? own : -1;
}

// Adds a loop over dimension i of x around the loops from `first` on.
void AddLoop(const rmsnorm_view& shape, const Views& views, int i, int first, Walk& walk) {
  Walk::Loop& outer = walk.loop[walk.loops];
  Walk::Loop* const inner = walk.loops > first ? &outer - 1 : nullptr;
  bool continues = inner != nullptr;
  outer.count = shape.shape[i];
  ForEachOperand(views.given, [&](Operand operand) {
    const rmsnorm_view& view = views[operand];
    const auto size = static_cast<ptrdiff_t>(ElementSize(view.dtype));
    const int own = MovingDimension(operand, view, shape.ndim, i);
    ptrdiff_t& stride = outer.stride[operand];
    stride = own >= 0 ? view.stride[own] * size : 0;
    continues = continues && Continues(stride, inner->stride[operand], inner->count);
  });
  if (continues) {
    inner->count *= outer.count;
  } else {
    ++walk.loops;
  }
}

}  // namespace

void MakeWalk(const rmsnorm_view& shape, const Views& views, Walk& walk) {
  constexpr OperandSet kColumns = OperandsWhere([](const OperandRule& rule) {
    return rule.leading == Leading::kShared && rule.length == Length::kD;
  });
  // A row with a gate takes so long that a shared weight saves nothing, and the order of memory is
  // faster (doc/data/changes.csv, "Gates, post-norms, quantised outputs").
  const OperandSet shared = views.Has(kGate) ? 0 : views.given & kColumns;
  walk.loops = 0;
  walk.d = shape.shape[shape.ndim - 1];
  walk.given = views.given;
  ForEachOperand(views.given, [&](Operand operand) {
    walk.data[operand] = static_cast<char*>(DataOf(views[operand]));
    walk.loop[0].stride[operand] = 0;
  });
  walk.loop[0].count = 1;
  walk.rows = 1;
  for (const bool over_groups : {false, true}) {
    const int first = walk.loops;
    for (int i = shape.ndim - 2; i >= 0; --i) {
      // Whether the rows along dimension i do not share a row of the weight and the like.
      bool varies = false;
      ForEachOperand(shared, [&](Operand operand) {
        varies = varies || MovingDimension(operand, views[operand], shape.ndim, i) >= 0;
      });
      if (shape.shape[i] == 1 || varies != over_groups) continue;
      AddLoop(shape, views, i, first, walk);
      walk.rows *= shape.shape[i];
    }
    if (!over_groups) walk.rows_of_group = walk.rows;
  }
  walk.loops = std::max(walk.loops, 1);  // of one row, where none was added
}

void WalkInSlabs(Walk& walk) {
  const size_t groups = walk.Groups();
  const size_t in_slab = std::max<size_t>(1, kSlab / walk.d / groups);
  if (groups == 1 || walk.rows_of_group <= in_slab) return;
  // Runs of single short rows would cost more than the slabs gain, as where the count is a prime.
  Walk::Loop& inner = walk.loop[0];
  const size_t most = std::min(inner.count, in_slab);
  size_t slab = most;
  while (inner.count % slab != 0) --slab;
  if (slab < most / 4) return;

  // The loops over groups go around a slab of the innermost loop; the loop over slabs goes around
  // these.
  Walk::Loop rest = inner;
  inner.count = slab;
  rest.count /= slab;
  ForEachOperand(walk.given,
                 [&](Operand operand) { rest.stride[operand] *= static_cast<ptrdiff_t>(slab); });
  int row_loops = 1;
  for (size_t rows = slab * rest.count; rows < walk.rows_of_group; ++row_loops) {
    rows *= walk.loop[row_loops].count;
  }
  std::rotate(walk.loop + 1, walk.loop + row_loops, walk.loop + walk.loops);
  Walk::Loop* const after_groups = walk.loop + 1 + (walk.loops - row_loops);
  std::copy_backward(after_groups, walk.loop + walk.loops, walk.loop + walk.loops + 1);
  *after_groups = rest;
  ++walk.loops;
}

RowRun NextRun(const Walk& walk, size_t begin, size_t end) {
  const Walk::Loop& inner = walk.loop[0];
  const size_t left = walk.loops == 1 ? end - begin : inner.count - begin % inner.count;
  // Rows that share nothing are runs of one.
  RowRun run(walk.rows_of_group == 1 ? 1 : std::min(left, end - begin), walk.d);
  ForEachOperand(walk.given, [&](Operand operand) {
    run.Set(operand, walk.data[operand], inner.stride[operand]);
  });
  size_t rest = begin;
  for (int i = 0; i < walk.loops; ++i) {
    const Walk::Loop& loop = walk.loop[i];
    const bool is_outermost = i + 1 == walk.loops;  // takes the rest
    const size_t index = is_outermost ? rest : rest % loop.count;
    rest /= loop.count;
    ForEachOperand(walk.given, [&](Operand operand) {
      run.data[operand] += static_cast<ptrdiff_t>(index) * loop.stride[operand];
    });
  }
  return run;
}

}  // namespace rmsnorm::internal

int32_t rmsnorm_merge_dims(int32_t ndim, size_t* shape, ptrdiff_t* const* stride,
                           size_t tensors) noexcept {
  int32_t last = -1;  // of those that are left
  for (int32_t i = 0; i < ndim; ++i) {
    if (shape[i] == 1) continue;
    size_t merged = 0;
    bool continues =
        last >= 0 && !rmsnorm::internal::MultiplyOverflows(shape[last], shape[i], &merged);
    for (size_t t = 0; continues && t < tensors; ++t) {
      continues = rmsnorm::internal::Continues(stride[t][last], stride[t][i], shape[i]);
    }
    shape[continues ? last : last + 1] = continues ? merged : shape[i];
    last += continues ? 0 : 1;
    for (size_t t = 0; t < tensors; ++t) stride[t][last] = stride[t][i];
  }
  return last + 1;
}

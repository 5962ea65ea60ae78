// SPDX-License-Identifier: Apache-2.0
// How work is spread over threads: OpenMP's, the caller's own, or the calling one alone.
#ifndef RMSNORM_LIB_SPREAD_H_
#define RMSNORM_LIB_SPREAD_H_

#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <cstddef>

#include "cost.h"
#include "float_environment.h"
#include "thresholds.h"

namespace rmsnorm::internal {

// PartsOf() for work that may be worth splitting.
size_t PartsOfLargeWork(const Work& work, const rmsnorm_context& context);

// Into how many parts work is worth splitting; at least 1.
inline size_t PartsOf(const Work& work, const rmsnorm_context& context) {
  if (work.elements < kMinWorkToSplit || context.threads == 1) return 1;
  return PartsOfLargeWork(work, context);
}

using PartTask = void (*)(void* state, size_t part, size_t parts);

// RunParts() for more than one part.
void RunOnThreads(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                  size_t parts, PartTask task, void* state);

// Runs task(state, part, parts) once for each part below `parts`, in the default floating-point
// state on any thread, and returns when all are done. The foreign code between runs in the caller's
// state. A single part runs on the calling thread without any, and may be inlined: a short call
// gains 3 ns.
inline void RunParts(DefaultFloatEnvironment& environment, const rmsnorm_context& context,
                     size_t parts, PartTask task, void* state) {
  if (parts <= 1) return task(state, 0, 1);
  RunOnThreads(environment, context, parts, task, state);
}

// Part i of `parts` even ones holds the items PartBegin(i) up to PartBegin(i + 1).
inline size_t PartBegin(size_t items, size_t part, size_t parts) {
  return part * (items / parts) + std::min(part, items % parts);
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_SPREAD_H_

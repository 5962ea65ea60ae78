// SPDX-License-Identifier: Apache-2.0
// Parts of a job to threads: OpenMP's, the caller's own, or the calling one alone.
#ifndef RMSNORM_LIB_PARTITION_H_
#define RMSNORM_LIB_PARTITION_H_

#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <cstddef>

#include "float_environment.h"

namespace rmsnorm::internal {

// Who runs the parts of a job; the fields of rmsnorm_options.
struct Threading {
  int threads;
  rmsnorm_parallel_for parallel_for;
  void* parallel_context;
};

inline Threading MakeThreading(const rmsnorm_options& options) {
  return {options.threads, options.parallel_for, options.parallel_context};
}

// Into how many parts work is worth splitting, however large it is; at least 1.
size_t MaxThreads(const Threading& threading);

using PartTask = void (*)(void* state, size_t part, size_t parts);

// RunParts() for more than one part.
void RunOnThreads(DefaultFloatEnvironment& environment, const Threading& threading, size_t parts,
                  PartTask task, void* state);

// Runs task(state, part, parts) once for each part below `parts`, in the default floating-point
// state on any thread, and returns when all are done. The foreign code between runs in the caller's
// state. A single part runs on the calling thread without any, and may be inlined: a short call
// gains 3 ns.
inline void RunParts(DefaultFloatEnvironment& environment, const Threading& threading, size_t parts,
                     PartTask task, void* state) {
  if (parts <= 1) return task(state, 0, 1);
  RunOnThreads(environment, threading, parts, task, state);
}

// Part i of `parts` even ones holds the items PartBegin(i) up to PartBegin(i + 1).
inline size_t PartBegin(size_t items, size_t part, size_t parts) {
  return part * (items / parts) + std::min(part, items % parts);
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_PARTITION_H_

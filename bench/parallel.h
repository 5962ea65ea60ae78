// SPDX-License-Identifier: Apache-2.0
// Threads for memcpy. They belong to the library's OpenMP runtime, so no thread pool waits while
// another one works.
#ifndef RMSNORM_BENCH_PARALLEL_H_
#define RMSNORM_BENCH_PARALLEL_H_

#include <cstddef>

namespace rmsnorm::bench {

using RangeFunction = void (*)(const void* context, size_t begin, size_t end);

// Splits the numbers below `count` into `parts` ranges, as evenly as possible, and runs each on a
// separate thread; a single part runs on the calling thread, without OpenMP.
void RunRangesInParts(size_t count, size_t parts, RangeFunction function, const void* context);

// The same with a function object that takes (begin, end).
template <class Function>
void ForRangesInParts(size_t count, size_t parts, const Function& function) {
  RunRangesInParts(
      count, parts,
      [](const void* context, size_t begin, size_t end) {
        (*static_cast<const Function*>(context))(begin, end);
      },
      &function);
}

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_PARALLEL_H_

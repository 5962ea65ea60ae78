// SPDX-License-Identifier: Apache-2.0
// The threads of the contenders that are not the library: those of the same OpenMP runtime, so that
// no pool of threads waits while another one works.
#ifndef RMSNORM_BENCH_PARALLEL_H_
#define RMSNORM_BENCH_PARALLEL_H_

#include <cstddef>

namespace rmsnorm::bench {

using RangeFunction = void (*)(const void* context, size_t begin, size_t end);

// Splits the numbers below `count` into `parts` ranges, as even as they can be, and runs each on a
// thread of its own; one part runs on the calling thread alone, without OpenMP.
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

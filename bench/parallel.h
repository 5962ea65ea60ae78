// SPDX-License-Identifier: Apache-2.0
// The threads of the contenders that are not the library: those of the same OpenMP runtime, so that
// no pool of threads waits while another one works.
#ifndef RMSNORM_BENCH_PARALLEL_H_
#define RMSNORM_BENCH_PARALLEL_H_

#include <cstddef>

namespace rmsnorm::bench {

using RowsFunction = void (*)(const void* context, size_t begin, size_t end);

// Splits rows into `parts`, as even as they can be, and runs each on a thread of its own; one part
// runs on the calling thread alone, without OpenMP.
void RunRowsInParts(size_t rows, size_t parts, RowsFunction function, const void* context);

// The same with a function object that takes (begin, end).
template <class Function>
void ForRowsInParts(size_t rows, size_t parts, const Function& function) {
  RunRowsInParts(
      rows, parts,
      [](const void* context, size_t begin, size_t end) {
        (*static_cast<const Function*>(context))(begin, end);
      },
      &function);
}

}  // namespace rmsnorm::bench

#endif  // RMSNORM_BENCH_PARALLEL_H_

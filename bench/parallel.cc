// SPDX-License-Identifier: Apache-2.0
#include "parallel.h"

#include <algorithm>

namespace rmsnorm::bench {

void RunRangesInParts(size_t count, size_t parts, RangeFunction function, const void* context) {
  parts = std::min(parts, count);
  if (parts <= 1) {
    function(context, 0, count);
    return;
  }
  const size_t even = count / parts;
  const size_t left = count % parts;  // the number of parts that get one more
#ifdef _OPENMP
  const int threads = static_cast<int>(parts);
#pragma omp parallel for schedule(static) num_threads(threads)
#endif
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * even + std::min(part, left);
    function(context, begin, begin + even + (part < left ? 1 : 0));
  }
}

}  // namespace rmsnorm::bench

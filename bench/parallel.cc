// SPDX-License-Identifier: Apache-2.0
#include "parallel.h"

#include <algorithm>

namespace rmsnorm::bench {

void RunRowsInParts(size_t rows, size_t parts, RowsFunction function, const void* context) {
  if (parts <= 1) {
    function(context, 0, rows);
    return;
  }
  const size_t even = rows / parts;
  const size_t left = rows % parts;  // one row more for so many parts
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(parts))
#endif
  for (size_t part = 0; part < parts; ++part) {
    const size_t begin = part * even + std::min(part, left);
    function(context, begin, begin + even + (part < left ? 1 : 0));
  }
}

}  // namespace rmsnorm::bench

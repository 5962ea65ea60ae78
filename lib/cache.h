// SPDX-License-Identifier: Apache-2.0
#ifndef RMSNORM_LIB_CACHE_H_
#define RMSNORM_LIB_CACHE_H_

#include <cstddef>

namespace rmsnorm::internal {

// Bytes of the last cache that this CPU shares among some of its cores, as far as one of them may
// count on it; found once. Tensors beyond it are better written past the caches; below it that
// takes several times as long as writing through them.
size_t LastLevelCache();

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_CACHE_H_

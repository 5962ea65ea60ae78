// SPDX-License-Identifier: Apache-2.0
#include "thresholds.h"

#include <algorithm>

#include "portable.h"

namespace rmsnorm::internal {
namespace {

#if RMSNORM_X86_64
// The largest cache in a CPUID leaf of deterministic cache parameters, or 0. Not sysconf():
// glibc 2.36 adds up what all of an AMD processor's core complexes have, ten times what one core
// can fill.
size_t LargestCache(unsigned leaf) {
  size_t largest = 0;
  for (unsigned index = 0; index < 16; ++index) {
    const CpuidRegisters cache = Cpuid(leaf, index);
    const unsigned type = cache.eax & 0x1F;
    if (type == 0) break;  // no more caches
    const size_t ways = (cache.ebx >> 22) + 1;
    const size_t partitions = (cache.ebx >> 12 & 0x3FF) + 1;
    const size_t line = (cache.ebx & 0xFFF) + 1;
    const size_t sets = size_t{cache.ecx} + 1;
    largest = std::max(largest, ways * partitions * line * sets);
  }
  return largest;
}

// A core can count on less than its last cache, as other cores share it. A virtual machine reads
// the size of the whole: 260 MiB on a Xeon (family 6, model 207), 32 MiB on a Zen 3 (family 25,
// model 1). These are the times of stores past the caches beside usual stores, by the bytes of the
// tensors:
//
//                                      Xeon          Zen 3
//   y read again at once, from 10 MiB                1.02 to 1.06
//                         from 16 MiB  0.87 to 1.2   0.84 to 1.0
//                         from 32 MiB  0.65 to 0.9
//   y not read again                   0.43 to 0.87  0.56 to 1.0
constexpr size_t kMostOfCore = size_t{15} << 20;

constexpr unsigned kIntelCaches = 4;
constexpr unsigned kAmdCaches = 0x8000001D;  // which others do not have
#endif

size_t LastCache() {
  size_t size = 0;
#if RMSNORM_X86_64
  size = std::min(std::max(LargestCache(kIntelCaches), LargestCache(kAmdCaches)), kMostOfCore);
#endif
  return size > 0 ? size : size_t{32} << 20;  // a usual size where it is not known
}

}  // namespace

#if RMSNORM_X86_64
const bool kFetchesForStores = Cpuid(kAmdCaches, 0).eax == 0;
#else
const bool kFetchesForStores = true;
#endif

size_t StreamedBytes() {
  static const size_t bytes = Threshold(LastCache(), 4096);
  return bytes;
}

}  // namespace rmsnorm::internal

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

// Intel's last cache is one for all cores of a socket, and a virtual machine reads the size of the
// whole. On one with 260 MiB (Xeon, family 6, model 207), rows that had been written past the
// caches and were read again at once took 0.87 to 1.2 of the time from 16 MiB in all on, and 0.65
// to 0.9 from 32 MiB on; without the reading 0.43 to 0.87. AMD's is one for up to 16 threads.
constexpr size_t kMostOfIntel = size_t{15} << 20;
#endif

size_t LastCache() {
  size_t size = 0;
#if RMSNORM_X86_64
  constexpr unsigned kIntel = 4;
  constexpr unsigned kAmd = 0x8000001D;
  size = std::max(std::min(LargestCache(kIntel), kMostOfIntel), LargestCache(kAmd));
#endif
  return size > 0 ? size : size_t{32} << 20;  // a usual size where it is not known
}

}  // namespace

size_t StreamedBytes() {
  static const size_t bytes = Threshold(LastCache(), 4096);
  return bytes;
}

}  // namespace rmsnorm::internal

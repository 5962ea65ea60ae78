// SPDX-License-Identifier: Apache-2.0
#include "thresholds.h"

#include "portable.h"

namespace rmsnorm::internal {

#if RMSNORM_X86_64
constexpr unsigned kCachesOfAmd = 0x8000001D;  // a CPUID leaf that other makers leave empty
const bool kFetchesForStores = Cpuid(kCachesOfAmd, 0).eax == 0;
#else
const bool kFetchesForStores = true;
#endif

}  // namespace rmsnorm::internal

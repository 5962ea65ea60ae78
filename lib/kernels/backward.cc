// SPDX-License-Identifier: Apache-2.0
// Compiles the leaves and drivers of backward once for each target; forward.cc lists the targets.
#include "highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

// As in forward.cc. What targets-inl.h declares is seen by the other unit.
#if HWY_NATIVE_FMA
#include "targets-inl.h"
// After targets-inl.h.
#include "backward-inl.h"
#include "backward_drivers-inl.h"
#endif  // HWY_NATIVE_FMA

// SPDX-License-Identifier: Apache-2.0
// Compiles the kernels of the backward pass once for each target; forward.cc lists the tables.
#include "highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

// As in forward.cc.
#if HWY_NATIVE_FMA
#include "backward-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {
extern const GradientTable kGradientKernels;
const GradientTable kGradientKernels = RMSNORM_GRADIENT_TABLE();
}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // HWY_NATIVE_FMA

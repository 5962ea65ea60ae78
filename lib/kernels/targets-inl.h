// SPDX-License-Identifier: Apache-2.0
// The tables and kernels of each target that several dispatch units use.

#if defined(RMSNORM_LIB_KERNELS_TARGETS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_TARGETS_INL_H_
#undef RMSNORM_LIB_KERNELS_TARGETS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_TARGETS_INL_H_
#endif

#include "highway-inl.h"
#include "leaves.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// Of forward.cc.
extern const KernelTable kKernels;
extern const Leaves kLeaves;

// Of backward.cc.
extern const BackwardLeaves kBackwardLeaves;
void BackwardKernel(const Norm& norm, const RowRun& run);
void AddRowsKernel(const Norm& norm, const RowRun& run);

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_TARGETS_INL_H_

// SPDX-License-Identifier: Apache-2.0
// Compiles the leaves and drivers of backward once for each target, and fills the table of leaves.
#include "../portable.h"

#if RMSNORM_HAVE_KERNELS
#include "highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/backward.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

#if HWY_NATIVE_FMA  // as in forward.cc
#include "backward-inl.h"
#include "backward_drivers-inl.h"
#include "targets-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// Sets the leaves of a type. With native bf16 AVX3's leaves stay where they write nothing.
template <class T>
constexpr void SetBackwardLeaves(rmsnorm_dtype dtype, BackwardLeaves& leaves) {
  const int type = DtypeIndex(dtype);
  if constexpr (!RMSNORM_NATIVE_BF16) {
    leaves.dot[type][0] = DotBlock<false, T>;
    leaves.dot[type][1] = DotBlock<true, T>;
    leaves.apply[type][static_cast<int>(Dx::kNone)][1] = ApplyRow<Dx::kNone, true, T>;
  }
  leaves.apply[type][static_cast<int>(Dx::kStore)][0] = ApplyRow<Dx::kStore, false, T>;
  leaves.apply[type][static_cast<int>(Dx::kStore)][1] = ApplyRow<Dx::kStore, true, T>;
  leaves.apply[type][static_cast<int>(Dx::kAdd)][0] = ApplyRow<Dx::kAdd, false, T>;
  leaves.apply[type][static_cast<int>(Dx::kAdd)][1] = ApplyRow<Dx::kAdd, true, T>;
  leaves.apply[type][static_cast<int>(Dx::kStream)][0] = ApplyRow<Dx::kStream, false, T>;
  leaves.apply[type][static_cast<int>(Dx::kStream)][1] = ApplyRow<Dx::kStream, true, T>;
  leaves.apply_two[type][0] = ApplyTwoRows<false, T>;
  leaves.apply_two[type][1] = ApplyTwoRows<true, T>;
  if constexpr (kHoldsRows) {
    leaves.held_rows[type][0] = ApplyHeldRows<1, T>;
    leaves.held_rows[type][1] = ApplyHeldRows<2, T>;
    leaves.held_rows[type][2] = ApplyHeldRows<3, T>;
    leaves.held_rows[type][3] = ApplyHeldRows<4, T>;
  }
}

constexpr BackwardLeaves MakeBackwardLeaves() {
#if RMSNORM_NATIVE_BF16
  BackwardLeaves leaves = N_AVX3::kBackwardLeaves;
#else
  BackwardLeaves leaves = {};
  SetBackwardLeaves<float>(RMSNORM_F32, leaves);
  SetBackwardLeaves<F16>(RMSNORM_F16, leaves);
#endif
  SetBackwardLeaves<BF16>(RMSNORM_BF16, leaves);
  return leaves;
}

constexpr BackwardLeaves kBackwardLeaves = MakeBackwardLeaves();

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // HWY_NATIVE_FMA
#endif  // RMSNORM_HAVE_KERNELS

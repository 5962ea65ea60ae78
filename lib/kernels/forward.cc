// SPDX-License-Identifier: Apache-2.0
// Compiles the leaves and drivers of forward once for each target, and fills the tables.
#include "../portable.h"

#if RMSNORM_HAVE_KERNELS
#include "highway_config.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/forward.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, which includes this file for each target.
#include <hwy/highway.h>

// The baseline pass of a build for any x86-64 or arm CPU has no fma; nothing is made of it.
#if HWY_NATIVE_FMA
#include "add-inl.h"
#include "forward_drivers-inl.h"
#include "gate-inl.h"
#include "quantise-inl.h"
#include "rotary-inl.h"
#include "targets-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// The leaves that scale rows of a type. kCast says that they round x * r.
template <bool kCast, class T>
constexpr void SetScalingLeaves(int type, bool cast, Leaves& leaves) {
  leaves.scale[type][cast][0] = ScaleRow<false, kCast, T>;
  leaves.scale[type][cast][1] = ScaleRow<true, kCast, T>;
  leaves.scale_four[type][cast] = ScaleFourRows<kCast, T>;
  leaves.short_rows[type][cast][0] = NormaliseShortRows<0, kCast, T>;
  if constexpr (!kHoldsRowsOf<T>) {
    leaves.short_rows[type][cast][1] = NormaliseShortRows<kShortLengths[1], kCast, T>;
    leaves.short_rows[type][cast][2] = NormaliseShortRows<kShortLengths[2], kCast, T>;
  }
}

// The leaves that write elements of a type.
template <class T>
constexpr void SetWritingLeaves(rmsnorm_dtype dtype, Leaves& leaves) {
  const int type = DtypeIndex(dtype);
  leaves.narrow[type] = StoreTile<T>;
  leaves.add_and_sum[type] = AddRow<T>;
  leaves.add_step[type] = AddStep<T>;
  leaves.add_and_sum_fours[type] = AddRowsByFours<T>;
  leaves.scale_gated[type] = ScaleGatedRow<T>;
  leaves.scale_biased[type] = ScaleBiasedRow<T>;
  leaves.scale_tile[type] = ScaleTileTo<T>;
  leaves.scale_to_range[type] = ScaleToRange<T>;
  leaves.quantise_groups[type] = QuantiseGroups<T>;
  leaves.rotate_scaled[type][0] = RotateScaledRows<float, T>;
  leaves.rotate_scaled[type][1] = RotateScaledRows<T, T>;
  SetScalingLeaves<false, T>(type, false, leaves);
  SetScalingLeaves<sizeof(T) == 2, T>(type, true, leaves);  // rounding f32 to f32 does nothing
}

#if RMSNORM_NATIVE_BF16

// AVX3's leaves, except those that write bf16.
constexpr Leaves MakeLeaves() {
  Leaves leaves = N_AVX3::kLeaves;
  SetWritingLeaves<BF16>(RMSNORM_BF16, leaves);
  leaves.backward = &kBackwardLeaves;
  return leaves;
}

#else

template <class T>
constexpr void SetReadingLeaves(rmsnorm_dtype dtype, Leaves& leaves) {
  const int type = DtypeIndex(dtype);
  leaves.widen[type] = FillTile<T>;
  leaves.add_offset[type] = AddOffset<T>;
  leaves.sum[type] = SumSquaresOfRow<T>;
  leaves.gate_tile[type] = FillGatedTile<T>;
  leaves.quantise[type] = QuantiseValues<T>;
}

template <bool kAdds>
constexpr void SetHeldRows(RowsLeaf (&leaves)[4]) {
  leaves[0] = NormaliseHeldRows<1, kAdds>;
  leaves[1] = NormaliseHeldRows<2, kAdds>;
  leaves[2] = NormaliseHeldRows<3, kAdds>;
  leaves[3] = NormaliseHeldRows<4, kAdds>;
}

constexpr Leaves MakeLeaves() {
  Leaves leaves = {};
  SetReadingLeaves<float>(RMSNORM_F32, leaves);
  SetReadingLeaves<F16>(RMSNORM_F16, leaves);
  SetReadingLeaves<BF16>(RMSNORM_BF16, leaves);
  SetWritingLeaves<float>(RMSNORM_F32, leaves);
  SetWritingLeaves<F16>(RMSNORM_F16, leaves);
  SetWritingLeaves<BF16>(RMSNORM_BF16, leaves);
  if constexpr (kHoldsRows) {
    SetHeldRows<false>(leaves.held_rows[0]);
    SetHeldRows<true>(leaves.held_rows[1]);
    leaves.held_rotated_rows[0] = NormaliseHeldRotatedRows<2>;
    leaves.held_rotated_rows[1] = NormaliseHeldRotatedRows<4>;
  }
  leaves.add_norm = AddNormOfRow;
  leaves.add_tile_to_range = AddTileToRange;
  leaves.backward = &kBackwardLeaves;
  return leaves;
}

#endif  // RMSNORM_NATIVE_BF16

constexpr Leaves kLeaves = MakeLeaves();

constexpr KernelTable MakeKernels() {
#if RMSNORM_NATIVE_BF16
  KernelTable kernels = N_AVX3::kKernels;
  kernels.target = RMSNORM_TARGET_NAME;
  kernels.leaves = &kLeaves;
  return kernels;
#else
  constexpr unsigned short kOf16Bits = HWY_TARGET == HWY_AVX2 ? 150 : 100;
  return {
      RMSNORM_TARGET_NAME,
      {100, kOf16Bits, kOf16Bits},
      AddOffsetKernel,
      ForwardKernel,
      BackwardKernel,
      AddRowsKernel,
      AddBlocksKernel,
      NarrowKernel,
      &kLeaves,
  };
#endif
}

constexpr KernelTable kKernels = MakeKernels();

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // HWY_NATIVE_FMA
#endif  // RMSNORM_HAVE_KERNELS

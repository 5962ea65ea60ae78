// SPDX-License-Identifier: Apache-2.0
// The stages of a row through tiles: what happens to a tile of f32 between x and y. They have the
// bits of reference.cc. kCold says that r is of binary64.

#if defined(RMSNORM_LIB_KERNELS_STAGES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_STAGES_INL_H_
#undef RMSNORM_LIB_KERNELS_STAGES_INL_H_
#else
#define RMSNORM_LIB_KERNELS_STAGES_INL_H_
#endif

#include "../element.h"
#include "gate-inl.h"
#include "tile-inl.h"

#if !RMSNORM_NATIVE_BF16
RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ scale

// The inverse RMS of a row. `cold` says that it multiplies in binary64.
struct RowInverse {
  double r;
  bool cold;
};

// Multiplies by r, rounds to a dtype, then multiplies by the weight. Without kCold r is an f32. The
// bias may be null.
template <bool kCold>
HWY_NOINLINE void ScaleTile(double r, rmsnorm_dtype dtype, const float* HWY_RESTRICT weight,
                            const float* HWY_RESTRICT bias, size_t n, float* HWY_RESTRICT tile) {
  const F32Tag tag;
  const HalfTag half;
  for (size_t j = 0; j < n; j += kN) {
    F32Vec value;
    if constexpr (kCold) {
      const F64Vec rs = hn::Set(F64Tag(), r);
      value = hn::Combine(tag, hn::DemoteTo(half, hn::Mul(LoadAs(F64Tag(), tile + j + kN64), rs)),
                          hn::DemoteTo(half, hn::Mul(LoadAs(F64Tag(), tile + j), rs)));
    } else {
      value = hn::Mul(hn::Load(tag, tile + j), hn::Set(tag, static_cast<float>(r)));
    }
    if (dtype == RMSNORM_F16) value = Round<F16>(value);
    if (dtype == RMSNORM_BF16) value = Round<BF16>(PlainNaN(value));
    const F32Vec w = LoadBits(tag, weight + j, n - j);
    value =
        bias == nullptr ? hn::Mul(value, w) : hn::MulAdd(value, w, LoadBits(tag, bias + j, n - j));
    hn::Store(value, tag, tile + j);
  }
}

inline float RoundTo(rmsnorm_dtype dtype, float value) {
  return dtype == RMSNORM_F16    ? ToF32(CastTo<F16>(value))
         : dtype == RMSNORM_BF16 ? ToF32(CastTo<BF16>(value))
                                 : value;
}

// Scales by the rounding order of a norm of elements of x_dtype.
HWY_INLINE void ScaleTile(const Norm& norm, const RowInverse& inverse, rmsnorm_dtype x_dtype,
                          const float* weight, const float* bias, size_t n, float* tile) {
  const rmsnorm_dtype dtype = norm.rounding == RMSNORM_ROUND_AFTER_WEIGHT ? RMSNORM_F32 : x_dtype;
  if (norm.rounding == RMSNORM_ROUND_INVERSE) {
    const float r = RoundTo(x_dtype, static_cast<float>(inverse.r));
    ScaleTile<false>(r, dtype, weight, bias, n, tile);
  } else if (inverse.cold) {
    ScaleTile<true>(inverse.r, dtype, weight, bias, n, tile);
  } else {
    ScaleTile<false>(inverse.r, dtype, weight, bias, n, tile);
  }
}

// ------------------------------------------------------------------ factor, rounding

inline HWY_NOINLINE void MultiplyTile(float factor, size_t n, float* tile) {
  const F32Tag tag;
  for (size_t j = 0; j < n; j += kN) {
    hn::Store(hn::Mul(hn::Load(tag, tile + j), hn::Set(tag, factor)), tag, tile + j);
  }
}

// Rounds a tile to a type and back.
inline HWY_NOINLINE void RoundTile(rmsnorm_dtype dtype, size_t n, float* tile) {
  if (dtype == RMSNORM_F32) return;
  const F32Tag tag;
  for (size_t j = 0; j < n; j += kN) {
    const F32Vec value = PlainNaN(hn::Load(tag, tile + j));
    hn::Store(dtype == RMSNORM_F16 ? Round<F16>(value) : Round<BF16>(value), tag, tile + j);
  }
}

// ------------------------------------------------------------------ gate

// Multiplies a tile by the activation of the gate in another tile.
inline HWY_NOINLINE void GateTile(rmsnorm_activation activation, const float* HWY_RESTRICT gate,
                                  size_t n, float* HWY_RESTRICT tile) {
  const auto silu = IsSilu(activation);
  for (size_t j = 0; j < n; j += kStep) {
    const Lanes<2> factor = Activate(silu, LoadTwo(gate + j));
    const size_t k = j + kPair;
    Store(Mul(Load(tile + j), factor.first.pair), tile + j);
    Store(Mul(Load(tile + k), factor.second.pair), tile + k);
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();
#endif  // !RMSNORM_NATIVE_BF16

#endif  // RMSNORM_LIB_KERNELS_STAGES_INL_H_

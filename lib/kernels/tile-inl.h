// SPDX-License-Identifier: Apache-2.0
// Tiles of f32: how rows go whose combination of types has no leaves, and rows on the cold path, in
// binary64. The arithmetic is there once for all types, and has the bits of reference.cc.
//
//   T     the type of elements outside a tile
//   Real  float, or double on the cold path

#if defined(RMSNORM_LIB_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_TILE_INL_H_
#undef RMSNORM_LIB_KERNELS_TILE_INL_H_
#else
#define RMSNORM_LIB_KERNELS_TILE_INL_H_
#endif

#include <algorithm>

#include "leaves.h"
#include "squares-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ to tiles and back

// Elements of a tile where several tiles share L1 and the stack: a multiple of kLanes that divides
// kBlock.
constexpr size_t kTile = 1024;

template <class T>
HWY_NOINLINE void FillTile(const void* from_data, size_t n, float* HWY_RESTRICT tile) {
  const T* const from = static_cast<const T*>(from_data);
  ForEachPair(0, n,
              [&](size_t j, auto some) RMSNORM_LAMBDA { Store(Load(from + j, some), tile + j); });
  const F32Tag tag;
  for (size_t j = (n + kPair - 1) / kPair * kPair; j % kLanes != 0; j += kN) {
    hn::Store(hn::Zero(tag), tag, tile + j);
  }
}

// Makes every NaN the same quiet one, whose payload survives the rounding to bf16.
HWY_INLINE F32Vec PlainNaN(F32Vec value) {
  const F32Vec plain = hn::BitCast(F32Tag(), hn::Set(U32Tag(), 0x7FC00000));
  return hn::IfThenElse(hn::IsNaN(value), plain, value);
}

HWY_INLINE Pair PlainNaN(Pair value) { return {PlainNaN(value.lower), PlainNaN(value.upper)}; }

// Rounds a tile to elements of T.
template <class T>
HWY_NOINLINE void StoreTile(const float* HWY_RESTRICT tile, size_t n, void* HWY_RESTRICT to_data) {
  T* const to = static_cast<T*>(to_data);
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    Store(PlainNaN(Load(tile + j)), to + j, some);
  });
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

// Reads n elements of an operand, from a row's column `begin` on, into a tile.
HWY_INLINE void ReadTile(const Norm& norm, const RowRun& run, Operand operand, size_t row,
                         size_t begin, size_t n, float* tile) {
  const rmsnorm_dtype dtype = norm.dtype[operand];
  norm.kernels->leaves->widen[DtypeIndex(dtype)](
      run.Row<char>(operand, row) + begin * ElementSize(dtype), n, tile);
}

// Rounds a tile to n elements of an operand.
HWY_INLINE void WriteTile(const Norm& norm, const RowRun& run, Operand operand, size_t row,
                          size_t begin, size_t n, const float* tile) {
  const rmsnorm_dtype dtype = norm.dtype[operand];
  norm.kernels->leaves->narrow[DtypeIndex(dtype)](
      tile, n, run.Row<char>(operand, row) + begin * ElementSize(dtype));
}

// Adds n elements to a tile, or to other elements of f32.
inline HWY_NOINLINE void AddTile(const float* HWY_RESTRICT addend, size_t n,
                                 float* HWY_RESTRICT tile) {
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    Store(Add(Load(addend + j, some), Load(tile + j, some)), tile + j, some);
  });
}

// Multiplies n elements of a tile.
inline HWY_NOINLINE void MultiplyTile(float factor, size_t n, float* tile) {
  const F32Tag tag;
  for (size_t j = 0; j < n; j += kN) {
    hn::Store(hn::Mul(hn::Load(tag, tile + j), hn::Set(tag, factor)), tag, tile + j);
  }
}

// ------------------------------------------------------------------ binary64

using F64Tag = hn::ScalableTag<double>;
using F64Vec = hn::Vec<F64Tag>;
using HalfTag = hn::Rebind<float, F64Tag>;  // f32, as many as a vector of binary64 has
constexpr size_t kN64 = kN / 2;

// f32 values as a vector of f32 or of binary64.
HWY_INLINE F32Vec LoadAs(F32Tag tag, const float* from) { return hn::LoadU(tag, from); }
HWY_INLINE F64Vec LoadAs(F64Tag tag, const float* from) {
  return hn::PromoteTo(tag, hn::LoadU(HalfTag(), from));
}

// The lanes of a block's sum, carried in memory from tile to tile.
template <class Real>
class TiledLanes {
 public:
  HWY_INLINE TiledLanes() { std::fill_n(lane_, kLanes, Real{0}); }

  // Adds the products dy * weight * x of n elements of tiles. The weight may be the run's own if n
  // is a multiple of kLanes. Without one it is null. The product dy * weight is exact in binary64.
  HWY_NOINLINE void AddProducts(const float* x, const float* dy, const float* weight, size_t n) {
    // clang would unroll this loop, which is 24 KB of the library and no faster.
#pragma GCC unroll 1
    for (size_t l = 0; l < kLanes; l += kSize) {
      auto sum = hn::Load(kTag, lane_ + l);
      for (size_t j = l; j < n; j += kLanes) {
        auto g = LoadAs(kTag, dy + j);
        if (weight != nullptr) g = hn::Mul(g, LoadAs(kTag, weight + j));
        sum = hn::MulAdd(g, LoadAs(kTag, x + j), sum);
      }
      hn::Store(sum, kTag, lane_ + l);
    }
  }
  HWY_INLINE void AddSquares(const float* x, size_t n) { AddProducts(x, x, nullptr, n); }

  // Folds the lanes: lane l += lane l + half, until one is left. The next block starts at 0.
  HWY_NOINLINE Real Fold() {
    for (size_t half = kLanes / 2; half > 0; half /= 2) {
      for (size_t l = 0; l < half; ++l) lane_[l] += lane_[l + half];
    }
    const Real sum = lane_[0];
    std::fill_n(lane_, kLanes, Real{0});
    return sum;
  }

 private:
  static constexpr hn::ScalableTag<Real> kTag = {};
  static constexpr size_t kSize = hn::MaxLanes(kTag);
  HWY_ALIGN Real lane_[kLanes];
};

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_TILE_INL_H_

// SPDX-License-Identifier: Apache-2.0
// Tiles, compiled for each target: the way of every combination of types that has no leaves of its
// own, and of the cold path, rows whose sums leave the range of f32, in binary64.
//
// The arithmetic is there once for all types, and has the bits of reference.cc. A row in binary64
// takes 2.5 to 8 times as long as one in f32. In scalar code it took 14 to 77 times as long.

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

// Elements of a tile where several share L1. For a sum a tile holds a whole block.
constexpr size_t kTile = 1024;

template <class T>
HWY_NOINLINE void FillTile(const void* from_data, size_t n, float* HWY_RESTRICT tile) {
  const T* const from = static_cast<const T*>(from_data);
  size_t j = 0;
  for (; j + kPair <= n; j += kPair) Store(Load(from + j), tile + j);
  if (j < n) {
    Store(LoadFirst(from + j, n - j), tile + j);
    j += kPair;
  }
  for (; j % kLanes != 0; j += kN) hn::Store(hn::Zero(F32Tag()), F32Tag(), tile + j);
}

// Makes every NaN the same quiet one, whose payload survives the rounding to bf16.
HWY_INLINE F32Vec PlainNaN(F32Vec value) {
  const F32Vec plain = hn::BitCast(F32Tag(), hn::Set(U32Tag(), 0x7FC00000));
  return hn::IfThenElse(hn::IsNaN(value), plain, value);
}

HWY_INLINE Pair PlainNaN(Pair value) { return {PlainNaN(value.lower), PlainNaN(value.upper)}; }

// Rounds to T.
template <class T>
HWY_NOINLINE void StoreTile(const float* HWY_RESTRICT tile, size_t n, void* HWY_RESTRICT to_data) {
  T* const to = static_cast<T*>(to_data);
  size_t j = 0;
  for (; j + kPair <= n; j += kPair) Store(PlainNaN(Load(tile + j)), to + j);
  if (j < n) StoreFirst(PlainNaN(Load(tile + j)), to + j, n - j);
}

// Reads n elements of an operand, from a row's column `begin` on, into a tile.
HWY_INLINE void ReadTile(const Norm& norm, const Run& run, Operand operand, size_t row,
                         size_t begin, size_t n, float* tile) {
  const rmsnorm_dtype dtype = norm.dtype[operand];
  norm.kernels->leaves->widen[DtypeIndex(dtype)](
      run.Row<char>(operand, row) + begin * ElementSize(dtype), n, tile);
}

// Rounds a tile to such elements.
HWY_INLINE void WriteTile(const Norm& norm, const Run& run, Operand operand, size_t row,
                          size_t begin, size_t n, const float* tile) {
  const rmsnorm_dtype dtype = norm.dtype[operand];
  norm.kernels->leaves->narrow[DtypeIndex(dtype)](
      tile, n, run.Row<char>(operand, row) + begin * ElementSize(dtype));
}

// Adds n elements to a tile, or to any others.
inline HWY_NOINLINE void AddTile(const float* HWY_RESTRICT addend, size_t n,
                                 float* HWY_RESTRICT tile) {
  size_t j = 0;
  for (; j + kPair <= n; j += kPair) Store(Add(Load(addend + j), Load(tile + j)), tile + j);
  if (j < n) {
    StoreFirst(Add(LoadFirst(addend + j, n - j), LoadFirst(tile + j, n - j)), tile + j, n - j);
  }
}

// ------------------------------------------------------------------ binary64

using F64Tag = hn::ScalableTag<double>;
using F64Vec = hn::Vec<F64Tag>;
using HalfTag = hn::Rebind<float, F64Tag>;  // f32, as many as a vector of binary64 has
constexpr size_t kN64 = kN / 2;

HWY_INLINE F64Vec LoadWide(const float* from) {
  return hn::PromoteTo(F64Tag(), hn::Load(HalfTag(), from));
}

// A term of c or, where kSquares says so, of the sum of squares. The product dy * w is exact.
template <bool kSquares>
HWY_INLINE F64Vec AddWideProduct(const float* x, const float* dy, const float* weight, F64Vec sum) {
  const F64Vec xs = LoadWide(x);
  if constexpr (kSquares) return hn::MulAdd(xs, xs, sum);
  return hn::MulAdd(hn::Mul(LoadWide(dy), LoadWide(weight)), xs, sum);
}

// The sums of lanes l to l + kN64 with all lanes that the tree adds to them while it has more than
// kWidth: lane l += lane l + 64, then + 32, and so on. Of the first n elements of a block's tiles,
// padded.
template <bool kSquares, size_t kWidth>
HWY_INLINE F64Vec FoldWide(const float* x, const float* dy, const float* weight, size_t n,
                           size_t l) {
  if constexpr (kWidth < kLanes / 4) {
    return hn::Add(FoldWide<kSquares, 2 * kWidth>(x, dy, weight, n, l),
                   FoldWide<kSquares, 2 * kWidth>(x, dy, weight, n, l + kWidth));
  } else {
    // Four chains hide the latency of fma.
    F64Vec a = hn::Zero(F64Tag());
    F64Vec b = a;
    F64Vec c = a;
    F64Vec e = a;
    for (size_t j = l; j < n; j += kLanes) {
      const size_t k = j + kLanes / 4;
      const size_t m = j + kLanes / 2;
      const size_t o = j + 3 * (kLanes / 4);
      a = AddWideProduct<kSquares>(x + j, dy + j, weight + j, a);
      b = AddWideProduct<kSquares>(x + k, dy + k, weight + k, b);
      c = AddWideProduct<kSquares>(x + m, dy + m, weight + m, c);
      e = AddWideProduct<kSquares>(x + o, dy + o, weight + o, e);
    }
    return hn::Add(hn::Add(a, c), hn::Add(b, e));
  }
}

// Lane l += lane l + size / 2, until one is left.
template <class D>
HWY_INLINE double FoldToOne(D, hn::Vec<D> sum) {
  if constexpr (hn::MaxLanes(D()) > 1) {
    const hn::Half<D> half;
    return FoldToOne(half, hn::Add(hn::LowerHalf(half, sum), hn::UpperHalf(half, sum)));
  } else {
    return hn::GetLane(sum);
  }
}

// c of a block's tiles or, where kSquares says so, the sum of squares, for which dy and weight are
// not read.
template <bool kSquares>
HWY_NOINLINE double SumWideBlock(const float* x, const float* dy, const float* weight, size_t n) {
  return FoldToOne(F64Tag(), FoldWide<kSquares, kN64>(x, dy, weight, n, 0));
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_TILE_INL_H_

// SPDX-License-Identifier: Apache-2.0
// The cold path, compiled for each target: rows whose sums leave the range of f32, in binary64.
// Each function gives the bits of its namesake in reference.cc or reference_backward.cc.
//
// All elements go through tiles of f32, so that the arithmetic is there once for all types. A row
// takes 2.5 to 8 times as long as one in f32. In scalar code it took 14 to 77 times as long.

#if defined(RMSNORM_LIB_KERNELS_COLD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_COLD_INL_H_
#undef RMSNORM_LIB_KERNELS_COLD_INL_H_
#else
#define RMSNORM_LIB_KERNELS_COLD_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "../gradient_terms.h"
#include "../reference.h"
#include "squares-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

using F64Tag = hn::ScalableTag<double>;
using F64Vec = hn::Vec<F64Tag>;
using HalfTag = hn::Rebind<float, F64Tag>;  // f32, as many as a vector of binary64 has
constexpr size_t kN64 = kN / 2;

// ------------------------------------------------------------------ tiles

// A tile holds the f32 values of neighbouring elements, up to this many, and zeros up to a multiple
// of kLanes. For a sum it holds a whole block.
constexpr size_t kTile = 1024;

template <class T>
HWY_NOINLINE void FillTile(const T* from, size_t n, float* HWY_RESTRICT tile) {
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

// The first n elements of the sum of the blocks of StoreSum(). kAll says that n is kPair.
template <bool kAll, class T>
HWY_INLINE void StorePairOfSum(const float* sums, size_t stride, size_t blocks, size_t n, bool add,
                               T* to) {
  Pair total = kAll ? Load(sums) : LoadFirst(sums, n);
  for (size_t block = 1; block < blocks; ++block) {
    const float* const from = sums + block * stride;
    total = Add(total, kAll ? Load(from) : LoadFirst(from, n));
  }
  if (add) total = Add(kAll ? Load(to) : LoadFirst(to, n), total);
  total = {PlainNaN(total.lower), PlainNaN(total.upper)};
  if constexpr (kAll) {
    Store(total, to);
  } else {
    StoreFirst(total, to, n);
  }
}

// Rounds the sum of `blocks` rows of f32 to T and writes it, or adds it to d elements. Such rows
// are the partial sums of dw, and the one row that a tile is.
template <class T>
HWY_NOINLINE void StoreSum(const float* HWY_RESTRICT sums, size_t stride, size_t blocks, size_t d,
                           bool add, void* HWY_RESTRICT to_data) {
  T* const to = static_cast<T*>(to_data);
  size_t j = 0;
  for (; j + kPair <= d; j += kPair) {
    StorePairOfSum<true>(sums + j, stride, blocks, kPair, add, to + j);
  }
  if (j < d) StorePairOfSum<false>(sums + j, stride, blocks, d - j, add, to + j);
}

template <class T>
HWY_INLINE void StoreTile(const float* tile, size_t n, bool add, T* to) {
  StoreSum<T>(tile, 0, 1, n, add, to);
}

// ------------------------------------------------------------------ sums

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

// The sum of a block.
template <bool kSquares>
HWY_NOINLINE double SumWideBlock(const float* x, const float* dy, const float* weight, size_t n) {
  return FoldToOne(F64Tag(), FoldWide<kSquares, kN64>(x, dy, weight, n, 0));
}

// c of a row or, where kSquares says so, its sum of squares, for which dy and weight are not read.
template <bool kSquares, class X, class Y>
HWY_NOINLINE double SumWide(const X* x, const Y* dy, const float* weight, size_t d) {
  HWY_ALIGN float x_tile[kBlock];
  HWY_ALIGN float dy_tile[kSquares ? 1 : kBlock];
  HWY_ALIGN float weight_tile[kSquares ? 1 : kBlock];
  double total = 0;
  for (size_t begin = 0; begin < d; begin += kBlock) {
    const size_t n = std::min(kBlock, d - begin);
    FillTile(x + begin, n, x_tile);
    if constexpr (!kSquares) {
      FillTile(dy + begin, n, dy_tile);
      FillTile(weight + begin, n, weight_tile);
    }
    total += SumWideBlock<kSquares>(x_tile, dy_tile, weight_tile, n);
  }
  return total;
}

template <class X>
double ColdSumSquares(const X* x, size_t d) {
  return SumWide<true, X, X>(x, x, nullptr, d);
}

// ------------------------------------------------------------------ forward

// to = cast_x(float(tile * r)) * weight, in whole vectors. The rounding to X and the weight are
// left out where they are not asked for.
template <class X>
HWY_NOINLINE void ScaleTile(double r, bool cast, const float* weight, size_t n, const float* tile,
                            float* to) {
  const F32Tag tag;
  const HalfTag half;
  const F64Vec rs = hn::Set(F64Tag(), r);
  for (size_t j = 0; j < n; j += kN) {
    const auto lower = hn::DemoteTo(half, hn::Mul(LoadWide(tile + j), rs));
    const auto upper = hn::DemoteTo(half, hn::Mul(LoadWide(tile + j + kN64), rs));
    F32Vec value = PlainNaN(hn::Combine(tag, upper, lower));
    if (cast) value = Round<X>(value);
    if (weight != nullptr) value = hn::Mul(value, hn::LoadU(tag, weight + j));
    hn::StoreU(value, tag, to + j);
  }
}

// As the product of two f32 is exact in binary64, an r of f32 gives the bits of the hot path, and
// no NaN is lost.
template <class X, class Y>
HWY_NOINLINE void ColdScale(const Norm& norm, double r, const X* x, void* y) {
  HWY_ALIGN float tile[kTile];
  HWY_ALIGN float weight_tile[kTile];
  for (size_t begin = 0; begin < norm.d; begin += kTile) {
    const size_t n = std::min(kTile, norm.d - begin);
    const bool whole = n % kN == 0;  // vectors: the weight is read, and f32 written, where they are
    const float* weight = norm.weight != nullptr ? norm.weight + begin : nullptr;
    if (weight != nullptr && !whole) {
      FillTile(weight, n, weight_tile);
      weight = weight_tile;
    }
    Y* const to = static_cast<Y*>(y) + begin;
    FillTile(x + begin, n, tile);
    if constexpr (std::is_same_v<Y, float>) {
      if (whole) {
        ScaleTile<X>(r, norm.cast_then_scale, weight, n, tile, to);
        continue;
      }
    }
    ScaleTile<X>(r, norm.cast_then_scale, weight, n, tile, tile);
    StoreTile(tile, n, false, to);
  }
}

// What a row with a NaN gives: one in every element that comes from its sum.
template <class T>
HWY_NOINLINE void FillWithNaN(T* to, size_t d) {
  const F32Vec nan = hn::Set(F32Tag(), std::numeric_limits<float>::quiet_NaN());
  size_t j = 0;
  for (; j + kPair <= d; j += kPair) Store(Pair{nan, nan}, to + j);
  if (j < d) StoreFirst(Pair{nan, nan}, to + j, d - j);
}

// ------------------------------------------------------------------ backward

template <class X, class Y>
HWY_NOINLINE Terms<double> ColdTerms(const Norm& norm, const GradientRows& rows, size_t row) {
  const X* x = rows.Input<X>(row);
  const double under_root =
      NeedsSquares(norm, rows.rstd) ? UnderRoot(norm, ColdSumSquares(x, norm.d)) : 0;
  const double r = rows.rstd != nullptr ? rows.rstd[row] : InverseRms(norm, under_root);
  return MakeTerms(norm, r, under_root,
                   SumWide<false>(x, rows.Gradient<Y>(row), norm.weight, norm.d));
}

// Turns a tile of x into dx, and adds to a tile of dw.
inline HWY_NOINLINE void GradientOfTile(const Terms<double>& terms, const float* dy,
                                        const float* weight, size_t n, float* x_to_dx, float* dw) {
  const HalfTag half;
  const F64Vec r = hn::Set(F64Tag(), terms.r);
  const F64Vec k = hn::Set(F64Tag(), terms.k);
  const F64Vec q = hn::Set(F64Tag(), terms.q);
  for (size_t j = 0; j < n; j += kN64) {
    const F64Vec xs = LoadWide(x_to_dx + j);
    const F64Vec dys = LoadWide(dy + j);
    const F64Vec sum = hn::MulAdd(hn::Mul(dys, xs), r, LoadWide(dw + j));
    const F64Vec g = hn::Mul(dys, LoadWide(weight + j));
    const F64Vec dx = hn::Mul(r, hn::Sub(g, hn::Mul(hn::Mul(xs, k), q)));
    hn::Store(hn::DemoteTo(half, sum), half, dw + j);
    hn::Store(hn::DemoteTo(half, dx), half, x_to_dx + j);
  }
}

// A dw that is not asked for is computed from zeros and left in its tile.
template <class X, class Y, class Z>
HWY_NOINLINE void ColdGradient(const Norm& norm, const Terms<double>& terms,
                               const GradientRows& rows, size_t row) {
  HWY_ALIGN float x_to_dx[kTile];
  HWY_ALIGN float dy[kTile];
  HWY_ALIGN float weight[kTile];
  HWY_ALIGN float dw[kTile];
  const bool add_to_dw = rows.dw != nullptr && !(rows.start_dw && row == 0);
  for (size_t begin = 0; begin < norm.d; begin += kTile) {
    const size_t n = std::min(kTile, norm.d - begin);
    FillTile(rows.Input<X>(row) + begin, n, x_to_dx);
    FillTile(rows.Gradient<Y>(row) + begin, n, dy);
    FillTile(norm.weight + begin, n, weight);
    if (add_to_dw) {
      FillTile(rows.dw + begin, n, dw);
    } else {
      std::fill_n(dw, kTile, 0.0f);
    }
    GradientOfTile(terms, dy, weight, n, x_to_dx, dw);
    if (rows.dx != nullptr) StoreTile(x_to_dx, n, rows.add_dx, rows.Output<Z>(row) + begin);
    if (rows.dw != nullptr) StoreTile(dw, n, false, rows.dw + begin);
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_COLD_INL_H_

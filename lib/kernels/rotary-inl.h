// SPDX-License-Identifier: Apache-2.0
// Rotary positions (definition 10): the tables of a row as loops read them, rotations of tiles, and
// the leaves of rows of one type.
//
//   T         the type of the elements of a row
//   R         the type that products and sums are rounded to, or float
//   Elements  what is rotated, with Get(j, some) and Put(pair of vectors, j, some)

#if defined(RMSNORM_LIB_KERNELS_ROTARY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_ROTARY_INL_H_
#undef RMSNORM_LIB_KERNELS_ROTARY_INL_H_
#else
#define RMSNORM_LIB_KERNELS_ROTARY_INL_H_
#endif

#include <algorithm>

#include "forward-inl.h"
#include "tile-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ tables

// Rotations by the angle of the tables, and back.
enum class Turn { kForward, kBack };

// Some pairs of the tables of a row, in f32. For neighbours there is a number for each element, and
// the first of a pair has the other sign of sin.
class Rotation {
 public:
  static constexpr size_t kMostPairs = kTile / 2;

  HWY_INLINE Rotation() {}

  // Reads n pairs from `begin` on, rounded to a type.
  HWY_NOINLINE void Read(const Norm& norm, const RowRun& run, size_t row, size_t begin, size_t n,
                         Turn turn, rmsnorm_dtype dtype) {
    const float sign = turn == Turn::kForward ? 1 : -1;
    ReadTable(norm, run, kCos, row, begin, n, dtype, cos_);
    ReadTable(norm, run, kSin, row, begin, n, dtype, sin_);
    if (norm.rotary_pairs == RMSNORM_ROTARY_NEIGHBOURS) {
      SpreadToElements(n, 1, 1, cos_);
      SpreadToElements(n, -sign, sign, sin_);
    } else if (turn == Turn::kBack) {
      for (size_t i = 0; i < n; ++i) sin_[i] = -sin_[i];
    }
  }

  HWY_INLINE const float* cos() const { return cos_; }
  HWY_INLINE const float* sin() const { return sin_; }

 private:
  // An offset of -0 changes no number, and a NaN loses its payload.
  static void ReadTable(const Norm& norm, const RowRun& run, Operand operand, size_t row,
                        size_t begin, size_t n, rmsnorm_dtype dtype, float* table) {
    const rmsnorm_dtype own = norm.dtype[operand];
    norm.kernels->leaves->add_offset[DtypeIndex(own)](
        run.Row<char>(operand, row) + begin * ElementSize(own), n, -0.0f, table);
    if (dtype != own) RoundTile(dtype, n, table);
  }

  // Turns n numbers into first * number and second * number for each of them, from the last on. The
  // table has room for a whole vector.
  static void SpreadToElements(size_t n, float first, float second, float* table) {
    const F32Tag tag;
    for (size_t end = (n + kN - 1) / kN * kN; end > 0; end -= kN) {
      const F32Vec number = hn::Load(tag, table + end - kN);
      hn::StoreInterleaved2(hn::Mul(number, hn::Set(tag, first)),
                            hn::Mul(number, hn::Set(tag, second)), tag, table + 2 * (end - kN));
    }
  }

  HWY_ALIGN float cos_[kTile + 2 * kN];
  HWY_ALIGN float sin_[kTile + 2 * kN];
};

// ------------------------------------------------------------------ pairs

template <class R>
HWY_INLINE Pair RoundedProduct(Pair a, Pair b) {
  return Rounded<R>(Mul(a, b));
}

// Rotates n pairs of elements that are `apart`.
template <class R, class Elements>
HWY_INLINE void RotateHalves(const float* cos, const float* sin, size_t n, size_t apart,
                             const Elements& elements) {
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    const Pair a = elements.Get(j, some);
    const Pair b = elements.Get(j + apart, some);
    const Pair c = Load(cos + j, some);
    const Pair s = Load(sin + j, some);
    elements.Put(Sub(RoundedProduct<R>(a, c), RoundedProduct<R>(b, s)), j, some);
    elements.Put(Add(RoundedProduct<R>(b, c), RoundedProduct<R>(a, s)), j + apart, some);
  });
}

// Rotates n pairs of neighbours.
template <class R, class Elements>
HWY_INLINE void RotateNeighbours(const float* cos, const float* sin, size_t n,
                                 const Elements& elements) {
  const F32Tag tag;
  ForEachPair(0, 2 * n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    const Pair v = elements.Get(j, some);
    const Pair other = {hn::Reverse2(tag, v.lower), hn::Reverse2(tag, v.upper)};
    const Pair c = Load(cos + j, some);
    const Pair s = Load(sin + j, some);
    elements.Put(Add(RoundedProduct<R>(v, c), RoundedProduct<R>(other, s)), j, some);
  });
}

// The first element of a row that is rotated.
HWY_INLINE size_t BeginOfRotated(const Norm& norm, size_t d) {
  return norm.rotary_part == RMSNORM_ROTARY_END ? d - norm.rotated : 0;
}

// ------------------------------------------------------------------ tiles

#if !RMSNORM_NATIVE_BF16

struct TileElements {
  template <class Some>
  HWY_INLINE Pair Get(size_t j, Some some) const {
    return Load(tile + j, some);
  }
  template <class Some>
  HWY_INLINE void Put(Pair value, size_t j, Some some) const {
    Store(value, tile + j, some);
  }

  float* tile;
};

template <class R>
HWY_NOINLINE void RotateTile(const Norm& norm, const Rotation& rotation, size_t n, float* tile) {
  if (norm.rotary_pairs == RMSNORM_ROTARY_HALVES) {
    RotateHalves<R>(rotation.cos(), rotation.sin(), n, norm.rotated / 2, TileElements{tile});
  } else {
    RotateNeighbours<R>(rotation.cos(), rotation.sin(), n, TileElements{tile});
  }
}

// Rotates a row of f32, with tables, products and sums rounded to a type.
inline HWY_NOINLINE void RotateRow(const Norm& norm, const RowRun& run, size_t row, Turn turn,
                                   rmsnorm_dtype dtype, float* values) {
  const auto rotate = dtype == RMSNORM_F16    ? RotateTile<F16>
                      : dtype == RMSNORM_BF16 ? RotateTile<BF16>
                                              : RotateTile<float>;
  float* const rotated = values + BeginOfRotated(norm, run.d);
  const size_t pairs = norm.rotated / 2;
  const size_t step = norm.rotary_pairs == RMSNORM_ROTARY_HALVES ? 1 : 2;
  Rotation rotation;
  for (size_t begin = 0; begin < pairs; begin += Rotation::kMostPairs) {
    const size_t n = std::min(Rotation::kMostPairs, pairs - begin);
    rotation.Read(norm, run, row, begin, n, turn, dtype);
    rotate(norm, rotation, n, rotated + begin * step);
  }
}

#endif  // !RMSNORM_NATIVE_BF16

// ------------------------------------------------------------------ rows of one type

// The elements of a row of x, scaled, and of y.
template <class T>
struct ScaledElements {
  HWY_INLINE ScaledElements() {}

  template <class Some>
  HWY_INLINE Pair Get(size_t j, Some some) const {
    const Pair m = Scaled<T>(cast, Load(x + j, some), r, Load(weight + j, some));
    return round_m ? Rounded<T>(m) : m;
  }
  template <class Some>
  HWY_INLINE void Put(Pair value, size_t j, Some some) const {
    Store(value, y + j, some);
  }

  bool cast;
  bool round_m;
  const T* x;
  const float* weight;
  T* y;
  F32Vec r;
};

// A RotatedLeaf.
template <class R, class T>
HWY_NOINLINE void RotateScaledRows(const Norm& norm, const RowRun& run, const float* cos,
                                   const float* sin, size_t row, size_t count, const float* r) {
  const size_t begin = BeginOfRotated(norm, run.d);
  const size_t pairs = norm.rotated / 2;
  const bool halves = norm.rotary_pairs == RMSNORM_ROTARY_HALVES;
  ScaledElements<T> elements;
  elements.cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  elements.round_m = norm.rotary_rounding != RMSNORM_ROTARY_ROUND_NONE;
  elements.weight = run.Row<float>(kWeight, 0) + begin;
#pragma GCC unroll 1
  for (size_t i = 0; i < count; ++i) {
    elements.x = run.Row<T>(kX, row + i) + begin;
    elements.y = run.Row<T>(kY, row + i) + begin;
    elements.r = hn::Set(F32Tag(), r[i]);
    if (halves) {
      RotateHalves<R>(cos, sin, pairs, pairs, elements);
    } else {
      RotateNeighbours<R>(cos, sin, pairs, elements);
    }
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ROTARY_INL_H_

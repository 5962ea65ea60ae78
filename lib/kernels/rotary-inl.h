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
#include <limits>

#include "forward-inl.h"
#include "tile-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// The first element of a row that is rotated.
HWY_INLINE size_t BeginOfRotated(const Norm& norm, size_t d) {
  return norm.rotary_part == RMSNORM_ROTARY_END ? d - norm.rotated : 0;
}

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

  // The smallest 1 / RMS of a row whose numbers are normal from an x of 2^-63 or more to y;
  // infinity where no row's are. The smallest product is then 2^-110, and a difference of two
  // products is 0 or 2^-118 or more.
  HWY_NOINLINE float SmallestNormal(const Norm& norm, const RowRun& run) const {
    const size_t n = norm.rotated / 2;
    const float none = std::numeric_limits<float>::infinity();
    // Rows of a larger divisor have larger numbers.
    if (norm.dtype[kX] != RMSNORM_BF16 || norm.rotary_pairs != RMSNORM_ROTARY_HALVES ||
        n % kN != 0 || norm.root.divisor > 0x1p32f) {
      return none;
    }
    const float* const weight = run.Row<float>(kWeight, 0) + BeginOfRotated(norm, run.d);
    const U32Tag tag;
    const auto one = hn::BitCast(tag, hn::Set(F32Tag(), 1));
    const auto zero = hn::Zero(tag);
    auto least_weight = one;
    auto least_number = one;
    auto largest = one;
    const auto magnitude = [](const float* from) RMSNORM_LAMBDA {
      return hn::BitCast(U32Tag(), hn::Abs(hn::LoadU(F32Tag(), from)));
    };
    for (size_t j = 0; j < 2 * n; j += kN) {
      const auto w = magnitude(weight + j);
      least_weight = hn::Min(least_weight, w);
      largest = hn::Max(largest, w);
    }
    for (size_t j = 0; j < n; j += kN) {
      const auto c = magnitude(cos_ + j);
      const auto s = magnitude(sin_ + j);
      // One of the two may be zero.
      const auto least =
          hn::Min(hn::IfThenElse(hn::Eq(c, zero), s, c), hn::IfThenElse(hn::Eq(s, zero), c, s));
      least_number = hn::Min(least_number, least);
      largest = hn::Max(largest, hn::Max(c, s));
    }
    const auto first = [](auto bits)
                           RMSNORM_LAMBDA { return hn::GetLane(hn::BitCast(F32Tag(), bits)); };
    if (!(first(hn::MaxOfLanes(tag, largest)) <= 0x1p20f)) return none;
    return 0x1p-47f /
           (first(hn::MinOfLanes(tag, least_weight)) * first(hn::MinOfLanes(tag, least_number)));
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

  HWY_INLINE void SetRow(const RowRun& run, size_t begin, size_t row, float inverse_rms) {
    x = run.Row<T>(kX, row) + begin;
    y = run.Row<T>(kY, row) + begin;
    r = hn::Set(F32Tag(), inverse_rms);
  }

  template <class Some>
  HWY_INLINE Pair ScaledAt(size_t j, Some some, Pair w) const {
    const Pair m = Scaled<T>(cast, Load(x + j, some), r, w);
    return round_m ? Rounded<T>(m) : m;
  }
  // The same, rounded to bf16, where all numbers on the way are normal.
  HWY_INLINE Pair ScaledNormalAt(size_t j, Pair w) const {
    Pair n = Mul(Load(x + j), {r, r});
    if (cast) n = {RoundNormal(n.lower), RoundNormal(n.upper)};
    const Pair m = Mul(n, w);
    return {RoundNormal(m.lower), RoundNormal(m.upper)};
  }
  template <class Some>
  HWY_INLINE Pair Get(size_t j, Some some) const {
    return ScaledAt(j, some, Load(weight + j, some));
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

// Numbers of bf16 to multiply bf16 by, so that each product is rounded as by RoundNormal(). f32
// holds 1 - 2^16 times a number, and the product of two.
struct RoundingFactors {
  HWY_INLINE explicit RoundingFactors(Pair given)
      : number(given),
        high(Mul(given, {hn::Set(F32Tag(), 0x1p16f), hn::Set(F32Tag(), 0x1p16f)})),
        without_high(Sub(given, high)) {}
  HWY_INLINE Pair RoundedProduct(Pair v) const { return MulAdd(v, high, Mul(v, without_high)); }

  Pair number;
  Pair high;
  Pair without_high;
};

// Rotates two whole pairs of a row whose numbers are normal; returns false elsewhere.
template <class R, class Some>
HWY_INLINE bool RotateNormal(const ScaledElements<BF16>& row, size_t j, size_t apart, Some,
                             bool normal, const RoundingFactors& c, const RoundingFactors& s,
                             Pair a_weight, Pair b_weight) {
  if constexpr (!std::is_same_v<Some, All>) return false;
  BF16* const a_to = row.y + j;
  BF16* const b_to = row.y + j + apart;
  if (HWY_UNLIKELY(!normal || HasSmall(row.x + j, row.x + j + apart))) return false;
  const Pair a = row.ScaledNormalAt(j, a_weight);
  const Pair b = row.ScaledNormalAt(j + apart, b_weight);
  if constexpr (std::is_same_v<R, BF16>) {
    StoreNormal(Sub(c.RoundedProduct(a), s.RoundedProduct(b)), a_to,
                Add(c.RoundedProduct(b), s.RoundedProduct(a)), b_to);
  } else {
    StoreBoth(Sub(Mul(a, c.number), Mul(b, s.number)), a_to, All(),
              Add(Mul(b, c.number), Mul(a, s.number)), b_to, All());
  }
  return true;
}

// Rotates the halves of `count` rows, pair by pair, which load the tables and the weight once.
template <class R, class T>
HWY_INLINE void RotateHalvesOfRows(const RowRun& run, const float* cos, const float* sin, size_t n,
                                   size_t begin, size_t row, size_t count, const float* r,
                                   bool normal, ScaledElements<T> elements) {
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    const Pair c = Load(cos + j, some);
    const Pair s = Load(sin + j, some);
    const Pair a_weight = Load(elements.weight + j, some);
    const Pair b_weight = Load(elements.weight + j + n, some);
    const RoundingFactors c_factors(c);
    const RoundingFactors s_factors(s);
#pragma GCC unroll 1
    for (size_t i = 0; i < count; ++i) {
      elements.SetRow(run, begin, row + i, r[i]);
      if constexpr (std::is_same_v<T, BF16>) {
        if (RotateNormal<R>(elements, j, n, some, normal, c_factors, s_factors, a_weight,
                            b_weight)) {
          continue;
        }
      }
      const Pair a = elements.ScaledAt(j, some, a_weight);
      const Pair b = elements.ScaledAt(j + n, some, b_weight);
      elements.Put(Sub(RoundedProduct<R>(a, c), RoundedProduct<R>(b, s)), j, some);
      elements.Put(Add(RoundedProduct<R>(b, c), RoundedProduct<R>(a, s)), j + n, some);
    }
  });
}

// A RotatedLeaf.
template <class R, class T>
HWY_NOINLINE void RotateScaledRows(const Norm& norm, const RowRun& run, const float* cos,
                                   const float* sin, size_t row, size_t count, const float* r,
                                   bool normal) {
  const size_t begin = BeginOfRotated(norm, run.d);
  const size_t pairs = norm.rotated / 2;
  ScaledElements<T> elements;
  elements.cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  elements.round_m = norm.rotary_rounding != RMSNORM_ROTARY_ROUND_NONE;
  elements.weight = run.Row<float>(kWeight, 0) + begin;
  if (norm.rotary_pairs == RMSNORM_ROTARY_HALVES) {
    return RotateHalvesOfRows<R>(run, cos, sin, pairs, begin, row, count, r,
                                 normal && elements.round_m, elements);
  }
#pragma GCC unroll 1
  for (size_t i = 0; i < count; ++i) {
    elements.SetRow(run, begin, row + i, r[i]);
    RotateNeighbours<R>(cos, sin, pairs, elements);
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ROTARY_INL_H_

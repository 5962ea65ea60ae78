// SPDX-License-Identifier: Apache-2.0
// The LayerNorm kernels, compiled for each target.
//
// A row is read twice. The first pass takes sum and sum of squares of v = x - pivot, the pivot
// being the row's first element: mean(v) = S / d, variance = Q / d - mean(v)^2. The second computes
// ((v - mean(v)) * r) * weight + bias from the same v. A large mean common to the row leaves with
// the pivot, where the subtraction is exact, so no error grows with |mean| / deviation: neither the
// variance's nor, since the mean itself is never rounded to f32, that of x - mean.
//
// What is left is a first element far from the mean. Where x - pivot takes part in m roundings of
// u = 2^-24 until it is in a sum, variance + eps =: U is off by at most
//   (3 m + 7) u (variance + mean(v)^2) + 2 u U
// (layer_norm_error.h derives it). A row with mean(v)^2 > 16 U, four deviations, is summed
// again about the mean just found; of normal rows that is one in 16,000. So the relative error of
// U stays below 17 (3 m + 8) u, and for most rows is a tenth of that, at no cost in the first pass.
// An average of some elements as pivot bounds the error too, but holds up the pass for its fold.
//
// Squares about the pivot that overflow f32 make zeros of what is normalised; a row that holds NaN
// or infinity becomes NaN.

#if defined(RMSNORM_BENCH_LAYER_NORM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_BENCH_LAYER_NORM_INL_H_
#undef RMSNORM_BENCH_LAYER_NORM_INL_H_
#else
#define RMSNORM_BENCH_LAYER_NORM_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/elements-inl.h"
#include "layer_norm.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::bench::HWY_NAMESPACE {

using namespace rmsnorm::internal::HWY_NAMESPACE;
using internal::BF16;
using internal::ToF32;

// ------------------------------------------------------------------ sums about a pivot

// Vectors that are summed side by side. Each takes a subtraction and two fmas, of which x86 starts
// at most one set a cycle: four hide the fma's latency of four. NEON may start more, and has the
// registers. Twice as many on x86 make f32 4096 x 128 30 % slower.
constexpr size_t kSumPairs = HWY_ARCH_X86 ? 2 : 4;
constexpr size_t kSumLanes = kSumPairs * kPair;

// Bounds the number of roundings that an element takes part in.
constexpr size_t kSumBlock = 4096;

using FourTag = hn::FixedTag<float, 4>;
using Four = hn::Vec<FourTag>;

// A pair in any order. Even and odd elements of bf16 come apart cheaper than halves do.
template <class T>
HWY_INLINE Pair LoadAnyOrder(const T* from) {
  if constexpr (std::is_same_v<T, BF16>) {
    const U32Tag tag;
    const auto bits = hn::BitCast(tag, hn::LoadU(PackedTag(), Bits(from)));
    return {hn::BitCast(F32Tag(), hn::ShiftLeft<16>(bits)),
            hn::BitCast(F32Tag(), hn::And(bits, hn::Set(tag, 0xFFFF0000u)))};
  } else {
    return Load(from);
  }
}

HWY_INLINE void Add(F32Vec v, F32Vec& sum, F32Vec& squares) {
  // By fma, as AMD's adders have the subtraction to do: bf16 4096 x 128 takes 4 % less time so.
  sum = hn::MulAdd(v, hn::Set(F32Tag(), 1.0f), sum);
  squares = hn::MulAdd(v, v, squares);
}

// The lanes of a vector added up to four.
template <class D>
HWY_INLINE Four FoldToFour(D, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return FoldToFour(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    return v;
  }
}

HWY_INLINE Four FoldToFour(F32Vec (&v)[2 * kSumPairs]) {
  HWY_UNROLL(kSumPairs)
  for (size_t half = kSumPairs; half > 0; half /= 2) {
    HWY_UNROLL(kSumPairs)
    for (size_t a = 0; a < half; ++a) v[a] = hn::Add(v[a], v[a + half]);
  }
  return FoldToFour(F32Tag(), v[0]);
}

// Of `size` elements the sum of x - pivot and that of its squares, each left in four lanes.
template <class T>
HWY_INLINE void SumBlock(const T* HWY_RESTRICT x, size_t size, F32Vec pivot, Four& sum,
                         Four& squares) {
  const F32Tag tag;
  F32Vec s[2 * kSumPairs];
  F32Vec q[2 * kSumPairs];
  HWY_UNROLL(2 * kSumPairs)
  for (size_t a = 0; a < 2 * kSumPairs; ++a) s[a] = q[a] = hn::Zero(tag);
  size_t j = 0;
  for (; j + kSumLanes <= size; j += kSumLanes) {
    HWY_UNROLL(kSumPairs)
    for (size_t a = 0; a < kSumPairs; ++a) {
      const Pair v = LoadAnyOrder(x + j + a * kPair);
      Add(hn::Sub(v.lower, pivot), s[2 * a], q[2 * a]);
      Add(hn::Sub(v.upper, pivot), s[2 * a + 1], q[2 * a + 1]);
    }
  }
  HWY_UNROLL(kSumPairs)
  for (size_t a = 0; a < kSumPairs; ++a) {
    if (j >= size) break;
    const size_t n = size - j;
    if (n >= kPair) {
      const Pair v = LoadAnyOrder(x + j);
      Add(hn::Sub(v.lower, pivot), s[2 * a], q[2 * a]);
      Add(hn::Sub(v.upper, pivot), s[2 * a + 1], q[2 * a + 1]);
    } else {  // beyond the row v is 0, not -pivot
      const Pair v = LoadFirst(x + j, n);
      const auto in_lower = hn::FirstN(tag, std::min(n, kN));
      const auto in_upper = hn::FirstN(tag, n - std::min(n, kN));
      Add(hn::IfThenElseZero(in_lower, hn::Sub(v.lower, pivot)), s[2 * a], q[2 * a]);
      Add(hn::IfThenElseZero(in_upper, hn::Sub(v.upper, pivot)), s[2 * a + 1], q[2 * a + 1]);
    }
    j += kPair;
  }
  sum = FoldToFour(s);
  squares = FoldToFour(q);
}

// ------------------------------------------------------------------ from sums to scales

// What the second pass takes of up to four rows: (x - pivot) * r + shift is normalised.
struct Scales {
  HWY_ALIGN float pivot[4];
  HWY_ALIGN float r[4];
  HWY_ALIGN float shift[4];
};

// The scales of four rows but for the pivots. False if one of the sums is too inexact, or NaN.
HWY_INLINE bool FindScales(const LayerNormParameters& parameters, Four sum, Four squares,
                           Four& mean, Scales& scales) {
  const FourTag tag;
  const Four d = hn::Set(tag, static_cast<float>(parameters.d));
  mean = hn::Div(sum, d);
  const Four variance = hn::NegMulAdd(mean, mean, hn::Div(squares, d));
  const Four under_root = hn::Add(variance, hn::Set(tag, parameters.eps));
  const Four r = hn::Div(hn::Set(tag, 1.0f), hn::Sqrt(under_root));
  hn::Store(r, tag, scales.r);
  hn::Store(hn::Neg(hn::Mul(mean, r)), tag, scales.shift);
  return hn::AllTrue(tag, hn::Le(hn::Mul(mean, mean), hn::Mul(hn::Set(tag, 16.0f), under_root)));
}

// The scales of one row, in all four places.
template <class T>
HWY_NOINLINE void MeasureRow(const LayerNormParameters& parameters, const T* HWY_RESTRICT x,
                             Scales& scales) {
  const FourTag tag;
  float pivot = ToF32(x[0]);
  for (bool again = false;; again = true) {
    Four sum = hn::Zero(tag);
    Four squares = hn::Zero(tag);
    for (size_t begin = 0; begin < parameters.d; begin += kSumBlock) {
      Four block_sum;
      Four block_squares;
      SumBlock(x + begin, std::min(kSumBlock, parameters.d - begin), hn::Set(F32Tag(), pivot),
               block_sum, block_squares);
      sum = hn::Add(sum, block_sum);
      squares = hn::Add(squares, block_squares);
    }
    hn::Store(hn::Set(tag, pivot), tag, scales.pivot);
    Four mean;
    const bool exact = FindScales(parameters, hn::SumOfLanes(tag, sum),
                                  hn::SumOfLanes(tag, squares), mean, scales);
    if (HWY_LIKELY(exact) || again) return;
    pivot += hn::GetLane(mean);
  }
}

// Lane i of the result adds up the lanes of vector i.
HWY_INLINE Four FoldFour(const Four (&v)[4]) {
  const FourTag tag;
  const Four a =
      hn::Add(hn::ConcatLowerLower(tag, v[1], v[0]), hn::ConcatUpperUpper(tag, v[1], v[0]));
  const Four b =
      hn::Add(hn::ConcatLowerLower(tag, v[3], v[2]), hn::ConcatUpperUpper(tag, v[3], v[2]));
  return hn::Add(hn::ConcatEven(tag, b, a), hn::ConcatOdd(tag, b, a));
}

// The scales of four rows, each by itself.
template <class T>
HWY_INLINE void MeasureEach(const LayerNormParameters& parameters, const T* x, Scales& scales) {
  for (size_t i = 0; i < 4; ++i) {
    Scales one;
    MeasureRow(parameters, x + i * parameters.d, one);
    scales.pivot[i] = one.pivot[0];
    scales.r[i] = one.r[0];
    scales.shift[i] = one.shift[0];
  }
}

// The scales of four rows of one block each, at once.
template <class T>
HWY_NOINLINE void MeasureFour(const LayerNormParameters& parameters, const T* HWY_RESTRICT x,
                              Scales& scales) {
  Four sum[4];
  Four squares[4];
  for (size_t i = 0; i < 4; ++i) {
    const T* const row = x + i * parameters.d;
    scales.pivot[i] = ToF32(row[0]);
    SumBlock(row, parameters.d, hn::Set(F32Tag(), scales.pivot[i]), sum[i], squares[i]);
  }
  Four mean;
  if (HWY_LIKELY(FindScales(parameters, FoldFour(sum), FoldFour(squares), mean, scales))) return;
  MeasureEach(parameters, x, scales);
}

// ------------------------------------------------------------------ normalise

// The scales of one row in registers.
struct Scale {
  // Not the implicit one, which gcc would compile for the baseline and then not inline.
  HWY_INLINE Scale() {}

  HWY_INLINE void Set(const Scales& scales, size_t i) {
    const F32Tag tag;
    pivot = hn::Set(tag, scales.pivot[i]);
    r = hn::Set(tag, scales.r[i]);
    shift = hn::Set(tag, scales.shift[i]);
  }

  F32Vec pivot;
  F32Vec r;
  F32Vec shift;
};

HWY_INLINE F32Vec Normalised(F32Vec x, const Scale& scale, F32Vec weight, F32Vec bias) {
  const F32Vec n = hn::MulAdd(hn::Sub(x, scale.pivot), scale.r, scale.shift);
  return hn::MulAdd(n, weight, bias);
}

HWY_INLINE Pair Normalised(Pair x, const Scale& scale, Pair weight, Pair bias) {
  return {Normalised(x.lower, scale, weight.lower, bias.lower),
          Normalised(x.upper, scale, weight.upper, bias.upper)};
}

// The first n < kPair elements.
template <class T>
HWY_INLINE void NormaliseFirst(size_t n, const Scale& scale, const T* x, const float* weight,
                               const float* bias, T* y) {
  StoreFirst(Normalised(LoadFirst(x, n), scale, LoadFirst(weight, n), LoadFirst(bias, n)), y, n);
}

// kRows rows, which share the loads of weight and bias; from the end, which the sums touched last.
// With kStream y goes past the caches, and its rows lie alike to the vectors. Fetching the next
// rows of x meanwhile does not pay: 8192 x 4096 takes 0.87 times memcpy's time in f32 and 1.14 in
// bf16 with it, 0.83 and 0.77 without (Zen 4).
template <size_t kRows, bool kStream, class T>
HWY_NOINLINE void NormaliseRows(const LayerNormParameters& parameters, const Scales& scales,
                                const T* HWY_RESTRICT x, T* HWY_RESTRICT y) {
  const size_t d = parameters.d;
  const float* HWY_RESTRICT weight = parameters.weight;
  const float* HWY_RESTRICT bias = parameters.bias;
  Scale scale[kRows];
  HWY_UNROLL(4)
  for (size_t i = 0; i < kRows; ++i) scale[i].Set(scales, i);
  size_t head = 0;
  if (kStream) {  // such stores must be aligned
    head = std::min(d, -reinterpret_cast<uintptr_t>(y) % sizeof(F32Vec) / sizeof(T));
    if (head > 0) {
      for (size_t i = 0; i < kRows; ++i) {
        NormaliseFirst(head, scale[i], x + i * d, weight, bias, y + i * d);
      }
    }
  }
  size_t j = head + (d - head) / kPair * kPair;
  if (j < d) {
    for (size_t i = 0; i < kRows; ++i) {
      NormaliseFirst(d - j, scale[i], x + i * d + j, weight + j, bias + j, y + i * d + j);
    }
  }
  while (j > head) {
    j -= kPair;
    const Pair w = Load(weight + j);
    const Pair b = Load(bias + j);
    HWY_UNROLL(4)
    for (size_t i = 0; i < kRows; ++i) {
      const Pair normalised = Normalised(Load(x + i * d + j), scale[i], w, b);
      if constexpr (kStream) {
        Stream(normalised, y + i * d + j);
      } else {
        Store(normalised, y + i * d + j);
      }
    }
  }
}

// ------------------------------------------------------------------ kernels

// Up to this many bytes a row is short: the units would idle in its chain of fold, division, root
// and division.
constexpr size_t kShortRowBytes = 2048;

// Up to this many bytes four rows share the weight and the bias, which for one row are two thirds
// of what the second pass loads: f32 64 x 16384 takes 1.7 times memcpy's time so, and 2.3 row by
// row. Beyond it four rows leave L2 before they are normalised.
constexpr size_t kSharingRowBytes = 65536;

template <bool kStream, class T>
HWY_INLINE void NormaliseAll(const LayerNormParameters& parameters, const T* x, T* y, size_t rows) {
  const size_t d = parameters.d;
  const bool in_fours =
      d * sizeof(T) <= kSharingRowBytes && (!kStream || d * sizeof(T) % sizeof(F32Vec) == 0);
  size_t row = 0;
  if (in_fours && d * sizeof(T) <= kShortRowBytes && rows >= 4) {
    // The next four rows are summed before these are normalised, so that the two overlap.
    Scales scales[2];
    MeasureFour(parameters, x, scales[0]);
    for (; row + 4 <= rows; row += 4) {
      if (row + 8 <= rows) MeasureFour(parameters, x + (row + 4) * d, scales[(row / 4 + 1) % 2]);
      NormaliseRows<4, kStream>(parameters, scales[row / 4 % 2], x + row * d, y + row * d);
    }
  } else if (in_fours) {
    for (; row + 4 <= rows; row += 4) {
      Scales scales;
      MeasureEach(parameters, x + row * d, scales);
      NormaliseRows<4, kStream>(parameters, scales, x + row * d, y + row * d);
    }
  }
  for (; row < rows; ++row) {
    Scales scales;
    MeasureRow(parameters, x + row * d, scales);
    NormaliseRows<1, kStream>(parameters, scales, x + row * d, y + row * d);
  }
}

template <class T>
void LayerNormRows(const LayerNormParameters& parameters, const void* x_data, void* y_data,
                   size_t rows, bool stream) {
  const T* x = static_cast<const T*>(x_data);
  T* y = static_cast<T*>(y_data);
  if (stream) {
    NormaliseAll<true>(parameters, x, y, rows);
    hwy::FlushStream();  // before another thread may read y
  } else {
    NormaliseAll<false>(parameters, x, y, rows);
  }
}

}  // namespace rmsnorm::bench::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_BENCH_LAYER_NORM_INL_H_

// SPDX-License-Identifier: Apache-2.0
// The leaves of quantised outputs: the range of values and their integers. T is the type of the
// values.

#if defined(RMSNORM_LIB_KERNELS_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_QUANTISE_INL_H_
#undef RMSNORM_LIB_KERNELS_QUANTISE_INL_H_
#else
#define RMSNORM_LIB_KERNELS_QUANTISE_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "../element.h"
#include "../quantised.h"
#include "forward-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ range

HWY_INLINE float FromBitsOf(float, uint32_t bits) { return FromBits(bits); }
template <class T>
HWY_INLINE float FromBitsOf(T, uint32_t bits) {
  return ToF32(T{static_cast<uint16_t>(bits)});
}

using FourBitsTag = hn::FixedTag<uint32_t, 4>;
using FourBits = hn::Vec<FourBitsTag>;

// The maximum of unsigned lanes, folded to 16 bytes.
template <class D>
HWY_INLINE FourBits MaxToFour(D, hn::Vec<D> lanes) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > sizeof(FourBits)) {
    const hn::Half<D> half;
    return MaxToFour(half, hn::Max(hn::LowerHalf(half, lanes), hn::UpperHalf(half, lanes)));
  } else {
    return hn::BitCast(FourBitsTag(), lanes);
  }
}

// Minimum and maximum of the vectors added, by two integer maxima of their bits. The larger a
// positive number, the larger its bits as a signed integer, in which every negative number is
// smaller. The lower a negative number, the larger its bits as an unsigned integer. Infinities come
// after numbers, and NaNs after infinities.
template <class T>
class RangeOf {
 public:
  using Tag = std::conditional_t<sizeof(T) == 4, U32Tag, PackedTag>;
  using SignedTag = hn::RebindToSigned<Tag>;

  HWY_INLINE RangeOf() : low_(hn::Zero(Tag())), high_(hn::Zero(SignedTag())) {}

  HWY_INLINE void Add(hn::Vec<Tag> bits) {
    low_ = hn::Max(low_, bits);
    high_ = hn::Max(high_, hn::BitCast(SignedTag(), bits));
  }
  HWY_INLINE void AddTo(QuantisedRange& range) const {
    range.Add(FromBitsOf(T(), hn::GetLane(hn::MaxOfLanes(Tag(), low_))));
    const auto high = hn::GetLane(hn::MaxOfLanes(SignedTag(), high_));
    range.Add(FromBitsOf(T(), static_cast<uint32_t>(high)));
  }

  // The bits of the minimum and the maximum, each as the largest of the elements in 16 bytes. The
  // minimum is a positive number where no value is negative.
  HWY_INLINE FourBits Low() const { return MaxToFour(Tag(), low_); }
  HWY_INLINE FourBits High() const { return MaxToFour(Tag(), hn::BitCast(Tag(), high_)); }

 private:
  hn::Vec<Tag> low_;
  hn::Vec<SignedTag> high_;
};

// Adds the n values of a tile to the range of a row.
inline HWY_NOINLINE void AddTileToRange(const float* tile, size_t n, QuantisedRange& range) {
  RangeOf<float> of_tile;
  for (size_t j = 0; j < n; j += kN) of_tile.Add(LoadBits(U32Tag(), Bits(tile + j), n - j));
  of_tile.AddTo(range);
}

// Writes some values = x * r * weight from j on, rounded to T, and calls add(their bits). `cast`
// says that x * r is rounded. The values may replace x.
template <class T, class Some, class Add>
HWY_INLINE void ScaleSome(bool cast, const T* x, const float* weight, size_t j, Some some, F32Vec r,
                          T* values, const Add& add) {
  const Pair value = Scaled<T>(cast, Load(x + j, some), r, Load(weight + j, some));
  if constexpr (sizeof(T) == 4) {
    Store(value, values + j, some);
    add(hn::BitCast(U32Tag(), value.lower));
    add(hn::BitCast(U32Tag(), value.upper));
  } else {
    const auto bits = Narrow(T(), value);
    StoreBits(bits, values + j, some);
    add(bits);
  }
}

// Writes n values, and adds them to the range of a row.
template <class T>
HWY_NOINLINE void ScaleToRange(bool cast, const void* x, const float* weight, size_t n,
                               float inverse_rms, void* values, QuantisedRange& range) {
  using Tag = typename RangeOf<T>::Tag;
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  RangeOf<T> of_values;
  const auto add = [&](hn::Vec<Tag> bits) RMSNORM_LAMBDA { of_values.Add(bits); };
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    ScaleSome(cast, static_cast<const T*>(x), weight, j, some, r, static_cast<T*>(values), add);
  });
  of_values.AddTo(range);
}

// ------------------------------------------------------------------ integers

using I16Tag = hn::RebindToSigned<PackedTag>;

// The nearest integers of a pair of numbers below 2^15 in magnitude, in order.
template <class T>
HWY_INLINE hn::Vec<I16Tag> Integers(Pair value) {
  const F32Tag tag;
  const F32Vec to_integer = hn::Set(tag, kToInteger);
  const auto lower = hn::BitCast(U32Tag(), hn::Add(value.lower, to_integer));
  const auto upper = hn::BitCast(U32Tag(), hn::Add(value.upper, to_integer));
  if constexpr (kSplitsByParity<const T*>) {
    return hn::BitCast(I16Tag(), hn::OddEven(hn::BitCast(PackedTag(), hn::ShiftLeft<16>(upper)),
                                             hn::BitCast(PackedTag(), lower)));
  } else {
    return hn::BitCast(I16Tag(), hn::ConcatEven(PackedTag(), hn::BitCast(PackedTag(), upper),
                                                hn::BitCast(PackedTag(), lower)));
  }
}

using BytesTag = hn::Rebind<int8_t, I16Tag>;

// Narrowing clamps the sums with the zero point.
template <class T>
HWY_INLINE hn::Vec<BytesTag> Quantised(Pair v, F32Vec inverse, hn::Vec<I16Tag> zero) {
  const auto integers = Integers<T>({hn::Mul(v.lower, inverse), hn::Mul(v.upper, inverse)});
  return hn::DemoteTo(BytesTag(), hn::Add(integers, zero));
}

HWY_INLINE void StoreBytes(hn::Vec<BytesTag> bytes, int8_t* to, All) {
  hn::StoreU(bytes, BytesTag(), to);
}
HWY_INLINE void StoreBytes(hn::Vec<BytesTag> bytes, int8_t* to, First some) {
  StoreTail(BytesTag(), bytes, to, some.n);
}

// Writes the integers of n finite values.
template <class T>
HWY_INLINE void QuantiseFinite(const T* from, size_t n, float inverse, float zero, int8_t* q) {
  const F32Vec inverses = hn::Set(F32Tag(), inverse);
  const auto zeros = hn::Set(I16Tag(), static_cast<int16_t>(zero));
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    StoreBytes(Quantised<T>(MakeForSum(from + j, some), inverses, zeros), q + j, some);
  });
}

// Writes the integers of n values. All values are finite if `steps.none` is false.
template <class T>
HWY_NOINLINE void QuantiseValues(const void* from, size_t n, const QuantisedSteps& steps,
                                 int8_t* q) {
  if (steps.none) {
    std::memset(q, 0, n);
  } else {
    QuantiseFinite(static_cast<const T*>(from), n, steps.inverse, steps.zero, q);
  }
}

// ------------------------------------------------------------------ groups

// Groups of 8 KiB of values, but no more than kMostGroups, go through three loops, so that kN
// groups share two divisions (doc/data/changes.csv, "Gates, post-norms, quantised outputs").
template <class T>
constexpr size_t kGroupsTile = 8192 / sizeof(T);
constexpr size_t kMostGroups = 128;

// The largest of the elements of each of kN groups, as f32. A group has its elements in 16 bytes.
template <class T>
HWY_INLINE F32Vec MaxOfGroups(const uint32_t (*groups)[4]) {
  using Tag = typename RangeOf<T>::Tag;
  const U32Tag tag;
  const auto max = [](hn::Vec<U32Tag> a, hn::Vec<U32Tag> b) RMSNORM_LAMBDA {
    return hn::BitCast(U32Tag(), hn::Max(hn::BitCast(Tag(), a), hn::BitCast(Tag(), b)));
  };
  // The maxima of the even and the odd lanes of two vectors, in order.
  const auto fold = [max](hn::Vec<U32Tag> a, hn::Vec<U32Tag> b) RMSNORM_LAMBDA {
    return max(hn::ConcatEven(U32Tag(), b, a), hn::ConcatOdd(U32Tag(), b, a));
  };
  const auto lanes = [groups](size_t quarter)
                         RMSNORM_LAMBDA { return hn::Load(U32Tag(), groups[quarter * (kN / 4)]); };
  const auto bits = fold(fold(lanes(0), lanes(1)), fold(lanes(2), lanes(3)));
  if constexpr (sizeof(T) == 4) {
    return hn::BitCast(F32Tag(), bits);
  } else if constexpr (std::is_same_v<T, BF16>) {
    const auto upper = hn::And(bits, hn::Set(tag, 0xFFFF0000u));
    return hn::BitCast(F32Tag(), hn::Max(upper, hn::ShiftLeft<16>(bits)));
  } else {
    const auto largest = hn::Max(hn::And(bits, hn::Set(tag, 0xFFFF)), hn::ShiftRight<16>(bits));
    return Widen(F16(), hn::DemoteTo(U16Tag(), hn::BitCast(hn::RebindToSigned<U32Tag>(), largest)));
  }
}

// What the loops leave for each other.
struct GroupsTile {
  HWY_ALIGN uint32_t low[kMostGroups][4];   // ranges, each in 16 bytes
  HWY_ALIGN uint32_t high[kMostGroups][4];  // without zero points, the largest magnitudes
  HWY_ALIGN float inverse[kMostGroups];
  HWY_ALIGN int8_t zero[kMostGroups];
};

// Calls group(i, for_each_pair) for the groups of n elements. for_each_pair(f) calls f(j, All) for
// each pair of the group, or f(j, First) for a group that is shorter than a pair. The two kinds of
// groups have separate loops, out of which compilers move what all groups share.
template <class Group>
HWY_INLINE void ForEachGroup(size_t n, size_t size, const Group& group) {
  size_t i = 0;
  if (size < kPair) {
    for (size_t begin = 0; begin < n; begin += size) {
      group(i++, [=](const auto& f) RMSNORM_LAMBDA { f(begin, First{size}); });
    }
  } else {
    for (size_t begin = 0; begin < n; begin += size) {
      group(i++, [=](const auto& f) RMSNORM_LAMBDA {
        for (size_t j = begin; j < begin + size; j += kPair) f(j, All());
      });
    }
  }
}

// Scales n elements, and leaves the ranges of their groups in the tile.
template <bool kHasZero, class T>
HWY_NOINLINE void ScaleGroups(bool cast, const T* x, const float* weight, size_t n, size_t size,
                              float inverse_rms, T* values, GroupsTile& tile) {
  using Tag = typename RangeOf<T>::Tag;
  using Lane = hn::TFromD<Tag>;
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  const auto magnitude = hn::Set(Tag(), static_cast<Lane>(std::numeric_limits<Lane>::max() / 2));
  ForEachGroup(n, size, [&](size_t group, const auto& for_each_pair) RMSNORM_LAMBDA {
    RangeOf<T> range;
    auto largest = hn::Zero(Tag());
    const auto add = [&](hn::Vec<Tag> bits) RMSNORM_LAMBDA {
      if constexpr (kHasZero) {
        range.Add(bits);
      } else {
        largest = hn::Max(largest, hn::And(bits, magnitude));
      }
    };
    for_each_pair([&](size_t j, auto some)
                      RMSNORM_LAMBDA { ScaleSome(cast, x, weight, j, some, r, values, add); });
    const FourBitsTag tag;
    if constexpr (kHasZero) {
      hn::Store(range.Low(), tag, tile.low[group]);
      hn::Store(range.High(), tag, tile.high[group]);
    } else {
      hn::Store(MaxToFour(Tag(), largest), tag, tile.high[group]);
    }
  });
}

// Finds the steps of `count` groups, and writes their scales. Returns whether all are finite.
template <class T>
HWY_NOINLINE bool FindStepsOfGroups(size_t count, bool has_zero, GroupsTile& tile, float* scale) {
  const F32Tag tag;
  const F32Vec smallest = hn::Set(tag, kSmallestInteger);
  const F32Vec steps = hn::Set(tag, has_zero ? kAsymmetricSteps : kSymmetricSteps);
  bool all_finite = true;
  for (size_t i = 0; i < count; i += kN) {
    const auto exist = hn::FirstN(tag, count - i);
    const F32Vec highest = hn::IfThenElseZero(exist, MaxOfGroups<T>(tile.high + i));
    F32Vec lowest = hn::Zero(tag);
    if (has_zero) {
      lowest = hn::IfThenElseZero(exist, MaxOfGroups<T>(tile.low + i));
      lowest = hn::IfThenZeroElse(hn::Gt(lowest, hn::Zero(tag)), lowest);  // a NaN stays one
    }
    const F32Vec width = hn::Sub(highest, lowest);
    const auto finite = hn::Le(width, hn::Set(tag, std::numeric_limits<float>::max()));
    const auto usual = hn::And(finite, hn::Ge(width, hn::Set(tag, kSmallestWidth)));
    const F32Vec inverse = hn::IfThenElseZero(usual, hn::Div(steps, width));
    const F32Vec of_finite = hn::IfThenElseZero(usual, hn::Div(width, steps));
    const F32Vec of_others = hn::Set(tag, std::numeric_limits<float>::quiet_NaN());
    hn::Store(inverse, tag, tile.inverse + i);
    StoreBits(tag, hn::IfThenElse(finite, of_finite, of_others), scale + i, count - i);
    if (has_zero) {
      const F32Vec rounded = hn::Round(hn::Sub(smallest, hn::Mul(lowest, inverse)));
      const F32Vec clamped = hn::Min(hn::Max(rounded, smallest), hn::Set(tag, kLargestInteger));
      const hn::Rebind<int8_t, F32Tag> bytes;
      const hn::RebindToSigned<U32Tag> whole;
      hn::Store(hn::DemoteTo(bytes, hn::ConvertTo(whole, hn::IfThenElseZero(usual, clamped))),
                bytes, tile.zero + i);
    }
    all_finite &= hn::AllTrue(tag, finite);
  }
  return all_finite;
}

// Writes the integers of n elements by the steps in the tile, and the zero points of their groups.
// The integers of a group that is not finite are any.
template <bool kHasZero, class T>
HWY_NOINLINE void QuantiseFiniteGroups(const T* values, size_t n, size_t size,
                                       const GroupsTile& tile, int8_t* q, int8_t* zero) {
  ForEachGroup(n, size, [&](size_t group, const auto& for_each_pair) RMSNORM_LAMBDA {
    const F32Vec inverse = hn::Set(F32Tag(), tile.inverse[group]);
    if constexpr (kHasZero) zero[group] = tile.zero[group];
    for_each_pair([&](size_t j, auto some) RMSNORM_LAMBDA {
      const Pair value = MakeForSum(values + j, some);
      auto integers = Integers<T>({hn::Mul(value.lower, inverse), hn::Mul(value.upper, inverse)});
      if constexpr (kHasZero) integers = hn::Add(integers, hn::Set(I16Tag(), tile.zero[group]));
      StoreBytes(hn::DemoteTo(BytesTag(), integers), q + j, some);
    });
  });
}

// A RowLeaf: scales some groups, into y or else onto the stack, and quantises them.
template <class T>
HWY_NOINLINE void QuantiseGroups(const Norm& norm, const RowRun& run, Operand source, size_t row,
                                 float r) {
  const size_t size = norm.group;
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  const bool has_zero = run.Has(kZero);
  const auto scale_groups = has_zero ? ScaleGroups<true, T> : ScaleGroups<false, T>;
  const auto quantise = has_zero ? QuantiseFiniteGroups<true, T> : QuantiseFiniteGroups<false, T>;
  const size_t at_once = std::clamp(kGroupsTile<T>, size, kMostGroups * size);
  HWY_ALIGN T kept[kBlock];  // no group is longer
  GroupsTile tile;
  for (size_t begin = 0; begin < run.d; begin += at_once) {
    const size_t n = std::min(at_once, run.d - begin);
    const size_t first = begin / size;
    T* const values = run.Has(kY) ? run.Row<T>(kY, row) + begin : kept;
    int8_t* const q = run.Row<int8_t>(kQ, row) + begin;
    float* const scale = run.Row<float>(kScale, row) + first;
    int8_t* const zero = has_zero ? run.Row<int8_t>(kZero, row) + first : nullptr;
    scale_groups(cast, run.Row<T>(source, row) + begin, run.Row<float>(kWeight, row) + begin, n,
                 size, r, values, tile);
    const bool finite = FindStepsOfGroups<T>(n / size, has_zero, tile, scale);
    quantise(values, n, size, tile, q, zero);
    for (size_t i = 0; !finite && i < n / size; ++i) {
      if (std::isnan(scale[i])) std::memset(q + i * size, 0, size);
    }
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_QUANTISE_INL_H_

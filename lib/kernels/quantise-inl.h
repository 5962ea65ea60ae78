// SPDX-License-Identifier: Apache-2.0
// The leaves of quantised outputs: the range of values and their integers. T is the type of the
// values.

#if defined(RMSNORM_LIB_KERNELS_QUANTISE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_QUANTISE_INL_H_
#undef RMSNORM_LIB_KERNELS_QUANTISE_INL_H_
#else
#define RMSNORM_LIB_KERNELS_QUANTISE_INL_H_
#endif

#include <cstdint>
#include <cstring>
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

// The maximum of unsigned lanes, folded to four.
template <class D>
HWY_INLINE FourBits MaxToFour(D, hn::Vec<D> bits) {
  if constexpr (hn::MaxLanes(D()) * sizeof(hn::TFromD<D>) > sizeof(FourBits)) {
    const hn::Half<D> half;
    return MaxToFour(half, hn::Max(hn::LowerHalf(half, bits), hn::UpperHalf(half, bits)));
  } else if constexpr (sizeof(hn::TFromD<D>) == 2) {
    const FourBitsTag four;
    const FourBits both = hn::BitCast(four, bits);
    return hn::Max(hn::ShiftRight<16>(both), hn::And(both, hn::Set(four, 0xFFFF)));
  } else {
    return bits;
  }
}

// The last two steps for four groups at once: lane i belongs to group i.
HWY_INLINE FourBits MaxOfFour(FourBits a, FourBits b, FourBits c, FourBits d) {
  const FourBitsTag tag;
  const FourBits ab = hn::Max(hn::ConcatLowerLower(tag, b, a), hn::ConcatUpperUpper(tag, b, a));
  const FourBits cd = hn::Max(hn::ConcatLowerLower(tag, d, c), hn::ConcatUpperUpper(tag, d, c));
  return hn::Max(hn::ConcatEven(tag, cd, ab), hn::ConcatOdd(tag, cd, ab));
}

// Widens the bits of four elements of T.
template <class T>
HWY_INLINE Four WidenFour(FourBits bits) {
  if constexpr (std::is_same_v<T, BF16>) bits = hn::ShiftLeft<16>(bits);
  if constexpr (std::is_same_v<T, F16>) {
    const auto half = hn::DemoteTo(hn::Rebind<uint16_t, FourTag>(),
                                   hn::BitCast(hn::Rebind<int32_t, FourTag>(), bits));
    return hn::PromoteTo(FourTag(), hn::BitCast(hn::Rebind<hwy::float16_t, FourTag>(), half));
  }
  return hn::BitCast(FourTag(), bits);
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
  template <class Some>
  HWY_INLINE void AddElements(const T* from, Some some) {
    if constexpr (sizeof(T) == 4) {
      const Pair pair = Load(from, some);
      Add(hn::BitCast(U32Tag(), pair.lower));
      Add(hn::BitCast(U32Tag(), pair.upper));
    } else {
      Add(LoadBits(from, some));
    }
  }
  HWY_INLINE void AddTo(QuantisedRange& range) const {
    range.Add(FromBitsOf(T(), hn::GetLane(hn::MaxOfLanes(Tag(), low_))));
    const auto high = hn::GetLane(hn::MaxOfLanes(SignedTag(), high_));
    range.Add(FromBitsOf(T(), static_cast<uint32_t>(high)));
  }

  // The bits of the minimum, the maximum and the largest magnitude, in four lanes whose largest is
  // the result. The minimum is a positive number where no value is negative.
  HWY_INLINE FourBits Low() const { return MaxToFour(Tag(), low_); }
  HWY_INLINE FourBits High() const { return MaxToFour(Tag(), hn::BitCast(Tag(), high_)); }
  HWY_INLINE FourBits Magnitude() const {
    const Tag tag;
    const auto magnitude = hn::And(low_, hn::BitCast(tag, hn::Set(SignedTag(), kMagnitude)));
    return MaxToFour(tag, hn::Max(hn::BitCast(tag, high_), magnitude));
  }

 private:
  static constexpr auto kMagnitude = std::numeric_limits<hn::TFromD<SignedTag>>::max();

  hn::Vec<Tag> low_;
  hn::Vec<SignedTag> high_;
};

// Adds the n values of a tile to the range of a row.
inline HWY_NOINLINE void AddTileToRange(const float* tile, size_t n, QuantisedRange& range) {
  RangeOf<float> of_tile;
  for (size_t j = 0; j < n; j += kN) of_tile.Add(LoadBits(U32Tag(), Bits(tile + j), n - j));
  of_tile.AddTo(range);
}

// Writes values = x * r * weight, rounded to T, and returns their range. `cast` says that x * r is
// rounded. The values may replace x.
template <class T>
HWY_INLINE RangeOf<T> ScaledRange(bool cast, const T* x, const float* weight, size_t n,
                                  float inverse_rms, T* values) {
  const F32Vec r = hn::Set(F32Tag(), inverse_rms);
  RangeOf<T> of_values;
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    const Pair value = Scaled<T>(cast, Load(x + j, some), r, Load(weight + j, some));
    if constexpr (sizeof(T) == 4) {
      Store(value, values + j, some);
      of_values.Add(hn::BitCast(U32Tag(), value.lower));
      of_values.Add(hn::BitCast(U32Tag(), value.upper));
    } else {
      const auto bits = Narrow(T(), value);
      StoreBits(bits, values + j, some);
      of_values.Add(bits);
    }
  });
  return of_values;
}

// Adds the same values to the range of a row.
template <class T>
HWY_NOINLINE void ScaleToRange(bool cast, const void* x, const float* weight, size_t n, float r,
                               void* values, QuantisedRange& range) {
  ScaledRange(cast, static_cast<const T*>(x), weight, n, r, static_cast<T*>(values)).AddTo(range);
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

// Some groups of a row go through three loops, so that the steps of several groups overlap
// (doc/data/changes.csv, "Gates, post-norms, quantised outputs").
constexpr size_t kGroupsTile = 1024;
constexpr size_t kMostGroups = kGroupsTile / 8;

// What the loops leave for each other.
struct GroupsTile {
  HWY_ALIGN uint32_t low[kMostGroups][4];   // ranges, each in four lanes
  HWY_ALIGN uint32_t high[kMostGroups][4];  // without zero points, the largest magnitudes
  HWY_ALIGN float inverse[kMostGroups];
  HWY_ALIGN float zero[kMostGroups];

  template <class T>
  HWY_INLINE void SetRange(size_t group, const RangeOf<T>& range, bool has_zero) {
    const FourBitsTag tag;
    hn::Store(has_zero ? range.High() : range.Magnitude(), tag, high[group]);
    if (has_zero) hn::Store(range.Low(), tag, low[group]);
  }

  // Finds the steps of four groups, which share two divisions, and writes their scales. Returns
  // false where one of them is not finite.
  template <class T>
  HWY_INLINE bool FindFourSteps(size_t group, bool has_zero, float* scale) {
    const FourTag tag;
    const auto of_four = [](const uint32_t(*bits)[4]) RMSNORM_LAMBDA {
      const FourBitsTag bits_tag;
      return WidenFour<T>(MaxOfFour(hn::Load(bits_tag, bits[0]), hn::Load(bits_tag, bits[1]),
                                    hn::Load(bits_tag, bits[2]), hn::Load(bits_tag, bits[3])));
    };
    const Four smallest = hn::Set(tag, kSmallestInteger);
    const Four highest = of_four(high + group);
    Four lowest = hn::Zero(tag);
    if (has_zero) {
      lowest = of_four(low + group);
      lowest = hn::IfThenZeroElse(hn::Gt(lowest, hn::Zero(tag)), lowest);  // a NaN stays one
    }
    const Four width = hn::Sub(highest, lowest);
    const Four steps = hn::Set(tag, has_zero ? kAsymmetricSteps : kSymmetricSteps);
    const auto none = hn::Lt(width, hn::Set(tag, kSmallestWidth));
    const Four inverses = hn::IfThenZeroElse(none, hn::Div(steps, width));
    hn::Store(inverses, tag, inverse + group);
    hn::StoreU(hn::IfThenZeroElse(none, hn::Div(width, steps)), tag, scale);
    if (has_zero) {
      const Four rounded = hn::Round(hn::Sub(smallest, hn::Mul(lowest, inverses)));
      const Four clamped = hn::Min(hn::Max(rounded, smallest), hn::Set(tag, kLargestInteger));
      hn::Store(hn::IfThenZeroElse(none, clamped), tag, zero + group);
    }
    const Four largest = hn::Set(tag, std::numeric_limits<float>::max());
    return hn::AllTrue(tag, hn::Le(width, largest));
  }
};

// Quantises the values of a group.
template <class T>
HWY_NOINLINE void QuantiseGroup(const RowRun& run, size_t row, size_t group, size_t size,
                                const T* values) {
  RangeOf<T> of_values;
  ForEachPair(0, size,
              [&](size_t j, auto some) RMSNORM_LAMBDA { of_values.AddElements(values + j, some); });
  QuantisedRange range;
  of_values.AddTo(range);
  const QuantisedSteps steps = WriteSteps(run, row, group, range);
  QuantiseValues<T>(values, size, steps, run.Row<int8_t>(kQ, row) + group * size);
}

// A RowLeaf: scales some groups, into y or else onto the stack, and quantises them.
template <class T>
HWY_NOINLINE void QuantiseGroups(const Norm& norm, const RowRun& run, Operand source, size_t row,
                                 float r) {
  const size_t size = norm.group;
  const bool cast = norm.rounding == RMSNORM_ROUND_BEFORE_WEIGHT;
  const bool has_zero = run.Has(kZero);
  const T* const x = run.Row<T>(source, row);
  const float* const weight = run.Row<float>(kWeight, row);
  float* const scale = run.Row<float>(kScale, row);
  int8_t* const q = run.Row<int8_t>(kQ, row);
  const size_t at_once = std::clamp(4 * size, kGroupsTile, kBlock);
  HWY_ALIGN T kept[kBlock];  // no group is longer
  GroupsTile tile;
  std::fill_n(tile.zero, kMostGroups, 0.0f);
  for (size_t begin = 0; begin < run.d; begin += at_once) {
    const size_t count = std::min(at_once, run.d - begin) / size;
    const size_t first = begin / size;
    T* const values = run.Has(kY) ? run.Row<T>(kY, row) + begin : kept;
    for (size_t i = 0; i < count; ++i) {
      const size_t j = begin + i * size;
      const auto range = ScaledRange(cast, x + j, weight + j, size, r, values + i * size);
      tile.SetRange(i, range, has_zero);
    }
    size_t done = 0;
    while (done + 4 <= count && tile.FindFourSteps<T>(done, has_zero, scale + first + done)) {
      done += 4;
    }
    for (size_t i = 0; i < done; ++i) {
      if (has_zero) run.Row<int8_t>(kZero, row)[first + i] = static_cast<int8_t>(tile.zero[i]);
      QuantiseFinite(values + i * size, size, tile.inverse[i], tile.zero[i], q + begin + i * size);
    }
    for (size_t i = done; i < count; ++i) {
      QuantiseGroup(run, row, first + i, size, values + i * size);
    }
  }
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_QUANTISE_INL_H_

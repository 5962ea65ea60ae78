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

// Writes values = x * r * weight, rounded to T, and adds them to the range of a row. `cast` says
// that x * r is rounded. The values may replace x.
template <class T>
HWY_NOINLINE void ScaleToRange(bool cast, const void* x_data, const float* weight, size_t n,
                               float inverse_rms, void* values_data, QuantisedRange& range) {
  const T* const x = static_cast<const T*>(x_data);
  T* const values = static_cast<T*>(values_data);
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

// Writes the integers of n values. All values are finite if `steps.none` is false.
template <class T>
HWY_NOINLINE void QuantiseValues(const void* from_data, size_t n, const QuantisedSteps& steps,
                                 int8_t* q) {
  if (steps.none) {
    std::memset(q, 0, n);
    return;
  }
  const T* const from = static_cast<const T*>(from_data);
  const F32Vec inverse = hn::Set(F32Tag(), steps.inverse);
  const auto zero = hn::Set(I16Tag(), static_cast<int16_t>(steps.zero));
  ForEachPair(0, n, [&](size_t j, auto some) RMSNORM_LAMBDA {
    StoreBytes(Quantised<T>(MakeForSum(from + j, some), inverse, zero), q + j, some);
  });
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_QUANTISE_INL_H_

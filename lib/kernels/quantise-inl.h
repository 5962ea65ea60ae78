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
#include "squares-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

// ------------------------------------------------------------------ range

HWY_INLINE float FromBitsOf(float, uint32_t bits) { return FromBits(bits); }
template <class T>
HWY_INLINE float FromBitsOf(T, uint32_t bits) {
  return ToF32(T{static_cast<uint16_t>(bits)});
}

// Adds n values to the range of a row, with two operations a vector. As signed integers the bits of
// positive numbers rise with them and exceed all others. As unsigned integers the bits of negative
// numbers rise as these fall. Infinities come after numbers, and NaNs after infinities.
template <class T>
HWY_NOINLINE void AddValuesToRange(const void* from_data, size_t n, QuantisedRange& range) {
  const T* const from = static_cast<const T*>(from_data);
  using Tag = std::conditional_t<sizeof(T) == 4, U32Tag, PackedTag>;
  const Tag tag;
  const hn::RebindToSigned<Tag> signed_tag;
  constexpr size_t kSize = hn::MaxLanes(Tag());
  auto low = hn::Zero(tag);
  auto high = hn::Zero(signed_tag);
  for (size_t j = 0; j < n; j += kSize) {
    const auto* const at = Bits(from + j);
    const auto bits = j + kSize <= n ? hn::LoadU(tag, at) : LoadBits(tag, at, n - j);
    low = hn::Max(low, bits);
    high = hn::Max(high, hn::BitCast(signed_tag, bits));
  }
  range.Add(FromBitsOf(T(), hn::GetLane(hn::MaxOfLanes(tag, low))));
  range.Add(FromBitsOf(T(), static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(signed_tag, high)))));
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

// Writes the integers of n values, which are all finite unless there are no steps.
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

// SPDX-License-Identifier: Apache-2.0
// Loads and stores of the element types as vectors of f32, compiled for each target. They give the
// bits of the scalar conversions in element.h.

#if defined(RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_
#undef RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "../element.h"
#include "highway-inl.h"

RMSNORM_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using U32Tag = hn::Rebind<uint32_t, F32Tag>;
using U16Tag = hn::Rebind<uint16_t, F32Tag>;          // half a vector: as many lanes as F32Tag
using PackedTag = hn::Repartition<uint16_t, F32Tag>;  // a whole vector of 16-bit elements
using F32Vec = hn::Vec<F32Tag>;
using U16Vec = hn::Vec<U16Tag>;

// f32 values in a vector. A constant, as no target here has scalable vectors.
constexpr size_t kN = HWY_LANES(float);

// The unit of the loops: 2 kN elements, which are one vector of 16-bit elements.
constexpr size_t kPair = 2 * kN;
struct Pair {
  F32Vec lower;
  F32Vec upper;
};

HWY_INLINE const uint16_t* Bits(const F16* p) { return reinterpret_cast<const uint16_t*>(p); }
HWY_INLINE const uint16_t* Bits(const BF16* p) { return reinterpret_cast<const uint16_t*>(p); }
HWY_INLINE uint16_t* Bits(F16* p) { return reinterpret_cast<uint16_t*>(p); }
HWY_INLINE uint16_t* Bits(BF16* p) { return reinterpret_cast<uint16_t*>(p); }

// ------------------------------------------------------------------ conversions in registers

HWY_INLINE F32Vec Widen(BF16, U16Vec bits) {
  return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(hn::PromoteTo(U32Tag(), bits)));
}

HWY_INLINE F32Vec Widen(F16, U16Vec bits) {
  return hn::PromoteTo(F32Tag(), hn::BitCast(hn::Rebind<hwy::float16_t, F32Tag>(), bits));
}

// The bits of `value` after rounding to bf16, in the upper half of each lane; the lower half is
// undefined. By integers: Highway 1.0.3 truncates. A NaN must not have payload bits that the
// addition carries into the sign or takes away; PrepareWeight() sees to that, and nothing else
// brings a NaN.
HWY_INLINE hn::Vec<U32Tag> RoundToBF16(F32Vec value) {
  const U32Tag tag;
  const auto bits = hn::BitCast(tag, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(tag, 1));
  return hn::Add(hn::Add(bits, hn::Set(tag, 0x7FFF)), odd);
}

HWY_INLINE hn::Vec<PackedTag> Narrow(BF16, Pair value) {
  const PackedTag tag;
#if RMSNORM_NATIVE_BF16
  // The native instruction takes subnormals for zero, so a zero in its result may be wrong.
  const NativeBF16 packed = NativeNarrow(value.lower, value.upper);
  if (HWY_LIKELY(!HasZero(packed, packed))) return packed;
#endif
  return hn::ConcatOdd(tag, hn::BitCast(tag, RoundToBF16(value.upper)),
                       hn::BitCast(tag, RoundToBF16(value.lower)));
}

HWY_INLINE U16Vec NarrowHalf(F16, F32Vec value) {
  return hn::BitCast(U16Tag(), hn::DemoteTo(hn::Rebind<hwy::float16_t, F32Tag>(), value));
}

// Rounds to T and back, as CastTo<T>() does.
template <class T>
HWY_INLINE F32Vec Round(F32Vec value) {
  if constexpr (std::is_same_v<T, F16>) {
    return Widen(F16(), NarrowHalf(F16(), value));
  } else if constexpr (std::is_same_v<T, BF16>) {
    return hn::BitCast(F32Tag(), hn::And(RoundToBF16(value), hn::Set(U32Tag(), 0xFFFF0000u)));
  } else {
    return value;
  }
}

// ------------------------------------------------------------------ pairs, at any alignment

HWY_INLINE Pair Load(const float* from) {
  return {hn::LoadU(F32Tag(), from), hn::LoadU(F32Tag(), from + kN)};
}

template <class T>
HWY_INLINE Pair Load(const T* from) {
  return {Widen(T(), hn::LoadU(U16Tag(), Bits(from))),
          Widen(T(), hn::LoadU(U16Tag(), Bits(from + kN)))};
}

HWY_INLINE void Store(Pair value, float* to) {
  hn::StoreU(value.lower, F32Tag(), to);
  hn::StoreU(value.upper, F32Tag(), to + kN);
}

// Two stores of half a vector: joining the halves first costs more than the second store.
HWY_INLINE void Store(Pair value, F16* to) {
  hn::StoreU(NarrowHalf(F16(), value.lower), U16Tag(), Bits(to));
  hn::StoreU(NarrowHalf(F16(), value.upper), U16Tag(), Bits(to + kN));
}

HWY_INLINE void Store(Pair value, BF16* to) {
  hn::StoreU(Narrow(BF16(), value), PackedTag(), Bits(to));
}

// Two pairs to two places. In native bf16 they share the test for zeros.
template <class T>
HWY_INLINE void StoreBoth(Pair a, T* a_to, Pair b, T* b_to) {
#if RMSNORM_NATIVE_BF16
  if constexpr (std::is_same_v<T, BF16>) {
    const NativeBF16 a_bits = NativeNarrow(a.lower, a.upper);
    const NativeBF16 b_bits = NativeNarrow(b.lower, b.upper);
    if (HWY_LIKELY(!HasZero(a_bits, b_bits))) {
      hn::StoreU(a_bits, PackedTag(), Bits(a_to));
      hn::StoreU(b_bits, PackedTag(), Bits(b_to));
      return;
    }
  }
#endif
  Store(a, a_to);
  Store(b, b_to);
}

// Past the caches; `to` is aligned to a vector.
HWY_INLINE void Stream(Pair value, float* to) {
  hn::Stream(value.lower, F32Tag(), to);
  hn::Stream(value.upper, F32Tag(), to + kN);
}

HWY_INLINE void Stream(Pair value, F16* to) {
  hn::Stream(NarrowHalf(F16(), value.lower), U16Tag(), Bits(to));
  hn::Stream(NarrowHalf(F16(), value.upper), U16Tag(), Bits(to + kN));
}

HWY_INLINE void Stream(Pair value, BF16* to) {
  hn::Stream(Narrow(BF16(), value), PackedTag(), Bits(to));
}

// ------------------------------------------------------------------ the first n < kPair elements

// AVX-512 masks loads and stores in hardware, AVX2 for 32-bit lanes. Elsewhere elements go one by
// one: Highway's MaskedLoad() may read, and its BlendedStore() write, past the end.
template <class T>
constexpr bool kHasMasks = HWY_ARCH_X86 && (HWY_TARGET <= HWY_AVX3 || sizeof(T) == 4);

// The first n elements of a vector and then zeros; n may be beyond its end. Reads no other element.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadBits(D tag, const T* from, size_t n) {
  constexpr size_t kSize = hn::MaxLanes(D());
  if constexpr (kHasMasks<T>) {
    return hn::MaskedLoad(hn::FirstN(tag, std::min(n, kSize)), tag, from);
  } else {
    if (n >= kSize) return hn::LoadU(tag, from);
    HWY_ALIGN T buffer[kSize] = {};
    for (size_t i = 0; i < n; ++i) buffer[i] = from[i];
    return hn::Load(tag, buffer);
  }
}

// Writes the first n elements of a vector and no other; n may be beyond its end.
template <class D, class T>
HWY_INLINE void StoreBits(D tag, hn::Vec<D> value, T* to, size_t n) {
  constexpr size_t kSize = hn::MaxLanes(D());
  if constexpr (kHasMasks<T>) {
    hn::BlendedStore(value, hn::FirstN(tag, std::min(n, kSize)), tag, to);
  } else {
    if (n >= kSize) return hn::StoreU(value, tag, to);
    HWY_ALIGN T buffer[kSize];
    hn::Store(value, tag, buffer);
    for (size_t i = 0; i < n; ++i) to[i] = buffer[i];
  }
}

// Both halves whether or not n reaches into the upper one, as a branch costs more.
HWY_INLINE Pair LoadFirst(const float* from, size_t n) {
  const F32Tag tag;
  const size_t lower = std::min(n, kN);
  return {LoadBits(tag, from, lower), LoadBits(tag, from + lower, n - lower)};
}

template <class T>
HWY_INLINE Pair LoadFirst(const T* from, size_t n) {
  const U16Tag tag;
  const size_t lower = std::min(n, kN);
  return {Widen(T(), LoadBits(tag, Bits(from), lower)),
          Widen(T(), LoadBits(tag, Bits(from + lower), n - lower))};
}

HWY_INLINE void StoreFirst(Pair value, float* to, size_t n) {
  const F32Tag tag;
  const size_t lower = std::min(n, kN);
  StoreBits(tag, value.lower, to, lower);
  StoreBits(tag, value.upper, to + lower, n - lower);
}

HWY_INLINE void StoreFirst(Pair value, F16* to, size_t n) {
  const U16Tag tag;
  const size_t lower = std::min(n, kN);
  StoreBits(tag, NarrowHalf(F16(), value.lower), Bits(to), lower);
  StoreBits(tag, NarrowHalf(F16(), value.upper), Bits(to + lower), n - lower);
}

HWY_INLINE void StoreFirst(Pair value, BF16* to, size_t n) {
  StoreBits(PackedTag(), Narrow(BF16(), value), Bits(to), n);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_

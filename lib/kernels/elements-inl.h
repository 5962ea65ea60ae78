// SPDX-License-Identifier: Apache-2.0
// Loads and stores of the element types as vectors of f32, compiled for each target. They give the bits
// of the scalar conversions in element.h.

// The guard is toggled by Highway, so that each target includes this once.
#if defined(RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_
#undef RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_
#else
#define RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include "../element.h"

HWY_BEFORE_NAMESPACE();
namespace rmsnorm::internal::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32Tag = hn::ScalableTag<float>;
using U32Tag = hn::Rebind<uint32_t, F32Tag>;
using U16Tag = hn::Rebind<uint16_t, F32Tag>;  // a half vector: as many lanes as F32Tag
using F32Vec = hn::Vec<F32Tag>;
using U16Vec = hn::Vec<U16Tag>;

// f32 values in a vector. A constant, as no target here has scalable vectors.
constexpr size_t kN = HWY_LANES(float);

// ------------------------------------------------------------------ conversions in registers

HWY_INLINE F32Vec Widen(BF16, U16Vec bits) {
  return hn::BitCast(F32Tag(), hn::ShiftLeft<16>(hn::PromoteTo(U32Tag(), bits)));
}

HWY_INLINE F32Vec Widen(F16, U16Vec bits) {
  return hn::PromoteTo(F32Tag(), hn::BitCast(hn::Rebind<hwy::float16_t, F32Tag>(), bits));
}

// Integer rounding: Highway 1.0.3 truncates to bf16, and the native instruction flushes subnormals.
HWY_INLINE U16Vec Narrow(BF16, F32Vec value) {
  const U32Tag du32;
  const auto bits = hn::BitCast(du32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du32, 1));
  const auto rounded = hn::Add(hn::Add(bits, hn::Set(du32, 0x7FFF)), odd);
  // Rounding would carry a NaN with all payload bits set over into -0.
  const auto is_nan = hn::RebindMask(du32, hn::IsNaN(value));
  const auto kept = hn::IfThenElse(is_nan, hn::Set(du32, 0x7FC00000), rounded);
  return hn::DemoteTo(U16Tag(), hn::BitCast(hn::RebindToSigned<U32Tag>(), hn::ShiftRight<16>(kept)));
}

HWY_INLINE U16Vec Narrow(F16, F32Vec value) {
  return hn::BitCast(U16Tag(), hn::DemoteTo(hn::Rebind<hwy::float16_t, F32Tag>(), value));
}

// Rounds to T and back, as CastTo<T>() does.
template <class T>
HWY_INLINE F32Vec Round(F32Vec value) {
  return Widen(T(), Narrow(T(), value));
}
template <>
HWY_INLINE F32Vec Round<float>(F32Vec value) {
  return value;
}

// ------------------------------------------------------------------ full vectors, any alignment

HWY_INLINE F32Vec Load(const float* from) { return hn::LoadU(F32Tag(), from); }

template <class T>
HWY_INLINE F32Vec Load(const T* from) {
  return Widen(T(), hn::LoadU(U16Tag(), reinterpret_cast<const uint16_t*>(from)));
}

HWY_INLINE void Store(F32Vec value, float* to) { hn::StoreU(value, F32Tag(), to); }

template <class T>
HWY_INLINE void Store(F32Vec value, T* to) {
  hn::StoreU(Narrow(T(), value), U16Tag(), reinterpret_cast<uint16_t*>(to));
}

// ------------------------------------------------------------------ the first n < kN elements

// AVX-512 masks loads and stores in hardware, for 16-bit lanes too. Elsewhere elements go one by one:
// Highway's MaskedLoad() may read, and its BlendedStore() write, past the end.

// The first n elements and then zeros. Reads no other element.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadBits(D tag, const T* from, size_t n) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  return hn::MaskedLoad(hn::FirstN(tag, n), tag, from);
#else
  HWY_ALIGN T buffer[kN] = {};
  for (size_t i = 0; i < n; ++i) buffer[i] = from[i];
  return hn::Load(tag, buffer);
#endif
}

// Writes the first n elements and no other.
template <class D, class T>
HWY_INLINE void StoreBits(D tag, hn::Vec<D> value, T* to, size_t n) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  hn::BlendedStore(value, hn::FirstN(tag, n), tag, to);
#else
  HWY_ALIGN T buffer[kN];
  hn::Store(value, tag, buffer);
  for (size_t i = 0; i < n; ++i) to[i] = buffer[i];
#endif
}

HWY_INLINE F32Vec LoadFirst(const float* from, size_t n) { return LoadBits(F32Tag(), from, n); }

template <class T>
HWY_INLINE F32Vec LoadFirst(const T* from, size_t n) {
  return Widen(T(), LoadBits(U16Tag(), reinterpret_cast<const uint16_t*>(from), n));
}

HWY_INLINE void StoreFirst(F32Vec value, float* to, size_t n) {
  StoreBits(F32Tag(), value, to, n);
}

template <class T>
HWY_INLINE void StoreFirst(F32Vec value, T* to, size_t n) {
  StoreBits(U16Tag(), Narrow(T(), value), reinterpret_cast<uint16_t*>(to), n);
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_

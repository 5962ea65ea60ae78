// SPDX-License-Identifier: Apache-2.0
// Loads and stores of the element types as vectors of f32, with the bits of the scalar conversions
// in element.h, and loops over pairs of vectors. T is the type of the elements.

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

// The f32 values in a vector. This is a constant, as no target here has scalable vectors.
constexpr size_t kN = HWY_LANES(float);

// The unit of the loops is a pair of vectors: 2 kN elements, one vector of 16-bit elements.
constexpr size_t kPair = 2 * kN;
struct Pair {
  F32Vec lower;
  F32Vec upper;
};

HWY_INLINE const uint32_t* Bits(const float* p) { return reinterpret_cast<const uint32_t*>(p); }
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

// Rounds to bf16. The result is in the upper half of each lane; the lower half is undefined. It
// uses integers, as Highway 1.0.3 truncates. A NaN's payload must not carry into the sign or
// vanish: PlainNaN() sees to that where a NaN can come from f32.
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

HWY_INLINE hn::Vec<PackedTag> Narrow(F16, Pair value) {
  return hn::Combine(PackedTag(), NarrowHalf(F16(), value.upper), NarrowHalf(F16(), value.lower));
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

// Added to a number below 2^22 in magnitude, it leaves the nearest integer in the sum's last bits.
constexpr float kToInteger = 0x1.8p23f;

// ------------------------------------------------------------------ pairs, at any alignment

HWY_INLINE Pair Add(Pair a, Pair b) {
  return {hn::Add(a.lower, b.lower), hn::Add(a.upper, b.upper)};
}

HWY_INLINE Pair Sub(Pair a, Pair b) {
  return {hn::Sub(a.lower, b.lower), hn::Sub(a.upper, b.upper)};
}

HWY_INLINE Pair Mul(Pair a, Pair b) {
  return {hn::Mul(a.lower, b.lower), hn::Mul(a.upper, b.upper)};
}

HWY_INLINE Pair MulAdd(Pair a, Pair b, Pair c) {
  return {hn::MulAdd(a.lower, b.lower, c.lower), hn::MulAdd(a.upper, b.upper, c.upper)};
}

template <class T>
HWY_INLINE Pair Rounded(Pair value) {
  return {Round<T>(value.lower), Round<T>(value.upper)};
}

// Rounds normal numbers below 2^111 to bf16 by arithmetic in f32, in fewer instructions than
// Round(). `high` is about 2^16 times the value, and its last bit has the weight of the last bit of
// bf16, so the difference is rounded to that bit. `high` is even where the value lies halfway
// between two numbers of bf16: ties go to even. Zeros become +0.
constexpr uint32_t kToBF16 = 16u << 23;
HWY_INLINE F32Vec RoundNormal(F32Vec value) {
  const U32Tag tag;
  const F32Vec high =
      hn::BitCast(F32Tag(), hn::Add(hn::BitCast(tag, value), hn::Set(tag, kToBF16)));
  return hn::Add(hn::Sub(value, high), high);
}

// The elements of a pair that a load or store works on: all of them, or the first n.
struct All {};
struct First {
  size_t n;
};

HWY_INLINE Pair Load(const float* from, All = {}) {
  return {hn::LoadU(F32Tag(), from), hn::LoadU(F32Tag(), from + kN)};
}

template <class T>
HWY_INLINE Pair Load(const T* from, All = {}) {
  return {Widen(T(), hn::LoadU(U16Tag(), Bits(from))),
          Widen(T(), hn::LoadU(U16Tag(), Bits(from + kN)))};
}

HWY_INLINE void Store(Pair value, float* to, All = {}) {
  hn::StoreU(value.lower, F32Tag(), to);
  hn::StoreU(value.upper, F32Tag(), to + kN);
}

// Stores the first vector of an f32 pair, then the second. gcc 12 turns them round in places, which
// costs time where two rows are written together (doc/data/changes.csv, "Backward"). clang keeps
// the order. This is a template because clang looks up calls for other types, too.
template <class T>
HWY_INLINE void StoreInOrder(Pair value, T* to) {
  static_assert(std::is_same_v<T, float>);
  hn::StoreU(value.lower, F32Tag(), to);
#if HWY_COMPILER_GCC_ACTUAL
  RMSNORM_HIDE_POINTER(to);
#endif
  hn::StoreU(value.upper, F32Tag(), to + kN);
}

// Two stores of half a vector cost less than joining the halves.
HWY_INLINE void Store(Pair value, F16* to, All = {}) {
  hn::StoreU(NarrowHalf(F16(), value.lower), U16Tag(), Bits(to));
  hn::StoreU(NarrowHalf(F16(), value.upper), U16Tag(), Bits(to + kN));
}

HWY_INLINE void Store(Pair value, BF16* to, All = {}) {
  hn::StoreU(Narrow(BF16(), value), PackedTag(), Bits(to));
}

// Stores past the caches. `to` is aligned to a vector.
template <class T>
HWY_INLINE void Stream(Pair value, T* to) {
  if constexpr (sizeof(T) == 4) {
    hn::Stream(value.lower, F32Tag(), to);
    hn::Stream(value.upper, F32Tag(), to + kN);
  } else if constexpr (std::is_same_v<T, F16>) {
    hn::Stream(NarrowHalf(F16(), value.lower), U16Tag(), Bits(to));
    hn::Stream(NarrowHalf(F16(), value.upper), U16Tag(), Bits(to + kN));
  } else {
    hn::Stream(Narrow(T(), value), PackedTag(), Bits(to));
  }
}

// ------------------------------------------------------------------ the first n elements

// Whether loads and stores of T have masks in hardware. AVX2 has them for 32-bit lanes. Without
// them Highway's MaskedLoad() may read past the end, and its BlendedStore() write there.
template <class T>
constexpr bool kHasMasks = HWY_ARCH_X86 && (HWY_TARGET <= HWY_AVX3 || sizeof(T) == 4);

// Loads n elements, fewer than a vector's, followed by zeros. Each call halves the rest.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadPieces(D tag, const T* from, size_t n) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::Zero(tag);
  } else {
    constexpr size_t kHalf = hn::MaxLanes(D()) / 2;
    const hn::Half<D> half;
    if (n < kHalf) return hn::ZeroExtendVector(tag, LoadPieces(half, from, n));
    return hn::Combine(tag, LoadPieces(half, from + kHalf, n - kHalf), hn::LoadU(half, from));
  }
}

template <class D, class T>
HWY_INLINE void StorePieces(D, hn::Vec<D> value, T* to, size_t n) {
  if constexpr (hn::MaxLanes(D()) > 1) {
    constexpr size_t kHalf = hn::MaxLanes(D()) / 2;
    const hn::Half<D> half;
    auto rest = hn::LowerHalf(half, value);
    if (n >= kHalf) {
      hn::StoreU(rest, half, to);
      rest = hn::UpperHalf(half, value);
      to += kHalf;
      n -= kHalf;
    }
    StorePieces(half, rest, to, n);
  }
}

// Not inlined, to keep the library small. The vector to store is a reference, since gcc leaves
// vzeroupper out of a function that takes one by value, and also after a call of it.
template <class D, class T>
HWY_NOINLINE hn::Vec<D> LoadTail(D tag, const T* from, size_t n) {
  return LoadPieces(tag, from, n);
}
template <class D, class T>
HWY_NOINLINE void StoreTail(D tag, const hn::Vec<D>& value, T* to, size_t n) {
  StorePieces(tag, value, to, n);
}

// Loads the first n elements of a vector, followed by zeros, and reads no other element. n may
// exceed the vector; for 16-bit elements it is at least 1.
template <class D, class T>
HWY_INLINE hn::Vec<D> LoadBits(D tag, const T* from, size_t n) {
  constexpr size_t kSize = hn::MaxLanes(D());
  if constexpr (kHasMasks<T>) {
    return hn::MaskedLoad(hn::FirstN(tag, std::min(n, kSize)), tag, from);
  } else if constexpr (kHasMasks<uint32_t>) {
    // Two elements at a time, and then the last one. If n is even it is loaded twice.
    const hn::Repartition<uint32_t, D> twos_tag;
    const auto twos = hn::MaskedLoad(hn::FirstN(twos_tag, n / 2), twos_tag,
                                     reinterpret_cast<const uint32_t*>(from));
    const auto is_last = hn::Eq(hn::Iota(tag, 0), hn::Set(tag, static_cast<T>(n - 1)));
    return hn::IfThenElse(is_last, hn::Set(tag, from[n - 1]), hn::BitCast(tag, twos));
  } else {
    return n < kSize ? LoadTail(tag, from, n) : hn::LoadU(tag, from);
  }
}

// Writes the first n elements of a vector and no other. n may exceed the vector.
template <class D, class T>
HWY_INLINE void StoreBits(D tag, hn::Vec<D> value, T* to, size_t n) {
  constexpr size_t kSize = hn::MaxLanes(D());
  if constexpr (kHasMasks<T>) {
    hn::BlendedStore(value, hn::FirstN(tag, std::min(n, kSize)), tag, to);
  } else {
    n < kSize ? StoreTail(tag, value, to, n) : hn::StoreU(value, tag, to);
  }
}

// A vector of 16-bit elements.
template <class T>
HWY_INLINE hn::Vec<PackedTag> LoadBits(const T* from, All) {
  return hn::LoadU(PackedTag(), Bits(from));
}
template <class T>
HWY_INLINE hn::Vec<PackedTag> LoadBits(const T* from, First some) {
  return LoadBits(PackedTag(), Bits(from), some.n);
}

template <class T>
HWY_INLINE void StoreBits(hn::Vec<PackedTag> bits, T* to, All) {
  hn::StoreU(bits, PackedTag(), Bits(to));
}
template <class T>
HWY_INLINE void StoreBits(hn::Vec<PackedTag> bits, T* to, First some) {
  StoreBits(PackedTag(), bits, Bits(to), some.n);
}

// Loads both halves whether or not n reaches into the upper one, as a branch costs more. A whole
// pair is an exception where masks are dear. 16-bit elements have no such exception: clang 14 would
// join the two branches where f16 is widened, and take vectors apart.
HWY_INLINE Pair Load(const float* from, First some) {
  const size_t n = some.n;
  if (!kHasMasks<uint16_t> && n == kPair) return Load(from);
  const F32Tag tag;
  const size_t lower = std::min(n, kN);
  return {LoadBits(tag, from, lower), LoadBits(tag, from + lower, n - lower)};
}

template <class T>
HWY_INLINE Pair Load(const T* from, First some) {
  const auto bits = LoadBits(from, some);
  return {Widen(T(), hn::LowerHalf(U16Tag(), bits)), Widen(T(), hn::UpperHalf(U16Tag(), bits))};
}

HWY_INLINE void Store(Pair value, float* to, First some) {
  const F32Tag tag;
  const size_t lower = std::min(some.n, kN);
  StoreBits(tag, value.lower, to, lower);
  StoreBits(tag, value.upper, to + lower, some.n - lower);
}

template <class T>
HWY_INLINE void Store(Pair value, T* to, First some) {
  StoreBits(Narrow(T(), value), to, some);
}

#if HWY_TARGET == HWY_AVX2
// RoundToBF16() in one instruction. It is wrong for a value halfway between two numbers, where it
// leaves 0 in the lower half of the lane.
HWY_INLINE hn::Vec<U32Tag> RoundHalfUp(F32Vec value) {
  return hn::Add(hn::BitCast(U32Tag(), value), hn::Set(U32Tag(), 0x8000));
}

// Whether the lower half of any element is 0, with one branch for all.
HWY_INLINE bool HasZeroBelow(hn::Vec<U32Tag> a, hn::Vec<U32Tag> b, hn::Vec<U32Tag> c,
                             hn::Vec<U32Tag> d) {
  const PackedTag tag;
  const U32Tag whole;
  const auto smallest = hn::Min(hn::Min(hn::BitCast(tag, a), hn::BitCast(tag, b)),
                                hn::Min(hn::BitCast(tag, c), hn::BitCast(tag, d)));
  const auto below = hn::And(hn::BitCast(whole, smallest), hn::Set(whole, 0xFFFF));
  return !hn::AllFalse(whole, hn::Eq(below, hn::Zero(whole)));
}
#endif

// Stores two pairs to two places. Whole pairs of bf16 share a test: for zeros in native bf16, and
// for values halfway between two numbers on AVX2.
template <class T, class Some>
HWY_INLINE void StoreBoth(Pair a, T* a_to, Some a_some, Pair b, T* b_to, Some b_some) {
#if RMSNORM_NATIVE_BF16
  if constexpr (std::is_same_v<T, BF16> && std::is_same_v<Some, All>) {
    const NativeBF16 a_bits = NativeNarrow(a.lower, a.upper);
    const NativeBF16 b_bits = NativeNarrow(b.lower, b.upper);
    if (HWY_LIKELY(!HasZero(a_bits, b_bits))) {
      hn::StoreU(a_bits, PackedTag(), Bits(a_to));
      hn::StoreU(b_bits, PackedTag(), Bits(b_to));
      return;
    }
  }
#elif HWY_TARGET == HWY_AVX2
  if constexpr (std::is_same_v<T, BF16> && std::is_same_v<Some, All>) {
    const PackedTag tag;
    const auto a_lower = RoundHalfUp(a.lower);
    const auto a_upper = RoundHalfUp(a.upper);
    const auto b_lower = RoundHalfUp(b.lower);
    const auto b_upper = RoundHalfUp(b.upper);
    if (HWY_LIKELY(!HasZeroBelow(a_lower, a_upper, b_lower, b_upper))) {
      hn::StoreU(hn::ConcatOdd(tag, hn::BitCast(tag, a_upper), hn::BitCast(tag, a_lower)), tag,
                 Bits(a_to));
      hn::StoreU(hn::ConcatOdd(tag, hn::BitCast(tag, b_upper), hn::BitCast(tag, b_lower)), tag,
                 Bits(b_to));
      return;
    }
  }
#endif
  Store(a, a_to, a_some);
  Store(b, b_to, b_some);
}

// Stores two pairs of numbers that are zero or normal in bf16.
HWY_INLINE void StoreNormal(Pair a, BF16* a_to, Pair b, BF16* b_to) {
#if RMSNORM_NATIVE_BF16
  hn::StoreU(NativeNarrow(a.lower, a.upper), PackedTag(), Bits(a_to));
  hn::StoreU(NativeNarrow(b.lower, b.upper), PackedTag(), Bits(b_to));
#else
  StoreBoth(a, a_to, All(), b, b_to, All());
#endif
}

// Whether an element of two pairs of bf16 is below 2^-63, which the upper bits of exponents say.
HWY_INLINE bool HasSmall(const BF16* a, const BF16* b) {
  // clang 14 would take these vectors apart for the loads of halves that follow.
  RMSNORM_HIDE_POINTER(a);
  RMSNORM_HIDE_POINTER(b);
  const PackedTag tag;
  const auto upper = hn::Set(tag, 0x6000);
  const auto smallest =
      hn::Min(hn::And(LoadBits(a, All()), upper), hn::And(LoadBits(b, All()), upper));
  return !hn::AllFalse(tag, hn::Eq(smallest, hn::Zero(tag)));
}

// ------------------------------------------------------------------ loops over pairs

// Calls f(j, All) for each whole pair of elements from `begin` up to `end`, then f(j, First) for
// the rest. f is a generic lambda with RMSNORM_LAMBDA.
template <class F>
HWY_INLINE void ForEachPair(size_t begin, size_t end, const F& f) {
  size_t j = begin;
  for (; j + kPair <= end; j += kPair) f(j, All());
  if (j < end) f(j, First{end - j});
}

// Calls f(j, All, k, All) for each two whole pairs of n elements, at j and k: four vectors hide the
// latency of operations that wait for each other. Then calls f(j, First, k, First) for the rest. A
// rest of one pair or less is given twice, with k = j, so f loads from both places before it stores
// to them.
template <class F>
HWY_INLINE void ForEachTwoPairs(size_t n, const F& f) {
  size_t j = 0;
  for (; j + 2 * kPair <= n; j += 2 * kPair) f(j, All(), j + kPair, All());
  if (j == n) return;
  const size_t k = n - j > kPair ? j + kPair : j;
  f(j, First{std::min(n - j, kPair)}, k, First{n - k});
}

}  // namespace rmsnorm::internal::HWY_NAMESPACE
RMSNORM_AFTER_NAMESPACE();

#endif  // RMSNORM_LIB_KERNELS_ELEMENTS_INL_H_

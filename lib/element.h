// SPDX-License-Identifier: Apache-2.0
// The element types and their scalar conversions to and from f32. Every kernel's conversion is held
// to these bits.
#ifndef RMSNORM_LIB_ELEMENT_H_
#define RMSNORM_LIB_ELEMENT_H_

#include <cstdint>
#include <cstring>

namespace rmsnorm::internal {

// Storage of a 16-bit float: bits only, so that no arithmetic happens in it by accident.
struct F16 {
  uint16_t bits;
};
struct BF16 {
  uint16_t bits;
};

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float FromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float ToF32(float value) { return value; }

inline float ToF32(BF16 value) { return FromBits(static_cast<uint32_t>(value.bits) << 16); }

inline float ToF32(F16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t magnitude = value.bits & 0x7FFFu;
  if (magnitude >= 0x7C00u) return FromBits(sign | 0x7F800000u | (magnitude & 0x3FFu) << 13);
  // Below 2^-14 the mantissa counts units of 2^-24; the product is exact.
  if (magnitude < 0x0400u) {
    return FromBits(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
  }
  return FromBits(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

// CastTo<T>(f32): round to nearest even, subnormals kept, overflow to infinity, NaN stays NaN.
template <class T>
T CastTo(float value);

template <>
inline float CastTo<float>(float value) {
  return value;
}

template <>
inline BF16 CastTo<BF16>(float value) {
  const uint32_t bits = BitsOf(value);
  // The rounding add would carry a NaN with all payload bits set over into -0.
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return BF16{static_cast<uint16_t>(bits >> 16 | 0x0040u)};
  }
  return BF16{static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16)};
}

template <>
inline F16 CastTo<F16>(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = bits >> 16 & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  uint32_t result;
  if (magnitude > 0x7F800000u) {
    result = 0x7E00u;  // NaN
  } else if (magnitude >= 0x477FF000u) {
    result = 0x7C00u;  // 65520, the tie that rounds up to 2^16, and above: infinity
  } else if (magnitude >= 0x38800000u) {  // normal in f16: at least 2^-14
    const uint32_t rounded = magnitude + 0x0FFFu + (magnitude >> 13 & 1u);
    result = (rounded >> 13) - ((127u - 15u) << 10);
  } else {
    // Below 2^-14 f16 is a fixed-point number in units of 2^-24, as f32 is in [0.5, 1): the
    // addition rounds to nearest even, and the mantissa counts the units.
    result = BitsOf(FromBits(magnitude) + 0.5f) - BitsOf(0.5f);
  }
  return F16{static_cast<uint16_t>(sign | result)};
}

}  // namespace rmsnorm::internal

#endif  // RMSNORM_LIB_ELEMENT_H_

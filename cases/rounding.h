// SPDX-License-Identifier: Apache-2.0
// Numbers and their bits. The conversions work by arithmetic on the value, for any IEEE-like
// format. They are slow, and independent of the conversions in lib/, which work on the bits.
// Conversions between double and f32 are the CPU's: otherwise a check of the formulas would spend
// most of its time here.
#ifndef RMSNORM_CASES_ROUNDING_H_
#define RMSNORM_CASES_ROUNDING_H_

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#include "values.h"

namespace rmsnorm::cases {

// All powers of two in a double. std::ldexp() would take most of the suite's time.
constexpr int kLowestPower = -1074;
inline constexpr auto kPowersOfTwo = [] {
  std::array<double, 1024 - kLowestPower> powers{};
  powers[0] = 0x1p-1074;
  for (size_t i = 1; i < powers.size(); ++i) powers[i] = 2 * powers[i - 1];
  return powers;
}();

inline double PowerOfTwo(int exponent) {
  return kPowersOfTwo[static_cast<size_t>(exponent - kLowestPower)];
}

template <class To, class From>
To Reinterpret(const From& from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline double Decode(rmsnorm_dtype dtype, uint64_t bits) {
  if (dtype == RMSNORM_F64) return Reinterpret<double>(bits);
  if (dtype == RMSNORM_F32) return double{Reinterpret<float>(static_cast<uint32_t>(bits))};
  if (dtype == RMSNORM_I8) return Reinterpret<int8_t>(static_cast<uint8_t>(bits));
  const Format format = FormatOf(dtype);
  const double sign = (bits & format.sign()) != 0 ? -1.0 : 1.0;
  const uint64_t magnitude = bits & (format.sign() - 1);
  if (magnitude > format.infinity()) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == format.infinity()) return sign * std::numeric_limits<double>::infinity();
  const uint64_t hidden = uint64_t{1} << format.mantissa_bits;
  const int field = static_cast<int>(magnitude / hidden);
  const uint64_t significand = magnitude % hidden + (field > 0 ? hidden : 0);
  const int exponent = std::max(field, 1) - 1 + format.min_exponent();
  return sign * static_cast<double>(significand) * PowerOfTwo(exponent - format.mantissa_bits);
}

// Rounds to nearest even; needs the default rounding mode.
inline uint32_t Encode(rmsnorm_dtype dtype, double value) {
  if (dtype == RMSNORM_F32) return Reinterpret<uint32_t>(static_cast<float>(value));
  const Format format = FormatOf(dtype);
  const uint64_t sign = std::signbit(value) ? format.sign() : 0;
  const auto with_sign = [sign](uint64_t bits) { return static_cast<uint32_t>(sign | bits); };
  if (std::isnan(value)) return with_sign(format.widest_nan());
  if (std::isinf(value)) return with_sign(format.infinity());
  if (value == 0) return with_sign(0);
  const int exponent = std::max(std::ilogb(value), format.min_exponent());
  const double units =
      std::nearbyint(std::fabs(value) * PowerOfTwo(format.mantissa_bits - exponent));
  // If set, the hidden bit of `units` adds one to the exponent field, as a carry of the rounding
  // does.
  const double bits = units + (exponent - format.min_exponent()) * PowerOfTwo(format.mantissa_bits);
  return with_sign(static_cast<uint64_t>(std::min(bits, static_cast<double>(format.infinity()))));
}

inline double RoundTo(rmsnorm_dtype dtype, double value) {
  return Decode(dtype, Encode(dtype, value));
}

inline double RoundToF32(double value) { return double{static_cast<float>(value)}; }

// The distance from |value| to the next number of the type.
inline double Ulp(rmsnorm_dtype dtype, double value) {
  const Format format = FormatOf(dtype);
  const int exponent = value == 0 ? format.min_exponent() : std::ilogb(value);
  return PowerOfTwo(std::max(exponent, format.min_exponent()) - format.mantissa_bits);
}

inline double Get(const Rows& rows, size_t row, size_t j) {
  return Decode(rows.dtype(), rows.bits(row, j));
}

// Rounds to the type.
inline void Set(Rows& rows, size_t row, size_t j, double value) {
  rows.set_bits(row, j, Encode(rows.dtype(), value));
}

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_ROUNDING_H_

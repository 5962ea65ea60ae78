// SPDX-License-Identifier: Apache-2.0
// Conversions between a number and its bits, by arithmetic on the value, for any IEEE-like format.
// They are slow, and independent of the conversions in lib/, which work on the bits. Conversions
// between double and f32 are the CPU's: otherwise oracles would spend most of their time here.
#ifndef RMSNORM_TEST_SLOW_FLOAT_H_
#define RMSNORM_TEST_SLOW_FLOAT_H_

#include <rmsnorm/rmsnorm.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace rmsnorm::test {

struct Format {
  int bits;          // of storage
  int precision;     // bits of the significand, the hidden one included
  int max_exponent;  // of the largest finite number; of the smallest normal one: 1 - max_exponent

  int min_exponent() const { return 1 - max_exponent; }
  uint32_t sign() const { return 1u << (bits - 1); }
  uint32_t infinity() const {
    return (2u * static_cast<uint32_t>(max_exponent) + 1) << (precision - 1);
  }
  double max() const { return std::ldexp(2.0 - std::ldexp(1.0, 1 - precision), max_exponent); }
};

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

inline Format FormatOf(rmsnorm_dtype dtype) {
  if (dtype == RMSNORM_F16) return {16, 11, 15};
  if (dtype == RMSNORM_BF16) return {16, 8, 127};
  return {32, 24, 127};
}

inline double Decode(const Format& format, uint32_t bits) {
  if (format.bits == 32) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<double>(value);
  }
  const double sign = (bits & format.sign()) != 0 ? -1.0 : 1.0;
  const uint32_t magnitude = bits & (format.sign() - 1);
  if (magnitude > format.infinity()) return std::numeric_limits<double>::quiet_NaN();
  if (magnitude == format.infinity()) return sign * std::numeric_limits<double>::infinity();
  const uint32_t hidden = 1u << (format.precision - 1);
  const int field = static_cast<int>(magnitude / hidden);
  const uint32_t significand = magnitude % hidden + (field > 0 ? hidden : 0);
  const int exponent = std::max(field, 1) - 1 + format.min_exponent();
  return sign * significand * PowerOfTwo(exponent - (format.precision - 1));
}

// Rounds to nearest even; needs the default rounding mode.
inline uint32_t Encode(const Format& format, double value) {
  const uint32_t sign = std::signbit(value) ? format.sign() : 0;
  if (std::isnan(value)) return sign | (format.infinity() + (1u << (format.precision - 2)));
  if (std::isinf(value)) return sign | format.infinity();
  if (value == 0) return sign;
  const int exponent = std::max(std::ilogb(value), format.min_exponent());
  const double units =
      std::nearbyint(std::fabs(value) * PowerOfTwo(format.precision - 1 - exponent));
  // If set, the hidden bit of `units` adds one to the exponent field, as a carry of the rounding
  // does.
  const double bits = units + (exponent - format.min_exponent()) * PowerOfTwo(format.precision - 1);
  return sign | static_cast<uint32_t>(std::min<double>(bits, format.infinity()));
}

// The value rounded to the type; the CPU rounds to f32.
inline double RoundTo(rmsnorm_dtype dtype, double value) {
  if (dtype == RMSNORM_F32) return static_cast<double>(static_cast<float>(value));
  const Format format = FormatOf(dtype);
  return Decode(format, Encode(format, value));
}

// The distance from |value| to the next number of the type.
inline double Ulp(rmsnorm_dtype dtype, double value) {
  const Format format = FormatOf(dtype);
  const int exponent = value == 0 ? format.min_exponent() : std::ilogb(value);
  return PowerOfTwo(std::max(exponent, format.min_exponent()) - format.precision + 1);
}

// The number of steps from one number of the type to another.
inline int64_t UlpsBetween(rmsnorm_dtype dtype, uint32_t a, uint32_t b) {
  const Format format = FormatOf(dtype);
  const auto order = [&format](uint32_t bits) {
    const int64_t magnitude = bits & (format.sign() - 1);
    return (bits & format.sign()) != 0 ? -magnitude : magnitude;
  };
  return std::abs(order(a) - order(b));
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_SLOW_FLOAT_H_

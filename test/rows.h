// SPDX-License-Identifier: Apache-2.0
// Rows as numbers. The conversions between a number and its bits work by arithmetic on the value,
// for any IEEE-like format. They are slow, and independent of the conversions in lib/, which work
// on the bits. Conversions between double and f32 are the CPU's: otherwise oracles would spend most
// of their time here.
#ifndef RMSNORM_TEST_ROWS_H_
#define RMSNORM_TEST_ROWS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <rmsnorm/rmsnorm.hpp>
#include <vector>

#include "cases/values.h"

namespace rmsnorm::test {

using cases::Format, cases::FormatOf, cases::Random, cases::Rows, cases::Values;

using Sizes = std::vector<size_t>;

constexpr rmsnorm_dtype kDtypes[] = {RMSNORM_F32, RMSNORM_F16, RMSNORM_BF16};

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

inline rmsnorm_view ViewOf(const Rows& rows) {
  return rmsnorm_rows(rows.row(0), rows.dtype(), rows.count(), rows.d(),
                      static_cast<ptrdiff_t>(rows.d()));
}
// The elements of all rows as one vector.
inline rmsnorm_view VectorOf(const Rows& rows) {
  return rmsnorm_vector(rows.row(0), rows.dtype(), rows.count() * rows.d());
}

// A norm of rows; the weight may be null.
inline ForwardOperands NormOperands(const Rows& x, const Rows* weight, const Rows& y) {
  ForwardOperands operands;
  operands.x = ConstView(ViewOf(x));
  if (weight != nullptr) operands.weight = ConstView(VectorOf(*weight));
  operands.y = View(ViewOf(y));
  return operands;
}

inline Rows Draw(Random& random, Values values, rmsnorm_dtype dtype, size_t count, size_t d) {
  Rows rows(dtype, count, d);
  cases::Fill(random, values, 0, rows);
  return rows;
}

// Whether the elements have the same bits. Two NaNs count as equal, since CPUs make different ones.
inline testing::AssertionResult SameBits(const Rows& expected, const Rows& actual) {
  const Format format = FormatOf(expected.dtype());
  for (size_t row = 0; row < expected.count(); ++row) {
    if (std::memcmp(expected.row(row), actual.row(row), expected.row_bytes()) == 0) continue;
    for (size_t j = 0; j < expected.d(); ++j) {
      const uint64_t e = expected.bits(row, j);
      const uint64_t a = actual.bits(row, j);
      if (e == a || (format.IsNan(e) && format.IsNan(a))) continue;
      return testing::AssertionFailure()
             << rmsnorm_dtype_name(expected.dtype()) << " element " << j << " of row " << row
             << " is " << Get(actual, row, j) << " (0x" << std::hex << a << "), not "
             << Get(expected, row, j) << " (0x" << e << ")";
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_ROWS_H_

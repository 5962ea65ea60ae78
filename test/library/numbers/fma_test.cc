// SPDX-License-Identifier: Apache-2.0
// The fused multiply-add of the definition, which some C libraries round twice. Its form of exact
// parts is tested everywhere.
#include "fma.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

namespace rmsnorm::internal {
namespace {

__extension__ using Integer = __int128;

// Rounds to nearest even, in integers.
template <class Real>
Real RoundTo(Integer exact) {
  constexpr int kBits = std::numeric_limits<Real>::digits;
  const bool negative = exact < 0;
  Integer magnitude = negative ? -exact : exact;
  int shift = 0;
  while (magnitude >> shift >= Integer{1} << kBits) ++shift;
  const Integer lost = magnitude - (magnitude >> shift << shift);
  magnitude >>= shift;
  const Integer half = shift > 0 ? Integer{1} << (shift - 1) : 1;
  if (lost > half || (lost == half && magnitude % 2 != 0)) ++magnitude;
  const auto value = static_cast<Real>(std::ldexp(static_cast<double>(magnitude), shift));
  return negative ? -value : value;
}

template <class Real>
void ExpectSame(Real expected, Real a, Real b, Real c) {
  EXPECT_EQ(expected, Fma(a, b, c)) << a << " * " << b << " + " << c;
  EXPECT_EQ(expected, FmaOfParts(a, b, c)) << a << " * " << b << " + " << c;
  EXPECT_EQ(std::signbit(expected), std::signbit(Fma(a, b, c)));
  EXPECT_EQ(std::signbit(expected), std::signbit(FmaOfParts(a, b, c)));
}

template <class Real>
class FmaTest : public testing::Test {
 protected:
  static constexpr int kBits = std::numeric_limits<Real>::digits;

  // An integer with at most as many bits as a significand.
  int64_t Random() {
    const auto magnitude = static_cast<int64_t>(random_() >> 11 >> (53 - kBits));
    return (random_() % 2 != 0 ? magnitude : -magnitude) >> random_() % kBits;
  }
  static Real ToReal(int64_t value) { return static_cast<Real>(value); }

  std::mt19937_64 random_{1};
};

using Reals = testing::Types<float, double>;
TYPED_TEST_SUITE(FmaTest, Reals, );

// A product half way between two numbers, and a term that is far too small to be seen.
TYPED_TEST(FmaTest, Ties) {
  const int64_t one = int64_t{1} << (TestFixture::kBits / 2);
  int ties = 0;
  for (int i = 0; i < 300000; ++i) {
    const int64_t a = one + this->random_() % one;
    const int64_t b = one + this->random_() % one;
    // Scaled by 2, the product has an even number of bits to lose or keep.
    const Integer product = Integer{a} * b * 4;
    for (const int sign : {-1, 1}) {
      const auto tiny = std::ldexp(static_cast<TypeParam>(sign), -90);
      ExpectSame(RoundTo<TypeParam>(product + sign), this->ToReal(2 * a), this->ToReal(2 * b),
                 tiny);
    }
    ties += RoundTo<TypeParam>(product + 1) != RoundTo<TypeParam>(product - 1) ? 1 : 0;
  }
  EXPECT_GT(ties, 1000);
}

TYPED_TEST(FmaTest, ZerosInfinitiesAndNan) {
  using Limits = std::numeric_limits<TypeParam>;
  const TypeParam zero = 0;
  const TypeParam infinity = Limits::infinity();
  ExpectSame<TypeParam>(zero, zero, 1, zero);
  ExpectSame<TypeParam>(zero, -zero, 1, zero);
  ExpectSame<TypeParam>(-zero, -zero, 1, -zero);
  ExpectSame<TypeParam>(zero, zero, 1, -zero);
  ExpectSame<TypeParam>(zero, 3, 5, -15);
  ExpectSame<TypeParam>(infinity, infinity, 1, 3);
  ExpectSame<TypeParam>(-infinity, 3, 5, -infinity);
  for (const TypeParam c : {zero, infinity}) {
    EXPECT_TRUE(std::isnan(FmaOfParts(Limits::quiet_NaN(), TypeParam{1}, c)));
    EXPECT_TRUE(std::isnan(FmaOfParts(-infinity, zero, c)));
    EXPECT_TRUE(std::isnan(FmaOfParts(-infinity, TypeParam{1}, infinity)));
  }
}

#ifndef __MINGW32__

// Any finite floats, overflow and subnormal results included; doubles as MultiplyExactly() takes
// them.
TYPED_TEST(FmaTest, CLibrary) {
  const bool is_double = sizeof(TypeParam) == 8;
  const auto number = [&] {
    const int range = is_double ? 400 : 149;
    const auto exponent = static_cast<int>(this->random_() % static_cast<unsigned>(2 * range));
    return std::ldexp(this->ToReal(this->Random()), exponent - range - TestFixture::kBits + 2);
  };
  for (int i = 0; i < 1000000; ++i) {
    const TypeParam a = number();
    const TypeParam b = number();
    const TypeParam c = i % 2 == 0 ? number() : std::ldexp(-a * b, i % 150 - 75);
    if (!std::isfinite(a) || !std::isfinite(b) || !std::isfinite(c)) continue;
    ASSERT_EQ(std::fma(a, b, c), FmaOfParts(a, b, c)) << a << " * " << b << " + " << c;
  }
}

#endif

}  // namespace
}  // namespace rmsnorm::internal

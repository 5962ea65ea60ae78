// SPDX-License-Identifier: Apache-2.0
// The values of a case's operands.
#ifndef RMSNORM_CASES_VALUES_H_
#define RMSNORM_CASES_VALUES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "case.h"

namespace rmsnorm::cases {

// The same numbers on every platform. With a slower generator, or one draw per field, inputs would
// take most of the time of a check.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t WideBits() {
    state_ += 0x9E3779B97F4A7C15;
    uint64_t bits = state_;
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    return bits ^ bits >> 31;
  }
  uint32_t Bits() { return static_cast<uint32_t>(WideBits() >> 32); }
  // `count` is not 0, which clang-tidy cannot know.
  size_t Below(size_t count) { return Bits() % count; }  // NOLINT(clang-analyzer-core.DivideZero)
  bool OneIn(size_t count) { return Below(count) == 0; }

 private:
  uint64_t state_;
};

// A binary floating-point format: bits of the exponent and of the mantissa, and a sign bit.
struct Format {
  int exponent_bits;
  int mantissa_bits;

  int max_exponent() const { return (1 << (exponent_bits - 1)) - 1; }  // of finite numbers
  int min_exponent() const { return 1 - max_exponent(); }              // of normal numbers
  uint64_t infinity() const { return ((uint64_t{1} << exponent_bits) - 1) << mantissa_bits; }
  uint64_t sign() const { return uint64_t{1} << (exponent_bits + mantissa_bits); }
  // A NaN with all payload bits set: rounding by addition would carry it over into a zero.
  uint64_t widest_nan() const { return sign() - 1; }
  bool IsNan(uint64_t bits) const { return (bits & ~sign()) > infinity(); }
};
inline Format FormatOf(rmsnorm_dtype dtype) {
  switch (dtype) {
    case RMSNORM_F16:
      return {5, 10};
    case RMSNORM_BF16:
      return {8, 7};
    case RMSNORM_F64:
      return {11, 52};
    default:
      return {8, 23};
  }
}

// Calls f with a number of the size of an element. After a copy of `size` bytes into a larger
// number, each load would wait for the store.
template <class F>
auto WithBits(rmsnorm_dtype dtype, const F& f) {
  switch (internal::ElementSize(dtype)) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}

inline uint64_t LoadBits(rmsnorm_dtype dtype, const void* element) {
  return WithBits(dtype, [&](auto bits) {
    std::memcpy(&bits, element, sizeof bits);
    return uint64_t{bits};
  });
}

// Rows without gaps.
class Rows {
 public:
  Rows() = default;
  Rows(rmsnorm_dtype dtype, size_t count, size_t d);

  rmsnorm_dtype dtype() const { return dtype_; }
  size_t count() const { return count_; }
  size_t d() const { return d_; }
  size_t row_bytes() const { return d_ * internal::ElementSize(dtype_); }
  uint8_t* row(size_t index) { return bytes_.data() + index * row_bytes(); }
  const uint8_t* row(size_t index) const { return bytes_.data() + index * row_bytes(); }
  uint64_t bits(size_t index, size_t j) const {
    return LoadBits(dtype_, row(index) + j * internal::ElementSize(dtype_));
  }
  void set_bits(size_t index, size_t j, uint64_t bits) {
    WithBits(dtype_, [&](auto own) {
      own = static_cast<decltype(own)>(bits);
      std::memcpy(row(index) + j * sizeof own, &own, sizeof own);
    });
  }
  void Copy(size_t to, const Rows& from, size_t from_row);

 private:
  rmsnorm_dtype dtype_ = 0;
  size_t count_ = 0;
  size_t d_ = 0;
  std::vector<uint8_t> bytes_;
};

// The first element whose bits differ, such as "[0, 5] is 0x3f800001, not 0x3f800000". Two NaNs
// count as equal, since CPUs make different ones.
std::string FirstDifference(const Rows& wanted, const Rows& got);

// The bits of numbers at which steps go wrong: zeros, NaNs, the ends of each range, and numbers
// whose sums and products lie halfway between two others.
std::array<uint64_t, 24> SpecialNumbers(Format format);

// Fills rows with values of a kind; a mixture of kinds begins with kind number `first`.
void Fill(Random& random, Values values, size_t first, Rows& rows);

}  // namespace rmsnorm::cases

#endif  // RMSNORM_CASES_VALUES_H_

// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "../lib/reference.h"

namespace rmsnorm::cases {
namespace {

// Numbers of either sign, each from 32 random bits.
class Numbers {
 public:
  // Numbers with magnitudes from 2^low to 2^(high + 1), as far as the format has them.
  static Numbers Normal(Format format, int low, int high) {
    const int bias = format.max_exponent();
    const int lowest = std::clamp(low, format.min_exponent(), bias);
    const int highest = std::clamp(high, format.min_exponent(), bias);
    return {format, static_cast<uint32_t>(lowest + bias),
            static_cast<uint32_t>(highest - lowest + 1), MantissaOf(format)};
  }
  static Numbers Subnormal(Format format) { return {format, 0, 1, MantissaOf(format)}; }
  static Numbers Zero(Format format) { return {format, 0, 1, 0}; }
  // Any bits: all exponents are equally likely.
  static Numbers Any(Format format) {
    return {format, 0, uint32_t{1} << format.exponent_bits, MantissaOf(format)};
  }

  uint32_t From(uint32_t bits) const {
    const uint32_t sign = bits >> 31 != 0 ? sign_ : 0;
    const uint32_t exponent = lowest_ + ((bits >> 23 & 0xFF) * exponents_ >> 8);
    return sign | exponent << mantissa_bits_ | (bits & mantissa_);
  }

 private:
  Numbers(Format format, uint32_t lowest, uint32_t exponents, uint32_t mantissa)
      : lowest_(lowest),
        exponents_(exponents),
        mantissa_(mantissa),
        mantissa_bits_(format.mantissa_bits),
        sign_(static_cast<uint32_t>(format.sign())) {}

  static uint32_t MantissaOf(Format format) {
    return static_cast<uint32_t>((uint64_t{1} << format.mantissa_bits) - 1);
  }

  uint32_t lowest_;     // the lowest exponent field
  uint32_t exponents_;  // the number of exponents from there on, at most 256
  uint32_t mantissa_;   // the mantissa bits that are drawn
  int mantissa_bits_;
  uint32_t sign_;
};

Numbers NumbersOf(Format format, Values values) {
  switch (values) {
    case Values::kWide:
      return Numbers::Normal(format, -30, 30);
    case Values::kHuge:
      return Numbers::Normal(format, format.max_exponent() - 1, format.max_exponent());
    case Values::kTiny:
      return Numbers::Normal(format, -80, -70);
    case Values::kSubnormal:
      return Numbers::Subnormal(format);
    case Values::kZero:
      return Numbers::Zero(format);
    case Values::kLowEdge:
      return Numbers::Normal(format, -51, -50);
    case Values::kHighEdge:
      return Numbers::Normal(format, 58, 63);
    case Values::kBits:
      return Numbers::Any(format);
    default:
      return Numbers::Normal(format, -4, 1);
  }
}

// Makes two numbers of each draw: a draw takes longer than the rest of the work for a number.
template <class Bits>
void Draw(Random& random, const Numbers& numbers, uint8_t* row, size_t d) {
  uint64_t drawn = 0;
  for (size_t j = 0; j < d; ++j) {
    drawn = j % 2 == 0 ? random.WideBits() : drawn >> 32;
    const Bits bits = static_cast<Bits>(numbers.From(static_cast<uint32_t>(drawn)));
    std::memcpy(row + j * sizeof bits, &bits, sizeof bits);
  }
}

// The bits of 2^power, which may be subnormal.
uint64_t BitsOfPower(Format format, int power) {
  if (power >= format.min_exponent()) {
    return static_cast<uint64_t>(power + format.max_exponent()) << format.mantissa_bits;
  }
  return uint64_t{1} << (format.mantissa_bits + power - format.min_exponent());
}

void FillAdverse(Random& random, Format format, Rows& rows, size_t row) {
  const uint64_t hidden = uint64_t{1} << format.mantissa_bits;
  const uint64_t one = BitsOfPower(format, 0);
  const uint64_t constant = one | (random.Bits() & (hidden - 1));
  for (size_t j = 0; j < rows.d(); ++j) {
    const bool is_first = j % internal::kBlock == 0;
    const int slope = static_cast<int>(20 * j / rows.d()) - 10;
    const uint64_t mantissa = random.Bits() & (hidden - 1);
    const uint64_t bits[] = {
        constant,  // every lane and fold rounds the same way for long stretches
        // The square is just over half an ulp of the first one's, and then just under.
        is_first ? one : BitsOfPower(format, -12) + 1,
        is_first ? one : BitsOfPower(format, -12) - 1,
        // The sum of each later block, 2^-24 (1 + 2^-11), is just over half an ulp of the first.
        j == 0                 ? one
        : j < internal::kBlock ? 0
                               : BitsOfPower(format, -18) + (hidden >> 12),
        BitsOfPower(format, slope) | mantissa,
        BitsOfPower(format, -slope) | mantissa,
    };
    rows.set_bits(row, j, bits[row % std::size(bits)]);
  }
}

void FillEvery(Rows& rows, size_t row) {
  for (size_t j = 0; j < rows.d(); ++j) rows.set_bits(row, j, (row * rows.d() + j) & 0xFFFF);
}

// Each of the numbers stays for `repeats` elements.
void FillLoop(Format format, size_t repeats, Rows& rows, size_t row) {
  const auto numbers = SpecialNumbers(format);
  for (size_t j = 0; j < rows.d(); ++j) {
    rows.set_bits(row, j, numbers[(row * rows.d() + j) / repeats % numbers.size()]);
  }
}

void FillRow(Random& random, Values values, Rows& rows, size_t row) {
  const Format format = FormatOf(rows.dtype());
  if (values == Values::kAdverse) return FillAdverse(random, format, rows, row);
  if (values == Values::kEvery) return FillEvery(rows, row);
  if (values == Values::kInner) return FillLoop(format, 1, rows, row);
  if (values == Values::kMiddle) return FillLoop(format, 24, rows, row);
  if (values == Values::kOuter) return FillLoop(format, 24 * 24, rows, row);
  const auto draw = rows.dtype() == RMSNORM_F32 ? Draw<uint32_t> : Draw<uint16_t>;
  draw(random, NumbersOf(format, values), rows.row(row), rows.d());
  const size_t one = random.Below(rows.d());
  const uint64_t unit = BitsOfPower(format, 0);
  switch (values) {
    case Values::kMassive:
      rows.set_bits(row, one, BitsOfPower(format, 9));
      rows.set_bits(row, random.Below(rows.d()), format.sign() | BitsOfPower(format, 10));
      break;
    case Values::kNan:
      rows.set_bits(row, one, format.widest_nan());
      break;
    case Values::kInfinity:
      rows.set_bits(row, one, format.infinity() | (random.OneIn(2) ? format.sign() : 0));
      break;
    case Values::kFloor: {
      const uint64_t magnitudes[] = {unit, unit - 1, unit + 1};
      const uint64_t magnitude = magnitudes[random.Below(std::size(magnitudes))];
      for (size_t j = 0; j < rows.d(); ++j) {
        rows.set_bits(row, j, magnitude | (random.OneIn(2) ? format.sign() : 0));
      }
      break;
    }
    case Values::kSpecial: {
      const uint64_t specials[] = {format.widest_nan(),
                                   format.widest_nan() | format.sign(),
                                   format.infinity(),
                                   format.infinity() | format.sign(),
                                   Numbers::Zero(format).From(random.Bits()),
                                   Numbers::Subnormal(format).From(random.Bits()),
                                   format.infinity() - 1};  // the largest finite number
      for (size_t j = 0; j < rows.d(); j += 3) {
        rows.set_bits(row, j, specials[j / 3 % std::size(specials)]);
      }
      break;
    }
    case Values::kPositive:
      for (size_t j = 0; j < rows.d(); ++j) {
        rows.set_bits(row, j, rows.bits(row, j) & ~format.sign());
      }
      break;
    default:
      break;
  }
}

Values KindOfRow(Random& random, Values values, size_t number) {
  if (values == Values::kScattered) {
    const size_t special = random.Below(static_cast<size_t>(Values::kInfinity) + 1);
    return random.OneIn(3) ? static_cast<Values>(special) : Values::kNormal;
  }
  constexpr size_t kFiniteKinds = static_cast<size_t>(Values::kFloor) + 1;
  if (values == Values::kMixed) number %= static_cast<size_t>(Values::kMixed);
  if (values == Values::kFinite) number %= kFiniteKinds;
  if (values == Values::kMixed || values == Values::kFinite) return static_cast<Values>(number);
  return values;
}

}  // namespace

Rows::Rows(rmsnorm_dtype dtype, size_t count, size_t d)
    : dtype_(dtype), count_(count), d_(d), bytes_(count * row_bytes()) {}

void Rows::Copy(size_t to, const Rows& from, size_t from_row) {
  std::memcpy(row(to), from.row(from_row), row_bytes());
}

std::string FirstDifference(const Rows& wanted, const Rows& got) {
  const Format format = FormatOf(wanted.dtype());
  for (size_t row = 0; row < wanted.count(); ++row) {
    if (std::memcmp(wanted.row(row), got.row(row), wanted.row_bytes()) == 0) continue;
    for (size_t j = 0; j < wanted.d(); ++j) {
      const uint64_t w = wanted.bits(row, j);
      const uint64_t g = got.bits(row, j);
      if (w == g || (format.IsNan(w) && format.IsNan(g))) continue;
      const int digits = 2 * static_cast<int>(internal::ElementSize(wanted.dtype()));
      char text[100];
      std::snprintf(text, sizeof text, "[%zu, %zu] is 0x%0*llx, not 0x%0*llx", row, j, digits,
                    static_cast<unsigned long long>(g), digits, static_cast<unsigned long long>(w));
      return text;
    }
  }
  return {};
}

std::array<uint64_t, 24> SpecialNumbers(Format format) {
  const uint64_t sign = format.sign();
  const uint64_t smallest_normal = uint64_t{1} << format.mantissa_bits;
  const uint64_t largest = format.infinity() - 1;
  const uint64_t one = BitsOfPower(format, 0);
  const uint64_t half_ulp_of_one = BitsOfPower(format, -format.mantissa_bits - 1);
  // The largest number and this one lie halfway to the next power of two, which is infinite.
  const uint64_t half_ulp_of_largest =
      BitsOfPower(format, format.max_exponent() - format.mantissa_bits - 1);
  return {0,
          sign,
          1,  // the smallest subnormal number
          sign | 1,
          smallest_normal - 1,
          smallest_normal,
          largest,
          sign | largest,
          one - 1,
          one,
          one + 1,
          sign | one,
          one | smallest_normal / 2,             // 1.5: odd numbers times 1.5 end in a half
          sign | one | smallest_normal / 3 | 1,  // bits all over the mantissa, also the last one
          BitsOfPower(format, 1),
          half_ulp_of_one,
          half_ulp_of_one + 1,
          half_ulp_of_largest - 1,
          half_ulp_of_largest,
          format.infinity(),
          sign | format.infinity(),
          format.infinity() | 1,                    // a signalling NaN
          format.infinity() | smallest_normal / 2,  // a quiet NaN
          sign | format.widest_nan()};
}

void Fill(Random& random, Values values, size_t first, Rows& rows) {
  for (size_t row = 0; row < rows.count(); ++row) {
    FillRow(random, KindOfRow(random, values, first + row), rows, row);
  }
}

}  // namespace rmsnorm::cases

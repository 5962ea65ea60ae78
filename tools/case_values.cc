// SPDX-License-Identifier: Apache-2.0
#include "case_values.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace rmsnorm::tools {
namespace {

// What kMixed and kFinite take in turn.
constexpr Values kFiniteKinds[] = {Values::kNormal,  Values::kWide,      Values::kHuge,
                                   Values::kTiny,    Values::kSubnormal, Values::kZero,
                                   Values::kLowEdge, Values::kHighEdge};
constexpr size_t kKinds = static_cast<size_t>(Values::kMixed);

// Numbers of either sign, each from one draw of 32 bits: most of a check's time would go into its
// inputs if they were drawn field by field.
class Numbers {
 public:
  // With magnitudes from 2^low up to 2^(high + 1), or as near as the format has.
  static Numbers Normal(Format format, int low, int high) {
    const int bias = (1 << (format.exponent_bits - 1)) - 1;
    const int lowest = std::clamp(low, 1 - bias, bias);
    const int highest = std::clamp(high, 1 - bias, bias);
    return {format, static_cast<uint32_t>(lowest + bias),
            static_cast<uint32_t>(highest - lowest + 1), MantissaOf(format)};
  }
  static Numbers Subnormal(Format format) { return {format, 0, 1, MantissaOf(format)}; }
  static Numbers Zero(Format format) { return {format, 0, 1, 0}; }

  uint32_t Draw(Random& random) const {
    const uint32_t bits = static_cast<uint32_t>(random());
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

  static uint32_t MantissaOf(Format format) { return (uint32_t{1} << format.mantissa_bits) - 1; }

  uint32_t lowest_;     // field of the exponent
  uint32_t exponents_;  // how many follow each other from there on, at most 256
  uint32_t mantissa_;   // the bits of it that are drawn
  int mantissa_bits_;
  uint32_t sign_;
};

Numbers NumbersOf(Format format, Values values) {
  const int max_exponent = (1 << (format.exponent_bits - 1)) - 1;
  switch (values) {
    case Values::kWide:
      return Numbers::Normal(format, -30, 30);
    case Values::kHuge:
      return Numbers::Normal(format, max_exponent - 1, max_exponent);
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
    default:
      return Numbers::Normal(format, -4, 1);
  }
}

// All payload bits set: the one that a rounding add carries over into a zero.
uint64_t WidestNan(Format format) { return format.sign() - 1; }

template <class Bits>
void DrawRow(Random& random, const Numbers& numbers, uint8_t* row, size_t d) {
  for (size_t j = 0; j < d; ++j) {
    const Bits bits = static_cast<Bits>(numbers.Draw(random));
    std::memcpy(row + j * sizeof bits, &bits, sizeof bits);
  }
}

void DrawRow(Random& random, const Numbers& numbers, GuardedRows& rows, size_t row) {
  const auto draw =
      rows.format().size() == sizeof(uint16_t) ? DrawRow<uint16_t> : DrawRow<uint32_t>;
  draw(random, numbers, rows.row(row), rows.layout().d);
}

void FillRow(Random& random, Values values, GuardedRows& rows, size_t row) {
  const Format format = rows.format();
  DrawRow(random, NumbersOf(format, values), rows, row);
  const size_t somewhere = random() % rows.layout().d;
  if (values == Values::kNan) rows.set_bits(row, somewhere, WidestNan(format));
  if (values == Values::kInfinity) {
    rows.set_bits(row, somewhere, format.infinity() | Numbers::Zero(format).Draw(random));
  }
}

Values KindOfRow(Values values, size_t number) {
  if (values == Values::kMixed) return static_cast<Values>(number % kKinds);
  if (values == Values::kFinite) return kFiniteKinds[number % std::size(kFiniteKinds)];
  return values;
}

}  // namespace

void FillRows(Random& random, Values values, GuardedRows& rows, size_t first) {
  for (size_t row = 0; row < rows.layout().rows; ++row) {
    FillRow(random, KindOfRow(values, first + row), rows, row);
  }
}

void FillWeight(Random& random, bool special, GuardedRows& weight) {
  const Format format = weight.format();
  for (size_t row = 0; row < weight.layout().rows; ++row) {
    DrawRow(random, Numbers::Normal(format, -2, 0), weight, row);
    if (!special) continue;
    const uint64_t specials[] = {WidestNan(format),
                                 WidestNan(format) | format.sign(),
                                 format.infinity(),
                                 format.infinity() | format.sign(),
                                 Numbers::Zero(format).Draw(random),
                                 Numbers::Subnormal(format).Draw(random),
                                 format.infinity() - 1};  // the largest finite number
    for (size_t j = 0; j < weight.layout().d; j += 3) {
      weight.set_bits(row, j, specials[j / 3 % std::size(specials)]);
    }
  }
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
#include "case_values.h"

#include <algorithm>
#include <iterator>

namespace rmsnorm::tools {
namespace {

// What kMixed and kFinite take in turn.
constexpr Values kFiniteKinds[] = {Values::kNormal,  Values::kWide,      Values::kHuge,
                                   Values::kTiny,    Values::kSubnormal, Values::kZero,
                                   Values::kLowEdge, Values::kHighEdge};
constexpr size_t kKinds = static_cast<size_t>(Values::kMixed);

int RandomInt(Random& random, int low, int high) {
  return std::uniform_int_distribution<int>(low, high)(random);
}

// A number of either sign with a magnitude from 2^low up to 2^(high + 1), or as near as the format
// has.
uint64_t RandomNumber(Random& random, Format format, int low, int high) {
  const int bias = (1 << (format.exponent_bits - 1)) - 1;
  const int exponent =
      RandomInt(random, std::clamp(low, 1 - bias, bias), std::clamp(high, 1 - bias, bias));
  const uint64_t bits = random();
  const uint64_t mantissa = bits & ((uint64_t{1} << format.mantissa_bits) - 1);
  const uint64_t sign = bits >> 31 != 0 ? format.sign() : 0;
  return sign | static_cast<uint64_t>(exponent + bias) << format.mantissa_bits | mantissa;
}

uint64_t RandomZero(Random& random, Format format) { return random() % 2 != 0 ? format.sign() : 0; }

uint64_t RandomSubnormal(Random& random, Format format) {
  return RandomZero(random, format) | random() % (uint64_t{1} << format.mantissa_bits);
}

// All payload bits set: the one that a rounding add carries over into a zero.
uint64_t WidestNan(Format format) { return format.sign() - 1; }

uint64_t RandomElement(Random& random, Format format, Values values) {
  const int max_exponent = (1 << (format.exponent_bits - 1)) - 1;
  switch (values) {
    case Values::kWide:
      return RandomNumber(random, format, -30, 30);
    case Values::kHuge:
      return RandomNumber(random, format, max_exponent - 1, max_exponent);
    case Values::kTiny:
      return RandomNumber(random, format, -80, -70);
    case Values::kSubnormal:
      return RandomSubnormal(random, format);
    case Values::kZero:
      return RandomZero(random, format);
    case Values::kLowEdge:
      return RandomNumber(random, format, -51, -50);
    case Values::kHighEdge:
      return RandomNumber(random, format, 58, 63);
    default:
      return RandomNumber(random, format, -4, 1);
  }
}

void FillRow(Random& random, Values values, GuardedRows& rows, size_t row) {
  const Format format = rows.format();
  const size_t d = rows.layout().d;
  for (size_t j = 0; j < d; ++j) rows.set_bits(row, j, RandomElement(random, format, values));
  const size_t somewhere = random() % d;
  if (values == Values::kNan) rows.set_bits(row, somewhere, WidestNan(format));
  if (values == Values::kInfinity) {
    rows.set_bits(row, somewhere, format.infinity() | RandomZero(random, format));
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
  const uint64_t specials[] = {WidestNan(format),          WidestNan(format) | format.sign(),
                               format.infinity(),          format.infinity() | format.sign(),
                               RandomZero(random, format), RandomSubnormal(random, format),
                               format.infinity() - 1};  // the largest finite number
  for (size_t j = 0; j < weight.layout().d; ++j) {
    weight.set_bits(0, j, RandomNumber(random, format, -2, 0));
    if (special && j % 3 == 0) weight.set_bits(0, j, specials[j / 3 % std::size(specials)]);
  }
}

}  // namespace rmsnorm::tools

// SPDX-License-Identifier: Apache-2.0
// Test data: the same numbers on every platform.
#ifndef RMSNORM_TEST_RANDOM_ROWS_H_
#define RMSNORM_TEST_RANDOM_ROWS_H_

#include <cmath>
#include <limits>
#include <random>

#include "tensor.h"

namespace rmsnorm::test {

// The C++ standard specifies engines to the bit, but not distributions.
class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}

  uint32_t Bits() { return static_cast<uint32_t>(engine_() >> 32); }
  size_t Below(size_t count) { return Bits() % count; }
  double Uniform() { return Bits() * 0x1p-32; }
  // Approximately normal, with mean 0 and variance 1: a sum of four numbers from 0 to 65535, each
  // with variance (2^32 - 1) / 12.
  double Normal() {
    const uint64_t bits = engine_();
    const int64_t sum = static_cast<int64_t>((bits & 0xFFFF) + (bits >> 16 & 0xFFFF) +
                                             (bits >> 32 & 0xFFFF) + (bits >> 48));
    return static_cast<double>(sum - 2 * 65535) * std::sqrt(3 / (0x1p32 - 1));
  }

 private:
  std::mt19937_64 engine_;
};

enum class RowKind {
  kNormal,
  kMassive,    // two channels of hundreds, as in large language models
  kWide,       // all exponents of the type whose squares neither vanish nor overflow
  kTiny,       // squares vanish in f32
  kSubnormal,  // elements are subnormal in the type
  kHuge,       // up to the type's largest number
  kZero,
  kInfinity,  // one among normal numbers
  kNan,
};
constexpr int kRowKinds = 9;

inline void FillRow(Random& random, RowKind kind, Tensor& tensor, size_t row) {
  const Format format = FormatOf(tensor.dtype());
  const double smallest_normal = std::ldexp(1.0, format.min_exponent());
  const int wide = std::min(format.max_exponent - 1, 40);
  for (size_t j = 0; j < tensor.d(); ++j) {
    double value = random.Normal();
    if (kind == RowKind::kWide) {
      value =
          std::ldexp(value, static_cast<int>(random.Below(2 * static_cast<size_t>(wide))) - wide);
    }
    if (kind == RowKind::kTiny) value *= std::max(1e-25, smallest_normal);
    if (kind == RowKind::kSubnormal) value *= smallest_normal / 8;
    if (kind == RowKind::kHuge) value *= format.max() / 4;
    if (kind == RowKind::kZero) value = random.Below(2) == 0 ? 0.0 : -0.0;
    tensor.set(row, j, value);
  }
  const size_t one = random.Below(tensor.d());
  if (kind == RowKind::kMassive) {
    tensor.set(row, one, 480);
    tensor.set(row, random.Below(tensor.d()), -1200);
  }
  if (kind == RowKind::kHuge) tensor.set(row, one, -format.max());
  if (kind == RowKind::kInfinity) tensor.set(row, one, -std::numeric_limits<double>::infinity());
  if (kind == RowKind::kNan) tensor.set(row, one, std::numeric_limits<double>::quiet_NaN());
}

inline void FillNormal(Random& random, Tensor& tensor) {
  for (size_t row = 0; row < tensor.rows(); ++row) FillRow(random, RowKind::kNormal, tensor, row);
}

// Rows of every kind in turn, a normal one between any two.
inline void FillMixed(Random& random, Tensor& tensor) {
  size_t kind = random.Below(kRowKinds);
  for (size_t row = 0; row < tensor.rows(); ++row) {
    const bool normal = row % 2 == 1;
    FillRow(random, normal ? RowKind::kNormal : static_cast<RowKind>(kind++ % kRowKinds), tensor,
            row);
  }
}

// A number that is hard to convert or to round.
inline uint32_t HardBits(Random& random, const Format& format) {
  const uint32_t hard[] = {0,
                           format.sign(),
                           1,                      // the smallest subnormal
                           format.infinity() - 1,  // the largest finite number
                           format.infinity(),
                           format.sign() - 1,  // a NaN with every bit of its payload
                           Encode(format, 1e-7),
                           Encode(format, -30000)};
  return hard[random.Below(std::size(hard))];
}

// A weight around 1; one element in 16 is hard.
inline void FillWeight(Random& random, Tensor& weight) {
  const Format format = FormatOf(weight.dtype());
  for (size_t row = 0; row < weight.rows(); ++row) {
    for (size_t j = 0; j < weight.d(); ++j) {
      if (random.Below(16) == 0) {
        weight.set_bits(row, j, HardBits(random, format));
      } else {
        weight.set(row, j, 1 + random.Normal() / 2);
      }
    }
  }
}

// Leading dimensions of a weight for an x with these ones: each is kept or becomes 1, and leading
// ones of size 1 may be absent.
inline SizeList DrawShared(Random& random, const SizeList& leading) {
  SizeList shared = leading;
  for (size_t& size : shared) {
    if (random.Below(2) == 0) size = 1;
  }
  while (!shared.empty() && shared[0] == 1 && random.Below(2) == 0) shared.erase(shared.begin());
  return shared;
}

}  // namespace rmsnorm::test

#endif  // RMSNORM_TEST_RANDOM_ROWS_H_

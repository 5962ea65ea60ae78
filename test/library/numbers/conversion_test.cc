// SPDX-License-Identifier: Apache-2.0
// Conversions between f32 and the 16-bit types, in lib/element.h and in the kernels that prepare a
// weight and store sums, compared with arithmetic conversions (rows.h). exhaustive.cc has the
// others, and every f32.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/guarded_memory.h"
#include "element.h"
#include "kernel_table.h"
#include "on_target.h"
#include "rows.h"
#include "target.h"

namespace rmsnorm::test {
namespace {

using internal::BF16;
using internal::BitsOf;
using internal::CastTo;
using internal::F16;
using internal::FromBits;
using internal::ToF32;

constexpr rmsnorm_dtype kShortDtypes[] = {RMSNORM_F16, RMSNORM_BF16};
constexpr size_t kPatterns = 1 << 16;

uint32_t SlowCast(rmsnorm_dtype dtype, uint32_t f32) {
  return Encode(dtype, Decode(RMSNORM_F32, f32));
}

bool IsNan(rmsnorm_dtype dtype, uint64_t bits) { return FormatOf(dtype).IsNan(bits); }

bool IsSame(rmsnorm_dtype dtype, uint64_t a, uint64_t b) {
  return a == b || (IsNan(dtype, a) && IsNan(dtype, b));
}

std::string Hex(uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llX", static_cast<unsigned long long>(bits));
  return text;
}

// f32 numbers at all places where a rounding to f16 or bf16 could go wrong, and many in between.
const std::vector<uint32_t>& DenseF32() {
  static const std::vector<uint32_t> numbers = [] {
    std::vector<uint32_t> all;
    const auto add_around = [&](double value) {
      const uint32_t bits = Encode(RMSNORM_F32, value);
      for (uint32_t i = 0; i < 5; ++i) all.push_back(bits + i - 2);
    };
    for (const rmsnorm_dtype dtype : kShortDtypes) {
      const Format format = FormatOf(dtype);
      for (uint32_t bits = 0; bits < kPatterns; ++bits) {
        const double value = Decode(dtype, bits);
        if (!std::isfinite(value)) continue;
        // Every number of the type, and the tie between it and the next number; for the last
        // number, infinity begins at the tie. The sum of two f16 or bf16 may need more bits than an
        // f32 has, but a tie does not.
        const int exponent =
            value == 0 ? format.min_exponent() : std::max(std::ilogb(value), format.min_exponent());
        add_around(value);
        add_around(value +
                   std::copysign(std::ldexp(1.0, exponent - format.mantissa_bits - 1), value));
      }
    }
    // NaNs: quiet and signalling, with each single payload bit and with all.
    for (const uint32_t sign : {0u, 0x80000000u}) {
      for (int bit = 0; bit < 23; ++bit) {
        all.push_back(sign | 0x7F800000u | 1u << bit);
        all.push_back(sign | 0x7F800000u | (0x7FFFFFu >> bit));
      }
    }
    // A prime stride combines all low bits with all high bits.
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 5003) {
      all.push_back(static_cast<uint32_t>(bits));
    }
    return all;
  }();
  return numbers;
}

template <class Short>
void ExpectExactWays(rmsnorm_dtype dtype) {
  for (uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float wide = ToF32(Short{static_cast<uint16_t>(bits)});
    const uint32_t slow = Encode(RMSNORM_F32, Decode(dtype, bits));
    ASSERT_TRUE(IsSame(RMSNORM_F32, slow, BitsOf(wide))) << Hex(bits);
    ASSERT_TRUE(IsSame(dtype, bits, CastTo<Short>(wide).bits)) << Hex(bits);
  }
}

TEST(Scalar, EveryShortPattern) {
  ExpectExactWays<F16>(RMSNORM_F16);
  ExpectExactWays<BF16>(RMSNORM_BF16);
}

TEST(Scalar, DenseF32) {
  for (const uint32_t bits : DenseF32()) {
    const uint16_t f16 = CastTo<F16>(FromBits(bits)).bits;
    const uint16_t bf16 = CastTo<BF16>(FromBits(bits)).bits;
    ASSERT_TRUE(IsSame(RMSNORM_F16, SlowCast(RMSNORM_F16, bits), f16)) << Hex(bits);
    ASSERT_TRUE(IsSame(RMSNORM_BF16, SlowCast(RMSNORM_BF16, bits), bf16)) << Hex(bits);
  }
}

// The check above would pass if the slow conversion had the same error, so these are known results.
TEST(Slow, KnownRoundings) {
  struct Known {
    uint32_t f32;
    uint32_t f16;
    uint32_t bf16;
  };
  for (const Known& known : {
           Known{0x3F800000, 0x3C00, 0x3F80},  // 1
           Known{0xC0490FDB, 0xC248, 0xC049},  // -pi
           Known{0x477FE000, 0x7BFF, 0x4780},  // 65504
           Known{0x477FEFFF, 0x7BFF, 0x4780},  // just below the tie to infinity
           Known{0x477FF000, 0x7C00, 0x4780},  // 65520, the tie
           Known{0x33800000, 0x0001, 0x3380},  // 2^-24, the smallest f16
           Known{0x33000000, 0x0000, 0x3300},  // 2^-25, a tie to even 0
           Known{0x33000001, 0x0001, 0x3300},
           Known{0x387FFFFF, 0x0400, 0x3880},  // carries into the normal numbers
           Known{0x3F808000, 0x3C04, 0x3F80},  // a tie of bf16, down to even
           Known{0x3F818000, 0x3C0C, 0x3F82},  // a tie of bf16, up to even
           Known{0x7F7FFFFF, 0x7C00, 0x7F80},  // the largest f32
           Known{0x00000001, 0x0000, 0x0000},
           Known{0x00008000, 0x0000, 0x0000},  // a tie of bf16 subnormals
           Known{0x00008001, 0x0000, 0x0001}, Known{0x80000000, 0x8000, 0x8000},  // -0
           Known{0xFF800000, 0xFC00, 0xFF80},                                     // -infinity
       }) {
    EXPECT_EQ(known.f16, SlowCast(RMSNORM_F16, known.f32)) << Hex(known.f32);
    EXPECT_EQ(known.bf16, SlowCast(RMSNORM_BF16, known.f32)) << Hex(known.f32);
  }
  EXPECT_TRUE(IsNan(RMSNORM_F16, SlowCast(RMSNORM_F16, 0x7FFFFFFF)));
  EXPECT_TRUE(IsNan(RMSNORM_BF16, SlowCast(RMSNORM_BF16, 0x7FFFFFFF)));
}

// `offset` is added to every number: 0, or -0 to add nothing.
void ExpectConverted(const std::vector<uint32_t>& numbers, rmsnorm_dtype from, const Rows& y,
                     double offset) {
  for (size_t j = 0; j < y.d(); ++j) {
    const uint32_t slow = Encode(y.dtype(), offset + Decode(from, numbers[j]));
    const uint64_t actual = y.bits(0, j);
    ASSERT_TRUE(IsSame(y.dtype(), slow, actual))
        << rmsnorm_dtype_name(from) << " " << Hex(numbers[j]) << " became "
        << rmsnorm_dtype_name(y.dtype()) << " " << Hex(actual) << ", not " << Hex(slow);
  }
}

// The kernels that prepare a weight and that store sums, called directly.
class TableTest : public testing::TestWithParam<std::string> {
 protected:
  TableTest() { EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target_.c_str(), table_)); }

  const std::string target_ = GetParam();
  const internal::KernelTable* table_ = nullptr;
  cases::GuardedMemory guard_;  // writing beyond the results is a crash
};

TEST_P(TableTest, AddOffset) {
  for (const rmsnorm_dtype from : kDtypes) {
    std::vector<uint32_t> numbers(kPatterns);
    std::iota(numbers.begin(), numbers.end(), 0u);
    if (from == RMSNORM_F32) numbers = DenseF32();
    const size_t d = numbers.size();
    Rows weight(from, 1, d);
    for (size_t j = 0; j < d; ++j) weight.set_bits(0, j, numbers[j]);
    for (const float offset : {-0.0f, 0.0f, 1.0f}) {
      Rows prepared(RMSNORM_F32, 1, d);
      void* const memory = guard_.Before(prepared.row_bytes());
      table_->add_offset(from, weight.row(0), d, offset, static_cast<float*>(memory));
      std::memcpy(prepared.row(0), memory, prepared.row_bytes());
      ASSERT_NO_FATAL_FAILURE(
          ExpectConverted(numbers, from, prepared, static_cast<double>(offset)));
      if (target_ == kReference) continue;  // the reference rounds any NaN correctly
      for (size_t j = 0; j < d; ++j) {
        if (!IsNan(RMSNORM_F32, prepared.bits(0, j))) continue;
        ASSERT_EQ(0x7FC00000u, prepared.bits(0, j) & 0x7FC0FFFFu)
            << "a NaN that a rounding carries";
      }
    }
  }
}

TEST_P(TableTest, Narrow) {
  const std::vector<uint32_t>& numbers = DenseF32();
  const size_t d = numbers.size();
  Rows sums(RMSNORM_F32, 1, d);
  for (size_t j = 0; j < d; ++j) sums.set_bits(0, j, numbers[j]);
  for (const rmsnorm_dtype to : kDtypes) {
    Rows rounded(to, 1, d);
    void* const memory = guard_.Before(rounded.row_bytes());
    table_->narrow(to, reinterpret_cast<const float*>(sums.row(0)), d, memory);
    std::memcpy(rounded.row(0), memory, rounded.row_bytes());
    ASSERT_NO_FATAL_FAILURE(ExpectConverted(numbers, RMSNORM_F32, rounded, -0.0));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, TableTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test

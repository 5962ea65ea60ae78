// SPDX-License-Identifier: Apache-2.0
// Conversions between f32 and the 16-bit types, in the kernels that prepare a weight and store
// sums, compared with arithmetic conversions (rows.h). cases/patterns.txt and floats.txt have the
// others.
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <rmsnorm/rmsnorm.hpp>
#include <string>
#include <vector>

#include "cases/guarded_memory.h"
#include "kernel_table.h"
#include "on_target.h"
#include "rows.h"
#include "target.h"

namespace rmsnorm::test {
namespace {

constexpr size_t kPatterns = 1 << 16;

Rows RowOf(rmsnorm_dtype dtype, const std::vector<uint32_t>& numbers) {
  Rows row(dtype, 1, numbers.size());
  for (size_t j = 0; j < numbers.size(); ++j) row.set_bits(0, j, numbers[j]);
  return row;
}

// f32 numbers at all places where a rounding to f16 or bf16 could go wrong, and many in between.
const Rows& DenseF32() {
  static const Rows numbers = [] {
    std::vector<uint32_t> all;
    const auto add_around = [&](double value) {
      const uint32_t bits = Encode(RMSNORM_F32, value);
      for (uint32_t i = 0; i < 5; ++i) all.push_back(bits + i - 2);
    };
    for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
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
    return RowOf(RMSNORM_F32, all);
  }();
  return numbers;
}

// The arithmetic conversion itself.
TEST(Encode, KnownRoundings) {
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
    const double value = Decode(RMSNORM_F32, known.f32);
    EXPECT_EQ(known.f16, Encode(RMSNORM_F16, value)) << value;
    EXPECT_EQ(known.bf16, Encode(RMSNORM_BF16, value)) << value;
  }
  for (const rmsnorm_dtype dtype : {RMSNORM_F16, RMSNORM_BF16}) {
    EXPECT_TRUE(FormatOf(dtype).IsNan(Encode(dtype, Decode(RMSNORM_F32, 0x7FFFFFFF))));
  }
}

// The kernels that prepare a weight and that store sums, called directly.
class TableTest : public testing::TestWithParam<std::string> {
 protected:
  TableTest() { EXPECT_EQ(RMSNORM_OK, internal::FindKernels(target_.c_str(), table_)); }

  // Calls a kernel that writes to memory beside an inaccessible page. Each number of its result is
  // one of `from`, to which `offset` is added: 0, or -0 to add nothing.
  template <class Kernel>
  Rows Convert(const Rows& from, double offset, rmsnorm_dtype to, const Kernel& kernel) {
    Rows expected(to, 1, from.d());
    for (size_t j = 0; j < from.d(); ++j) Set(expected, 0, j, offset + Get(from, 0, j));
    Rows actual(to, 1, from.d());
    void* const memory = guard_.Before(actual.row_bytes());
    kernel(memory);
    std::memcpy(actual.row(0), memory, actual.row_bytes());
    EXPECT_TRUE(SameBits(expected, actual)) << rmsnorm_dtype_name(from.dtype()) << " + " << offset;
    return actual;
  }

  const std::string target_ = GetParam();
  const internal::KernelTable* table_ = nullptr;
  cases::GuardedMemory guard_;
};

TEST_P(TableTest, AddOffset) {
  std::vector<uint32_t> patterns(kPatterns);
  std::iota(patterns.begin(), patterns.end(), 0u);
  for (const rmsnorm_dtype from : kDtypes) {
    const Rows weight = from == RMSNORM_F32 ? DenseF32() : RowOf(from, patterns);
    for (const float offset : {-0.0f, 0.0f, 1.0f}) {
      const Rows prepared = Convert(weight, double{offset}, RMSNORM_F32, [&](void* memory) {
        table_->add_offset(from, weight.row(0), weight.d(), offset, static_cast<float*>(memory));
      });
      if (target_ == kReference) continue;  // the reference rounds any NaN correctly
      for (size_t j = 0; j < prepared.d(); ++j) {
        if (!FormatOf(RMSNORM_F32).IsNan(prepared.bits(0, j))) continue;
        ASSERT_EQ(0x7FC00000u, prepared.bits(0, j) & 0x7FC0FFFFu)
            << "a NaN that a rounding carries";
      }
    }
  }
}

TEST_P(TableTest, Narrow) {
  const Rows& sums = DenseF32();
  for (const rmsnorm_dtype to : kDtypes) {
    Convert(sums, -0.0, to, [&](void* memory) {
      table_->narrow(to, reinterpret_cast<const float*>(sums.row(0)), sums.d(), memory);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, TableTest, testing::ValuesIn(SupportedTargets()), Name);

}  // namespace
}  // namespace rmsnorm::test
